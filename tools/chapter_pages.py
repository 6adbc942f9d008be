"""What the build adds to a chapter's page: its head, the foot of its boxes, links of its terms.

The notebook itself stays as it is; all of this is made from it and from the pages in `book/`.
"""

import json
import re
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

import folds
import notebooks
import plain_pages
from repository import ROOT

WORDS_PER_MINUTE = 150
LINES_PER_MINUTE = 25
LIVE = re.compile(r'<figure class="live" id="live-([a-z-]+)-[0-9a-f]+"')


def target_of(claim_id: str) -> str:
    """Return the label of a claim's box: 10.3-5 becomes claim-10-3-5."""
    return "claim-" + claim_id.replace(".", "-")


def row_of(claim_id: str) -> str:
    """Return the label of a claim's row in the ledger: 10.3-5 becomes ledger-10-3-5."""
    return "ledger-" + claim_id.replace(".", "-")


def minutes(cells: list[dict]) -> int:
    """Estimate how long a chapter takes to read, in minutes, to the next five.

    A formula counts as one word; code is read more slowly than text, line by line. Code that is
    folded away does not count.
    """
    text = "\n".join(c["source"] for c in cells if c["cell_type"] == "markdown")
    text = re.sub(r"\$\$.+?\$\$|\$[^$]+\$", " formula ", text, flags=re.DOTALL)
    words = len(re.findall(r"[^\W\d_][\w’'-]*", text))
    code = [c for c in cells if c["cell_type"] == "code"]
    code = [c for c in code if not folds.is_folded(c)]
    lines = sum(bool(line.strip()) for c in code for line in c["source"].splitlines())
    return max(5, 5 * round((words / WORDS_PER_MINUTE + lines / LINES_PER_MINUTE) / 5))


def live_figures(cells: list[dict]) -> list[tuple[str, str]]:
    """Return kind and HTML of each live figure among a notebook's outputs."""
    found = []
    for cell in cells:
        for output in cell.get("outputs", []):
            html = "".join(output.get("data", {}).get("text/html", ""))
            if kind := LIVE.match(html):
                found.append((kind[1], html))
    return found


def head(cells: list[dict]) -> str:
    """Return the line below a chapter's title: how long it is and what is in it."""
    text = "\n".join(c["source"] for c in cells if c["cell_type"] == "markdown")
    claims = sum(len(notebooks.claim_ids(c)) for c in cells)
    exercises = len(re.findall(r"^### Exercise ", text, re.MULTILINE))
    parts = [
        f"About {minutes(cells)} minutes of reading",
        _count(claims, "statement", " tested"),
        _count(exercises, "exercise"),
        _count(len(live_figures(cells)), "figure", " to play with"),
    ]
    return f"[{' · '.join(filter(None, parts))}]{{.about}}"


def complete(docname: str, content: str, found_docs: set[str]) -> str:
    """Return a notebook's JSON with the head below the title, citations, and the boxes' feet."""
    notebook = json.loads(content)
    cells = notebook["cells"]
    for cell in cells:
        cell["source"] = "".join(cell["source"])
    text = [c for c in cells if c["cell_type"] == "markdown"]
    opening = head(cells)
    for cell in text:
        cell["source"] = notebooks.PART.sub(
            lambda part: part[0] if part["heading"] else _with_foot(part, found_docs),
            plain_pages.cite(cell["source"]),
        )
    for cell in cells:
        if cell["source"].startswith(folds.TITLE):
            title, _, cell["source"] = cell["source"].partition("\n")
            about = cell["metadata"].setdefault("mystnb", {})
            about["code_prompt_show"] = title.removeprefix(folds.TITLE)
            about["code_prompt_hide"] = about["code_prompt_show"]
    title = text[0]["source"].partition("\n")[0]
    text[0]["source"] = f"{title}\n\n{opening}"
    return json.dumps(notebook, ensure_ascii=False)


@cache
def chinese_terms(page: Path = ROOT / "book" / "glossary.md") -> dict[str, str]:
    """Read the glossary: its Chinese words, each with the term that it belongs to.

    Raises:
        ValueError: If two terms have one Chinese word.
    """
    terms = {}
    entries = re.findall(r"(?m)^(\S.*)\n((?:  .+\n)+)", page.read_text(encoding="utf-8"))
    for term, entry in entries:
        for word in re.findall(r"(?:^|;)\s+([\u4e00-\u9fff]+)(?=[.;])", entry):
            if terms.setdefault(word, term) != term:
                raise ValueError(f"{page.name}: {word} stands with {terms[word]} and {term}")
    return terms


def link_terms(doctree: nodes.document, docname: str, terms: dict[str, str]) -> None:
    """Lead the first mention of each Chinese term, in brackets in the text, to the glossary."""
    waiting = dict(terms)
    for node in list(doctree.findall(nodes.Text)):
        if not isinstance(node.parent, (nodes.paragraph, nodes.strong, nodes.emphasis)):
            continue
        parts = re.split(r"(?<=[(（])([\u4e00-\u9fff]+)(?=[)）,，])", str(node))
        new = []
        for index, part in enumerate(parts):
            term = waiting.pop(part, None) if index % 2 else None
            if term is None:
                new.append(nodes.Text(part))
                continue
            link = addnodes.pending_xref(
                "",
                nodes.inline("", part),
                refdomain="std",
                reftype="term",
                reftarget=term,
                refexplicit=True,
                refwarn=True,
                refdoc=docname,
            )
            new.append(link)
        if len(new) > 1:
            node.parent.replace(node, [n for n in new if n != nodes.Text("")])


def _with_foot(part: re.Match, found_docs: set[str]) -> str:
    """Return a box with a last line: the statement that it judges, and the way to the ledger."""
    claim = notebooks.load_claims().get(part["id"])
    if claim is None:
        return part[0]
    where = ""
    if "book/claims" in found_docs:
        where = f" · {{ref}}`in the ledger <{row_of(claim.id)}>`"
    line = f"[What the documents say: *{claim.statement}*{where}]{{.says}}"
    return f"{part[0]}\n>\n> {line}"


def _count(number: int, word: str, rest: str = "") -> str:
    return f"{number} {word}{'s' * (number != 1)}{rest}" if number else ""
