"""The repository's address: where it stands, what follows from it, and how to change it.

`_config.yml` is the one place where the address is decided. Everything else that carries it
(badges, Colab links, the notebooks' first cells) is kept equal to it by this script:

    python tools/repository.py show        print the address
    python tools/repository.py cell        print the first code cell of every notebook
    python tools/repository.py sync [FILE]  write it, the links below the title, and the marks of
                                            `tools/folds.py`, into notebooks
    python tools/repository.py set [URL]   move the whole project there, without URL to `origin`
    python tools/repository.py check URL   fail if links and first cells lead elsewhere than to URL
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import folds

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "main"

# Only github.com: the Colab links and the pages' address are made from owner and name.
URL = re.compile(r"https://github\.com/(?P<owner>[\w-]+)/(?P<name>[\w.-]+?)(?:\.git)?/?")
# The same as git writes it: with a user name, or by ssh.
REMOTE = re.compile(
    r"(?:https://(?:[^@/]+@)?github\.com/|(?:ssh://)?git@github\.com[:/])"
    r"(?P<owner>[\w-]+)/(?P<name>[\w.-]+?)(?:\.git)?/?"
)

# Needed in Colab and in a copy of the notebook, in the way on the page: removed from the HTML, and
# folded elsewhere.
FIRST_CELL_METADATA = {
    "cellView": "form",
    "jupyter": {"source_hidden": True},
    "tags": ["remove-cell", "colab-setup"],
}
FIRST_CELL = """\
#@title Make the package `src` importable, unless it is installed
import importlib.util
import sys

REPO = "{url}"
COURSE = f"attention-course[notebooks] @ git+{{REPO}}"
if importlib.util.find_spec("src") is None:
    if "google.colab" in sys.modules:
        %pip install -q "{{COURSE}}"
    else:  # a notebook opened from a checkout in which nothing was installed
        sys.path.insert(0, "..")
    importlib.invalidate_caches()
    if importlib.util.find_spec("src") is None:
        raise ImportError(f'run: pip install "{{COURSE}}" (then restart)')"""


def address(config: Path = ROOT / "_config.yml") -> str:
    """Return the repository's address as `_config.yml` states it."""
    text = config.read_text(encoding="utf-8")
    found = re.search(rf"^\s+url: ({URL.pattern})\s*$", text, re.MULTILINE)
    if not found:
        raise ValueError(f"{config.name}: no `url: https://github.com/OWNER/NAME` in it")
    return found.group(1)


def owner_and_name(url: str) -> tuple[str, str]:
    """Split an address in its owner and its name; raise ValueError if it is not a GitHub one."""
    found = URL.fullmatch(url)
    if not found:
        raise ValueError(f"URL must look like https://github.com/OWNER/NAME, got {url!r}")
    return found["owner"], found["name"]


def origin(folder: Path = ROOT) -> str:
    """Return the address of git's remote `origin`; raise ValueError if it is not on GitHub."""
    say = "say where to: make repository URL=https://github.com/OWNER/NAME"
    try:
        command = ["git", "remote", "get-url", "origin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise ValueError(f"git knows no remote `origin` here; {say}") from error
    found = REMOTE.fullmatch(done.stdout.strip())
    if not found:
        place = re.sub(r"//[^/@]*@", "//", done.stdout.strip())  # a token may stand there
        raise ValueError(f"`origin` is {place}, which is not a repository on github.com; {say}")
    return f"https://github.com/{found['owner']}/{found['name']}"


def first_cell(url: str | None = None) -> str:
    """Return the source of the first code cell of every notebook."""
    return FIRST_CELL.format(url=url or address())


def colab_link(notebook: str, url: str | None = None) -> str:
    """Return the link that opens `notebooks/<notebook>` in Colab."""
    owner, name = owner_and_name(url or address())
    folder = f"{owner}/{name}/blob/{BRANCH}/notebooks"
    return f"https://colab.research.google.com/github/{folder}/{notebook}"


def pages_address(url: str | None = None) -> str:
    """Return where GitHub Pages publishes the book."""
    owner, name = owner_and_name(url or address())
    return f"https://{owner.lower()}.github.io/{name}/"


def ways(notebook: str, url: str | None = None) -> str:
    """Return the line below a chapter's title: where else it can be read, and where run."""
    page = f"{pages_address(url)}notebooks/{notebook.removesuffix('.ipynb')}.html"
    return f"[Read the page]({page}) · [Open in Colab]({colab_link(notebook, url)})"


def carriers(root: Path = ROOT) -> list[Path]:
    """List the files that may carry the address, `_config.yml` first."""
    patterns = ["README.md", "CONTRIBUTING.md", "pyproject.toml", "book/**/*.md"]
    patterns += ["_templates/*.html", "notebooks/*.ipynb"]
    return [root / "_config.yml", *(p for g in patterns for p in sorted(root.glob(g)))]


def write_first_cells(notebook: Path, source: str) -> bool:
    """Write title, first code cell and marks of a notebook; return whether the file changed.

    The code prints nothing, so its outputs are emptied and its execution count is kept.
    """
    text = notebook.read_text(encoding="utf-8")
    content = json.loads(text)
    title, *cells = content["cells"]
    heading = "".join(title["source"]).partition("\n")[0]
    title["source"] = f"{heading}\n\n{ways(notebook.name)}".splitlines(keepends=True)
    if not cells or "colab-setup" not in cells[0]["metadata"].get("tags", []):
        new = {"cell_type": "code", "execution_count": None, "id": "colab-setup", "outputs": []}
        cells.insert(0, new)
    cells[0]["metadata"] = FIRST_CELL_METADATA
    cells[0]["source"] = source.splitlines(keepends=True)
    content["cells"] = [title, *cells]
    content = folds.marked(content)
    new_text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if new_text != text:
        notebook.write_text(new_text, encoding="utf-8")
    return new_text != text


def move(url: str, root: Path = ROOT) -> list[Path]:
    """Replace the old address, and the links made from it, in all carriers; return the changed."""
    old = address(root / "_config.yml")
    owner, name = owner_and_name(url)
    url = f"https://github.com/{owner}/{name}"
    before, after = "/".join(owner_and_name(old)), f"{owner}/{name}"
    pairs = [
        (rf"{re.escape(old)}(?![\w-])", url),
        (
            rf"colab\.research\.google\.com/github/{re.escape(before)}/",
            f"colab.research.google.com/github/{after}/",
        ),
        (re.escape(pages_address(old)), pages_address(url)),
    ]
    changed = []
    for path in carriers(root):
        text = new = path.read_text(encoding="utf-8")
        for pattern, replacement in pairs:
            new = re.sub(pattern, replacement, new)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def elsewhere(url: str, root: Path = ROOT) -> str:
    """Say in one sentence that links or first cells lead elsewhere; nothing if to ``url``."""
    url = "https://github.com/" + "/".join(owner_and_name(url))
    found = {address(root / "_config.yml")}
    for path in root.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        first = "".join("".join(cell["source"]) + "\n" for cell in cells[:2])
        found.update(re.findall(r'^REPO = "(.*)"$', first, re.MULTILINE) or ["nowhere"])
    # GitHub does not tell capitals from small letters.
    others = sorted(place for place in found if place.lower() != url.lower())
    if not others:
        return ""
    return (
        f"This repository is {url}, but its notebooks and links lead to {' and '.join(others)}: "
        "run `make repository` and commit what it changes."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Show or change the repository's address.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show", help="print the address")
    commands.add_parser("cell", help="print the first code cell of every notebook")
    sync = commands.add_parser("sync", help="write the first cells into notebooks")
    sync.add_argument("notebook", nargs="*", type=Path, help="without any, all")
    move_to = commands.add_parser("set", help="change the address everywhere")
    move_to.add_argument("url", nargs="?", help="without it, where git's `origin` is")
    check = commands.add_parser("check", help="fail if links and first cells lead elsewhere")
    check.add_argument("url")
    args = parser.parse_args(arguments)
    if args.command == "show":
        print(address())
    elif args.command == "cell":
        print(first_cell())
    elif args.command == "sync":
        for path in args.notebook or sorted((ROOT / "notebooks").glob("*.ipynb")):
            if write_first_cells(path, first_cell()):
                print("changed", path)
    else:
        try:
            if args.command == "check":
                sentence = elsewhere(args.url)
                print(sentence or "Links and first cells lead here.")
                return bool(sentence)
            for path in move(origin() if args.url is None else args.url):
                print("changed", path.relative_to(ROOT))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
