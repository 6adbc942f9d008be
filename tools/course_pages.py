"""A small Sphinx extension: the parts of pages that are made when the book is built.

* A block `{generated} NAME` in a page of `book/` becomes the MyST text that `GENERATED[NAME]`
  returns: ledger and corrections from the notebooks' experiments, chapters from their titles, the
  package's reference from its modules. So none of them can drift from what it tells of.
* Each box of a claim becomes a target, so that `{ref}` reaches it as `claim-10-3-5`; each row of
  the ledger is `ledger-10-3-5`.
* A chapter gets a line below its title, a last line in each box, and links of Chinese terms:
  `tools/chapter_pages.py`; its quotes, exercises and formulas become boxes and anchors:
  `tools/plain_pages.py`.
* The footer names the commit: `tools/stamp.py`.
* Without scripts a page is read as well: `tools/noscript.py`.
* What `tools/notebooks.py` finds wrong with a notebook becomes a warning, and `-W` an error.
"""

import re
import sys
from itertools import groupby
from pathlib import Path

from docutils import nodes
from sphinx.errors import ConfigError
from sphinx.util import logging

import chapter_pages
import front_page
import noscript
import notebooks
import package
import plain_pages
import plan_page
import speed_page
import stamp
import stand_ins
import steady_page
from chapter_pages import row_of, target_of
from repository import ROOT

logger = logging.getLogger(__name__)

COUNTED = {
    "holds": ("holds", "hold"),
    "caveat": ("holds under a condition", "hold under a condition"),
    "wrong": ("does not hold", "do not hold"),
    "measured": ("is an open question that we measure", "are open questions that we measure"),
}


def ledger() -> str:
    """Return one table a chapter: claim, verdict, measured figure."""
    found = notebooks.findings()
    counts = [(sum(f.verdict == v for f in found), words) for v, words in COUNTED.items()]
    said = [f"{n} {words[n != 1]}" for n, words in counts if n]
    lines = [f"Of {len(found)} claims, " + ", ".join(said) + ".", ""]
    for path, group in groupby(found, key=lambda f: f.notebook):
        lines += [f"## {notebooks.title(path)}", ""]
        lines += ["````{list-table}", ":header-rows: 1", ":class: ledger"]
        lines += [":widths: 10 44 16 30", ""]
        lines += ["* - Claim", "  - What the texts say", "  - Verdict", "  - Measured"]
        for f in group:
            lines += [
                f"* - ({row_of(f.claim.id)})=",
                f"    {{ref}}`{f.claim.id} <{target_of(f.claim.id)}>`",
                f"  - {f.claim.statement}",
                f"  - [{notebooks.VERDICTS[f.verdict]}]{{.verdict .{f.verdict}}}",
                f"  - {_plain(f.measured)}",
            ]
        lines += ["````", ""]
    return "\n".join(lines)


def corrections() -> str:
    """Return the boxes of the claims that do not hold, then of those with a condition."""
    lines = []
    for verdict, heading in (
        ("wrong", "What does not hold"),
        ("caveat", "What holds under a condition"),
    ):
        found = [f for f in notebooks.findings() if f.verdict == verdict]
        if found:
            lines += [f"## {heading}", ""]
        for f in found:
            # Links are the chapter's, whose folder is another one.
            body = re.sub(r"\]\((?=[\w-]+\.ipynb)", "](../notebooks/", plain_pages.cite(f.body))
            lines += [
                f"`````{{admonition}} {f.title}",
                f":class: claim {verdict}",
                "",
                f"The texts: *{f.claim.statement}*",
                "",
                body,
                "",
                f"{{ref}}`Go to the experiment <{target_of(f.claim.id)}>` in chapter"
                f" {f.claim.chapter}.",
                "`````",
                "",
            ]
    return "\n".join(lines) or "There are none so far."


def modules() -> str:
    """Return the reference of the package, lowest rooms first."""
    order = {room: number for number, room in enumerate(package.levels())}
    lines = []
    for name in sorted(package.files(), key=lambda name: (order[name.partition(".")[0]], name)):
        lines += [f"## `src.{name}`", "", "```{eval-rst}", f".. automodule:: src.{name}"]
        # What a package passes on is described where it is defined.
        lines += ["   :members:", "   :ignore-module-all:", "```", ""]
    return "\n".join(lines)


GENERATED = {
    "ledger": ledger,
    "corrections": corrections,
    "chapters": front_page.chapters,
    "facts": front_page.facts,
    "live": front_page.live,
    "modules": modules,
    "speed": speed_page.speed,
    "gpu": speed_page.gpu,
    "plan": plan_page.plan,
    "margins": steady_page.margins,
    "machines": steady_page.machines,
    "planted": steady_page.planted,
}


def generate(app, docname: str, content: list[str]) -> None:
    """Replace the `{generated}` blocks of a page, and complete a chapter."""
    if docname.startswith("notebooks/"):
        content[0] = chapter_pages.complete(docname, content[0], app.env.found_docs)
        return
    content[0] = re.sub(
        r"(?m)^```\{generated\} (\w+)\n```$", lambda m: GENERATED[m[1]](), content[0]
    )


def label_boxes(app, doctree: nodes.document) -> None:
    """Give the box of each claim in a notebook an id and a label."""
    docname = app.env.docname
    if not docname.startswith("notebooks/"):
        return
    domain = app.env.get_domain("std")
    for box in doctree.findall(nodes.admonition):
        found = re.match(r"Claim (\d+\.\d+-\d+)\b", box.next_node(nodes.title).astext())
        if found and "claim" in box["classes"]:
            label = target_of(found[1])
            box["ids"].append(label)
            domain.labels[label] = (docname, label, f"claim {found[1]}")
            domain.anonlabels[label] = (docname, label)


def link_terms(app, doctree: nodes.document) -> None:
    """Link the Chinese terms of a chapter to the glossary, where the book has one."""
    docname = app.env.docname
    if docname.startswith("notebooks/") and "book/glossary" in app.env.found_docs:
        page = Path(app.srcdir, "book", "glossary.md")
        chapter_pages.link_terms(doctree, docname, chapter_pages.chinese_terms(page))


def sign(app, config) -> None:
    """Put the commit into the footer."""
    try:
        line = stamp.footer(Path(app.srcdir), config.html_theme_options["repository_url"])
    except ValueError as error:
        raise ConfigError(str(error)) from error
    config.html_theme_options["extra_footer"] = line


def warn_of_problems(app, env, docnames) -> None:
    """Warn of all that the checks find in the notebooks of the book."""
    for path in notebooks.all_notebooks(Path(app.srcdir, "notebooks")):
        if f"notebooks/{path.stem}" in env.found_docs:
            for problem in notebooks.problems(path):
                logger.warning(problem, location=f"notebooks/{path.stem}", type="course")


def _plain(text: str) -> str:
    """Escape what MyST would take as markup."""
    return re.sub(r"([\\`*_{}\[\]<>$|~#^])", r"\\\1", text)


def setup(app):
    sys.path.insert(0, str(ROOT))  # the reference is of this folder's `src`, installed or not
    stand_ins.install()
    noscript.install(app)
    app.connect("config-inited", sign)
    app.connect("source-read", generate)
    app.connect("env-before-read-docs", warn_of_problems)
    app.connect("doctree-read", label_boxes)
    app.connect("doctree-read", link_terms)
    app.add_transform(plain_pages.PlainPages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
