"""The package's modules: their levels, what each imports, and what each is for."""

import ast
import re
from pathlib import Path

from repository import ROOT


def modules(folder: Path = ROOT / "src") -> dict[str, Path]:
    """List the modules of `src` by name, without the package's own `__init__`."""
    files = {p.stem: p for p in sorted(folder.glob("*.py")) if p.stem != "__init__"}
    return files | {p.parent.name: p for p in sorted(folder.glob("*/__init__.py"))}


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
    """List the modules of the package that a file imports, also inside functions."""
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
        found |= {n.split(".")[1] for n in names if n.startswith(f"{package}.")}
    return found
