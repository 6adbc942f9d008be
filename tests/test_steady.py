"""`tools/steady.py`: what it sees of an assertion, and what it found in the committed notebooks."""

import ast
import random

import numpy as np
import pytest
import torch

from sample import notebooks  # which puts tools/ on the path

import probe  # isort: skip
import steady  # isort: skip
import steady_page  # isort: skip

FOUND = steady_page.load()
BOTH = torch.tensor([1.0, 4.0])


def seen(source, **names):
    """What a watcher keeps of a cell."""
    watcher = probe.Watcher()
    names["__keep__"] = watcher.keep
    exec(compile(watcher.visit(ast.parse(source)), "cell", "exec"), names)
    return {" ".join(place[1:]): pairs for place, pairs in watcher.seen.items()}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("assert x < 3", {"x < 3": [(2, 3)]}),
        ("assert 1 < x <= 2, 'why'", {"1 < x": [(1, 2)], "x <= 2": [(2, 2)]}),
        ("assert x > 1 and x != 5", {"x > 1": [(2, 1)]}),
        ("assert all(y < 3 for y in (1, x))", {"y < 3": [(1, 3), (2, 3)]}),
        ("assert (both < 5).all()", {"both < 5": [(4, 5)]}),
        ("assert bool((both > 0).all())", {"both > 0": [(1, 0)]}),
        # What need not be true for the whole to be true has no bound to keep from.
        ("assert (both > 2).sum() > 0", {"(both > 2).sum() > 0": [(1, 0)]}),
        ("assert x > 5 or x < 3", {}),
        ("assert any(y > 3 for y in both)", {}),
        ("assert x == 2 and 'a' < 'b'", {}),
        ("x < 3", {}),
    ],
)
def test_both_sides_of_what_an_assertion_rests_on_are_kept(source, expected):
    found = seen(source, x=2, both=BOTH)
    assert {k: [pytest.approx(p) for p in v] for k, v in found.items()} == expected


@pytest.mark.parametrize("source", ["assert x < 1", "assert 3 < x < 5", "assert (both < 4).all()"])
def test_a_watched_assertion_fails_as_before(source):
    with pytest.raises(AssertionError):
        seen(source, x=2, both=BOTH)


def draws():
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    return [
        torch.rand(()).item(),
        torch.rand((), generator=generator).item(),
        np.random.rand(),
        np.random.default_rng(3).random(),
        np.random.default_rng((3, 1)).random(),
        np.random.RandomState(3).rand(),
        random.random(),
        random.Random(3).random(),
    ]


def test_every_generator_is_shifted(monkeypatch):
    for owner, names in (
        (torch, ("Generator", "manual_seed")),
        (torch.random, ("manual_seed",)),
        (np.random, ("seed", "default_rng", "RandomState")),
        (random, ("seed", "Random")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    before = draws()
    probe.shift_seeds(0)
    assert draws() == before
    probe.shift_seeds(1)
    assert all(one != other for one, other in zip(draws(), before, strict=True))


def run(*pairs, sign="<", cell="1.1-1"):
    return [[cell, "x", sign, "y", list(pairs)]]


def test_the_margin_is_counted_in_standard_deviations():
    (row,) = steady.distances([run((q, 5)) for q in (1, 2, 3)])
    assert (row["mean"], row["spread"], row["bound"], row["margin"]) == (2, 1, 5, 3)
    (row,) = steady.distances([run((5, q), sign=">") for q in (1, 2, 3)])  # the bound on the left
    assert (row["mean"], row["bound"], row["margin"]) == (2, 5, 3)
    (row,) = steady.distances([run((q, 5), sign=">") for q in (1, 2, 3)])
    assert row["margin"] == -3  # it does not even hold
    (row,) = steady.distances([run((q, 2 * q)) for q in (1, 2, 3)])  # both sides change
    assert (row["mean"], row["bound"], row["margin"]) == (-2, 0, 2)


def test_the_worst_of_a_loop_counts_for_each_bound_apart():
    runs = [run((q, 9), (q - 1, 9), (q, 20)) for q in (1, 2, 3)]
    rows = {row["bound"]: row["margin"] for row in steady.distances(runs)}
    assert rows == {9: 7, 20: 18}


def test_what_does_not_change_with_the_seed_has_no_margin():
    assert steady.distances([run((2, 5))] * 3) == []
    assert steady.distances([run((1 + q * 1e-7, 5)) for q in (1, 2, 3)]) == []


# ---------------------------------------------------------------- the committed results


@pytest.mark.parametrize("path", notebooks.all_notebooks(), ids=lambda path: path.stem)
def test_every_notebook_was_measured_as_it_is(path):
    found = FOUND["seeds"][path.stem]
    assert found["code"] == notebooks.code_digest(path), (
        f"the code has changed since it was measured: make steady NOTEBOOKS=notebooks/{path.name}"
    )
    assert found["red"] == []
    assert [row for row in found["comparisons"] if row["margin"] < steady.MARGIN] == []


def test_no_cell_is_red_on_any_machine():
    runs = FOUND["machines"]["runs"]
    assert {(run["kernels"], run["threads"]) for run in runs} >= {
        (k, threads) for k in steady.LEVELS for threads in (1, 2)
    }
    cells = sum(
        c["cell_type"] == "code" for path in notebooks.all_notebooks() for c in notebooks.read(path)
    )
    assert {(run["passed"], run["failed"]) for run in runs} == {(cells, 0)}


def test_the_page_shows_each_claim_with_its_nearest_comparison():
    nearest = dict(steady_page.nearest(FOUND))
    page = steady_page.margins()
    assert nearest and all(f"<claim-{c.replace('.', '-')}>" in page for c in nearest)
    for row in nearest.values():
        assert f"  - `` {row['assertion']} ``\n" in page


def test_the_page_shows_every_planted_mistake():
    page = steady_page.planted()
    names = [name for name, _ in steady_page.faults()]
    assert len(names) >= 30 and all(name in page for name in names)
    assert page.startswith(f"{len(names)} mistakes are planted:")
    assert page.count("| chapter ") == len(notebooks.all_notebooks())
