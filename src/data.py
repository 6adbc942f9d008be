"""Sentence pairs to learn translation from: read, cleaned, and split without leaks.

`load_pairs` reads real sentences (Tatoeba, fetched by `src.assets`), `read_tsv` and `read_moses` a
corpus of one's own. `split_pairs` keeps every sentence of either language on one side. Tokenizers
and batches, made in `src.tokenization` and `src.batches`, can be imported from here too.

``python -m src.data`` prints what stands on the book's data page.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from src.assets import fetch
from src.batches import (
    Batch,
    BucketedBatches,
    Example,
    encode_pairs,
    encode_source,
    encode_target,
    pad,
)
from src.content_filter import is_suitable
from src.tokenization import SubwordTokenizer, Tokenizer, WordTokenizer, normalise, split_words

__all__ = [
    "Batch", "BucketedBatches", "Cleaning", "CorpusError", "Example", "Pair", "Splits",
    "SubwordTokenizer", "Tokenizer", "WordTokenizer", "clean_pairs", "easy_subset",
    "encode_pairs", "encode_source", "encode_target", "load_pairs", "normalise", "pad",
    "read_moses", "read_tatoeba", "read_tsv", "split_pairs", "split_words",
]  # fmt: skip

# Columns of the Tatoeba file that are used; the others are id, Japanese, Dutch, Swedish, audio.
_ENGLISH = 2
_TARGETS = {"deu": 4, "fra": 5, "spa": 6}


class CorpusError(ValueError):
    """A corpus file is missing or malformed; the message names the file and the line."""


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True)
class Cleaning:
    """What became of the raw pairs: every one is counted in exactly one of the last four."""

    raw: int
    duplicate: int
    unsuitable: int  # left out by `src.content_filter`
    other_length: int
    kept: int


@dataclass(frozen=True)
class Splits:
    """The three sides of a corpus."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


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
        content_filter: Whether to leave out what `src.content_filter` lists.

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
        raise ValueError(f"target must be one of {', '.join(sorted(_TARGETS))}, but is {target!r}")
    column = _TARGETS[target]
    pairs = []
    for _, line in _lines(fetch("tatoeba")):
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
        content_filter: Whether to leave out what `src.content_filter` lists.

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
        elif min(lengths) < min_words or (max_words is not None and max(lengths) > max_words):
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


def split_pairs(
    pairs: Iterable[Pair], *, valid: float = 0.05, test: float = 0.05, seed: int = 0
) -> Splits:
    """Split pairs so that no sentence of either language stands on two sides.

    "Hello!" has many translations and they have more sentences on their other side: pairs that
    share a sentence, directly or through other pairs, go to one side together. Case, punctuation
    and spaces don't count: "hello" is the same sentence. The side follows from a hash of the
    group's first sentence and ``seed``, so it depends neither on the order of the pairs nor on
    Python's hash seed.

    Args:
        pairs: Sentence pairs.
        valid: Share of the groups, not exactly of the pairs, for validation.
        test: Share of the groups for the test.
        seed: Seed of the draw.

    Returns:
        The pairs in their order, each on one side.

    Raises:
        ValueError: If a share is negative, or both sum to 1 or more.
    """
    if min(valid, test) < 0 or valid + test >= 1:
        raise ValueError(
            "valid and test must be at least 0 and sum to less than 1, "
            f"but are {valid} and {test}"
        )
    pairs = list(pairs)
    keys = [(("source", _key(s)), ("target", _key(t))) for s, t in pairs]
    groups = _group_names(keys)
    splits = Splits([], [], [])
    for pair, (source_key, _) in zip(pairs, keys):
        draw = _uniform(f"{seed}\t{groups[source_key]}")
        side = splits.test if draw < test else splits.valid if draw < test + valid else splits.train
        side.append(pair)
    return splits


_Node = tuple[str, str]


def _key(sentence: str) -> str:
    """Return what makes two sentences the same: letters and digits, without case."""
    text = unicodedata.normalize("NFC", sentence).casefold()
    words = "".join(char if char.isalnum() else " " for char in text).split()
    # A sentence of punctuation alone is only equal to itself.
    return " ".join(words) or sentence


def _group_names(edges: Iterable[tuple[_Node, _Node]]) -> dict[_Node, str]:
    """Name each node by the smallest source key of its connected component (union-find)."""
    parent: dict[_Node, _Node] = {}

    def root(node: _Node) -> _Node:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]  # halve the path for those who come later
            node = parent[node]
        return node

    for one, other in edges:
        # The smaller root stays; "source" < "target", so a root is always a source key.
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return {node: root(node)[1] for node in parent}


def _uniform(text: str) -> float:
    """Map a text to a number in [0, 1), the same on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def easy_subset(splits: Splits, num_words: int = 800, max_tokens: int = 8) -> Splits:
    """Choose the pairs that a small model learns in a minute on a CPU.

    Kept is a pair whose English sentence has at most ``max_tokens`` tokens (words and
    punctuation marks), all of them among the ``num_words`` most frequent of the *training* side.
    Nothing is asked of the translation.

    Args:
        splits: The sides of `split_pairs`.
        num_words: Number of English words.
        max_tokens: Most tokens of an English sentence.

    Raises:
        ValueError: If ``num_words`` or ``max_tokens`` is below 1.
    """
    for name, value in (("num_words", num_words), ("max_tokens", max_tokens)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    counts = Counter(token for source, _ in splits.train for token in split_words(source))
    frequent = set(sorted(counts, key=lambda token: (-counts[token], token))[:num_words])

    def is_easy(pair: Pair) -> bool:
        tokens = split_words(pair.source)
        return len(tokens) <= max_tokens and frequent.issuperset(tokens)

    return Splits(*(list(filter(is_easy, side)) for side in (splits.train, splits.valid, splits.test)))


def read_tsv(path: str | Path, *, source: int = 0, target: int = 1) -> list[Pair]:
    """Read a corpus of one pair a line, tab-separated, and normalise its sentences.

    Args:
        path: UTF-8 file, with or without byte order mark.
        source: Column of the source sentence, counted from 0.
        target: Column of the target sentence. Further columns are ignored.

    Raises:
        CorpusError: If the file is missing, is empty or not UTF-8, if a line has too few columns
            or if a sentence is empty. Names the file and the line.
        ValueError: If a column is negative.
    """
    if min(source, target) < 0:
        raise ValueError(f"source and target must be 0 or more, but are {source} and {target}")
    pairs = []
    for where, line in _lines(path):
        fields = line.split("\t")
        if len(fields) <= max(source, target):
            raise CorpusError(
                f"{where}: needs {max(source, target) + 1} tab-separated columns, "
                f"but has {len(fields)}"
            )
        pairs.append(Pair(_sentence(where, fields[source]), _sentence(where, fields[target])))
    return pairs


def read_moses(src_path: str | Path, tgt_path: str | Path) -> list[Pair]:
    """Read a corpus in two files, line n of one translating line n of the other.

    Args:
        src_path: UTF-8 file of source sentences.
        tgt_path: UTF-8 file of target sentences.

    Raises:
        CorpusError: If a file is missing, is empty or not UTF-8, if a line is empty, or if the
            files have unequal numbers of lines. Names the file and the line.
    """
    sources, targets = list(_lines(src_path)), list(_lines(tgt_path))
    if len(sources) != len(targets):
        raise CorpusError(
            f"{src_path} has {len(sources)} lines, but {tgt_path} has {len(targets)}"
        )
    return [
        Pair(_sentence(*source), _sentence(*target)) for source, target in zip(sources, targets)
    ]


def _sentence(where: str, text: str) -> str:
    sentence = normalise(text)
    if not sentence:
        raise CorpusError(f"{where}: the sentence is empty")
    return sentence


def _lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield ``("FILE, line N", text)`` for each line of a UTF-8 file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read, {error.strerror}") from error
    if not content:
        raise CorpusError(f"{path}: the file is empty")
    # Only \n ends a line. str.splitlines would also cut at characters within a sentence
    # (U+2028, U+0085), and the two files of a corpus would run apart.
    content = content.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
    for number, line in enumerate(content.split(b"\n"), start=1):
        where = f"{path}, line {number}"
        try:
            yield where, line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{where}: not UTF-8, {error.reason} at byte {error.start}") from error
