"""Live figures of numbers: bars and plots."""

import math
from collections.abc import Sequence

import torch
from IPython.display import HTML

from src.functional import masked_softmax
from src.live.page import labels, numbers, page


def score_playground(
    scores,
    keys: Sequence[str],
    queries: Sequence[str] = ("query",),
    *,
    width: int,
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
    weights = masked_softmax(torch.tensor(rows[0]) / math.sqrt(width)).tolist()
    shares = ", ".join(f"{key} {weight:.2f}" for key, weight in zip(keys, weights, strict=True))
    return page(
        "score_playground",
        {"keys": keys, "queries": queries, "scores": rows, "width": int(width)},
        title=title,
        caption=caption,
        still=f"Weights of “{queries[0]}” at d = {int(width)}: {shares}.",
    )
