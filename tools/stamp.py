"""The commit that pages were built from, for their footer."""

import os
import re
import subprocess
from pathlib import Path

VARIABLE = "COURSE_COMMIT"


def commit(folder: Path) -> tuple[str, bool] | None:
    """Return the commit of a folder and whether files were changed since.

    Asks git where the folder is the top of a repository, else takes the environment variable
    COURSE_COMMIT; returns None where neither is there.

    Raises:
        ValueError: If the variable is needed and is no hexadecimal name of a commit.
    """
    if (top := _git(folder, "rev-parse", "--show-prefix", "HEAD")) is not None:
        prefix, _, name = top.partition("\n")
        if not prefix:
            changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
            return name.strip(), bool(changed)
    given = os.environ.get(VARIABLE, "")
    if not given:
        return None
    if not re.fullmatch(r"[0-9a-f]{7,40}", given):
        raise ValueError(f"{VARIABLE} must be 7 to 40 hexadecimal digits, got {given!r}")
    return given, False


def footer(folder: Path, repository: str) -> str:
    """Return the line of the footer, HTML; empty where no commit is known."""
    found = commit(folder)
    if found is None:
        return ""
    name, changed = found
    link = f'<a href="{repository}/commit/{name}"><code>{name[:7]}</code></a>'
    return f'<p class="stamp">Built from {link}{" with changes" * changed}.</p>'


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
    except OSError:  # no git
        return None
    return done.stdout if done.returncode == 0 else None
