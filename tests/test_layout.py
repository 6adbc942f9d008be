"""The project's layout: who imports whom, what is pinned, where the address stands, both commands."""

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from sample import ROOT, repository

import package  # in tools/, which `sample` has put on the path
import readme

LEVELS = package.levels()
MODULES = package.modules()
FILES = package.files()
TEXTS = [
    path
    for pattern in (
        "*.md", "*.toml", "*.txt", "*.yml", "Makefile", ".ci/run", ".github/**/*.yml", "book/*",
        "benchmarks/**/*.py", "src/**/*.py", "tools/*", "_templates/*", "_static/*.css",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
]  # fmt: skip


# --- the package


def test_every_module_has_one_level():
    assert sorted(LEVELS) == sorted(MODULES), "the table of CONTRIBUTING.md lists other modules"


def test_every_file_of_the_package_is_seen():
    seen = set(FILES.values()) | {ROOT / "src" / "__init__.py"}
    assert seen == set((ROOT / "src").rglob("*.py"))
    assert {"checks", "checks.engine", "live.page", "masks"} <= set(FILES)


def imported(name):
    """The modules that a module imports, as in `FILES`."""
    return {package.module_of(found, FILES) for found in package.imports(FILES[name])}


@pytest.mark.parametrize("name", sorted(FILES))
def test_imports_go_downwards(name):
    own = name.partition(".")[0]
    for other in imported(name):
        whole = other.partition(".")[0]
        level = LEVELS[whole]
        if whole == own:
            assert other != own, f"{name} imports its own package"
        elif level is None:
            assert LEVELS[own] is None, f"{name} imports {other}, which is for notebooks only"
        elif LEVELS[own] is not None:
            assert level < LEVELS[own], f"{name} imports {other}, which does not stand below it"


def test_no_imports_run_in_a_circle():
    order = list(graphlib.TopologicalSorter({n: imported(n) for n in FILES}).static_order())
    assert order.index("checks.engine") < order.index("checks.pooling") < order.index("checks")


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
    "path", [*FILES.values(), *sorted(ROOT.glob("tools/*.py"))], ids=lambda p: f"{p.parts[-2]}/{p.stem}"
)
def test_lines_fit(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [n for n, line in enumerate(lines, 1) if len(line) > 100] == []


# --- what is installed


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {r.name.lower().replace("_", "-"): r for r in found}


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


def test_the_package_asks_for_lower_bounds_that_the_pins_fulfil():
    for requirement in map(Requirement, project()["dependencies"]):
        assert [s.operator for s in requirement.specifier] == [">="], requirement
        (pin,) = pins()[requirement.name.lower()].specifier
        assert requirement.specifier.contains(pin.version), requirement


def test_the_package_declares_what_it_imports():
    declared = {Requirement(d).name.lower().replace("-", "_") for d in project()["dependencies"]}
    declared |= {"ipython" if d == "ipython" else d for d in declared}
    imported = set()
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
    foreign = {n.lower() for n in imported - set(sys.stdlib_module_names) - {"src"}}
    # matplotlib_inline comes with every kernel that draws.
    assert foreign - declared - {"matplotlib_inline"} == set()


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


# --- the two commands


def environment(*arguments, path=os.environ["PATH"], cwd=ROOT):
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "environment.sh"), *arguments],
        env={"PATH": str(path)}, cwd=cwd, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


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
    for name in ("requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cat", "cksum"):
        (tools / name).symlink_to(shutil.which(name))
    for name in ("python3", "python3.11"):
        fake(tools / name, OLD_PYTHON)
    run = environment("venv", path=tools, cwd=tmp_path)
    assert run.returncode == 1 and "No Python 3.11 or newer" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1 and not (tmp_path / "venv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "failed"),
    [("none", 0), ("data", 1), ("make", 1), ("tests", 1), ("nbval", 1)],
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
        capture_output=True, text=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    summary = run.stdout.partition("== summary")[2]
    assert run.returncode == failed
    assert (summary.count("passed: "), summary.count("FAILED: ")) == (4 - failed, failed)


@pytest.mark.slow
def test_the_book_is_built_again_when_anything_changes_that_it_shows():
    listed = subprocess.run(
        ["make", "-pn", "_build/.built"], capture_output=True, text=True, cwd=ROOT, timeout=60
    ).stdout
    needed = set(re.search(r"^_build/\.built: (.*)$", listed, re.M)[1].split())
    shown = [
        "_config.yml", "book/*.md", "book/claims.yml", "notebooks/*.ipynb", "src/*.py",
        "src/checks/*.py", "src/live/*.js", "src/results/*.json", "tools/*.py", "_static/*",
    ]  # fmt: skip
    for pattern in shown:
        files = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert files and files <= needed, files - needed


def test_the_makefile_uses_nothing_newer_than_make_3_81():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert not re.search(r"\.ONESHELL|!=|&:|\$\(file |undefine", text)


def test_the_workflow_runs_both_commands_on_every_python_and_publishes_main():
    text = (ROOT / ".github" / "workflows" / "book.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    check, publish = workflow["jobs"]["check"], workflow["jobs"]["publish"]
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML reads `on` as true
    assert check["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    commands = [step.get("run", "") for step in check["steps"]]
    assert any("make book" in c for c in commands) and any("make test" in c for c in commands)
    assert publish["needs"] == "check" and "refs/heads/main" in publish["if"]
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
    assert project()["requires-python"] == ">=3.11"
