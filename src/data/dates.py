"""A small translation task whose true alignment is known: English dates into Chinese ones.

"Wednesday, 7 October 1998" is 1998年10月7日星期三. The order is turned round, names become
numbers, and yet everybody can say which target character comes from which source word: so an
attention map can be *measured*, not only looked at. All names and patterns are those of Unicode's
CLDR, through `babel`.
"""

import datetime
import functools
import os
import random
from collections.abc import Sequence
from typing import NamedTuple

import babel.dates
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "Agreement",
    "DatePair",
    "alignment_agreement",
    "date_pair",
    "english_patterns",
    "load_dates",
]

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)


class DatePair(NamedTuple):
    """One date in both languages, as tokens separated by spaces.

    Attributes:
        source: English: lower-case words, punctuation marks, and each digit by itself.
        target: Chinese: each character by itself.
        alignment: For each target token the places of the source tokens that it stands for,
            counted from 0. Empty for the characters that stand in every date whatever it is
            (年, 月, 日, 星期): nothing in the source says them.
    """

    source: str
    target: str
    alignment: tuple[frozenset[int], ...]


class Agreement(NamedTuple):
    """How well attention weights agree with true alignments, from 0 to 1.

    Attributes:
        argmax: Share of target tokens whose largest weight lies on a true source token.
        or_next: The same, where the place right after a true token counts, too.
        mass: Mean of the weight that lies on true source tokens.
        chance: What equal weights on all source tokens would get as `mass`.
    """

    argmax: float
    or_next: float
    mass: float
    chance: float


def english_patterns() -> list[str]:
    """Return the patterns in which dates are written, American and British, in CLDR's notation.

    Purely numeric ones are left out: nobody can tell what 10/7 means.
    """
    patterns = []
    for locale in ("en", "en_GB"):
        for style in ("full", "long", "medium"):
            patterns.append(babel.dates.get_date_format(style, locale=locale).pattern)
        patterns.append(babel.Locale.parse(locale).datetime_skeletons["yMMMEd"].pattern)
    return list(dict.fromkeys(patterns))


def date_pair(date: datetime.date, pattern: str) -> DatePair:
    """Write a date in English, in Chinese, and say what stands for what.

    The Chinese date has the day of the week only if the English one has.

    Args:
        date: Any date.
        pattern: English pattern with exactly one each of year, month and day, and perhaps a day
            of the week, such as ``"EEEE, MMMM d, y"``.

    Raises:
        ValueError: If the pattern holds another set of fields.
    """
    source: list[str] = []
    places: dict[str, list[int]] = {}
    for field, text in _parts(date, pattern, "en"):
        tokens = _tokens(text)
        if field:
            places.setdefault(field, []).extend(
                range(len(source), len(source) + len(tokens))
            )
        source += tokens
    if set(places) not in (set("yMd"), set("yMdE")):
        raise ValueError(f"pattern must hold y, M, d and perhaps E, got {pattern!r}")

    style = "full" if "E" in places else "long"
    target: list[str] = []
    alignment: list[frozenset[int]] = []
    pattern = babel.dates.get_date_format(style, locale="zh").pattern
    for field, text in _parts(date, pattern, "zh"):
        own = places.get(field, [])
        if [source[i] for i in own] == list(text):  # digits are copied one by one
            alignment += [frozenset({i}) for i in own]
        else:
            alignment += [frozenset(own)] * len(text)
        target += text
    return DatePair(" ".join(source), " ".join(target), tuple(alignment))


def load_dates(
    num_train: int, num_test: int, *, seed: int = 0
) -> tuple[list[DatePair], list[DatePair]]:
    """Draw days between 1900 and 2099 at random, each written in one random pattern.

    No day is drawn twice, so no test date was trained on in any way of writing it.

    Args:
        num_train: Pairs to train with, at least 1.
        num_test: Pairs to test with, at least 1.
        seed: Of days and patterns.

    Returns:
        Training pairs and test pairs.

    Raises:
        ValueError: If a number is below 1 or there are not so many days.
    """
    days = (LAST - FIRST).days + 1
    for name, number in (("num_train", num_train), ("num_test", num_test)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if num_train + num_test > days:
        raise ValueError(
            f"num_train + num_test must be at most {days} days, got {num_train + num_test}"
        )
    chooser = random.Random(seed)
    patterns = english_patterns()
    pairs = [
        date_pair(FIRST + datetime.timedelta(days=day), chooser.choice(patterns))
        for day in chooser.sample(range(days), num_train + num_test)
    ]
    return pairs[:num_train], pairs[num_train:]


def alignment_agreement(
    weights: Float[Tensor, "B T S"], pairs: Sequence[DatePair]
) -> Agreement:
    """Compare attention weights with the true alignments, over all tokens that have one.

    Args:
        weights: Row ``t`` of pair ``b`` holds the weights with which its target token ``t`` was
            predicted. Rows and columns beyond the pair's tokens (``<eos>``, padding) count for
            nothing, but weight that lies on such a column is missing on the true ones.
        pairs: The B pairs, in the same order.

    Raises:
        ValueError: If there are not B pairs, or B is 0, or a pair is longer than the weights.
    """
    if not pairs or len(weights) != len(pairs):
        raise ValueError(
            f"pairs must be as many as weights ({len(weights)}), got {len(pairs)}"
        )
    hits, near, mass, chance = [], [], [], []
    for own, pair in zip(weights, pairs, strict=True):
        length, width = len(pair.alignment), len(pair.source.split())
        if length > own.shape[0] or width > own.shape[1]:
            raise ValueError(
                f"weights must have room for {length} target and {width} source tokens, "
                f"got shape {tuple(own.shape)}"
            )
        best = own.argmax(dim=-1).tolist()
        for t, true in enumerate(pair.alignment):
            if true:
                hits.append(best[t] in true)
                near.append(best[t] in true or best[t] - 1 in true)
                mass.append(own[t, sorted(true)].sum())
                chance.append(len(true) / width)
    mean_mass = float(torch.stack(mass).mean())
    return Agreement(
        *(sum(x) / len(x) for x in (hits, near)), mean_mass, sum(chance) / len(chance)
    )


def _parts(date: datetime.date, pattern: str, locale: str) -> list[tuple[str, str]]:
    """Format piece by piece: the field's letter and its text, no letter for what is constant."""
    parts = []
    for kind, value in babel.dates.tokenize_pattern(pattern):
        if kind == "chars":
            parts.append(("", value))
            continue
        letter, width = value
        text = babel.dates.format_date(date, letter * width, locale=locale)
        # What all seven Chinese weekdays begin with, 星期, says as little as 年.
        constant = _weekday_prefix(locale, width) if letter == "E" else ""
        parts += [("", constant), (letter, text.removeprefix(constant))]
    return parts


@functools.cache
def _weekday_prefix(locale: str, width: int) -> str:
    """What all days of the week begin with when written in this width."""
    week = (datetime.date(2001, 1, day) for day in range(1, 8))
    names = [babel.dates.format_date(day, "E" * width, locale=locale) for day in week]
    return os.path.commonprefix(names)


def _tokens(text: str) -> list[str]:
    """Split into lower-case words, single digits and punctuation marks."""
    spaced = "".join(c if c.isalpha() else f" {c} " for c in text.lower())
    return spaced.split()
