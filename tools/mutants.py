"""Mutation testing: change the package one operator at a time and ask whether a test notices.

    make mutants                          all modules of `MODULES`: about an hour
    python tools/mutants.py data.batches  one of them

Cosmic Ray makes the mutants of a module; of each module a sample, drawn with a fixed seed, is
tested, each in a fork of this process that imports a changed copy of the package. First the
module's own tests run, then its oracles, then the properties, without what is marked `slow`, until
the first failure. A mutant is killed if a test fails, if the tests cannot even import it, or if it
computes for longer than `LIMIT`. Mutants of annotations and those with an equal syntax tree are
left out.

Counts and survivors are kept in ``book/mutants.json``, each survivor with the reason why it is
harmless; a survivor without a reason is printed and makes the command fail.
"""

import ast
import difflib
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a plugin could import the real package

# All that the tests import but the package, once and not in each fork.
import cosmic_ray.plugins
import hypothesis
import IPython.display  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import pytest
import sacrebleu  # noqa: F401
import tokenizers  # noqa: F401
import torch
import torch._dynamo
import torch.testing
import transformers  # noqa: F401
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "book" / "mutants.json"
LIMIT = 60  # seconds of computing: a mutant's loop may be endless
SAMPLE, SEED = 40, 0
# A test of random examples has failed at the first that fails; the least one need not be found.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
# Each module and the files with its own tests.
MODULES = {
    "masks": ["masks"],
    "functional": ["functional", "autocast"],
    "pooling": ["pooling"],
    "scoring": ["scoring", "multihead"],
    "multihead": ["multihead", "padding"],
    "positions": ["positions"],
    "layers": ["layers"],
    "transformer": ["transformer", "padding"],
    "recurrent": ["recurrent"],
    "decoding": ["decoding"],
    "training.optimization": ["training"],
    "training.checkpoints": ["checkpoints", "files"],
    "training.trainer": ["training"],
    "training.updater": ["training"],
    "training.distributed": ["training"],
    "training.evaluation": ["evaluation"],
    "data.batches": ["batches"],
    "data.tokenization": ["tokenization"],
    "translate": ["train_cli"],
}


def shape(source: str) -> str:
    """A syntax tree as text, without annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def mutants(source: str) -> list[str]:
    """All changed versions of a module's text, each once, in a fixed order."""
    nodes, found = list(ast_nodes(get_ast(source))), {shape(source): source}
    for name in sorted(cosmic_ray.plugins.operator_names()):
        kind = cosmic_ray.plugins.get_operator(name)
        if kind.arguments():
            continue
        for occurrence in range(sum(len(list(kind().mutation_positions(n))) for n in nodes)):
            text = mutate_code(source, kind(), occurrence)
            try:
                found.setdefault(shape(text), text)
            except SyntaxError:
                continue
    return list(found.values())[1:]


def change(source: str, mutant: str) -> str:
    """The lines that differ, as ``old → new``."""
    lines = list(difflib.ndiff(source.splitlines(), mutant.splitlines()))
    old, new = (" ".join(x[2:].strip() for x in lines if x[0] == sign) for sign in "-+")
    return f"{old} → {new}"


def run(folder: Path, options: Sequence[str]) -> int:
    """Exit status of pytest in a fork that imports the copy; what it printed is in ``log.txt``."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 98
    try:
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        os.chdir(folder)
        sys.path[:1] = [str(folder), str(folder / "tools")]
        fixed = ["-q", "-x", "-m", "not slow", "-c", "pytest.ini", "-p", "no:cacheprovider"]
        fixed += ["-p", "_hypothesis_pytestplugin", "--hypothesis-profile", "mutants"]
        status = int(pytest.main([*fixed, *options]))
        import src

        if not src.__file__.startswith(os.path.realpath(folder)):
            status = 99
        sys.stdout.flush()
    finally:
        os._exit(status)


def survives(folder: Path, module: str) -> bool:
    """Whether all tests of a module pass.

    Raises:
        RuntimeError: If the tests did not run as they should.
    """
    own = [f"tests/test_{name}.py" for name in MODULES[module]]
    oracles = ["tests/test_oracles.py", "-k", f"{module}."]
    for options in (own, oracles, ["tests/test_properties.py"]):
        status = run(folder, options)
        if status in (1, 2, -signal.SIGXCPU, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT):
            return False
        if status not in (0, 5):  # 5: this module has no oracle
            raise RuntimeError(f"{module}: status {status}\n{(folder / 'log.txt').read_text()}")
    return True


def check(folder: Path, module: str, reasons: dict[str, str]) -> dict:
    """Counts and survivors of one module."""
    path = folder / "src" / f"{module.replace('.', '/')}.py"
    source = path.read_text(encoding="utf-8")
    every = mutants(source)
    drawn = random.Random(SEED).sample(every, min(SAMPLE, len(every)))
    if not survives(folder, module):
        raise RuntimeError(f"{module}: red without a mutant\n{(folder / 'log.txt').read_text()}")
    left = []
    for number, mutant in enumerate(drawn):
        path.write_text(mutant, encoding="utf-8")
        os.utime(path, (1 + number,) * 2)  # bytecode belongs to a second and a size
        if survives(folder, module):
            left.append(change(source, mutant))
            print(f"{module}: {left[-1]}", flush=True)
    path.write_text(source, encoding="utf-8")
    survivors = {line: reasons.get(line, "") for line in left}
    return {"mutants": len(every), "drawn": len(drawn), "survivors": survivors}


def main() -> int:
    """Check the modules named, or all; keep the counts of the others."""
    found = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    hypothesis.settings.register_profile(
        "mutants", phases=PHASES, database=None, derandomize=True, deadline=None
    )
    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports SymPy, and more
    gc.freeze()
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()
    good = True
    with tempfile.TemporaryDirectory() as name:
        for part in ("src", "tests", "tools", "benchmarks"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, Path(name, part), ignore=ignored)
        Path(name, "pytest.ini").write_text("[pytest]\nmarkers = gpu\n slow\n", encoding="utf-8")
        for module in sys.argv[1:] or MODULES:
            start = time.monotonic()
            reasons = found.get(module, {}).get("survivors", {})
            found[module] = check(Path(name), module, reasons) | {"commit": commit}
            good &= all(found[module]["survivors"].values())
            counts = {k: v for k, v in found[module].items() if k != "survivors"}
            left = len(found[module]["survivors"])
            print(f"{module}: {counts}, {left} left, {time.monotonic() - start:.0f} s", flush=True)
            beside = FOUND.with_suffix(".new")
            text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
            beside.write_text(text + "\n", encoding="utf-8")
            beside.replace(FOUND)
    return not good


if __name__ == "__main__":
    sys.exit(main())
