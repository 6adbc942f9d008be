"""Dates in two languages: what is written, what it is aligned to, and how maps are judged."""

import datetime

import babel.dates
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from src.data.dates import FIRST, LAST, alignment_agreement, date_pair, english_patterns, load_dates
from src.data.tokenization import WordTokenizer

DAY = datetime.date(1998, 10, 7)  # a Wednesday
ANY_PATTERN = st.sampled_from(english_patterns())


def test_a_date_in_full():
    pair = date_pair(DAY, "EEEE, d MMMM y")
    assert pair.source == "wednesday , 7 october 1 9 9 8"
    assert pair.target == "1 9 9 8 年 1 0 月 7 日 星 期 三"
    places = [sorted(true) for true in pair.alignment]
    # 1998 digit by digit, 10 from "october", 7 from "7", 三 from "wednesday"; 年月日 from nothing.
    assert places == [[4], [5], [6], [7], [], [3], [3], [], [2], [], [], [], [0]]


def test_a_sunday_keeps_its_own_character():
    """日 is a mark after the day of the month and says "Sunday" at the end."""
    pair = date_pair(datetime.date(2024, 9, 29), "E, MMM d, y")
    assert pair.source == "sun , sep 2 9 , 2 0 2 4"
    assert pair.target == "2 0 2 4 年 9 月 2 9 日 星 期 日"
    assert pair.alignment[9] == frozenset() and pair.alignment[12] == {0}
    assert pair.alignment[7] == {3} and pair.alignment[8] == {4}


def test_without_a_weekday_there_is_none():
    pair = date_pair(DAY, "MMMM d, y")
    assert (pair.source, pair.target) == ("october 7 , 1 9 9 8", "1 9 9 8 年 1 0 月 7 日")


@given(st.dates(FIRST, LAST), ANY_PATTERN)
def test_both_sides_are_what_babel_writes(day, pattern):
    pair = date_pair(day, pattern)
    english = babel.dates.format_date(day, pattern, locale="en")
    assert pair.source.replace(" ", "") == english.replace(" ", "").lower()
    style = "full" if "E" in pattern else "long"
    assert pair.target.replace(" ", "") == babel.dates.format_date(day, style, locale="zh")


@given(st.dates(FIRST, LAST), ANY_PATTERN)
def test_alignment_leads_to_the_words_that_say_it(day, pattern):
    pair = date_pair(day, pattern)
    source, target = pair.source.split(), pair.target.split()
    assert len(pair.alignment) == len(target)
    used = {place for true in pair.alignment for place in true}
    # Every word and digit is used, no comma is, and exactly the constant characters lack a source.
    assert used == {i for i, token in enumerate(source) if token != ","}
    lacking = [char for char, true in zip(target, pair.alignment, strict=True) if not true]
    assert lacking == list("年月日" + ("星期" if "E" in pattern else ""))
    for char, true in zip(target, pair.alignment, strict=True):
        words = [source[i] for i in true]
        if any(word.isdigit() for word in words):
            assert words == [char]  # a digit is a copy of one digit


def test_patterns_are_those_of_two_locales():
    patterns = english_patterns()
    assert {"EEEE, MMMM d, y", "MMM d, y", "EEEE, d MMMM y", "d MMM y"} <= set(patterns)
    assert len(patterns) == len(set(patterns)) >= 6
    assert {"E" in pattern for pattern in patterns} == {True, False}


def test_no_day_is_on_both_sides_and_seeds_decide():
    train, test = load_dates(300, 101, seed=3)
    assert len(train) == 300 and len(test) == 101
    days = [pair.target.split(" 星")[0] for pair in train + test]
    assert len(set(days)) == 401
    assert load_dates(300, 101, seed=3) == (train, test)
    assert load_dates(300, 101, seed=4)[0] != train


def test_no_day_is_drawn_twice(monkeypatch):
    monkeypatch.setattr("src.data.dates.LAST", FIRST + datetime.timedelta(days=100))
    train, test = load_dates(90, 11)
    assert len({pair.target.split(" 星")[0] for pair in train + test}) == 101  # all that there are


def test_word_tokenizers_keep_the_tokens():
    train, test = load_dates(1500, 50)
    for side in (0, 1):
        tokenizer = WordTokenizer.train((pair[side] for pair in train), 100)
        for pair in test:
            assert tokenizer.tokens(tokenizer.encode(pair[side])) == pair[side].split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "num_train must be at least 1, got 0"),
        ((5, 0), "num_test must be at least 1, got 0"),
        ((73_000, 50), "num_train . num_test must be at most 73049 days, got 73050"),
    ],
)
def test_numbers_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_dates(*arguments)


@pytest.mark.parametrize("pattern", ["MMMM y", "d MMMM y G", "EEEE d MMMM"])
def test_patterns_need_their_fields(pattern):
    with pytest.raises(ValueError, match="pattern must hold y, M, d and perhaps E, got"):
        date_pair(DAY, pattern)


def test_agreement_counts_by_hand():
    pair = date_pair(DAY, "MMMM d, y")  # october 7 , 1 9 9 8 -> 1 9 9 8 年 1 0 月 7 日
    weights = torch.zeros(1, 11, 9)
    weights[0, 0, 3] = 1.0  # right
    weights[0, 1, 5] = 1.0  # one too late
    weights[0, 2, 5] = weights[0, 2, 6] = 0.25  # right by half; the first of two equals counts
    weights[0, 2, 0] = 0.2
    weights[0, 3, 7] = 1.0  # one too late, too
    weights[0, 5:7, 0] = 1.0  # right, twice
    weights[0, 8, 0] = 1.0  # wrong: one too early
    found = alignment_agreement(weights, [pair])
    # 年, 月 and 日 have no source: 7 of 10 characters count.
    assert found.argmax == pytest.approx(4 / 7)
    assert found.or_next == pytest.approx(6 / 7)
    assert found.mass == pytest.approx((1 + 0 + 0.25 + 0 + 2 + 0) / 7)
    assert found.chance == pytest.approx(1 / 7)


def test_agreement_of_even_weights_is_chance_and_of_true_ones_perfect():
    pairs = load_dates(40, 1)[0]
    even = torch.zeros(40, 15, 12)
    true = torch.zeros(40, 15, 12)
    for row, pair in enumerate(pairs):
        even[row, :, : len(pair.source.split())] = 1 / len(pair.source.split())
        for t, places in enumerate(pair.alignment):
            true[row, t, sorted(places)] = 1.0
    found = alignment_agreement(even, pairs)
    assert found.mass == pytest.approx(found.chance)
    assert alignment_agreement(true, pairs)[:3] == (1.0, 1.0, 1.0)


def test_agreement_refuses_what_does_not_fit():
    pairs = load_dates(3, 1)[0]
    with pytest.raises(ValueError, match=r"pairs must be as many as weights \(2\), got 3"):
        alignment_agreement(torch.zeros(2, 15, 12), pairs)
    with pytest.raises(ValueError, match=r"pairs must be as many as weights \(0\), got 0"):
        alignment_agreement(torch.zeros(0, 15, 12), [])
    with pytest.raises(ValueError, match="weights must have room for 10 target and 7 source"):
        alignment_agreement(torch.zeros(1, 9, 12), [date_pair(DAY, "MMMM d, y")])
    with pytest.raises(ValueError, match="weights must have room for 10 target and 7 source"):
        alignment_agreement(torch.zeros(1, 15, 6), [date_pair(DAY, "MMMM d, y")])
