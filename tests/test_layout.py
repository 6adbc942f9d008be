"""The project's layout: who imports whom, what is pinned, where the address stands, both commands."""

import ast
import graphlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement

import conftest
import package  # in tools/, which `sample` has put on the path
import readme
import stand_ins
from sample import ROOT, repository

FILES = package.files()
GRAPH = package.graph()
TEXTS = [
    path
    for pattern in (
        "*.md",
        "*.toml",
        "*.txt",
        "*.yml",
        "Makefile",
        ".ci/run",
        ".github/**/*.yml",
        "book/*",
        "benchmarks/**/*.py",
        "src/**/*.py",
        "tools/*",
        "_templates/*",
        "_static/*.css",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
]


# --- the package


def test_every_file_of_the_package_is_seen():
    seen = set(FILES.values()) | {ROOT / "src/__init__.py", ROOT / "src/data/__main__.py"}
    assert seen == set((ROOT / "src").rglob("*.py"))
    assert {"checks", "checks.engine", "data.batches", "masks"} <= set(FILES)


def test_rooms_import_downwards_only():
    levels = package.levels()  # raises where two rooms need each other
    assert levels["masks"] == 0 < levels["functional"] < levels["multihead"] < levels["transformer"]
    assert levels["training"] < levels["cli"] < levels["train"]
    for room, needs in package.rooms().items():
        assert needs.isdisjoint(package.ASIDE) or room in package.ASIDE, room


def test_no_imports_run_in_a_circle():
    order = list(graphlib.TopologicalSorter(GRAPH).static_order())
    assert order.index("checks.engine") < order.index("checks.pooling") < order.index("checks")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_name_is_imported_from_the_module_that_defines_it(name):
    """Packages pass names on to readers; inside `src` each name has one home."""
    for found in package.imports(FILES[name]):
        module = package.module_of(found, FILES)
        packaged = FILES[module].name == "__init__.py" and name != module
        if found != module and not packaged:
            tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
            assert found.rpartition(".")[2] in names_defined(tree), f"{name} imports {found}"
        assert not packaged or module in package.ASIDE, f"{name} imports {found}"


def names_defined(tree):
    """The names that a module's own statements define, imports left out."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in filter(None, targets):
            yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def test_the_picture_of_the_house_is_of_today():
    page = package.PAGE.read_text(encoding="utf-8")
    assert package.drawn(page) == page, "run python tools/package.py"
    assert package.picture() in page


def test_imports_are_seen_wherever_they_stand(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import torch\nimport src.a\nfrom src.b import c\nfrom src import d\n"
        "def f():\n    from src.e.x import y\n"
    )
    assert package.imports(path) == {"a", "b.c", "d", "e.x.y"}
    path.write_text("from .a import b\n")
    with pytest.raises(ValueError, match=r"module\.py: relative import"):
        package.imports(path)


def test_the_module_of_a_name_is_its_longest_known_beginning():
    known = {"e", "e.x", "b"}
    assert [package.module_of(n, known) for n in ("e.x.y", "e.y", "b")] == ["e.x", "e", "b"]
    with pytest.raises(ValueError, match="src holds no module that z.y could come from"):
        package.module_of("z.y", known)


def public(nodes):
    """Functions and classes whose names do not start with a line, and the classes' methods."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            yield from public(node.body if isinstance(node, ast.ClassDef) else [])


@pytest.mark.parametrize("name", sorted(FILES))
def test_public_names_have_docstrings(name):
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    found = list(public(tree.body))
    # A method that several classes of a file define is described once, where it is declared.
    described = {node.name for node in found if ast.get_docstring(node)}
    assert ast.get_docstring(tree) and {node.name for node in found} == described


@pytest.mark.parametrize(
    "path",
    [*FILES.values(), *sorted(ROOT.glob("tools/*.py"))],
    ids=lambda p: f"{p.parts[-2]}/{p.stem}",
)
def test_lines_fit(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [n for n, line in enumerate(lines, 1) if len(line) > 100] == []


# --- what is installed


def pins(file: str = "requirements.txt") -> dict[str, Requirement]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    return {normal(r.name): r for r in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_requirements_are_exact_pins_for_every_system():
    for pin in pins().values():
        assert [s.operator for s in pin.specifier] == ["=="] and pin.marker is None, pin
        assert not pin.name.startswith(("nvidia", "triton", "cuda")), pin


def test_the_five_packages_are_pinned():
    for name in ("jupyter-book", "torch", "d2l", "matplotlib", "nbval"):
        assert name in pins()
    assert pins()["jupyter-book"].specifier.contains("1.0.4.post1")


def declared(*extras: str) -> list[Requirement]:
    """What `pip install attention-course[EXTRAS]` asks for."""
    lists = [project()["dependencies"], *(project()["optional-dependencies"][e] for e in extras)]
    return [Requirement(line) for lines in lists for line in lines]


def test_the_package_asks_for_lower_bounds_that_the_pins_fulfil():
    for requirement in declared("notebooks", "tests"):
        assert [s.operator for s in requirement.specifier] == [">="], requirement
        (pin,) = pins()[requirement.name.lower()].specifier
        assert requirement.specifier.contains(pin.version), requirement


MISSING = {"ImportError", "ModuleNotFoundError"}


def imports(path: Path, source: str | None = None) -> set[str]:
    """The modules that a file imports, by their first names, without those that it can miss."""
    tree = ast.parse(path.read_text(encoding="utf-8") if source is None else source)
    optional = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        and any(getattr(h.type, "id", "") in MISSING for h in node.handlers)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in optional:
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and id(node) not in optional:
            found.add(node.module.partition(".")[0])
    return found


def code_of(notebook: Path) -> str:
    """The code of a notebook as Python: magics become comments."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return re.sub(r"^( *)[%!]", r"\1pass  # ", "\n".join(sources), flags=re.MULTILINE)


# Where the name that is imported is not the one that is installed.
INSTALLED_AS = {"sklearn": "scikit-learn", "bs4": "beautifulsoup4", "yaml": "pyyaml"}


def missing(modules: set[str], requirements) -> set[str]:
    """The modules that no requirement brings."""
    own = {path.stem for folder in ("tools", "tests") for path in (ROOT / folder).glob("*.py")}
    foreign = modules - set(sys.stdlib_module_names) - own - {"src", "benchmarks", "tests"}
    names = {re.sub("[-_.]+", "-", requirement.name).lower() for requirement in requirements}
    return {m for m in foreign if INSTALLED_AS.get(m, m).lower().replace("_", "-") not in names}


def test_the_package_declares_what_it_imports():
    used = set().union(*(imports(path) for path in FILES.values()))
    assert "torch" in used and missing(used, declared()) == set()


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_what_a_notebook_imports_comes_with_its_first_cell(path):
    used = imports(path, code_of(path))
    assert "torch" in used and missing(used, declared("notebooks")) == set()


def test_no_extra_brings_what_no_notebook_imports():
    used = set().union(*(imports(p, code_of(p)) for p in ROOT.glob("notebooks/*.ipynb")))
    brought = {Requirement(line).name for line in project()["optional-dependencies"]["notebooks"]}
    assert brought and brought <= {INSTALLED_AS.get(module, module) for module in used}


@pytest.mark.parametrize("folder", ["tests", "tools", "benchmarks", "book"])
def test_requirements_hold_what_tests_tools_and_measurements_import(folder):
    used = set().union(*(imports(path) for path in ROOT.glob(f"{folder}/**/*.py")), set())
    for path in ROOT.glob(f"{folder}/*.md"):
        for source in re.findall(
            r"```(?:python|\{code-cell\})\n(.*?)```", path.read_text("utf-8"), re.S
        ):
            used |= imports(path, source)
    assert used and missing(used, pins().values()) == set()


def test_imports_are_found_in_notebooks_and_optional_ones_are_not(tmp_path):
    source = (
        "%pip install x\nimport a.b\nfrom c.d import e\nif a:\n    %matplotlib inline\n"
        "try:\n    import f\nexcept ImportError:\n    import g\ntry:\n    import h\nexcept OSError:\n"
        "    pass"
    )
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
    assert imports(path, code_of(path)) == {"a", "c", "g", "h"}
    assert missing({"sklearn", "os", "f"}, [Requirement("scikit-learn>=1")]) == {"f"}


def imports_from_outside(paths) -> set[str]:
    """The packages that files import, also inside functions, without the standard library."""
    return set().union(*map(imports, paths)) - set(sys.stdlib_module_names)


def extensions_with_what_they_import():
    """The files in `tools/` that the build of the book runs."""
    found, waiting = set(), [ROOT / "tools" / "course_pages.py"]
    while waiting:
        path = waiting.pop()
        found.add(path)
        beside = {path.with_name(f"{name}.py") for name in imports_from_outside([path])}
        waiting += [p for p in beside - found if p.is_file()]
    return found


def test_the_book_is_built_from_what_it_installs_and_from_stand_ins():
    book, tools = pins("requirements-book.txt"), extensions_with_what_they_import()
    text = (ROOT / "requirements-book.txt").read_text(encoding="utf-8")
    assert "\n-c requirements.txt\n" in text and not any(r.specifier for r in book.values())
    assert set(book) <= set(pins()) and not {"torch", "d2l", "transformers"} & set(book)

    by_import = importlib.metadata.packages_distributions()
    imported = imports_from_outside([*FILES.values(), *tools]) - {"src", *(p.stem for p in tools)}
    missing = {n for n in imported if not {normal(d) for d in by_import.get(n, [])} & set(book)}
    assert missing == set(stand_ins.PACKAGES), "see requirements-book.txt and tools/stand_ins.py"

    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    brought = {normal(Requirement(r).name) for r in importlib.metadata.requires("jupyter-book")}
    for extension in set(config["extensions"]) - {p.stem for p in tools}:
        packages = {normal(d) for d in by_import[extension.partition(".")[0]]}
        assert packages & (brought | set(book)), extension


# --- the words


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_path_of_one_machine(path):
    text = path.read_text(encoding="utf-8")
    if path.name != "notebooks.py":  # holds the pattern itself
        assert not re.search(r"(?<![\w.$])/(?:home|root|tmp|work|Users)/\w|\.\./shared", text)
    assert not re.search(r"pythonhosted|registry\.npmjs|deb\.debian", text)


def test_the_readme_shows_both_commands_and_code_that_runs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "$ make book" in text and "$ make test" in text
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    names = {}
    exec(source, names)
    assert names["logits"].shape == (2, 5, 900)


def test_the_readme_lists_every_chapter():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.with_table(text) == text, "run: .venv/bin/python tools/readme.py"


def test_a_readme_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="must hold .* once, found 0"):
        readme.with_table("# Title")


# --- the address


def test_the_address_is_the_same_everywhere():
    url = repository.address()
    owner, name = repository.owner_and_name(url)
    assert project()["urls"]["Repository"] == url
    for path in repository.carriers():
        text = path.read_text(encoding="utf-8")
        for found in re.findall(r"https://github\.com/[\w-]+/[\w.-]+", text):
            assert found in (url, "https://github.com/OWNER/NAME"), path
        for found in re.findall(r"colab\.research\.google\.com/github/([\w-]+/[\w.-]+)/", text):
            assert found == f"{owner}/{name}", path
        for found in re.findall(r"https://[\w-]+\.github\.io/[\w.-]+/", text):
            assert found == repository.pages_address(), path


def test_moving_the_project_changes_every_place(tmp_path):
    for name in ("_config.yml", "README.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("book", "notebooks", "_templates"):
        shutil.copytree(ROOT / name, tmp_path / name)
    changed = repository.move("https://github.com/Some-One/my.course.git", tmp_path)
    assert {p.name for p in changed} >= {"_config.yml", "README.md", "pyproject.toml"}
    assert repository.address(tmp_path / "_config.yml") == "https://github.com/Some-One/my.course"
    old = "/".join(repository.owner_and_name(repository.address()))
    texts = [p.read_text(encoding="utf-8") for p in repository.carriers(tmp_path)]
    assert not any(re.search(rf"(?:github\.com|/github)/{old}\b", text) for text in texts)
    assert any("https://some-one.github.io/my.course/" in text for text in texts)
    yaml.safe_load((tmp_path / "_config.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("url", ["", "http://github.com/a/b", "https://gitlab.com/a/b", "a/b"])
def test_an_address_elsewhere_is_refused(url, capsys):
    with pytest.raises(ValueError, match="URL must look like https://github.com/OWNER/NAME"):
        repository.owner_and_name(url)
    assert repository.main(["set", url]) == 2
    assert "URL must look like" in capsys.readouterr().err


def test_a_config_without_address_is_refused(tmp_path):
    (tmp_path / "_config.yml").write_text("title: x\n")
    with pytest.raises(ValueError, match=r"_config\.yml: no `url:"):
        repository.address(tmp_path / "_config.yml")


@pytest.mark.slow
@pytest.mark.parametrize(
    "remote",
    [
        "https://github.com/Some-One/my.course",
        "https://github.com/Some-One/my.course.git",
        "https://token@github.com/Some-One/my.course.git",
        "git@github.com:Some-One/my.course.git",
        "ssh://git@github.com/Some-One/my.course",
    ],
)
def test_the_address_is_taken_from_origin(remote, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    with pytest.raises(ValueError, match="git knows no remote `origin` here; say where to"):
        repository.origin(tmp_path)
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    assert repository.origin(tmp_path) == "https://github.com/Some-One/my.course"


@pytest.mark.slow
@pytest.mark.parametrize(
    "remote", ["/a/b", "https://u:secret@gitlab.com/a/b", "git@github.org:a/b"]
)
def test_an_origin_elsewhere_is_refused(remote, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    with pytest.raises(ValueError, match="not a repository on github.com; say where to") as error:
        repository.origin(tmp_path)
    assert "secret" not in str(error.value)


@pytest.mark.slow
def test_without_git_there_is_no_origin(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="git knows no remote `origin` here"):
        repository.origin(tmp_path)


@pytest.mark.slow
def test_make_repository_goes_to_url_or_to_origin(monkeypatch, capsys):
    for more, arguments in (
        (["URL=https://github.com/a/b"], ' "https://github.com/a/b"'),
        ([], ""),
    ):
        command = ["make", "-n", "--no-print-directory", "repository", *more]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert run.stdout.rstrip().endswith(f"tools/repository.py set{arguments}"), run.stdout
    went = []
    monkeypatch.setattr(repository, "origin", lambda: "https://github.com/from/origin")
    monkeypatch.setattr(repository, "move", lambda url: went.append(url) or [])
    assert repository.main(["set"]) == 0 and repository.main(["set", "https://github.com/a/b"]) == 0
    assert went == ["https://github.com/from/origin", "https://github.com/a/b"]


def test_a_fork_is_told_in_one_sentence_where_its_links_lead(tmp_path, monkeypatch, capsys):
    here = repository.address()
    assert (
        repository.main(["check", here.upper().replace("HTTPS://GITHUB.COM", "https://github.com")])
        == 0
    )
    capsys.readouterr()
    assert repository.main(["check", "https://github.com/some/fork"]) == 1
    (sentence,) = capsys.readouterr().out.splitlines()
    assert (
        sentence.startswith("This repository is https://github.com/some/fork") and here in sentence
    )
    # One notebook left behind is enough.
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "_config.yml", tmp_path)
    cell = {"metadata": {}, "source": repository.first_cell("https://github.com/old/place")}
    (tmp_path / "notebooks" / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    assert "lead to https://github.com/old/place: run" in repository.elsewhere(here, tmp_path)


# --- the two commands


def environment(venv, python="", level="all", path=os.environ["PATH"], cwd=ROOT):
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "environment.sh"), venv, python, level],
        env={"PATH": str(path)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def fake(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


# Says which version it is, and fails where a newer one is asked for.
OLD_PYTHON = 'case "$2" in *print*) echo 3.9 ;; *) exit 1 ;; esac'


@pytest.mark.slow
def test_an_old_python_is_refused_in_one_sentence(tmp_path):
    run = environment(".venv", str(fake(tmp_path / "python3.9", OLD_PYTHON)))
    assert run.returncode == 1 and run.stdout == ""
    assert "is Python 3.9" in run.stderr and "needs Python 3.11 or newer" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_missing_python_is_refused_in_one_sentence():
    run = environment(".venv", "no-such-python")
    assert run.returncode == 1 and "PYTHON=no-such-python cannot be run" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_machine_without_new_python_is_told_so(tmp_path):
    copy_pins(tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cat", "cksum"):
        (tools / name).symlink_to(shutil.which(name))
    for name in ("python3", "python3.11"):
        fake(tools / name, OLD_PYTHON)
    run = environment("venv", path=tools, cwd=tmp_path)
    assert run.returncode == 1 and "No Python 3.11 or newer" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1 and not (tmp_path / "venv").exists()


def copy_pins(folder):
    for name in ("requirements.txt", "requirements-book.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)


@pytest.fixture
def installed(tmp_path):
    """Return a function that asks for a level and says how Python is called to reach it."""
    copy_pins(tmp_path)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    calls = tmp_path / "calls"
    python = fake(
        tmp_path / "venv" / "bin" / "python",
        f'case "$*" in "-c import pip") [ ! -e nopip ] ;; -c*) echo 3.11 ;; '
        f'*) echo "$*" >>{calls}; [ ! -e broken ] ;; esac',
    )

    def ask(level, status=0):
        calls.write_text("")
        run = environment("venv", str(python), level, cwd=tmp_path)
        assert run.returncode == status, run.stderr
        options = {"-m", "pip", "install", "-q", "--disable-pip-version-check"}
        return [" ".join(w for w in c.split() if w not in options) for c in calls.open()]

    return ask


BOOK = ["-r requirements-book.txt"]
ALL = ["-r requirements.txt -e .", "check"]
ANEW = ["venv --clear venv"]


@pytest.mark.slow
def test_the_tests_complete_the_environment_of_the_book(installed):
    assert installed("book") == BOOK
    assert installed("book") == []
    assert installed("all") == ALL
    assert installed("book") == installed("all") == []
    assert installed("book, please", status=2) == []


@pytest.mark.slow
def test_other_pins_are_installed_over_the_old_ones(installed, tmp_path):
    for level, calls in (("book", BOOK), ("all", ALL)):
        installed(level)
        with (tmp_path / "requirements.txt").open("a") as file:
            file.write("# changed\n")
        assert installed(level) == calls
        assert installed(level) == []


@pytest.mark.slow
@pytest.mark.parametrize(("level", "calls"), [("book", BOOK), ("all", ALL)])
def test_an_installation_that_was_cut_off_goes_on(level, calls, installed, tmp_path):
    installed("book")
    with (tmp_path / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    (tmp_path / "broken").touch()
    assert installed(level, status=1) == calls[:1]
    assert not (tmp_path / "venv" / ".state").exists()
    (tmp_path / "broken").unlink()
    assert installed(level) == calls


@pytest.mark.slow
def test_an_environment_without_pip_or_of_another_folder_is_made_anew(installed, tmp_path):
    (tmp_path / "nopip").touch()
    assert installed("book") == ANEW + BOOK
    state = tmp_path / "venv" / ".state"
    state.write_text(state.read_text().replace(str(tmp_path), "/elsewhere"))
    assert installed("book") == ANEW + BOOK


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "failed"),
    [("none", 0), ("data", 1), ("make", 2), ("tests", 1), ("nbval", 1)],
)
def test_one_failing_part_fails_the_whole_and_all_are_reported(broken, failed, tmp_path):
    make = fake(tmp_path / "make", f"[ {broken} != make ]")
    python = fake(
        tmp_path / "python",
        f'case "$*" in *--nbval*) [ {broken} != nbval ] ;; *src.assets) [ {broken} != data ] ;; '
        f"*) [ {broken} != tests ] ;; esac",
    )
    run = subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "run_tests.sh"), str(make), str(python)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    summary = run.stdout.partition("== summary")[2]
    assert run.returncode == min(failed, 1)  # both the book and the linters are made
    assert (summary.count("passed: "), summary.count("FAILED: ")) == (5 - failed, failed)


@pytest.mark.slow
def test_the_book_is_built_again_when_anything_changes_that_it_shows():
    listed = subprocess.run(
        ["make", "-pn", "_build/.built"], capture_output=True, text=True, cwd=ROOT, timeout=60
    ).stdout
    needed = set(re.search(r"^_build/\.built: (.*)$", listed, re.M)[1].split())
    shown = [
        "_config.yml",
        "book/*.md",
        "book/*.json",
        "book/claims.yml",
        "notebooks/*.ipynb",
        "src/*.py",
        "src/checks/*.py",
        "src/live/*.js",
        "src/results/*.json",
        "tools/*.py",
        "_static/*",
    ]
    for pattern in shown:
        files = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert files and files <= needed, files - needed


def test_the_makefile_uses_nothing_newer_than_make_3_81():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert not re.search(r"\.ONESHELL|!=|&:|\$\(file |undefine", text)


# --- the oldest and the newest versions


def versions(*arguments, path, cwd):
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "versions.sh"), *arguments],
        env={"PATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["nothing", "--package", "--nbval-lax", "uv pip install"])
@pytest.mark.parametrize(
    ("which", "resolution"), [("oldest", "lowest-direct"), ("newest", "highest")]
)
def test_tests_and_notebooks_run_in_an_environment_of_their_own(
    which, resolution, broken, tmp_path
):
    """A Python that makes an environment whose Python notes how it is called."""
    inner = f'echo "$*" >> calls; case "$*" in *"{broken}"*) exit 1 ;; esac'
    fake(tmp_path / "inner", inner)
    outer = f"mkdir -p .venv-{which}/bin; cp inner .venv-{which}/bin/python"
    fake(tmp_path / "python", outer)
    run = versions(which, str(tmp_path / "python"), path=os.environ["PATH"], cwd=tmp_path)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert run.returncode == (broken != "nothing")
    assert f"--resolution {resolution} -e .[notebooks,tests]" in calls[1]
    parts = [flag for flag in ("--package", "--nbval-lax") if any(flag in call for call in calls)]
    assert parts == ([] if broken == "uv pip install" else ["--package", "--nbval-lax"])


@pytest.mark.slow
def test_versions_refuses_what_it_does_not_know(tmp_path):
    run = versions("old", path=os.environ["PATH"], cwd=tmp_path)
    assert (run.returncode, run.stderr) == (2, "say oldest or newest, got old\n")
    run = versions("oldest", "no-such-python", path=os.environ["PATH"], cwd=tmp_path)
    assert run.returncode == 1 and run.stderr.startswith("there is no no-such-python here")
    assert list(tmp_path.iterdir()) == []


def test_the_tests_of_the_package_need_nothing_else():
    """What `--package` leaves out needs the book or another library; the rest needs neither."""
    files = sorted(ROOT.glob("tests/test_*.py"))
    asked = SimpleNamespace(getoption=lambda name: name == "--package")
    chosen = [path for path in files if not conftest.pytest_ignore_collect(path, asked)]
    left_out = {path.stem for path in files} - {path.stem for path in chosen}
    assert {"test_book", "test_browser", "test_colab", "test_layout", "test_parity"} <= left_out
    assert {"test_transformer", "test_train_cli", "test_figures"}.isdisjoint(left_out)
    brought = [*declared("notebooks", "tests"), Requirement("requests")]  # by pypi-simple
    assert missing(set().union(*map(imports, chosen)), brought) == set()
    never = SimpleNamespace(getoption=lambda name: False)
    assert not any(conftest.pytest_ignore_collect(path, never) for path in files)


# --- the workflows

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8"))


def commands(job):
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_the_book_is_checked_and_main_is_published():
    jobs = workflow("book")["jobs"]
    assert set(workflow("book")[True]) == {"push", "pull_request"}  # YAML reads `on` as true
    assert jobs["check"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert "make book" in commands(jobs["check"]) and "make test" in commands(jobs["check"])
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert "refs/heads/main" in jobs["publish"]["if"]
    assert jobs["publish"]["permissions"] == {"pages": "write", "id-token": "write"}


def test_the_package_is_checked_on_every_system_and_python():
    job = workflow("book")["jobs"]["package"]
    assert job["strategy"]["matrix"] == {
        "os": ["ubuntu-latest", "macos-latest", "windows-latest"],
        "python": ["3.11", "3.12", "3.13", "3.14"],
    }
    assert project()["requires-python"] == ">=3.11"
    assert "pytest -q --package tests" in commands(job)


def test_the_address_is_checked_before_anything_is_installed():
    job = workflow("book")["jobs"]["address"]
    own = "https://github.com/${{ github.repository }}"
    assert commands(job).strip() == f"python3 tools/repository.py check {own}"
    for name in ("repository", "folds"):
        found = imports(ROOT / "tools" / f"{name}.py") - {"folds"}
        assert found <= set(sys.stdlib_module_names)


def test_oldest_and_newest_run_weekly_and_open_one_issue():
    jobs = workflow("versions")["jobs"]
    assert "schedule" in workflow("versions")[True]
    runs = [
        (run["which"], run["python"]) for run in jobs["versions"]["strategy"]["matrix"]["include"]
    ]
    pythons = workflow("book")["jobs"]["package"]["strategy"]["matrix"]["python"]
    assert runs == [("oldest", pythons[0]), ("newest", pythons[-1])]
    assert "make ${{ matrix.which }}" in commands(jobs["versions"])
    assert (
        jobs["report"]["permissions"] == {"issues": "write"}
        and "permissions" not in jobs["versions"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("open_titles", "created"), [("", 1), ("another\nT", 0), ("about T", 1)])
def test_a_second_failure_opens_no_second_issue(open_titles, created, tmp_path):
    (step,) = workflow("versions")["jobs"]["report"]["steps"]
    script = re.sub('title=".*"', "title=T", step["run"])
    assert script != step["run"]
    fake(
        tmp_path / "gh",
        f'case "$*" in *list*) printf "{open_titles}\\n" ;; *) echo x >> made ;; esac',
    )
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUN": "r"}
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=env, check=True, timeout=60)
    made = tmp_path / "made"
    assert (len(made.read_text().split()) if made.exists() else 0) == created


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_do_little_and_pin_what_they_use(path):
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
