"""Splitting sentence pairs into training, validation and test without leaks.

Short sentences repeat, in one language or the other. If "Hello!" is learnt with one translation and
tested with another, the test asks for what was learnt. So a sentence stands on one side only.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from src.data.readers import Pair
from src.data.tokenization import split_words


@dataclass(frozen=True)
class Splits:
    """The three sides of a corpus."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


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
            f"valid and test must be at least 0 and sum to less than 1, but are {valid} and {test}"
        )
    pairs = list(pairs)
    keys = [(("source", _key(s)), ("target", _key(t))) for s, t in pairs]
    groups = _group_names(keys)
    splits = Splits([], [], [])
    for pair, (source_key, _) in zip(pairs, keys, strict=False):
        draw = _uniform(f"{seed}\t{groups[source_key]}")
        side = (
            splits.test
            if draw < test
            else splits.valid
            if draw < test + valid
            else splits.train
        )
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
            parent[node] = parent[
                parent[node]
            ]  # halve the path for those who come later
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


def easy_subset(
    splits: Splits,
    num_words: int = 800,
    max_tokens: int = 8,
    *,
    num_target_words: int | None = None,
    max_target_tokens: int | None = None,
) -> Splits:
    """Choose the pairs that a small model learns in a minute on a CPU.

    Kept is a pair whose English sentence has at most ``max_tokens`` tokens (words and
    punctuation marks), all of them among the ``num_words`` most frequent of the *training* side.
    The same can be asked of the translation.

    Args:
        splits: The sides of `split_pairs`.
        num_words: Number of English words.
        max_tokens: Most tokens of an English sentence.
        num_target_words: Number of words of the translations; None allows all.
        max_target_tokens: Most tokens of a translation; None allows any number.

    Raises:
        ValueError: If a number is below 1.
    """
    limits = {
        "num_words": num_words,
        "max_tokens": max_tokens,
        "num_target_words": num_target_words,
        "max_target_tokens": max_target_tokens,
    }
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    easy_source = _is_easy(
        (pair.source for pair in splits.train), num_words, max_tokens
    )
    easy_target = _is_easy(
        (pair.target for pair in splits.train), num_target_words, max_target_tokens
    )
    sides = (splits.train, splits.valid, splits.test)
    return Splits(
        *(
            [p for p in side if easy_source(p.source) and easy_target(p.target)]
            for side in sides
        )
    )


def _is_easy(
    training: Iterable[str], num_words: int | None, max_tokens: int | None
) -> Callable[[str], bool]:
    """Make the test whether a sentence is short and made of words frequent in ``training``."""
    counts = Counter(token for sentence in training for token in split_words(sentence))
    # Ties are broken by the word itself, so that the choice is the same everywhere.
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    frequent = None if num_words is None else set(ranked[:num_words])

    def is_easy(sentence: str) -> bool:
        tokens = split_words(sentence)
        return (max_tokens is None or len(tokens) <= max_tokens) and (
            frequent is None or frequent.issuperset(tokens)
        )

    return is_easy
