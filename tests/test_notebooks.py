"""Every chapter obeys the rules of `tools/notebooks.py`, and every rule catches its fault."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from sample import (
    FILE,
    ROOT,
    code,
    notebooks,
    number_cells,
    repository,
    sample_cells,
    stdout,
    text,
    write,
)

NOTEBOOKS = notebooks.all_notebooks()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_obeys_every_rule(path):
    assert notebooks.problems(path) == []


def test_there_are_notebooks():
    assert NOTEBOOKS, "no notebook was found, so nothing was checked"


def test_claims_are_79_in_the_order_of_the_chapters():
    ids = list(notebooks.load_claims())
    parts = [tuple(map(int, i.replace("-", ".").split("."))) for i in ids]
    assert len(ids) == 79 and parts == sorted(parts)


def test_claims_hold_no_verdict():
    claims = notebooks.load_claims().values()
    assert all(set(claim.texts.split(", ")) <= set("ABCDE") for claim in claims)
    assert all(claim.statement.endswith(".") and ":" not in claim.statement for claim in claims)


def test_a_claim_listed_twice_is_refused(tmp_path):
    path = tmp_path / "claims.yml"
    path.write_text("- {id: 1.1-1, texts: A, statement: x}\n" * 2, encoding="utf-8")
    with pytest.raises(ValueError, match=r"claims\.yml: an id stands there twice"):
        notebooks.load_claims(path)


def test_the_sample_has_no_fault(tmp_path):
    assert notebooks.problems(write(tmp_path, sample_cells())) == []


def find(cells, *, claim=None, words=None):
    """Return the first cell with this claim or these words."""
    for cell in cells:
        if (claim and cell["metadata"].get("claim") == claim) or (
            words and words in cell["source"]
        ):
            return cell
    raise LookupError(claim or words)


def drop(cells, cell):
    cells.remove(cell)


FAULTS = {
    "another first code cell": (
        lambda cells: cells[1].update(source="import src"),
        "the first code cell is not the one of tools/repository.py",
    ),
    "a first code cell that is not folded": (
        lambda cells: cells[1].update(metadata={"tags": ["colab-setup"]}),
        "the first code cell is not the one of tools/repository.py",
    ),
    "another chapter's title": (
        lambda cells: cells[0].update(source="# 10.3 Scores\n\nWhy?"),
        "the first cell does not start with '# 10.2 …'",
    ),
    "links of another chapter": (
        lambda cells: cells[0].update(source=cells[0]["source"].replace("ch10_2", "ch10_3")),
        "the first cell does not link the page and Colab",
    ),
    "no question": (
        lambda cells: cells[2].update(source="It reaches far."),
        "no question before the first section",
    ),
    "no answer": (
        lambda cells: find(cells, words="## The answer").update(source="## The end"),
        "no section '## The answer'",
    ),
    "a cell that was never run": (
        lambda cells: find(cells, words="IPython").update(execution_count=None),
        "not run once from top to bottom",
    ),
    "cells run in another order": (
        lambda cells: find(cells, claim="10.2-1").update(execution_count=9),
        "not run once from top to bottom",
    ),
    "an error": (
        lambda cells: find(cells, claim="10.2-1")["outputs"].append(
            {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
        ),
        "code cell 2: an error output, against its tags",
    ),
    "an announced error that does not come": (
        lambda cells: find(cells, claim="10.2-1")["metadata"].update(tags=["raises-exception"]),
        "code cell 2: raises nothing, against its tags",
    ),
    "a cell hidden from nbval": (
        lambda cells: find(cells, claim="10.2-1")["metadata"].update(tags=["nbval-skip"]),
        "code cell 2: nbval-skip hides it",
    ),
    "a warning on stderr": (
        lambda cells: find(cells, claim="10.2-1")["outputs"].append(
            {"name": "stderr", "output_type": "stream", "text": "UserWarning"}
        ),
        "code cell 2: output on stderr",
    ),
    "a long line": (
        lambda cells: find(cells, claim="10.2-1").update(
            source=find(cells, claim="10.2-1")["source"] + "\n" + "# " + "x" * 78
        ),
        "code cell 2: a line of 80 characters, > 79",
    ),
    "a folded cell without title": (
        lambda cells: find(cells, words="IPython")["metadata"].update(tags=["hide-input"]),
        "code cell 7: folded, and its first line is not '#@title …'",
    ),
    "a bound that follows the result": (
        lambda cells: find(cells, claim="10.2-1").update(
            source="bound = 10.0 ** math.ceil(math.log10(a))\nassert a < bound"
        ),
        "code cell 2: a power of ten computed from a result",
    ),
    "a decade that follows the result": (
        lambda cells: find(cells, claim="10.2-1").update(
            source="digits = round(-torch.tensor(a).log10().item())\nassert a < 10"
        ),
        "code cell 2: a power of ten computed from a result",
    ),
    "figures without the style": (
        lambda cells: find(cells, words="IPython").update(source="from src import figures"),
        "never calls figures.use_style()",
    ),
    "a picture without alt text": (
        lambda cells: find(cells, words="IPython")["metadata"]["mystnb"]["image"].update(alt=" "),
        "a picture without mystnb.image.alt",
    ),
    "a picture without caption": (
        lambda cells: find(cells, words="IPython")["metadata"]["mystnb"]["figure"].pop("caption"),
        "a picture without mystnb.figure.caption",
    ),
    "a picture without name": (
        lambda cells: find(cells, words="IPython")["metadata"]["mystnb"]["figure"].pop("name"),
        "a picture without mystnb.figure.name",
    ),
    "a path of a machine": (
        lambda cells: find(cells, claim="10.2-1")["outputs"].append(stdout("/home/me/x.txt\n")),
        "a path of one machine",
    ),
    "an address in memory": (
        lambda cells: find(cells, claim="10.2-1")["outputs"].append(stdout("at 0x7f0011223344\n")),
        "a memory address",
    ),
    "a footnote": (
        lambda cells: cells[2].update(source=cells[2]["source"] + "\n\nMore.[^1]\n\n[^1]: Here."),
        "a footnote",
    ),
    "TeX that MathJax does not know": (
        lambda cells: cells[2].update(source=cells[2]["source"] + r" $\bm{q}$"),
        r"\bm, which MathJax does not know",
    ),
    "a directive": (
        lambda cells: cells[2].update(source="Why?\n\n```{note}\nSo.\n```"),
        "a directive in a text cell: '```{'",
    ),
    "a directive with colons": (
        lambda cells: cells[2].update(source="Why?\n\n:::{note}\nSo.\n:::"),
        "a directive in a text cell: ':::{'",
    ),
    "a role": (
        lambda cells: cells[2].update(source="Why? Read {cite}`ba2016`."),
        "a role in a text cell: '{cite}`'",
    ),
    "a label": (
        lambda cells: cells[2].update(source="Why?\n\n(why)=\n## Because"),
        "a label in a text cell: '(why)='",
    ),
    "a formula with a label": (
        lambda cells: cells[2].update(source="Why?\n\n$$a = b$$ (eq-why)"),
        "a label in a text cell: '$$ (eq-why)'",
    ),
    "four exercises": (
        lambda cells: cells.__delitem__(slice(-3, None)),
        "4 exercises, fewer than 5",
    ),
    "an exercise without solution": (
        lambda cells: cells.pop(-2),
        "Exercise 10.2-5: no solution",
    ),
    "exercises out of order": (
        lambda cells: find(cells, words="Exercise 10.2-4").update(
            source="### Exercise 10.2-5: Two"
        ),
        "exercises are not numbered in their order",
    ),
    "a solution that Jupyter cannot fold": (
        lambda cells: cells[-2].update(source="#### Solution\n\nDone."),
        "a heading 'Solution' has no cell of its own",
    ),
    "a claim without experiment": (
        lambda cells: find(cells, claim="10.2-3")["metadata"].pop("claim"),
        "claim 10.2-3: no experiment",
    ),
    "an unknown claim": (
        lambda cells: find(cells, claim="10.2-3")["metadata"].update(claim="10.2-99"),
        "claim 10.2-99: not in book/claims.yml",
    ),
    "another chapter's claim": (
        lambda cells: find(cells, claim="10.2-3")["metadata"].update(claim="10.3-3"),
        "claim 10.3-3: belongs to chapter 10.3",
    ),
    "a claim without assert": (
        lambda cells: find(cells, claim="10.2-3").update(source="print('Claim 10.2-3: a = 2')"),
        "claim 10.2-3: its cell asserts nothing",
    ),
    "an assert that cannot fail": (
        lambda cells: find(cells, claim="10.2-3").update(source="assert True\nassert (0, 'no')"),
        "claim 10.2-3: its cell asserts nothing",
    ),
    "an assert in a comment": (
        lambda cells: find(cells, claim="10.2-3").update(source="# assert a == 2"),
        "claim 10.2-3: its cell asserts nothing",
    ),
    "a claim that prints nothing": (
        lambda cells: find(cells, claim="10.2-3").update(outputs=[]),
        "claim 10.2-3: its cell prints no line 'Claim 10.2-3: …'",
    ),
    "a claim that prints no figure": (
        lambda cells: find(cells, claim="10.2-3").update(outputs=[stdout("Claim 10.2-3: \n")]),
        "claim 10.2-3: its cell prints no line 'Claim 10.2-3: …'",
    ),
    "a claim without box": (
        lambda cells: drop(cells, find(cells, words="Claim 10.2-3: wrong")),
        "claim 10.2-3: no box in the section of its cell",
    ),
    "a box in a later section": (
        lambda cells: cells.append(
            cells.pop(cells.index(find(cells, words="Claim 10.2-3: wrong")))
        ),
        "claim 10.2-3: its box follows no cell with that claim",
    ),
    "a box without verdict": (
        lambda cells: find(cells, words="Claim 10.2-3: wrong").update(
            source="> **Claim 10.2-3: hm.** Well."
        ),
        "claim 10.2-3: its box must begin with one of ✓ ≈ ✗ ◇",
    ),
    "a box with another sign": (
        lambda cells: find(cells, words="Claim 10.2-3: wrong").update(
            source="> **! Claim 10.2-3: hm.** Well."
        ),
        "claim 10.2-3: its box must begin with one of ✓ ≈ ✗ ◇",
    ),
    "an empty box": (
        lambda cells: find(cells, words="Claim 10.2-3: wrong").update(
            source="> **✓ Claim 10.2-3: hm.**"
        ),
        "claim 10.2-3: its box is empty",
    ),
    "two experiments for a claim": (
        lambda cells: find(cells, claim="10.2-2")["metadata"].update(claim=["10.2-2", "10.2-3"]),
        "claim 10.2-3: more than one cell",
    ),
    "two boxes for a claim": (
        lambda cells: cells.append(dict(find(cells, words="Claim 10.2-3: wrong"))),
        "claim 10.2-3: more than one box",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, tmp_path):
    break_it, message = FAULTS[fault]
    cells = sample_cells()
    break_it(cells)
    problems = notebooks.problems(write(tmp_path, cells))
    assert any(message in problem for problem in problems), problems


def test_a_notebook_without_its_folds_is_found(tmp_path):
    cells = sample_cells()
    cell = find(cells, words="IPython")
    cell["metadata"]["tags"], cell["source"] = ["hide-input"], "#@title A pixel\n" + cell["source"]
    path = write(tmp_path, cells)
    assert notebooks.problems(path) == []
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert len(notebook["metadata"]["colab"]["collapsed_sections"]) == 5
    for mark in ("cellView", "jupyter", "jp-MarkdownHeadingCollapsed"):
        broken = json.loads(path.read_text(encoding="utf-8"))
        for cell in broken["cells"][2:]:
            cell["metadata"].pop(mark, None)
        other = tmp_path / FILE
        other.write_text(json.dumps(broken), encoding="utf-8")
        assert notebooks.problems(other) == ["not folded as the book is (run: make execute)"]


def test_one_cell_may_serve_several_claims(tmp_path):
    cells = sample_cells()
    cell = find(cells, claim="10.2-2")
    cell["metadata"]["claim"] = ["10.2-2", "10.2-3"]
    cell["outputs"] = [stdout("Claim 10.2-2: a = 1\nClaim 10.2-3: a < 2\n")]
    start = cells.index(find(cells, words="Claim 10.2-2: caveat"))
    box = find(cells, words="Claim 10.2-3: wrong")
    cells[start + 1 : cells.index(box)] = []
    path = write(tmp_path, number_cells(cells))
    assert notebooks.problems(path) == []
    assert [f.measured for f in notebooks.findings([path])][1:3] == ["a = 1", "a < 2"]


def test_a_box_may_stand_in_one_cell_with_the_next_heading(tmp_path):
    cells = sample_cells()
    box, heading = find(cells, words="Claim 10.2-3: wrong"), find(cells, words="## Section 3")
    box["source"] += "\n\n" + heading["source"]
    drop(cells, heading)
    assert notebooks.problems(write(tmp_path, cells)) == []
    box["source"] = "\n\n".join(reversed(box["source"].split("\n\n")))
    message = "claim 10.2-3: no box in the section of its cell"
    assert message in notebooks.problems(write(tmp_path, cells))


def test_findings_are_those_of_cells_and_boxes(tmp_path):
    found = notebooks.findings([write(tmp_path, sample_cells())])
    assert [f.claim.id for f in found] == [f"10.2-{n}" for n in range(1, 6)]
    assert [f.verdict for f in found] == ["holds", "caveat", "wrong", "measured", "holds"]
    assert [f.measured for f in found] == [f"a = {n}" for n in range(5)]
    assert found[2].title == "Claim 10.2-3: wrong" and found[2].body == "We find $a = 2$."


@pytest.mark.parametrize("name", ["10_2_sample.ipynb", "Untitled.ipynb"])
def test_notebooks_are_named_by_chapter(name, tmp_path):
    with pytest.raises(ValueError, match="a notebook is named"):
        notebooks.chapter_of(tmp_path / name)


def shown(**data):
    """Return a display output; its keys are `html`, `plain`, …."""
    data = {f"text/{kind}": text for kind, text in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": data}


HTML = "<IPython.core.display.HTML object>"
STORED = [  # what the cell is about, the cell, whether nbval passes it
    ("the first cell prints nothing", code(repository.first_cell()), True),
    ("the package is there", code("from IPython.display import HTML\nimport src"), True),
    ("as stored", code("print('a =', 1 + 1)", stdout("a = 2\n")), True),
    ("one unit", code("print(f'mean {143.4:.0f}')", stdout("mean 142\n")), True),
    ("two units", code("print(f'mean {143.6:.0f}')", stdout("mean 142\n")), False),
    ("another word", code("print('mean 142')", stdout("most 142\n")), False),
    ("a line more", code("print('a\\nb')", stdout("a\n")), False),
    (
        "a figure of other data",
        code(
            "HTML('<p id=\"live-head-maps-01234567\">[0.12,99]</p>')",
            shown(html='<p id="live-head-maps-89abcdef">[0.13,100]</p>', plain=HTML),
        ),
        True,
    ),
    ("two units in a figure", code("HTML('<p>0.12')", shown(html="<p>0.14", plain=HTML)), False),
]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Run the checks of `make test` on one notebook; return which cells pass, and the report."""
    cells = number_cells([cell for _, cell, _ in STORED])
    path = write(tmp_path_factory.mktemp("nbval"), cells, "stored.ipynb")
    options = shlex.split((ROOT / "tests" / "nbval.args").read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options, str(path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=300
    )
    return re.findall(r"::Cell \d+ (PASSED|FAILED)", run.stdout), run.stdout


@pytest.mark.slow
def test_nbval_passes_what_may_differ_and_fails_what_may_not(checked):
    outcomes, report = checked
    got = dict(zip((what for what, _, _ in STORED), outcomes, strict=True))
    assert got == {what: "PASSED" if same else "FAILED" for what, _, same in STORED}, report


@pytest.mark.slow
def test_nbval_names_the_number(checked):
    assert "142 was stored, 144 came in: mean 144\n" in checked[1]
    assert "0.14 was stored, 0.12 came in: <p>0.12\n" in checked[1]


def test_make_test_checks_the_notebooks_with_these_options():
    script = (ROOT / "tools" / "run_tests.sh").read_text(encoding="utf-8")
    assert script.count("tests/nbval.args") == 1 and "--nbval" not in script


def test_the_first_cell_says_what_to_do_where_src_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    source = repository.first_cell().replace(
        '        %pip install -q "{COURSE}"\n', "        pass\n"
    )
    before = list(sys.path)
    try:
        with pytest.raises(ImportError, match=rf'notebooks\] @ git\+{repository.address()}"'):
            exec(compile(source, "first cell", "exec"), {})
        assert sys.path[0] == ".."
    finally:
        sys.path[:] = before


def test_writing_the_first_cell_is_idempotent(tmp_path):
    path = write(tmp_path, [text("# 10.2 Title")])
    assert repository.write_first_cells(path, "import src")
    assert not repository.write_first_cells(path, "import src")
    assert repository.write_first_cells(path, "import src  # now\nimport sys")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    title = f"# 10.2 Title\n\n{repository.ways(path.name)}"
    assert ["".join(c["source"]) for c in cells] == [title, "import src  # now\nimport sys"]
    assert cells[1]["metadata"] == repository.FIRST_CELL_METADATA
