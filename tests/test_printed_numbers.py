"""What differs between two outputs, by the rule of `printed_numbers.py`."""

import pytest

from printed_numbers import Printed, differing, pytest_assertrepr_compare

SAME = {
    "a mean of 142.5": ("no preference   142 kcal", "no preference   143 kcal"),
    "one unit in the last place": ("loss 0.30 ± 0.04", "loss 0.31 ± 0.03"),
    "a digit more takes a blank": ("a   9.99\nb  10.00", "a  10.00\nb   9.99"),
    "a sign takes a blank": ("x  0.00", "x -0.01"),
    "minus zero": ("gains -0.00", "gains 0.00"),
    "Unicode's minus": ("gains −0.31", "gains -0.30"),
    "zeros that repr does not print": ("0.30000001", "0.3"),
    "the next power of ten": ("1.0e-06", "9.9e-07"),
    "thousands": ("1,234 of 9,999", "1,235 of 10,000"),
    "percent": ("99.9% right", "100.0% right"),
    "no thousands in data": ("[[0,99],[5,100]]", "[[0,100],[5,99]]"),
    "data of a figure": ('start("id", {"x":[0.123,-4.5]})', 'start("id", {"x":[0.124,-4.4]})'),
    "a drawing": ('<circle cx="12.5" cy="3"/>', '<circle cx="12.6" cy="3"/>'),
    "a range": ("6.1–7.9", "6.2–7.8"),
    "the end of a sentence": ("It is 142.", "It is 143."),
}
DIFFERENT = {
    "two units": ("loss 0.30", "loss 0.32"),
    "two units of an integer": ("142 kcal", "144 kcal"),
    "two units of a thousand": ("1,234", "1,236"),
    "another power of ten": ("below 1e-06", "below 1e-05"),
    "more decimals do not widen the place": ("0.3", "0.35"),
    "two units of the finer place": ("0.30000002", "0.3"),
    "a changed sign": ("slope -0.3", "slope 0.3"),
    "a changed Unicode sign": ("slope −0.3", "slope 0.3"),
    "a changed word": ("loss 0.30", "cost 0.30"),
    "a missing line": ("a 1\nb 2\n", "a 1\n"),
    "a missing end of line": ("a 1\n", "a 1"),
    "a number more": ("1 2", "1 2 3"),
    "a number less": ("1 2 3", "1 2"),
    "digits parted otherwise": ("12 3", "1 23"),
    "nan": ("loss 0.30", "loss nan"),
    "inf": ("loss inf", "loss -inf"),
    "True": ("True", "False"),
    "a claim": ("Claim 10.3-5: 1", "Claim 10.3-6: 1"),
    "a claim's chapter": ("Claim 10.3-5: 1", "Claim 10.4-5: 1"),
    "a date": ("2026-11-29", "2026-11-30"),
    "a version": ("version 2.6.0", "version 2.6.1"),
    "a name": ("T5, x2, layer_3, float16", "T5, x3, layer_3, float16"),
    "a unit that is joined on": ("margin: 3px", "margin: 4px"),
    "a link": ('<a href="#3">', '<a href="#4">'),
    "an id": ('<g id="part-3">', '<g id="part-4">'),
    "an exponent": ("n^1 d^2", "n^2 d^2"),
    "a checksum": ("621e47c5", "622e47c5"),
    "a checksum that looks like a number": ("id 621e4712", "id 621e4713"),
    "code": ("a 1\n```python\neps = 1\n```\n", "a 1\n```python\neps = 2\n```\n"),
}


@pytest.mark.parametrize(("stored", "new"), SAME.values(), ids=SAME)
def test_outputs_are_the_same(stored, new):
    assert differing(stored, new) == differing(new, stored) == []
    assert Printed(stored) == Printed(new) and not Printed(stored) != Printed(new)


@pytest.mark.parametrize(("stored", "new"), DIFFERENT.values(), ids=DIFFERENT)
def test_outputs_are_different(stored, new):
    assert differing(stored, new) != [] and differing(new, stored) != []
    assert Printed(stored) != Printed(new) and not Printed(stored) == Printed(new)


def test_the_numbers_that_differ_are_named_and_no_others():
    stored, new = Printed("a 0.10\nb 0.20 ± 0.1\nc 0.30"), Printed("a 0.11\nb 0.22 ± 0.1\nc 0.28")
    assert pytest_assertrepr_compare(stored, new) == [
        "0.20 was stored, 0.22 came in: b 0.22 ± 0.1",
        "0.30 was stored, 0.28 came in: c 0.28",
    ]


def test_pytest_shows_how_texts_differ():
    assert not pytest_assertrepr_compare(Printed("a 0.10"), Printed("b 0.12"))
    assert not pytest_assertrepr_compare(1, 2)
