"""The package's modules: what each imports, the rooms that they form, and their picture.

A folder of `src` is a room; a module beside the folders is a room of its own. `python
tools/package.py` draws the rooms into CONTRIBUTING.md anew.
"""

import ast
import graphlib
import re
import sys
from collections.abc import Container
from pathlib import Path

from repository import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
ASIDE = ("checks", "figures", "live", "results")  # for notebooks and benchmarks


def files(folder: Path = ROOT / "src") -> dict[str, Path]:
    """List every file of `src` by name, packages first: ``data``, ``data.batches``, ``masks``."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name and not name.endswith("__main__"):
            found[name] = path
    return found


def imports(path: Path, package: str = "src") -> set[str]:
    """List what a file imports from the package, also inside functions, as ``module.name``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path.name}: relative import; write `from {package}.x import y`")
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {n.removeprefix(f"{package}.") for n in names if n.startswith(f"{package}.")}
    return found


def module_of(name: str, known: Container[str]) -> str:
    """Find the module that an imported name belongs to: its longest known beginning.

    Raises:
        ValueError: If no beginning is known.
    """
    begin = name
    while begin not in known:
        if "." not in begin:
            raise ValueError(f"src holds no module that {name} could come from")
        begin = begin.rpartition(".")[0]
    return begin


def graph() -> dict[str, set[str]]:
    """Each module and the modules that it imports."""
    known = files()
    return {name: {module_of(n, known) for n in imports(path)} for name, path in known.items()}


def rooms() -> dict[str, set[str]]:
    """Each room and the rooms that it imports from, lowest first.

    Raises:
        graphlib.CycleError: If two rooms need each other.
    """
    needs: dict[str, set[str]] = {}
    for name, others in graph().items():
        own = name.partition(".")[0]
        needs.setdefault(own, set()).update({o.partition(".")[0] for o in others} - {own})
    return {room: needs[room] for room in graphlib.TopologicalSorter(needs).static_order()}


def levels() -> dict[str, int]:
    """Each room's level: 0 if it imports from no other, else one above the highest of these."""
    found: dict[str, int] = {}
    for room, needs in rooms().items():
        found[room] = 1 + max((found[other] for other in needs), default=-1)
    return found


def picture() -> str:
    """Draw the rooms as a Mermaid chart: an arrow leads from a room to what it needs directly."""
    needs, inside = rooms(), {}
    for name in files():
        room, _, module = name.partition(".")
        inside.setdefault(room, []).extend([module] if module else [])
    lines = ["```mermaid", "flowchart TB"]
    for room, _level in sorted(levels().items(), key=lambda item: (-item[1], item[0])):
        lines.append(f'  {room}["{"<br>".join([f"<b>{room}</b>", *inside[room]])}"]')
    for room, others in needs.items():
        beyond = set().union(*(_all(needs, other) for other in others))
        lines += [f"  {room} --> {other}" for other in sorted(others - beyond)]
    return "\n".join([*lines, "```"])


def _all(needs: dict[str, set[str]], room: str) -> set[str]:
    """All that a room needs, directly or not."""
    return needs[room].union(*(_all(needs, other) for other in needs[room]))


def drawn(page: str) -> str:
    """The page with today's picture in place of the one that it holds."""
    return re.sub(r"```mermaid\n.*?```", lambda _: picture(), page, flags=re.DOTALL)


if __name__ == "__main__":
    beside = PAGE.with_suffix(".new")
    beside.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    beside.replace(PAGE)
    sys.exit()
