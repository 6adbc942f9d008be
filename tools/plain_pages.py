"""What the build makes of a chapter's plain Markdown.

A notebook is read in the book, in Jupyter, on Colab, and in previews, and only headings, lists,
tables, quotes, links and formulas look right in all of them. So a chapter has nothing else, and the
book makes more of some:

* a quote that begins with **✓ Claim 10.7-1: holds.** is that claim's box; one that begins with
  **You need** is the box at a chapter's head;
* a heading *Exercise 10.7-3* begins an exercise; *Solution* below it is a box that opens,
  with all cells that follow;
* a formula's ``\\tag{10.7.1}`` is its anchor, and *(10.7.1)* in the text a link to it; likewise
  *exercise 10.7-3*;
* a link to the address of a reference is a citation.
"""

import re
from functools import cache
from pathlib import Path

from docutils import nodes
from pybtex.database import parse_file
from sphinx.domains.std import StandardDomain
from sphinx.transforms import SphinxTransform

import notebooks
from repository import ROOT

HEAD = "You need, and you will be able to"
EXERCISE = re.compile(r"Exercise (\d+\.\d+-\d+)(?:: .*)?")
TAG = re.compile(r"\s*\\tag\{(\d+\.\d+\.\d+)\}")
MENTION = re.compile(r"\((\d+\.\d+\.\d+)\)|[Ee]xercise (\d+\.\d+-\d+)")
PAPER = re.compile(r"https://(?:arxiv|doi)\.org/")
LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((https?://[^()\s]+)\)")


def exercise_id(number: str) -> str:
    """Return the id of an exercise's box: 10.3-5 becomes ex-10-3-5."""
    return "ex-" + re.sub(r"\W", "-", number)


def equation_id(number: str) -> str:
    """Return the id of a formula: 10.3.5 becomes equation-10-3-5."""
    return "equation-" + number.replace(".", "-")


@cache
def references(path: Path = ROOT / "book" / "references.bib") -> dict[str, str]:
    """Read the bibliography: the address of each work, with its key."""
    return {address(entry.fields): key for key, entry in parse_file(path).entries.items()}


def address(fields) -> str:
    """Return where a work of the bibliography is found."""
    if "eprint" in fields:
        return f"https://arxiv.org/abs/{fields['eprint']}"
    return f"https://doi.org/{fields['doi']}" if "doi" in fields else fields["url"]


def cite(text: str) -> str:
    """Turn links to works of the bibliography into citations.

    ``[(Ba et al., 2016)](https://…)`` is one in brackets, ``[Ba et al. (2016)](https://…)`` one in
    the sentence.

    Raises:
        ValueError: If a link leads to a paper that is not in the bibliography.
    """

    def citation(link: re.Match) -> str:
        key = references().get(link[2])
        if key is None and PAPER.match(link[2]):
            raise ValueError(f"{link[0]}: no work in book/references.bib has this address")
        if key is None:
            return link[0]
        return f"{{cite}}`{key}`" if link[1].startswith("(") else f"{{cite:t}}`{key}`"

    return LINK.sub(citation, text)


class PlainPages(SphinxTransform):
    """Make boxes, anchors and links of a chapter's quotes, headings, formulas and mentions."""

    default_priority = 400  # after the page is read, before references are collected

    def apply(self, **kwargs) -> None:
        if self.env.docname.startswith("notebooks/"):
            for quote in list(self.document.findall(nodes.block_quote)):
                self.box(quote)
            for section in list(self.document.findall(nodes.section)):
                self.exercise(section)
            for formula in self.document.findall(nodes.math_block):
                self.anchor(formula)
            elements = self.document.findall(nodes.Element)
            known = {name for element in elements for name in element.get("ids", [])}
            for text in list(self.document.findall(nodes.Text)):
                self.link(text, known)

    def box(self, quote: nodes.block_quote) -> None:
        """Make a box of a quote that begins with a claim's verdict or with what one needs."""
        lead = quote.next_node(nodes.strong)
        if lead is None or not quote.astext().startswith(lead.astext()):
            return
        found = notebooks.LEAD.fullmatch(lead.astext())
        box = nodes.admonition("", *quote.children)
        if found and found["sign"] in notebooks.SIGNS:
            verdict = notebooks.SIGNS[found["sign"]]
            box["classes"] += ["claim", verdict]
            title = nodes.title("", "", *lead.children)
            first, last = title.children[0], title.children[-1]
            title.replace(first, nodes.Text(first.removeprefix(f"{found['sign']} ")))
            last = title.children[-1]
            title.replace(last, nodes.Text(last.removesuffix(".")))
            lead.parent.remove(lead)
        elif lead.astext() == "You need":
            box["classes"].append("tip")
            title = nodes.title("", HEAD)
        else:
            return
        box.insert(0, title)
        quote.replace_self(box)

    def exercise(self, section: nodes.section) -> None:
        """Make two boxes of an exercise's section: what is asked, and the solution."""
        title = section.next_node(nodes.title)
        found = title and EXERCISE.fullmatch(title.astext())
        if not found or title.parent is not section:
            return
        name = exercise_id(found[1])
        solution = section.children[-1]
        asked = nodes.admonition("", *section.children[:-1], classes=["exercise"])
        asked["ids"] = [name, *section["ids"]]
        given = nodes.admonition("", classes=["solution", "dropdown"], ids=[f"{name}-solution"])
        link = nodes.reference("", f"exercise {found[1]}", internal=True, refid=name)
        given += nodes.title("", "Solution of ", link)
        given += solution.children[1:]
        section.replace_self([asked, given])
        self.label(name, f"exercise {found[1]}")

    def anchor(self, formula: nodes.math_block) -> None:
        """Give a formula the number that its tag says."""
        found = TAG.search(formula.astext())
        if found:
            latex = TAG.sub("", formula.astext())
            formula.children = [nodes.Text(latex)]
            formula["number"], formula["label"] = found[1], found[1].replace(".", "-")
            formula["docname"], formula["nowrap"] = self.env.docname, False
            formula["ids"].append(equation_id(found[1]))

    def link(self, text: nodes.Text, known: set[str]) -> None:
        """Lead a mention of a formula or an exercise of this page to it."""
        if not isinstance(text.parent, nodes.paragraph | nodes.emphasis | nodes.strong):
            return
        new, end = [], 0
        for found in MENTION.finditer(text):
            name = equation_id(found[1]) if found[1] else exercise_id(found[2])
            if name in known:
                new.append(nodes.Text(text[end : found.start()]))
                new.append(nodes.reference("", found[0], internal=True, refid=name))
                end = found.end()
        if new:
            text.parent.replace(text, [*new, nodes.Text(text[end:])])

    def label(self, name: str, words: str) -> None:
        """Let `{ref}` reach an anchor from other pages."""
        domain: StandardDomain = self.env.get_domain("std")
        domain.labels[name] = (self.env.docname, name, words)
        domain.anonlabels[name] = (self.env.docname, name)
