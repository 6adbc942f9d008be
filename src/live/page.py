"""One live figure as one HTML output: checks of its data, rounding, and the page's text.

An output holds everything that it needs, so it works in the book without network, in Jupyter and
in an isolated frame as Colab's. Where scripts do not run, a still picture and a sentence are seen.
"""

import json
import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

import torch
from IPython.display import HTML
from torch import Tensor

FOLDER = Path(__file__).parent
STILL = (
    "This is a still picture: moving and choosing need scripts, which do not run here."
)


def page(
    kind: str, data: dict, *, title: str, caption: str, still: str, picture: str
) -> HTML:
    """Join the shared code, the figure's own and its data into one output.

    Args:
        kind: Name of the figure's script, without its ending.
        data: What `build` in that script takes; already rounded.
        title: Names the figure, also for a screen reader.
        caption: Stands below it.
        still: Says what the figure shows at first; seen only where scripts do not run.
        picture: An ``svg`` element that shows it, seen only there as well.

    Returns:
        The output. Its id follows from its data: equal data give equal text, and figures of
        different data never clash on one page.
    """
    payload = _literal(data)
    name = f"live-{kind.replace('_', '-')}-{zlib.crc32(payload.encode()):08x}"
    core, style, build = (_read(file) for file in ("live.js", "live.css", f"{kind}.js"))
    return HTML(
        # The attribute keeps JupyterLab from taking arrow keys as its own shortcuts.
        f'<figure class="live" id="{name}" role="group" aria-label="{escape(title)}" '
        f'data-lm-suppress-shortcuts="true" style="margin:1rem 0">\n'
        f"<div><strong>{escape(title)}</strong><p>{picture}{escape(still)} {STILL}</p>"
        f"<small>{escape(caption)}</small></div>\n</figure>\n"
        f'<script>\n(() => {{\n"use strict";\n{core}\n{build}\n'
        f'start("{name}", {_literal(style)}, {payload}, build);\n}})();\n</script>'
    )


def numbers(name: str, values, *axes: str | int, digits: int = 3) -> list:
    """Check numbers and round them.

    Args:
        name: The argument's name, for the message.
        values: A tensor, an array, nested lists, or a list of tensors of one shape.
        axes: What each axis must be: a length, or a letter for any length of at least 1.
        digits: Decimals to keep.

    Returns:
        Nested lists of floats.

    Raises:
        ValueError: If the shape differs from ``axes`` or a number is not finite.
    """
    return _round(_tensor(name, values, axes), digits).tolist()


def percents(name: str, values, *axes: str | int) -> list:
    """Check weights or probabilities, and round them to whole percents: a short text for maps.

    Raises:
        ValueError: If one is below 0 or above 1, or as `numbers`.
    """
    tensor = _tensor(name, values, axes)
    for bound in (tensor.min().item(), tensor.max().item()):
        if not -1e-6 <= bound <= 1 + 1e-3:
            raise ValueError(f"{name} must lie between 0 and 1, got {bound:.4g}")
    return (100 * _round(tensor, 2)).round().int().tolist()


def labels(name: str, values: Sequence, length: int | None = None) -> list[str]:
    """Check a list of texts.

    Raises:
        TypeError: If it is a single string or holds something else than strings.
        ValueError: If it is empty or does not have ``length`` entries.
    """
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} must be a list of strings, got {values!r}")
    if not len(values) or length not in (None, len(values)):
        raise ValueError(
            f"{name} must have {length or 'some'} entries, got {len(values)}"
        )
    return list(values)


def _tensor(name: str, values, axes: Sequence[str | int]) -> Tensor:
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], Tensor):
        values = torch.stack([value.detach() for value in values])
    tensor = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    wanted = ", ".join(map(str, axes)) + ("," if len(axes) == 1 else "")
    fits = (
        len(axes) == tensor.dim()
        and tensor.numel()
        and all(
            isinstance(axis, str) or axis == size
            for axis, size in zip(axes, tensor.shape, strict=True)
        )
    )
    if not fits:
        raise ValueError(
            f"{name} must have shape ({wanted}), got {tuple(tensor.shape)}"
        )
    if not tensor.isfinite().all():
        raise ValueError(f"{name} must be finite")
    return tensor


def _round(tensor: Tensor, digits: int) -> Tensor:
    # Twice: 1/8 computed as 0.12500001 here and 0.12499999 there is 0.125, and then 0.12, on both.
    return tensor.round(decimals=6).round(decimals=digits) + 0.0  # + 0.0: no "-0.0"


def _literal(data) -> str:
    """Write data for a script; `<` is escaped, since `</script>` would end it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _read(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8").strip()
