"""The package's modules: their levels, what each imports, and what each is for."""

import ast
import re
from collections.abc import Container
from pathlib import Path

from repository import ROOT


def modules(folder: Path = ROOT / "src") -> dict[str, Path]:
    """List the modules of `src` by name, without the package's own `__init__`."""
    files = {p.stem: p for p in sorted(folder.glob("*.py")) if p.stem != "__init__"}
    return files | {p.parent.name: p for p in sorted(folder.glob("*/__init__.py"))}


def files(folder: Path = ROOT / "src") -> dict[str, Path]:
    """List every file of `src` by name, also inside packages: ``checks``, ``checks.engine``."""
    inner = {f"{p.parent.name}.{p.stem}": p for p in sorted(folder.glob("*/*.py"))}
    return modules(folder) | {n: p for n, p in inner.items() if p.stem != "__init__"}


def levels(page: Path = ROOT / "CONTRIBUTING.md") -> dict[str, int | None]:
    """Read the table of levels: module to its level; None for what only notebooks import."""
    text = page.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+|aside) \| (.+?) \|", text, re.MULTILINE)
    return {
        name: None if level == "aside" else int(level)
        for level, names in rows
        for name in re.findall(r"`(\w+)`", names)
    }


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
