"""The tables of "How we know": margins of the claims, machines, planted mistakes.

The first two are made from `book/steady.json`, which `tools/steady.py` measures, the last from
`tests/faults.py`.
"""

import ast
import json
from collections.abc import Iterator

import notebooks
from chapter_pages import target_of
from repository import ROOT

FOUND = ROOT / "book" / "steady.json"


def load() -> dict:
    """Read what was measured."""
    return json.loads(FOUND.read_text(encoding="utf-8"))


def nearest(found: dict) -> Iterator[tuple[str, dict]]:
    """Yield each claim that depends on a seed, with its comparison nearest to the bound."""
    rows = [row for part in found["seeds"].values() for row in part["comparisons"]]
    for claim in notebooks.load_claims():
        own = [row for row in rows if claim in row["cell"].split()]
        if own:
            yield claim, min(own, key=lambda row: row["margin"])


def margins() -> str:
    """Return one row for each claim that depends on a seed."""
    found = load()
    rows = list(nearest(found))
    claims = len(notebooks.load_claims())
    lines = [
        f"In {len(rows)} of the {claims} claims a comparison changes with the seed. The others "
        "assert what is exact, what differs by rounding only, or what was measured beforehand.",
        "",
        "````{list-table}",
        ":header-rows: 1",
        ":class: ledger margins",
        ":widths: auto",
        "",
        "* - Claim",
        "  - Asserted, nearest to its bound",
        "  - Mean ± spread",
        "  - Bound",
        "  - Margin",
    ]
    for claim, row in rows:
        lines += [
            f"* - {{ref}}`{claim} <{target_of(claim)}>`",
            f"  - `` {row['assertion']} ``",
            f"  - {row['mean']:.3g} ± {row['spread']:.1g}",
            f"  - {row['bound']:.3g}",
            f"  - {row['margin']:.{0 if row['margin'] >= 10 else 1}f}",
        ]
    return "\n".join([*lines, "````"])


def machines() -> str:
    """Return one row for each setting under which all outputs were compared."""
    found = load()["machines"]
    lines = [
        f"On {found['processor']}, PyTorch {found['torch']}:",
        "",
        "| instructions | threads | cells that gave the stored output | that did not |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {run['kernels']} | {run['threads']} | {run['passed']} | {run['failed']} |"
        for run in found["runs"]
    ]
    return "\n".join(lines)


def faults() -> list[tuple[str, str]]:
    """Return the name of each planted mistake, and what notices it: a claim or a test."""
    tree = ast.parse((ROOT / "tests" / "faults.py").read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    found = [call for call in calls if getattr(call.func, "id", "") == "Fault"]
    return [(ast.literal_eval(f.args[0]), ast.unparse(f.args[3]).strip("'")) for f in found]


def planted() -> str:
    """Return one row for each chapter with the mistakes that it notices, and one for the tests."""
    rows: dict[str, list[str]] = {}
    for name, seen_by in faults():
        place = f"chapter {seen_by.split('-')[0]}" if seen_by[0].isdigit() else "tests"
        rows.setdefault(place, []).append(name)
    lines = ["| noticed by | mistakes |", "| --- | --- |"]
    lines += [f"| {place} | {'; '.join(names)} |" for place, names in rows.items()]
    return f"{sum(map(len, rows.values()))} mistakes are planted:\n\n" + "\n".join(lines)
