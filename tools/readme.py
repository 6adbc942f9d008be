"""The README's table of chapters: each with its question and its link to Colab.

Run without arguments it writes the table between the two marks; the tests demand that it is
there as `table` gives it.
"""

import re
import sys

import notebooks
from repository import ROOT, colab_link

BEGIN, END = "<!-- chapters: made by tools/readme.py -->", "<!-- end of chapters -->"
BADGE = "![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)"


def table() -> str:
    """Return the table of the chapters whose notebooks exist."""
    lines = ["| chapter | its question | run it |", "| --- | --- | --- |"]
    for path in notebooks.all_notebooks():
        lines.append(
            f"| [{notebooks.title(path)}](notebooks/{path.name}) | {notebooks.question(path)} "
            f"| [{BADGE}]({colab_link(path.name)}) |"
        )
    return "\n".join(lines)


def with_table(readme: str) -> str:
    """Return the README's text with the table as it should be."""
    block = f"{BEGIN}\n\n{table()}\n\n{END}"
    old = rf"{re.escape(BEGIN)}.*?{re.escape(END)}"
    new, count = re.subn(old, lambda _: block, readme, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"README.md must hold {BEGIN!r} … {END!r} once, found {count}")
    return new


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
