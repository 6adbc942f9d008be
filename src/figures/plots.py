"""Plots of the book, and the package's own source shown in a notebook.

Nothing imports this module but notebooks. Every picture is drawn on a white card of one width, so
that it reads alike on a light and on a dark page and its letters have one size in all chapters.
Colours are Okabe and Ito's, which readers with any colour vision can tell apart; lines differ in
dash pattern as well, so that no meaning hangs on colour alone.

A picture is never compared by the checks: assert the data in the cell that draws it, and end that
cell with `plt.show()`.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe & Ito (2008), "Color Universal Design": black first, yellow left out (too faint on white).
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = COLORS = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
LINE_COLORS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK)
DASHES = (
    "-",
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (9, 3)),
    (0, (1, 1)),
    "-",
)
REFERENCE = {
    "color": "#777777",
    "linestyle": (0, (4, 3)),
    "linewidth": 1.0,
    "zorder": 1,
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

WIDTH = (
    6.8  # inches, of every picture: the column of text, at about two pixels per point
)
DPI = 144

STYLE = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.figsize": (WIDTH, 3.2),
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "axes.facecolor": "white",
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.prop_cycle": plt.cycler(color=LINE_COLORS, linestyle=DASHES),
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters on every machine
    "font.size": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "image.cmap": "Blues",
}


def use_style() -> None:
    """Make the book's style the default of matplotlib; call it once, after the imports.

    In a notebook the pictures also keep their full width: the inline backend would crop each to
    its contents, and then letters would have another size in every figure.
    """
    plt.rcParams.update(STYLE)
    shell = get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        from matplotlib_inline.config import InlineBackend

        InlineBackend.instance(parent=shell).print_figure_kwargs = {"bbox_inches": None}


def panels(
    count: int, *, columns: int = 4, height: float = 2.2, **kwargs
) -> tuple[Figure, list]:
    """Make a figure of full width with `count` axes in rows of at most `columns`.

    Args:
        count: number of axes, at least 1.
        columns: axes in one row.
        height: inches, of one row.
        **kwargs: for `plt.subplots`, such as `sharey=True`.

    Returns:
        The figure and a flat list of `count` axes.

    Raises:
        ValueError: if `count` or `columns` is less than 1.
    """
    if count < 1 or columns < 1:
        raise ValueError(
            f"count and columns must be at least 1, got {count} and {columns}"
        )
    columns = min(count, columns)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH, height * rows), squeeze=False, **kwargs
    )
    for spare in axes.flat[count:]:
        spare.remove()
    return figure, list(axes.flat[:count])


def heatmap(
    values,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "keys",
    ylabel: str = "queries",
    titles: Sequence[str] | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    annotate: bool = False,
    signed: bool = False,
    colorbar: bool = True,
    per_row: int = 4,
    height: float | None = None,
) -> list[Axes]:
    """Draw one matrix, or several beside each other on one common colour scale.

    Args:
        values: (T, S) or (N, T, S), real: a tensor, an array or nested lists. Rows are queries.
        rows: T labels of the rows, for instance the target's tokens.
        columns: S labels of the columns.
        xlabel: name of the column axis.
        ylabel: name of the row axis.
        titles: N titles, one a matrix.
        vmin: value of the lightest colour; without it 0, or the least value if that is negative.
        vmax: value of the darkest colour; without it the greatest value.
        annotate: write each value into its cell, with two decimals.
        signed: colours that diverge from white at 0, on a scale symmetric about it.
        colorbar: draw the colour scale.
        per_row: matrices in one row of the figure.
        height: inches of one row of the figure; without it chosen from T and S.

    Returns:
        The axes, one a matrix.

    Raises:
        ValueError: if `values` has neither rank 2 nor rank 3, is empty or is not finite, or if
            `rows`, `columns` or `titles` have another length than its axis.
    """
    data = _matrices(values, rows, columns, titles)
    count, height_in_cells, width_in_cells = data.shape
    low, high = _limits(data, vmin, vmax, signed)
    if height is None:
        cell = (WIDTH - 1.2) / min(count, per_row) / width_in_cells
        labels = 0.06 * max(map(len, columns)) if columns is not None else 0.15
        height = min(max(cell * height_in_cells, 0.6), 3.2) + 0.5 + labels
    figure, axes = panels(count, columns=per_row, height=height, layout="compressed")
    for index, (axis, matrix) in enumerate(zip(axes, data, strict=True)):
        image = axis.imshow(
            matrix,
            vmin=low,
            vmax=high,
            cmap="PuOr" if signed else "Blues",
            interpolation="nearest",
            aspect="equal",
        )
        axis.grid(False)
        axis.spines[:].set_visible(True)
        _label_cells(axis, rows, columns)
        axis.set_title("" if titles is None else titles[index])
        axis.set_ylabel("" if index % per_row else ylabel)
        axis.set_xlabel("" if index + per_row < count else xlabel)
        if annotate:
            _annotate(axis, matrix, low, high, signed)
    if colorbar:
        figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, aspect=25)
    return axes


def curves(
    x,
    lines: Mapping[str, object],
    *,
    xlabel: str,
    ylabel: str,
    title: str | None = None,
    logx: bool = False,
    logy: bool = False,
    markers: bool = False,
    reference: Mapping[str, object] | None = None,
    order: Sequence[str] | None = None,
    height: float = 3.2,
    ax: Axes | None = None,
) -> Axes:
    """Draw named lines over one horizontal axis.

    Args:
        x: (N,) real, or a mapping from each line's name to its own.
        lines: name to (N,) real values; the names become the legend.
        xlabel: name of the horizontal axis, with its unit.
        ylabel: name of the vertical axis, with its unit.
        title: title above the axes; a caption mostly serves better.
        logx: logarithmic horizontal axis.
        logy: logarithmic vertical axis.
        markers: mark the points, for few measured values.
        reference: lines to compare with, thin, grey and dashed.
        order: names in the order of the colours, where panels share names and do not draw the
            same lines; the order of `lines` if None.
        height: inches; the width is the book's. Ignored where `ax` is given.
        ax: axes to draw into; without it a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: if there is no line, if there are more lines than styles to tell them apart, if
            a line is not in `order`, or if a line and its `x` differ in length.
    """
    order = list(lines if order is None else order)
    if not lines or len(order) > len(LINE_COLORS):
        raise ValueError(
            f"lines must be 1 to {len(LINE_COLORS)} in number, got {len(order)}"
        )
    if missing := set(lines) - set(order):
        raise ValueError(f"order must name every line, but lacks {sorted(missing)}")
    if ax is None:
        _, ax = plt.subplots(figsize=(WIDTH, height))
    for name, values in {**lines, **(reference or {})}.items():
        own_x, values = _array(x[name] if isinstance(x, Mapping) else x), _array(values)
        if own_x.shape != values.shape:
            raise ValueError(
                f"lines[{name!r}] must have the shape of its x, {own_x.shape}, got {values.shape}"
            )
        style = REFERENCE
        if name in lines:
            index = order.index(name)
            style = {"color": LINE_COLORS[index], "linestyle": DASHES[index]}
            style["marker"] = MARKERS[index] if markers else None
        ax.plot(own_x, values, label=name, **style)
    ax.set(
        xlabel=xlabel,
        ylabel=ylabel,
        title=title or "",
        xscale="log" if logx else "linear",
        yscale="log" if logy else "linear",
    )
    if len(lines) + len(reference or {}) > 1:
        ax.legend()
    return ax


def show_source(*objects: object) -> Markdown:
    """Show the package's own source of functions, classes or methods in a notebook.

    Args:
        *objects: what to show, in this order; anything that `inspect.getsource` takes.

    Returns:
        A Markdown display: one highlighted block an object, under its file's and its own name. Of a
        longer docstring it keeps the first line; the rest is in the reference. The text holds
        neither addresses nor line numbers, so it changes only when the source does.

    Raises:
        TypeError: if there is nothing to show, or an object has no Python source.
    """
    if not objects:
        raise TypeError("show_source() needs at least one object")
    blocks = []
    for item in objects:
        item = inspect.unwrap(item) if callable(item) else item
        source = _with_short_docstrings(textwrap.dedent(inspect.getsource(item)))
        file = Path(inspect.getsourcefile(item))
        depth = inspect.getmodule(item).__name__.count(".")
        path = "/".join(file.parts[-depth - 1 :])
        blocks.append(f"*{path}*, `{item.__qualname__}`\n\n```python\n{source}```")
    return Markdown("\n\n".join(blocks))


def _with_short_docstrings(source: str) -> str:
    """Cut every docstring after its first line."""
    lines = source.splitlines(keepends=True)
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, _DOCUMENTED)]
    for node in sorted(nodes, key=lambda n: n.lineno, reverse=True):
        first = node.body[0]
        if ast.get_docstring(node) and first.end_lineno > first.lineno:
            indent = " " * first.col_offset
            summary = ast.get_docstring(node).splitlines()[0]
            lines[first.lineno - 1 : first.end_lineno] = [f'{indent}"""{summary}"""\n']
    return "".join(lines)


def _array(values) -> np.ndarray:
    """Turn tensors (detached, on the CPU), arrays and lists into a float array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    elif isinstance(values, (list, tuple)):
        values = [_array(v) if hasattr(v, "detach") else v for v in values]
    return np.asarray(values, dtype=float)


def _matrices(values, rows, columns, titles) -> np.ndarray:
    """Return the values as (N, T, S), after checking them and their labels."""
    data = _array(values)
    if data.ndim not in (2, 3):
        raise ValueError(f"values must have rank 2 or 3, got shape {data.shape}")
    if not data.size or not np.isfinite(data).all():
        raise ValueError(f"values must be finite and not empty, got shape {data.shape}")
    data = data if data.ndim == 3 else data[None]
    for name, labels, length in zip(
        ("titles", "rows", "columns"), (titles, rows, columns), data.shape, strict=True
    ):
        if labels is not None and len(labels) != length:
            raise ValueError(f"{name} must have {length} entries, got {len(labels)}")
    return data


def _limits(data, vmin, vmax, signed) -> tuple[float, float]:
    """Return the two ends of the colour scale."""
    if signed:
        bound = max(abs(data).max(), np.finfo(float).tiny) if vmax is None else vmax
        return -bound, bound
    low = min(data.min(), 0.0) if vmin is None else vmin
    high = data.max() if vmax is None else vmax
    return low, high if high > low else low + 1.0


def _label_cells(axis: Axes, rows, columns) -> None:
    """Write labels at the cells' edges; without labels leave matplotlib's few numbers."""
    if columns is not None:
        turned = max(map(len, columns)) > 2
        axis.set_xticks(
            range(len(columns)),
            columns,
            rotation=55 if turned else 0,
            ha="right" if turned else "center",
            rotation_mode="anchor",
        )
    else:
        axis.xaxis.get_major_locator().set_params(integer=True)
    if rows is not None:
        axis.set_yticks(range(len(rows)), rows)
    else:
        axis.yaxis.get_major_locator().set_params(integer=True)


def _annotate(axis: Axes, matrix, low: float, high: float, signed: bool) -> None:
    """Write each value into its cell, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(matrix):
        depth = abs(value) / high if signed else (value - low) / (high - low)
        axis.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=7,
            color="white" if depth > 0.6 else "black",
        )
