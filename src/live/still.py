"""Still pictures of live figures, seen where scripts do not run: inline SVG, equal for equal data.

Letters and rules have the colour of the text around, so they show on light and on dark ground.
A map lies on white, where weak weights are seen best.
The other two colours are told apart by the colour-blind (Okabe and Ito), lines by dashes as well.
What is drawn is scaled: numbers in the SVG are the data, with as many decimals.
"""

import math
from collections.abc import Sequence
from html import escape

WIDTH, NAMES = (
    320,
    80,
)  # of a picture, and of names at its left, in pixels before it is stretched
BLUE, ORANGE = "#0072b2", "#d55e00"
Numbers = Sequence[float | int]
LINE = {"fill": "none", "stroke_width": 2, "vector_effect": "non-scaling-stroke"}


def bars(title: str, names: Sequence[str], weights: Numbers) -> str:
    """Return an SVG of bars: S names and S weights from 0 to 1, drawn to two decimals."""
    parts = []
    for i, (name, weight) in enumerate(zip(names, weights, strict=True)):
        place = f"translate({NAMES} {24 * i + 4}) scale({WIDTH - NAMES - 36} 16)"
        parts += [
            _text(name, y=24 * i + 16),
            _tag("rect", transform=place, width=f"{weight:.2f}", height=1, fill=BLUE),
            _text(f"{weight:.2f}", x=WIDTH, y=24 * i + 16, text_anchor="end"),
        ]
    return _svg(title, 24 * len(names), parts)


def heatmap(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    percents: Sequence[Sequence[int]],
) -> str:
    """Return an SVG of T rows of S whole percents, as cells the fuller in colour the greater."""
    side = max(1, min(24, (WIDTH - NAMES) // len(columns)))
    head = 10 + 7 * min(12, max(map(len, columns)))
    look = {"font_size": max(6, min(12, side))}
    base = round(0.7 * side)  # of letters in the middle of a cell
    parts = [
        _text(name, transform=f"translate({x + base} {head - 4}) rotate(-90)", **look)
        for x, name in zip(range(NAMES, WIDTH, side), columns, strict=False)
    ]
    corner = f"M{NAMES} {head}h{side * len(columns)}v{side * len(rows)}h-{side * len(columns)}z"
    parts.append(_tag("path", d=corner, fill="#fff", stroke="currentColor"))
    for t, (name, row) in enumerate(zip(rows, percents, strict=True)):
        top = head + side * t
        cells = (
            _tag(
                "path",
                d=f"M{x} {top}h{side}v{side}h-{side}z",
                opacity=f"{percent / 100:.2f}",
            )
            for x, percent in zip(range(NAMES, WIDTH, side), row, strict=False)
        )
        parts += [_text(name, y=top + base, **look), _tag("g", *cells, fill=BLUE)]
    return _svg(title, head + side * len(rows) + 1, parts)


def lines(
    title: str, xs: Numbers, solid: Numbers, dashed: Numbers, dots: Sequence = ()
) -> str:
    """Return an SVG of two curves and of dots (x, y); the axes end at whole numbers."""
    ys = [*solid, *dashed, *(y for _, y in dots)]
    (x0, x1), (y0, y1) = (
        (math.floor(min(v)), math.ceil(max(*v, min(v) + 1e-6))) for v in (xs, ys)
    )
    left, top, wide, high = 28, 8, WIDTH - 36, 150
    scale = f"scale({wide / (x1 - x0):.4f} {-high / (y1 - y0):.4f})"
    first, second = (
        " ".join(f"{x:.2f} {y:.2f}" for x, y in zip(xs, curve, strict=True))
        for curve in (solid, dashed)
    )
    spots = "".join(f"M {x:.2f} {y:.2f} h 0 " for x, y in dots)
    dot = {"stroke": "currentColor", "stroke_width": 5, "stroke_linecap": "round"}
    drawn = [
        _tag("polyline", points=second, stroke=ORANGE, stroke_dasharray="6 4", **LINE),
        _tag("polyline", points=first, stroke=BLUE, **LINE),
        _tag("path", d=spots, **LINE | dot),
    ]
    parts = [
        _tag(
            "path", d=f"M{left} {top}v{high}h{wide}", fill="none", stroke="currentColor"
        ),
        _text(y1, x=left - 4, y=top + 8, text_anchor="end"),
        _text(y0, x=left - 4, y=top + high, text_anchor="end"),
        _text(x0, x=left, y=top + high + 16),
        _text(x1, x=left + wide, y=top + high + 16, text_anchor="end"),
        _tag(
            "g",
            *drawn,
            transform=f"translate({left} {top}) {scale} translate({-x0} {-y1})",
        ),
    ]
    return _svg(title, top + high + 20, parts)


def _svg(title: str, height: int, parts: list[str]) -> str:
    return _tag(
        "svg",
        _tag("title", escape(title)),
        *parts,
        role="img",
        viewBox=f"0 0 {WIDTH} {height}",
        style="display:block;width:100%;max-width:26rem;height:auto;margin:0.5rem 0",
        fill="currentColor",
        font_size=12,
    )


def _text(text: str | int, **attributes) -> str:
    name = str(text).replace("-", "−") if isinstance(text, int) else text
    return _tag(
        "text", escape(name if len(name) < 13 else f"{name[:11]}…"), **attributes
    )


def _tag(kind: str, *inner: str, **attributes) -> str:
    said = "".join(
        f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items()
    )
    return f"<{kind}{said}>{''.join(inner)}</{kind}>" if inner else f"<{kind}{said}/>"
