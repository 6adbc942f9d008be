"""What the front page shows, made from the chapters when the book is built: counts, figure, map."""

import re
from pathlib import Path

import chapter_pages
import notebooks

# The first kind that a chapter has, of the last chapter that has it.
FRONT_FIGURES = ("decoding-steps", "head-maps", "score-playground")


def facts() -> str:
    """Return what became of the statements: how many, and how many of each verdict."""
    found = notebooks.findings()
    words = {
        "holds": "hold",
        "caveat": "need a condition that the notes leave out",
        "wrong": "do not hold",
        "measured": "are open and measured",
    }
    counts = [
        f"[**{sum(f.verdict == verdict for f in found)}**]{{.verdict .{verdict}}} {what}"
        for verdict, what in words.items()
    ]
    return (
        f"**{len(found)} statements from five study notes, each tested by an experiment.** "
        f"{', '.join(counts[:-1])}, {counts[-1]}: [the ledger](/book/claims.md)."
    )


def live() -> str:
    """Return a live figure of a chapter, with the chapter's link, or nothing if there is none."""
    every = [
        (kind, html, path)
        for path in notebooks.all_notebooks()
        for kind, html in chapter_pages.live_figures(notebooks.read(path))
    ]
    for wanted in FRONT_FIGURES:
        found = [(html, path) for kind, html, path in every if kind == wanted]
        if found:
            html, path = found[-1]
            name = re.search(r'id="(live-[\w-]+)"', html)[1]
            # An id of its own: in the printed book both stand on one page.
            html = html.replace(name, f"{name}-front")
            chapter = notebooks.chapter_of(path)
            return (
                f"``````{{raw}} html\n{html}\n``````\n\n[What you see was computed in chapter"
                f" [{chapter}](/notebooks/{path.name}) by a model that you build.]{{.about}}"
            )
    return ""


def chapters() -> str:
    """Return a map of the chapters: one card each, with its question and its reading time."""
    cards = "".join(_card(path) for path in notebooks.all_notebooks())
    return f"`````{{div}} chapters\n{cards}`````"


def _card(path: Path) -> str:
    number, _, name = notebooks.title(path).partition(" ")
    time = chapter_pages.minutes(notebooks.read(path))
    return (
        f"````{{div}} chapter\n[{number}]{{.number}}\n"
        f"[{name}](/notebooks/{path.name})\n\n{notebooks.question(path)}\n\n"
        f"[{time} minutes]{{.about}}\n````\n"
    )
