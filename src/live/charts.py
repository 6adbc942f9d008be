"""Live figures of numbers: bars and plots."""

import math
from collections.abc import Sequence

import torch
from IPython.display import HTML
from torch import Tensor

from src.functional import masked_softmax
from src.live.page import labels, numbers, page
from src.live.still import bars, lines
from src.pooling import nadaraya_watson
from src.positions import sinusoidal_table


def score_playground(
    scores,
    keys: Sequence[str],
    queries: Sequence[str] = ("query",),
    *,
    width: int | float,
    title: str = "From scores to weights",
    caption: str = "Move d, and take keys away: what is left still sums to one.",
) -> HTML:
    """Bars of the softmax weights of one query, with the divisor √d and a mask to play with.

    Args:
        scores: (T, S), or (S,) for one query: scores before the division, such as dot products.
        keys: S names.
        queries: T names; with more than one the reader chooses.
        width: d at the start, a whole number from 1 to 4096: the width of the vectors.
        title: Above the figure.
        caption: Below the figure.

    Raises:
        TypeError: If ``keys`` or ``queries`` are no lists of strings.
        ValueError: If shapes do not fit, a score is not finite, or ``width`` is out of range.

    Example::

        from src import live

        live.score_playground(query @ key.T, keys=["cat", "dog", "car"], queries=["pet"], width=64)
    """
    keys, queries = labels("keys", keys), labels("queries", queries)
    one = torch.as_tensor(scores).dim() == 1
    rows = numbers("scores", [scores] if one else scores, len(queries), len(keys))
    if width != int(width) or not 1 <= width <= 4096:
        raise ValueError(f"width must be a whole number from 1 to 4096, got {width}")
    weights = _softmax(torch.tensor(rows[0]) / math.sqrt(width))
    return page(
        "score_playground",
        {"keys": keys, "queries": queries, "scores": rows, "width": int(width)},
        title=title,
        caption=caption,
        still=f"Weights of “{queries[0]}” at d = {int(width)}: {_shares(keys, weights)}.",
        picture=bars(f"Weights of {queries[0]}", keys, weights),
    )


def kernel_regression(
    keys,
    values,
    grid,
    truth,
    held_out: tuple,
    *,
    width: float | int = 1.0,
    widths: tuple[float | int, float | int] = (0.05, 3.0),
    title: str = "Width, kernel and what a query sees",
    caption: str = "Find the width with the least error; then point at the plot: its x is the "
    "query.",
) -> HTML:
    """Nadaraya–Watson regression computed again at each move, with the kernels of `src.pooling`.

    Args:
        keys: (S,) places of the examples.
        values: (S,) their values.
        grid: (G,) rising, at equal steps: places to draw the curves at, and possible queries.
        truth: (G,) the true function at the grid.
        held_out: A pair ``(x, y)`` of (N,) examples that the estimate does not use.
        width: Width at the start.
        widths: Least and greatest width; between them lie 40 equal ratios.
        title: Above the figure.
        caption: Below the figure.

    Raises:
        ValueError: If shapes do not fit, the grid does not rise evenly, a number is not finite, or
            not 0 < least ≤ width ≤ greatest.

    Example::

        held_out = examples(200, seed=1)
        live.kernel_regression(keys, values, queries, f(queries), held_out, width=0.5)
    """
    keys = numbers("keys", keys, "S")
    grid = numbers("grid", grid, "G")
    steps = torch.tensor(grid).diff()
    if (
        len(grid) < 2
        or steps.min() <= 0
        or steps.max() - steps.min() > 0.01 * steps.max() + 2e-3
    ):
        raise ValueError("grid must rise at equal steps")
    low, high = widths
    if not 0 < low <= width <= high or low == high:
        raise ValueError(
            f"width must lie within widths, 0 < {low} ≤ width ≤ {high}, got {width}"
        )
    ladder = {round(low * (high / low) ** (i / 40), 3) for i in range(41)}
    ladder = sorted(ladder | {round(width, 3)})
    x, y = held_out
    x = numbers("held_out[0]", x, "N")
    values, truth = (
        numbers("values", values, len(keys)),
        numbers("truth", truth, len(grid)),
    )
    made = nadaraya_watson(*map(torch.tensor, (grid, keys, values)), "gaussian", width)
    estimate = numbers("estimate", made, len(grid), digits=2)
    return page(
        "kernel_regression",
        {
            "keys": keys,
            "values": values,
            "grid": grid,
            "truth": truth,
            "test": {"x": x, "y": numbers("held_out[1]", y, len(x))},
            "widths": ladder,
            "start": ladder.index(round(width, 3)),
        },
        title=title,
        caption=caption,
        still=f"{len(keys)} examples (dots), the true curve (dashed) and the estimate with a "
        f"Gaussian kernel of width {width:.2f} (solid).",
        picture=lines(
            "Examples, true curve and estimate",
            grid,
            estimate,
            truth,
            list(zip(keys, values, strict=False)),
        ),
    )


def position_waves(
    table,
    *,
    title: str = "Sinusoidal positions",
    caption: str = "The first pairs turn fast, the last ones slowly. Point at a plot to choose a "
    "position.",
) -> HTML:
    """One pair of columns of the sinusoidal table as waves, and the dot products of one position.

    Args:
        table: (n, D) with even D, as ``sinusoidal_table(n, D)`` returns it. 64 by 32 is a good
            size: it costs 13 kB.
        title: Above the figure.
        caption: Below the figure.

    Raises:
        ValueError: If D is odd, n is below 2, or the table is no sinusoidal one: the printed
            periods 2π · 10000^(2j/D) would be false.

    Example::

        live.position_waves(sinusoidal_table(64, 32))
    """
    rows = numbers("table", table, "n", "D")
    length, width = len(rows), len(rows[0])
    if length < 2 or width % 2:
        raise ValueError(
            f"table must have 2 rows or more and even width, got {length} by {width}"
        )
    expected = sinusoidal_table(length, width, torch.float64)
    if (torch.tensor(rows, dtype=torch.float64) - expected).abs().max() > 0.01:
        raise ValueError(
            "table must be the one of sinusoidal_table, sines in the even columns"
        )
    periods = [2 * math.pi * 10000 ** (2 * j / width) for j in range(width // 2)]
    return page(
        "position_waves",
        {"table": rows, "periods": [round(p, 1) for p in periods]},
        title=title,
        caption=caption,
        still=f"Columns 0 (solid) and 1 (dashed) repeat every {periods[0]:.1f} positions, "
        f"columns {width - 2} and {width - 1}, which are not drawn, every {periods[-1]:.0f}.",
        picture=lines(
            "Columns 0 and 1 over the positions",
            range(length),
            *list(zip(*rows, strict=False))[:2],
        ),
    )


def attention_or_pooling(
    things: Sequence[str],
    features: Sequence[str],
    keys,
    values,
    units: Sequence[str],
    queries,
    names: Sequence[str],
    *,
    title: str = "Attention beside pooling",
    caption: str = "Choose a query or make your own: only attention answers to it.",
) -> HTML:
    """The same values averaged by attention, by average pooling and by max pooling.

    Args:
        things: S names of what lies there, the rows of ``keys`` and ``values``.
        features: F names of the entries of a key and of a query.
        keys: (S, F): what each thing shows.
        values: (S, U): what each thing gives.
        units: U names of a value's entries, with their units.
        queries: (P, F): queries to start from, each entry a multiple of 0.5 from −8 to 8.
        names: P names of those queries.
        title: Above the figure.
        caption: Below the figure.

    Raises:
        TypeError: If names are no lists of strings.
        ValueError: If shapes do not fit, a number is not finite, or a query is off the sliders.

    Example::

        units = ["kcal", "g protein", "g fibre"]
        kinds = ["sweet", "meaty", "green", "hot"]
        live.attention_or_pooling(dishes, kinds, looks, contents, units, tastes, guests)
    """
    things, features = labels("things", things), labels("features", features)
    units, names = labels("units", units), labels("names", names)
    rows = numbers("queries", queries, len(names), len(features))
    off = [q for row in rows for q in row if abs(q) > 8 or q * 2 != int(q * 2)]
    if off:
        raise ValueError(f"queries must be multiples of 0.5 from −8 to 8, got {off[0]}")
    keys = numbers("keys", keys, len(things), len(features))
    weights = _softmax(torch.tensor(keys) @ torch.tensor(rows[0]))
    return page(
        "attention_or_pooling",
        {
            "things": things,
            "features": features,
            "keys": keys,
            "contents": numbers("values", values, len(things), len(units)),
            "units": units,
            "names": names,
            "queries": rows,
        },
        title=title,
        caption=caption,
        still=f"Attention with the query “{names[0]}” weighs {_shares(things, weights)}.",
        picture=bars(f"Weights for the query of {names[0]}", things, weights),
    )


def _softmax(scores: Tensor) -> list[float]:
    """Return the weights of scores, of two decimals."""
    return numbers("weights", masked_softmax(scores), len(scores), digits=2)


def _shares(names: list[str], weights: list[float]) -> str:
    return ", ".join(
        f"{name} {weight:.2f}" for name, weight in zip(names, weights, strict=True)
    )
