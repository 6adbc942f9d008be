"""Drawings that explain a structure; plots of measured data live in `src.figures`.

Only notebooks import this module.
"""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from src.figures.plots import BLUE, GREEN, ORANGE, SKY, WIDTH

GREY = "#555555"


def transformer_diagram() -> Figure:
    """Draw the encoder, the decoder and what joins them, from the ids at the bottom upwards.

    Source: after the description in Vaswani et al. 2017, §3; the drawing is our own.
    """
    figure, axis = plt.subplots(figsize=(WIDTH, 5.4))
    axis.set(xlim=(0, 10), ylim=(0, 10.2))
    axis.axis("off")

    _frame(axis, 0.9, 2.35, 3.6, 3.0, "encoder layer, N times")
    _frame(axis, 5.5, 2.35, 3.6, 4.7, "decoder layer, N times")
    left, right = 2.7, 7.3
    encoder = [
        (0.55, "source ids", None),
        (1.55, "embedding + position", ORANGE),
        (2.75, "self-attention", BLUE),
        (3.45, "Add & Norm", GREEN),
        (4.15, "feed-forward", SKY),
        (4.85, "Add & Norm", GREEN),
    ]
    decoder = [
        (0.55, "target ids, shifted right", None),
        (1.55, "embedding + position", ORANGE),
        (2.75, "masked self-attention", BLUE),
        (3.45, "Add & Norm", GREEN),
        (4.3, "cross-attention", BLUE),
        (5.0, "Add & Norm", GREEN),
        (5.8, "feed-forward", SKY),
        (6.5, "Add & Norm", GREEN),
        (7.75, "output matrix", ORANGE),
        (8.55, "softmax", ORANGE),
        (9.5, "probabilities of the next token", None),
    ]
    for centre, blocks in ((left, encoder), (right, decoder)):
        for (low, *_), (high, *_) in zip(blocks, blocks[1:], strict=False):
            _arrow(axis, (centre, low + 0.24), (centre, high - 0.24))
        for height, text, color in blocks:
            _block(axis, centre, height, text, color)
        for (sublayer, *_), (height, text, _) in zip(blocks, blocks[1:], strict=False):
            if text == "Add & Norm":
                _residual(axis, centre, sublayer, height)

    # The memory leaves the encoder at its top and enters every decoder layer from the left.
    axis.plot([left, left, 5.0, 5.0], [5.09, 5.8, 5.8, 4.3], color=GREY, lw=1.2, ls="-")
    _arrow(axis, (5.0, 4.3), (right - 1.45, 4.3))
    axis.text(
        3.85, 5.95, "memory: keys and values", ha="center", fontsize=8, color=GREY
    )
    return figure


def _block(axis: Axes, x: float, y: float, text: str, color: str | None) -> None:
    if color is not None:
        axis.add_patch(
            FancyBboxPatch(
                (x - 1.4, y - 0.19),
                2.8,
                0.38,
                boxstyle="round,pad=0.05",
                facecolor=color + "33",
                edgecolor=color,
                linewidth=1.2,
            )
        )
    axis.text(x, y, text, ha="center", va="center", fontsize=8.5)


def _frame(
    axis: Axes, x: float, y: float, width: float, height: float, text: str
) -> None:
    axis.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0.05",
            facecolor="#f5f5f5",
            edgecolor="#999999",
            linestyle=(0, (4, 3)),
            linewidth=1,
        )
    )
    rotated = {
        "rotation": 90,
        "ha": "center",
        "va": "center",
        "fontsize": 8,
        "color": GREY,
    }
    side = x - 0.25 if x < 5 else x + width + 0.3
    axis.text(side, y + height / 2, text, **rotated)


def _residual(axis: Axes, x: float, sublayer: float, norm: float) -> None:
    """The way around a sublayer, from its input to the sum."""
    start, side = sublayer - 0.32, x + 1.62
    axis.plot([x, side, side], [start, start, norm], color=GREY, lw=1.0, ls="-")
    _arrow(axis, (side, norm), (x + 1.45, norm))


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.annotate(
        "",
        end,
        start,
        arrowprops={
            "arrowstyle": "-|>",
            "color": GREY,
            "lw": 1.2,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
