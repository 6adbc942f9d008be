"""What a chapter's notebook must hold, and what its experiments found.

`problems` reads one notebook and lists what is wrong with it; the tests demand an empty list, and
the book's build warns of each entry. `findings` reads the experiments of all notebooks; the
ledger and the corrections are made from them, so that neither page can say anything else than the
chapters do.
"""

import ast
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

import folds
from repository import FIRST_CELL_METADATA, ROOT, first_cell, ways

VERDICTS = {
    "holds": "holds",
    "caveat": "holds under a condition",
    "wrong": "does not hold",
    "measured": "measured",
}
MIN_EXERCISES = 5
MAX_LINE = 79

# The sign with which the box of a claim begins, and the verdict that it stands for.
SIGNS = {"✓": "holds", "≈": "caveat", "✗": "wrong", "◇": "measured"}
LEAD = re.compile(r"(?:(?P<sign>\S) )?(?P<title>Claim (?P<id>\d+\.\d+-\d+)\b.*?)\.?")
PART = re.compile(
    r"^(?P<heading>##? )|"  # a section, or the box of a claim
    rf"^> \*\*{LEAD.pattern}\*\*(?P<body>.*(?:\n>.*)*)",
    re.MULTILINE,
)
# What only the book would show as meant.
DIRECTIVE = {
    r"^\s*(?:`{3,}|:{3,}|~{3,})\{": "a directive",
    r"\{[\w:-]+\}`": "a role",
    r"^\([\w-]+\)=\s*$|\$\$ *\([\w-]+\)\s*$": "a label",
    r"\]\{[.#]": "an attribute",
    r"^%|^\+\+\+": "a comment or a break of MyST",
}
# A power of ten made from a result: two machines on either side of it print two bounds.
COMPUTED_DECADE = re.compile(r"\b(?:ceil|floor|round|int)\(.*\blog10\b")
FORBIDDEN = {
    r"(?<![\w.])/(?:home|root|tmp|work|Users|content)/\w": "a path of one machine",
    r"\bsite-packages\b": "a path of one machine",
    r"\b0x[0-9a-f]{8,}\b": "a memory address",
    r"\\bm\b": r"\bm, which MathJax does not know: write \boldsymbol",
    r"(?m)^\[\^[^\]]+\]:|(?<![\]`])\[\^\w+\](?!\()": "a footnote",
}


@dataclass(frozen=True)
class Claim:
    """One statement of the source texts, from `book/claims.yml`."""

    id: str
    statement: str
    texts: str

    @property
    def chapter(self) -> str:
        return self.id.partition("-")[0]


@dataclass(frozen=True)
class Finding:
    """What a notebook's experiment says about one claim."""

    claim: Claim
    verdict: str  # a key of VERDICTS
    title: str  # of the box
    body: str  # of the box, Markdown
    measured: str  # what the cell printed
    notebook: Path


@cache
def load_claims(path: Path = ROOT / "book" / "claims.yml") -> dict[str, Claim]:
    """Read the claims, by id and in the order of the file."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    claims = {entry["id"]: Claim(**entry) for entry in entries}
    if len(claims) != len(entries):
        raise ValueError(f"{path.name}: an id stands there twice")
    return claims


def chapter_of(path: Path) -> str:
    """Return the chapter of a notebook's name: `ch10_3_scoring_functions.ipynb` is 10.3."""
    found = re.match(r"ch(\d+)_(\d+)_\w+\.ipynb$", path.name)
    if not found:
        raise ValueError(f"{path.name}: a notebook is named chNN_N_words.ipynb")
    return f"{found[1]}.{found[2]}"


def all_notebooks(folder: Path = ROOT / "notebooks") -> list[Path]:
    """List the chapters' notebooks in the order of the book."""
    paths = list(folder.glob("*.ipynb"))
    return sorted(paths, key=lambda p: [int(n) for n in chapter_of(p).split(".")])


def read(path: Path) -> list[dict]:
    """Return a notebook's cells, each with its source as one string."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        cell["source"] = "".join(cell["source"])
    return cells


def title(path: Path) -> str:
    """Return a chapter's title."""
    return (_opening(path) or path.stem).splitlines()[0].lstrip("# ")


def question(path: Path) -> str:
    """Return the question that opens a chapter: its first sentence that ends in a question mark."""
    words = " ".join(_opening(path).splitlines()[1:]).strip()
    found = re.search(r"(?:^|[.?!]\**\s+)\**([A-Z][^.?!]*\?)", words)
    return found[1] if found else ""


def _opening(path: Path) -> str:
    """Return a chapter's title and its text before the first section."""
    texts = [c["source"] for c in read(path) if c["cell_type"] == "markdown"]
    if texts:
        texts[0] = texts[0].partition("\n")[0]
    return re.split(r"^## ", "\n".join(texts), maxsplit=1, flags=re.MULTILINE)[0]


def findings(paths: list[Path] | None = None) -> list[Finding]:
    """Return what the experiments of the notebooks found, in the order of the claims."""
    claims = load_claims()
    found = {}
    for path in all_notebooks() if paths is None else paths:
        cells = read(path)
        printed = {}
        for cell in cells:
            printed.update(dict.fromkeys(claim_ids(cell), _stdout(cell)))
        for cell in cells:
            for box in _boxes(cell):
                if box["id"] in claims and box["id"] in printed:
                    lines = re.findall(
                        rf"^Claim {re.escape(box['id'])}: (.+)$", printed[box["id"]], re.MULTILINE
                    )
                    found[box["id"]] = Finding(
                        claim=claims[box["id"]],
                        verdict=_verdict(box) or "measured",
                        title=box["title"],
                        body=_body(box),
                        measured="; ".join(lines),
                        notebook=path,
                    )
    return [found[i] for i in claims if i in found]


def problems(path: Path) -> list[str]:
    """List everything that a chapter's notebook does wrong; an empty list if nothing."""
    cells = read(path)
    code = [c for c in cells if c["cell_type"] == "code"]
    text = [c for c in cells if c["cell_type"] == "markdown"]
    return [
        *_start(path, cells),
        *_execution(code),
        *_code(code),
        *_pictures(code),
        *_words(cells),
        *_markdown(text),
        *_exercises(path, cells),
        *_claims(path, cells),
        *_marks(path),
    ]


def _start(path: Path, cells: list[dict]):
    setup = next((c for c in cells if c["cell_type"] == "code"), None)
    if setup is None or [setup["source"], setup["metadata"]] != [first_cell(), FIRST_CELL_METADATA]:
        yield "the first code cell is not the one of tools/repository.py (run: make execute)"
    words = f"# {chapter_of(path)} "
    if not cells or not cells[0]["source"].startswith(words):
        yield f"the first cell does not start with '{words}…'"
    elif cells[0]["source"].partition("\n\n")[2] != ways(path.name):
        yield "the first cell does not link the page and Colab (run: make execute)"
    if not question(path):
        yield "no question before the first section"
    if not any(re.search(r"^## The answer$", c["source"], re.MULTILINE) for c in cells):
        yield "no section '## The answer'"


def _execution(code: list[dict]):
    counts = [c["execution_count"] for c in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"not run once from top to bottom: execution counts {counts}"
    for number, cell in enumerate(code, 1):
        raises = any(o["output_type"] == "error" for o in cell["outputs"])
        tags = cell["metadata"].get("tags", [])
        if raises != ("raises-exception" in tags):
            what = "an error output" if raises else "raises nothing"
            yield f"code cell {number}: {what}, against its tags"
        if "nbval-skip" in tags:
            yield f"code cell {number}: nbval-skip hides it from the checks"
        if any(o.get("name") == "stderr" for o in cell["outputs"]):
            yield f"code cell {number}: output on stderr"


def _code(code: list[dict]):
    for number, cell in enumerate(code, 1):
        if folds.is_folded(cell) and not re.match(rf"{folds.TITLE}\S.*\n", cell["source"]):
            yield f"code cell {number}: folded, and its first line is not '{folds.TITLE}…'"
        for line in cell["source"].splitlines():
            if len(line) > MAX_LINE:
                yield f"code cell {number}: a line of {len(line)} characters, > {MAX_LINE}"
        if COMPUTED_DECADE.search(cell["source"]):
            yield f"code cell {number}: a power of ten computed from a result: print a fixed bound"
    sources = "\n".join(c["source"] for c in code)
    if "src.figures" in sources or "import figures" in sources:
        if "use_style()" not in sources:
            yield "imports src.figures and never calls figures.use_style()"


def _pictures(code: list[dict]):
    for number, cell in enumerate(code, 1):
        data = [o.get("data", {}) for o in cell["outputs"]]
        if not any(kind.startswith("image/") for d in data for kind in d):
            continue
        about = cell["metadata"].get("mystnb", {})
        for group, key in (("image", "alt"), ("figure", "caption"), ("figure", "name")):
            if not str(about.get(group, {}).get(key) or "").strip():
                yield f"code cell {number}: a picture without mystnb.{group}.{key}"


def _words(cells: list[dict]):
    for number, cell in enumerate(cells):
        shown = [cell["source"], *_output_texts(cell)]
        for pattern, what in FORBIDDEN.items():
            if any(re.search(pattern, text) for text in (shown if number else shown[1:])):
                yield f"cell {number} ({cell['source'][:30]!r}…): {what}"


def _markdown(text: list[dict]):
    for cell in text:
        source = re.sub(r"(?ms)^(`{3,})[^`{\n]*\n.*?^\1$", "", cell["source"])  # a listing
        for pattern, what in DIRECTIVE.items():
            if found := re.search(pattern, source, re.MULTILINE):
                yield f"{what} in a text cell: {found[0].strip()!r}"


def _exercises(path: Path, cells: list[dict]):
    headings = re.findall(
        r"^(### Exercise \S+?|#### Solution|##? .*)(?:$|: )",
        "\n".join(c["source"] for c in cells if c["cell_type"] == "markdown"),
        re.MULTILINE,
    )
    exercises = [h for h in headings if h.startswith("### ")]
    wanted = [f"### Exercise {chapter_of(path)}-{n}" for n in range(1, len(exercises) + 1)]
    if len(exercises) < MIN_EXERCISES:
        yield f"{len(exercises)} exercises, fewer than {MIN_EXERCISES}"
    if exercises != wanted:
        yield f"exercises are not numbered in their order: {exercises}"
    for heading, following in zip(headings, [*headings[1:], ""], strict=True):
        if heading in exercises and following != "#### Solution":
            yield f"{heading.strip('# ')}: no solution"
    for cell in cells:
        if "#### Solution" in cell["source"] and cell["source"] != "#### Solution":
            yield "a heading 'Solution' has no cell of its own, so Jupyter cannot fold below it"


def _marks(path: Path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if folds.marked(notebook) != notebook:
        yield "not folded as the book is (run: make execute)"


def _claims(path: Path, cells: list[dict]):
    known = load_claims()
    seen: list[str] = []
    boxed: list[str] = []
    waiting: list[str] = []  # claims of the present section whose box is still to come
    for cell in cells:
        for part in _parts(cell):
            if part["heading"]:
                yield from (f"claim {i}: no box in the section of its cell" for i in waiting)
                waiting = []
                continue
            boxed.append(part["id"])
            if part["id"] in waiting:
                waiting.remove(part["id"])
            else:
                yield f"claim {part['id']}: its box follows no cell with that claim"
            if _verdict(part) is None:
                yield f"claim {part['id']}: its box must begin with one of {' '.join(SIGNS)}"
            if not _body(part):
                yield f"claim {part['id']}: its box is empty"
        for claim in claim_ids(cell):
            yield from _claim_cell(claim, cell, known, chapter_of(path))
            seen.append(claim)
            waiting.append(claim)
    yield from (f"claim {i}: no box in the section of its cell" for i in waiting)
    for name, ids in (("cell", seen), ("box", boxed)):
        yield from (f"claim {i}: more than one {name}" for i in set(ids) if ids.count(i) > 1)
    for claim in known.values():
        if claim.chapter == chapter_of(path) and claim.id not in seen:
            yield f"claim {claim.id}: no experiment"


def _claim_cell(claim: str, cell: dict, known: dict[str, Claim], chapter: str):
    if claim not in known:
        yield f"claim {claim}: not in book/claims.yml"
    elif known[claim].chapter != chapter:
        yield f"claim {claim}: belongs to chapter {known[claim].chapter}"
    if not _asserts(cell["source"]):
        yield f"claim {claim}: its cell asserts nothing"
    if not re.search(rf"^Claim {re.escape(claim)}: .*\S", _stdout(cell), re.MULTILINE):
        yield f"claim {claim}: its cell prints no line 'Claim {claim}: …'"


def _asserts(source: str) -> bool:
    """Tell whether code holds an assert that can fail."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # an IPython magic
        return bool(re.search(r"^\s*assert ", source, re.MULTILINE))
    checks = (n for n in ast.walk(tree) if isinstance(n, ast.Assert))
    return any(not isinstance(n.test, (ast.Constant, ast.Tuple)) for n in checks)


def code_digest(path: Path) -> str:
    """Name what a notebook computes: equal if its code is, up to comments, layout and imports."""
    cells = [c["source"] for c in read(path) if c["cell_type"] == "code"][1:]  # not the set-up
    statements = (node for source in cells for node in ast.parse(source).body)
    trees = (ast.dump(n) for n in statements if not isinstance(n, (ast.Import, ast.ImportFrom)))
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


def claim_ids(cell: dict) -> list[str]:
    ids = cell["metadata"].get("claim", []) if cell["cell_type"] == "code" else []
    return [ids] if isinstance(ids, str) else list(ids)


def _parts(cell: dict) -> list[re.Match]:
    """Return the headings of sections and the boxes of a text cell, in their order."""
    return list(PART.finditer(cell["source"])) if cell["cell_type"] == "markdown" else []


def _boxes(cell: dict) -> list[re.Match]:
    return [part for part in _parts(cell) if not part["heading"]]


def _verdict(box: re.Match) -> str | None:
    """Return the verdict that a box's sign stands for, or None if it has none."""
    return SIGNS.get(box["sign"])


def _body(box: re.Match) -> str:
    """Return the text of a box without the marks of its quote."""
    return re.sub(r"(?m)^> ?", "", box["body"]).strip()


def _stdout(cell: dict) -> str:
    return "".join("".join(o["text"]) for o in cell.get("outputs", []) if o.get("name") == "stdout")


def _output_texts(cell: dict) -> list[str]:
    texts = []
    for output in cell.get("outputs", []):
        texts.append("".join(output.get("text", "")))
        data = output.get("data", {})
        texts += ["".join(v) for k, v in data.items() if k.startswith("text/")]
    return texts
