"""A small notebook that obeys every rule for chapters: tests break it in one place at a time."""

import json
from pathlib import Path

import folds
import notebooks
import repository

ROOT = Path(__file__).resolve().parent.parent
# A picture of one pixel.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
CHAPTER = "10.2"
FILE = "ch10_2_sample.ipynb"


def text(source: str) -> dict:
    """Return a markdown cell."""
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source: str, *outputs: dict, **metadata) -> dict:
    """Return a code cell."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": metadata,
        "outputs": list(outputs),
        "source": source,
    }


def stdout(words: str) -> dict:
    """Return what a cell prints."""
    return {"name": "stdout", "output_type": "stream", "text": words}


def sample_cells() -> list[dict]:
    """Return the cells of a chapter 10.2 without a fault."""
    cells = [
        text(f"# {CHAPTER} A sample chapter\n\n{repository.ways(FILE)}"),
        code(repository.first_cell(), **repository.FIRST_CELL_METADATA),
        text("How far does a fact reach? You measure it here."),
    ]
    signs = list(notebooks.SIGNS)
    ids = [c.id for c in notebooks.load_claims().values() if c.chapter == CHAPTER]
    for index, claim in enumerate(ids):
        sign = signs[index % 4]
        cells += [
            text(f"## Section {index}"),
            code(
                f"a = {index}\nassert a + 1 == {index + 1}\nprint('Claim {claim}: a = {index}')",
                stdout(f"Claim {claim}: a = {index}\n"),
                claim=claim,
            ),
            text(f"> **{sign} Claim {claim}: {notebooks.SIGNS[sign]}.** We find $a = {index}$."),
        ]
    cells += [
        code(
            "from IPython.display import Image",
            {"output_type": "display_data", "metadata": {}, "data": {"image/png": PNG}},
            mystnb={
                "image": {"alt": "One dark pixel."},
                "figure": {"caption": "A pixel.", "name": "fig-pixel"},
            },
        ),
        text("## The answer\n\nOne pixel far."),
    ]
    for number in range(1, 6):
        cells += [
            text(f"### Exercise {CHAPTER}-{number}: Counting\n\nCount to {number}."),
            text("#### Solution"),
            text("Done."),
        ]
    return number_cells(cells)


def number_cells(cells: list[dict]) -> list[dict]:
    """Number the code cells as one run from top to bottom does."""
    for number, cell in enumerate((c for c in cells if c["cell_type"] == "code"), 1):
        cell["execution_count"] = number
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
    return cells


def write(folder: Path, cells: list[dict], name: str = FILE) -> Path:
    """Write cells as a notebook file and return its path."""
    for index, cell in enumerate(cells):
        cell.setdefault("id", f"cell-{index}")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    language = {"name": "python", "version": "3.11"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": language},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = folds.marked(content)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
