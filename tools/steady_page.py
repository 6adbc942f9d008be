"""The tables of "How we know": margins of the claims, and machines on which all outputs agreed.

They are made from `book/steady.json`, which `tools/steady.py` measures.
"""

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
        "````{list-table}", ":header-rows: 1", ":class: ledger margins",
        ":widths: auto", "",
        "* - Claim", "  - Asserted, nearest to its bound", "  - Mean ± spread", "  - Bound",
        "  - Margin",
    ]  # fmt: skip
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
