"""Fold in Jupyter and on Colab what the book folds: one rule, from a cell's tags and headings.

Code with a tag of `FOLDED` begins with a line ``#@title …``, which Colab shows in its place, as
the book does. Below a heading *Solution* all is folded up to the next heading.
"""

import copy

FOLDED = {"remove-cell", "remove-input", "hide-input", "hide-cell"}
TITLE = "#@title "
SOLUTION = "#### Solution"


def is_folded(cell: dict) -> bool:
    """Tell whether a cell's code is out of sight at first."""
    return cell["cell_type"] == "code" and not FOLDED.isdisjoint(cell["metadata"].get("tags", []))


def marked(notebook: dict) -> dict:
    """Return a notebook with the marks that fold its cells, and with none elsewhere."""
    notebook = copy.deepcopy(notebook)
    solutions = []
    for cell in notebook["cells"]:
        marks = cell["metadata"]
        for name in ("cellView", "jupyter", "jp-MarkdownHeadingCollapsed", "id"):
            marks.pop(name, None)
        if is_folded(cell):
            marks |= {"cellView": "form", "jupyter": {"source_hidden": True}}
        elif "".join(cell["source"]) == SOLUTION:
            marks |= {"jp-MarkdownHeadingCollapsed": True, "id": cell["id"]}
            solutions.append(cell["id"])
    if solutions:
        notebook["metadata"]["colab"] = {"collapsed_sections": solutions}
    return notebook
