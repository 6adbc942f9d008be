"""Sentence pairs to learn translation from: real ones, cleaned and counted.

`load_pairs` reads sentences of Tatoeba, fetched by `src.assets`.

``python -m src.data`` prints the figures of the book's data page.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from src.assets import ASSETS, fetch
from src.data.content_filter import is_suitable
from src.data.readers import Pair, read_lines
from src.data.splits import easy_subset, split_pairs
from src.data.tokenization import (
    normalise,
)

# Columns of the Tatoeba file that are used; the others are id, Japanese, Dutch, Swedish, audio.
_ENGLISH = 2
_TARGETS = {"deu": 4, "fra": 5, "spa": 6}


@dataclass(frozen=True)
class Cleaning:
    """What became of the raw pairs: every one is counted in exactly one of the last four."""

    raw: int
    duplicate: int
    unsuitable: int  # left out by `src.data.content_filter`
    other_length: int
    kept: int


def load_pairs(
    target: str = "fra",
    *,
    min_words: int = 1,
    max_words: int | None = None,
    content_filter: bool = True,
) -> list[Pair]:
    """Return Tatoeba's English sentences with their translations, cleaned by `clean_pairs`.

    Fetches the sentences the first time (67 MB). Both sentences translate the same Japanese one,
    so some pairs are loose.

    Args:
        target: Language to translate to: ``"fra"``, ``"deu"`` or ``"spa"``.
        min_words: Fewest words, set apart by spaces, that either sentence may have.
        max_words: Most words that either sentence may have; None for no limit.
        content_filter: Whether to leave out what `src.data.content_filter` lists.

    Raises:
        ValueError: If ``target`` is another language, or the limits are not 1 ≤ min ≤ max.
        AssetError: If the sentences can't be fetched.
    """
    pairs, _ = clean_pairs(
        read_tatoeba(target),
        target,
        min_words=min_words,
        max_words=max_words,
        content_filter=content_filter,
    )
    return pairs


def read_tatoeba(target: str = "fra") -> list[Pair]:
    """Return all pairs of the Tatoeba file as they stand there, in its order.

    Raises:
        ValueError: If ``target`` is not ``"fra"``, ``"deu"`` or ``"spa"``.
        AssetError: If the sentences can't be fetched.
    """
    if target not in _TARGETS:
        raise ValueError(
            f"target must be one of {', '.join(sorted(_TARGETS))}, but is {target!r}"
        )
    column = _TARGETS[target]
    pairs = []
    for _, line in read_lines(fetch("tatoeba")):
        fields = line.split("\t")
        if "-" not in (fields[_ENGLISH], fields[column]):  # "-": no such translation
            pairs.append(Pair(fields[_ENGLISH], fields[column]))
    return pairs


def clean_pairs(
    raw: Iterable[tuple[str, str]],
    target: str,
    *,
    min_words: int = 1,
    max_words: int | None = None,
    content_filter: bool = True,
) -> tuple[list[Pair], Cleaning]:
    """Normalise pairs, and leave out repeated, unsuitable, too short and too long ones.

    Args:
        raw: Pairs of an English sentence and one in the language ``target``.
        target: Language of the second sentence, for the content filter.
        min_words: Fewest words, set apart by spaces, that either sentence may have.
        max_words: Most words that either sentence may have; None for no limit.
        content_filter: Whether to leave out what `src.data.content_filter` lists.

    Returns:
        The pairs kept, in the order given, and the count of all.

    Raises:
        ValueError: If the limits are not 1 ≤ ``min_words`` ≤ ``max_words``, or if there is no
            word list for ``target``.
    """
    if not 1 <= min_words <= (min_words if max_words is None else max_words):
        raise ValueError(
            "min_words and max_words must hold 1 <= min_words <= max_words, "
            f"but are {min_words} and {max_words}"
        )
    counts: Counter[str] = Counter()
    seen, kept = set(), []
    for source, translation in raw:
        pair = Pair(normalise(source), normalise(translation))
        lengths = [len(sentence.split()) for sentence in pair]
        if pair in seen:
            counts["duplicate"] += 1
        elif content_filter and not (
            is_suitable(pair.source, "eng") and is_suitable(pair.target, target)
        ):
            counts["unsuitable"] += 1
        elif min(lengths) < min_words or (
            max_words is not None and max(lengths) > max_words
        ):
            counts["other_length"] += 1
        else:
            kept.append(pair)
        seen.add(pair)
    report = Cleaning(
        raw=counts.total() + len(kept),
        duplicate=counts["duplicate"],
        unsuitable=counts["unsuitable"],
        other_length=counts["other_length"],
        kept=len(kept),
    )
    return kept, report


# Examples for the printed page: every so-many-th pair, so that they are not hand-picked.
_EXAMPLES = 10


def _describe(target: str, pairs: list[Pair], report: Cleaning) -> str:
    """Return the figures of one language's cleaned pairs as text."""
    splits = split_pairs(pairs)
    easy = easy_subset(splits)
    lengths = [max(len(sentence.split()) for sentence in pair) for pair in pairs]
    lines = [
        f"English – {target}",
        f"  pairs in the file      {report.raw:7,}",
        f"  - repeated             {report.duplicate:7,}",
        f"  - content filter       {report.unsuitable:7,}",
        f"  = kept                 {report.kept:7,}",
        "  words of the longer sentence",
    ]
    bounds = (1, 3, 5, 7, 9, 13, 17, 25, max(lengths) + 1)
    for low, high in ((a, b - 1) for a, b in zip(bounds, bounds[1:], strict=False)):
        count = sum(low <= length <= high for length in lengths)
        lines.append(
            f"    {low:3} – {high:3}            {count:7,} {count / len(lengths):7.1%}"
        )
    lines.append("                            train   valid    test")
    for name, part in (("split", splits), ("easy subset", easy)):
        counts = (len(part.train), len(part.valid), len(part.test))
        lines.append(f"  {name:20}  " + " ".join(f"{count:7,}" for count in counts))
    lines.append("  examples, evenly spaced")
    for source, translation in pairs[:: -(-len(pairs) // _EXAMPLES)]:
        lines.append(f"    {source} | {translation}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print source, licence, counts, lengths, sides and examples of the Tatoeba pairs."""
    parser = argparse.ArgumentParser(
        prog="python -m src.data", description=main.__doc__
    )
    parser.add_argument("--target", choices=sorted(_TARGETS), help="one language only")
    chosen = parser.parse_args(arguments).target
    asset = ASSETS["tatoeba"]
    print(
        f"{asset.credit}; {asset.licence}; {asset.size:,} bytes; sha256 {asset.sha256}"
    )
    for target in [chosen] if chosen else sorted(_TARGETS):
        print()
        print(_describe(target, *clean_pairs(read_tatoeba(target), target)))
