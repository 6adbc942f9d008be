"""How nbval compares outputs: numbers as numbers, all else as text.

Another processor rounds its sums in another order, and a mean of 142.5 is printed as 142 on one
and as 143 on the other. So two outputs are equal if they are the same text outside of numbers and
each two numbers differ by at most one unit in their last printed place. If one of them has more
decimals, its last place counts: 0.3 beside 0.3012 is 0.3000 whose zeros were not printed.

Not a number, and so compared as text:

* digits beside a letter, a point, `#` or `^`, or joined by a hyphen: T5, x2, #3, 1.2.3, 10.3-5;
* code: a page that shows the package's source has to show it as it is;
* nan and inf.

Used by ``pytest -p tests.printed_numbers --nbval``.
"""

import json
import re
from decimal import Decimal

import pytest
from nbval.plugin import IPyNbCell

PART = re.compile(
    r"""
    ```.*?```                               # code
    | [ ]*                                  # blanks beside a number give way to a digit or a sign
      (?<![\w.#^]) (?<!\w[-−])
      (?P<number>
        [-+−]?
        (?: (?<![\[,]) [1-9][0-9]{0,2} (?:,[0-9]{3})+ (?:\.[0-9]+)?     # 1,234, but not [1,234]
          | [0-9]+ (?:\.[0-9]+)? (?:[eE][-+]?[0-9]{1,3})? )
      )
      (?! \w | [-−.][0-9] )
      [ ]*
    """,
    re.VERBOSE | re.DOTALL,
)


def differing(stored: str, new: str) -> list[tuple[re.Match, re.Match]] | None:
    """Return each two numbers that are not the same one; None if the text around them differs."""
    if _around(stored) != _around(new):
        return None
    pairs = zip(_numbers(stored), _numbers(new), strict=True)
    return [(old, now) for old, now in pairs if not _same(old["number"], now["number"])]


def _around(text: str) -> str:
    return PART.sub(lambda part: "\0" if part["number"] else part[0], text)


def _numbers(text: str) -> list[re.Match]:
    return [part for part in PART.finditer(text) if part["number"]]


def _same(stored: str, new: str) -> bool:
    a, b = (Decimal(text.replace("−", "-").replace(",", "")) for text in (stored, new))
    place = min(a.as_tuple().exponent, b.as_tuple().exponent)
    return abs(a - b) <= Decimal(1).scaleb(place)


class Printed(str):
    """An output's text, equal to another if their numbers are the same."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and differing(str(self), str(other)) == []

    def __ne__(self, other: object) -> bool:
        return not self == other


@pytest.hookimpl(tryfirst=True)
def pytest_assertrepr_compare(left: object, right: object) -> list[str] | None:
    """Name the numbers that differ; where the text differs, pytest shows how."""
    if not (isinstance(left, Printed) and isinstance(right, Printed)):
        return None
    pairs = differing(str(left), str(right)) or ()
    return [
        f"{old['number']} was stored, {now['number']} came in: {_line(now)}" for old, now in pairs
    ]


def _line(number: re.Match) -> str:
    before = number.string[: number.start("number")].rpartition("\n")[2]
    after = number.string[number.end("number") :].partition("\n")[0]
    return f"{before[-40:]}{number['number']}{after[:20]}"


def pytest_configure() -> None:
    sanitize = IPyNbCell.sanitize

    def printed(cell: IPyNbCell, output: object) -> Printed:
        text = output if isinstance(output, str) else json.dumps(output, indent=1, sort_keys=True)
        return Printed(sanitize(cell, text))

    IPyNbCell.sanitize = printed
