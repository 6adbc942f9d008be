"""The notebooks on Colab, simulated: nothing of the project is there but the notebook.

A bare environment holds a part of what Colab brings along (PyTorch, numpy, matplotlib, the kernel)
and a stub of `google.colab`. A notebook's first cell, run in an empty folder, must fetch the project from
git, install what is missing and leave alone what Colab had. One notebook is run to its end there,
and what all of them import is imported; `make colab` runs every cell of every notebook.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from filelock import FileLock

from sample import ROOT

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PREINSTALLED = ("torch", "numpy", "matplotlib", "pandas", "ipykernel", "pip")
# Run from top to bottom: one that is short, draws, loads data and shows source; or all.
ALL = os.environ.get("COLAB") == "all"
WHOLE = [path for path in NOTEBOOKS if ALL or path.stem == "ch10_2_attention_pooling"]
CELL_SECONDS = 600


def closure(names: tuple[str, ...]) -> dict[str, str]:
    """The packages of this environment that ``names`` need, themselves included: versions."""
    found: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # needed on another platform only
        found[name] = package.version
        for requirement in package.requires or []:
            if "extra ==" not in requirement:
                waiting.append(re.match(r"[\w.-]+", requirement)[0])
    return found


def link(names: dict[str, str], folder: Path) -> None:
    """Make packages importable from ``folder`` without copying their gigabytes."""
    for name in names:
        package = distribution(name)
        for file in package.files or []:
            top = file.parts[0]
            source, target = Path(package.locate_file(top)), folder / top
            if top in ("..", "__pycache__") or target.exists() or not source.exists():
                continue
            target.symlink_to(source, target_is_directory=source.is_dir())


def versions(python: Path) -> dict[str, str]:
    """What an environment holds, by normalised name."""
    code = (
        "import importlib.metadata as m, json, re;"
        "print(json.dumps({re.sub('[-_.]+', '-', d.name).lower(): d.version"
        " for d in m.distributions()}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def build(folder: Path) -> None:
    """Make the repository to install from, the environment, the stub and the kernel."""
    repository = folder / "repository"
    for name in git(ROOT, "ls-files").splitlines():
        if (ROOT / name).is_file():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, repository / name)
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "The working tree")

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    link(closure(PREINSTALLED), site)
    (site / "google" / "colab").mkdir(parents=True)
    (site / "google" / "colab" / "__init__.py").write_text("")
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("import google.colab\n")

    kernel = folder / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    python = str(folder / "venv" / "bin" / "python")
    command = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "Colab"}))


@pytest.fixture(scope="session")
def colab(tmp_path_factory) -> Path:
    """The simulated Colab, built once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "colab"
    with FileLock(shared / "colab.lock"):
        if not (folder / "ready").exists():
            folder.mkdir()
            build(folder)
            before = versions(folder / "venv" / "bin" / "python")
            (folder / "ready").write_text(json.dumps(before))
    return folder


@pytest.fixture
def sockets():
    """A prefix for the names of a kernel's sockets, short enough for the system."""
    with TemporaryDirectory(prefix="kernel-") as folder:
        yield os.path.join(folder, "socket")


def imports() -> list:
    """A cell for each notebook, with every import that it makes, wherever it stands."""
    import nbformat

    cells = []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        code = "\n".join(cell.source for cell in notebook.cells[2:] if cell.cell_type == "code")
        nodes = ast.walk(ast.parse(code))
        lines = [ast.unparse(n) for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
        # Optional on Colab: the notebooks say so themselves where d2l is missing.
        lines = [line for line in lines if "d2l" not in line]
        assert any("src" in line for line in lines)
        cells.append(nbformat.v4.new_code_cell("\n".join(lines)))
    return cells


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_notebook_runs_on_colab(path, colab, sockets, tmp_path, monkeypatch):
    import nbformat  # takes two seconds, which no other worker should wait for
    from nbclient import NotebookClient

    before = json.loads((colab / "ready").read_text())
    url = re.search(r'REPO = "(.+?)"', path.read_text().replace('\\"', '"'))[1]
    monkeypatch.setenv("JUPYTER_PATH", str(colab / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(colab / "ipython"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{colab / 'repository'}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", url)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    with FileLock(colab / "install.lock"):  # two installations at once would disturb each other
        client.km = client.create_kernel_manager()
        client.km.transport, client.km.ip = "ipc", sockets
        client.start_new_kernel(cwd=str(tmp_path))
        client.start_new_kernel_client()
        client.execute_cell(notebook.cells[1], 1)  # after the title
    try:
        if path == WHOLE[0]:  # once for all notebooks
            notebook.cells += imports()
        for index, cell in enumerate(notebook.cells[2:], 2):
            client.execute_cell(cell, index)
    finally:
        client._cleanup_kernel()

    after = versions(colab / "venv" / "bin" / "python")
    assert {name: after.get(name) for name in before} == before
    assert "attention-course" in after or "src" in after
