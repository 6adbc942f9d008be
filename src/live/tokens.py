"""Live figures of tokens: where they look, and how they are written."""

from collections.abc import Sequence

import torch
from IPython.display import HTML

from src.live.page import labels, numbers, page, percents
from src.live.still import heatmap

TOP = 5


def decoding_steps(
    sources: Sequence[Sequence[str]],
    targets: Sequence,
    probabilities: Sequence,
    attention: Sequence,
    vocabulary: Sequence[str],
    *,
    cached: Sequence[Sequence[int]] | None = None,
    title: str = "A translation, step by step",
    caption: str = "Go on with the buttons, or choose a step or a token that is written.",
) -> HTML:
    """Sentences as a model writes them: candidates and attention at each step.

    All sentences come as lists with one entry a sentence. With more than one layer or head the
    reader chooses; the mean of the heads is offered as well.

    Args:
        sources: For each sentence its S source tokens; S differs between sentences.
        targets: For each its T token ids in the order of writing, without ``<bos>``, with
            ``<eos>`` if it was written: (T,) whole numbers.
        probabilities: For each (T, V): what the model gave every token at that step, the softmax
            of its logits. The five best are shown, as far as they round to 0.01 or more.
        attention: For each (T, S), or (L, H, T, S) for L layers and H heads: the weights with
            which step t looks at the source.
        vocabulary: V tokens, the id being the place: ``tokenizer.tokens(range(len(tokenizer)))``.
        cached: For each T whole numbers: positions in the cache after that step, as measured.
        title: Above the figure.
        caption: Below the figure.

    Raises:
        TypeError: If tokens are no lists of strings.
        ValueError: If lengths or shapes do not fit, or a probability or weight is outside 0 to 1.

    Example::

        logits = model(src, tgt_in)[0]
        attention = torch.stack(model.attention_maps(src, tgt_in)["cross"])[:, 0]
        live.decoding_steps([source_tokens], [tgt_out[0]], [logits.softmax(-1)], [attention], words)
    """
    words = labels("vocabulary", vocabulary)
    lists = {"targets": targets, "probabilities": probabilities, "attention": attention}
    lists |= {} if cached is None else {"cached": cached}
    _check_lengths(len(sources), "sources", lists)
    sentences = [
        _sentence(words, *parts, cached=None if cached is None else cached[i])
        for i, parts in enumerate(
            zip(sources, targets, probabilities, attention, strict=True)
        )
    ]
    _check_heads("attention", [s["attention"] for s in sentences])
    first = sentences[0]
    source, target = first["source"], first["target"]
    mean = torch.tensor(first["attention"][0], dtype=torch.float64).mean(0) / 100
    return page(
        "decoding_steps",
        {"sentences": sentences},
        title=title,
        caption=caption,
        still=f"“{' '.join(source)}” becomes “{' '.join(target)}”. Each row is a step; the "
        "fuller the colour, the more it looks at that source token (layer 0, mean of the heads).",
        picture=heatmap(
            "Attention of each step", target, source, percents("mean", mean, "T", "S")
        ),
    )


def head_maps(
    tokens: Sequence[Sequence[str]],
    maps: Sequence,
    *,
    title: str = "Where each token looks",
    caption: str = "Choose a head by its map, then point at a token, or walk with the arrow keys.",
) -> HTML:
    """Self-attention on real sentences: choose layer and head, and see a token's row of weights.

    Layers and heads are counted from 0, as in Python. A weight costs about three letters of the
    notebook: twelve heads, six layers and twelve tokens make 30 kB a sentence.

    Args:
        tokens: For each sentence its n tokens; n differs between sentences.
        maps: For each sentence (L, H, n, n), or (n, n) for a single head: rows are queries.
        title: Above the figure.
        caption: Below the figure.

    Raises:
        TypeError: If tokens are no lists of strings.
        ValueError: If lengths or shapes do not fit, or a weight is outside 0 to 1.

    Example::

        reading = read(encoder, tokenizer, ["The cat sat."])
        maps = torch.stack(reading.weights)[:, 0, :, :n, :n]  # n = len(reading.tokens[0])
        live.head_maps(reading.tokens[:1], [maps])
    """
    _check_lengths(len(tokens), "tokens", {"maps": maps})
    sentences = []
    for names, weights in zip(tokens, maps, strict=True):
        names = labels("tokens", names)
        size = len(names)
        sentences.append(
            {"tokens": names, "maps": _layers_and_heads("maps", weights, size, size)}
        )
    _check_heads("maps", [s["maps"] for s in sentences])
    first, maps = sentences[0]["tokens"], sentences[0]["maps"]
    return page(
        "head_maps",
        {"sentences": sentences},
        title=title,
        caption=caption,
        still=f"“{' '.join(first)}” in layer 0 of {len(maps)}, head 0 of {len(maps[0])}. Each row "
        "is a query token; the fuller the colour, the more it looks at that token.",
        picture=heatmap("Weights of layer 0, head 0", first, first, maps[0][0]),
    )


def _sentence(words, source, target, probabilities, attention, cached) -> dict:
    """Check and round one sentence of `decoding_steps`."""
    source = labels("sources", source)
    steps = len(target)
    ids = [int(i) for i in numbers("targets", target, "T")]
    if not 0 <= min(ids) <= max(ids) < len(words):
        raise ValueError(
            f"targets must be ids below {len(words)}, got {min(ids)} to {max(ids)}"
        )
    percents("probabilities", probabilities, steps, len(words))  # refuses what is none
    chances = torch.tensor(numbers("probabilities", probabilities, steps, len(words)))
    # Equal ones stand in the order of their ids, so that the order is the same on every machine.
    ranked = (-chances).sort(dim=-1, stable=True).indices[:, :TOP]
    data = {
        "source": source,
        "target": [words[i] for i in ids],
        "chances": [
            round(row[i].item(), 3) for row, i in zip(chances, ids, strict=True)
        ],
        "candidates": [
            [[words[i], round(row[i].item(), 3)] for i in best if row[i] >= 0.005]
            for row, best in zip(chances, ranked.tolist(), strict=True)
        ],
        "attention": _layers_and_heads("attention", attention, steps, len(source)),
    }
    if cached is not None:
        data["cached"] = [int(n) for n in numbers("cached", cached, steps)]
    return data


def _layers_and_heads(name: str, weights, rows: int, columns: int) -> list:
    """Return (L, H, T, S) whole percents; a single map becomes the only head of one layer."""
    if torch.as_tensor(weights).dim() == 2:
        weights = torch.as_tensor(weights)[None, None]
    return percents(name, weights, "L", "H", rows, columns)


def _check_lengths(count: int, name: str, lists: dict[str, Sequence]) -> None:
    """Demand at least one sentence, and an entry for each in every list."""
    if not count:
        raise ValueError(f"{name} must hold at least one sentence")
    for other, values in lists.items():
        if len(values) != count:
            raise ValueError(
                f"{other} must have {count} entries, as {name}, got {len(values)}"
            )


def _check_heads(name: str, maps: list) -> None:
    """Demand as many layers and heads for every sentence: the reader's choice goes for all."""
    counts = {(len(m), len(m[0])) for m in maps}
    if len(counts) > 1:
        raise ValueError(
            f"{name} must have equal layers and heads for all, got {sorted(counts)}"
        )
