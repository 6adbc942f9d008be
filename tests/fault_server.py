"""Plants faults, each in a fork of this process, which has imported all that takes long.

Reads one line a run: the number of a fault of `faults.py` (null for none) and the file for what is
said. Answers with one word a line: the error of the claim or test that has to notice it.
"""

import dis
import gc
import json
import os
import resource
import sys
import types
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]
os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis  # noqa: E402
import matplotlib  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

matplotlib.use("Agg")
import IPython.display  # noqa: E402, F401
import matplotlib.pyplot  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.utils.flop_counter  # noqa: E402

import notebooks  # noqa: E402
import package  # noqa: E402
import src.train  # noqa: E402, F401
from faults import FAULTS, Fault  # noqa: E402
from src.applications import classification, minilm, vision  # noqa: E402, F401

LIMIT = 120  # seconds of computing: a fault may well make a loop endless
# A test of random examples has failed at the first that fails: the least one need not be found.
# Being slow is no failure.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
EXAMPLES = {"phases": PHASES, "database": None, "derandomize": True, "deadline": None}


def plant(fault: Fault) -> None:
    """Put the wrong function wherever the right one is."""
    module = package.module_of(fault.place, package.files())
    path = fault.place.removeprefix(f"{module}.").split(".")
    owner = import_module(f"src.{module}")
    for name in path[:-1]:
        owner = getattr(owner, name)
    right = getattr(owner, path[-1])
    wrong = fault.wrong(right)
    places = [owner]
    places += [m for n, m in sys.modules.items() if n.split(".")[0] == "src" and m is not None]
    for place in places:
        for name, value in list(vars(place).items()):
            if value is right:
                setattr(place, name, wrong)


def names(code: types.CodeType, bound: set[str]) -> set[str]:
    """Return the globals that code uses before it binds them; add to ``bound`` what it binds."""
    used = set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            used |= {step.argval} - bound
        elif step.opname == "STORE_NAME":
            bound.add(step.argval)
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return used.union(*(names(const, set(bound)) for const in inner))


def cells(claim: str) -> list[str]:
    """Return the cell of a claim, behind those from which it has its names."""
    chapter = claim.split("-")[0]
    path = next(p for p in notebooks.all_notebooks() if notebooks.chapter_of(p) == chapter)
    code = [c for c in notebooks.read(path) if c["cell_type"] == "code"][1:]  # the first installs
    last = next(i for i, cell in enumerate(code) if claim in notebooks.claim_ids(cell))
    found, wanted = [], set()
    for cell in reversed(code[: last + 1]):
        bound: set[str] = set()
        used = names(compile(cell["source"], "cell", "exec"), bound)
        if not found or bound & wanted:
            found.append(cell["source"])
            wanted = (wanted - bound) | used
    return found[::-1]


def claims(ids: list[str]) -> str:
    """Run the cells of claims; return the error of the first that raises, or ``nothing``."""
    for claim in ids:
        scope = {"__name__": "__main__"}
        *before, own = cells(claim)
        for source in (*before, own):
            try:
                exec(compile(source, f"a cell for {claim}", "exec"), scope)
            except Exception as error:
                print(f"{claim}: {error!r} in\n{source}", flush=True)
                return type(error).__name__ + (" before the claim" if source is not own else "")
        matplotlib.pyplot.close("all")
    return "nothing"


class Errors:
    """Keeps the name of the last error in a test."""

    seen = "nothing"

    def pytest_exception_interact(self, call) -> None:
        self.seen = call.excinfo.typename


def tests(ids: list[str], folder: Path) -> str:
    """Run tests; return the error of the first that fails, or ``nothing`` if all pass."""
    hypothesis.settings.register_profile("planted", **EXAMPLES)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n slow\n", encoding="utf-8")
    options = ["-q", "-x", "-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider"]
    options += ["--hypothesis-profile", "planted", "-p", "no:nbval", "-p", "no:xdist"]
    errors = Errors()
    status = pytest.main([*options, *(str(ROOT / "tests" / name) for name in ids)], [errors])
    return errors.seen if status in (0, 1) else f"pytest ended with {status}"


def run(number: int | None, log: str) -> str:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    os.chdir(ROOT / "notebooks")
    if number is not None:
        plant(FAULTS[number])
    ids = {fault.seen_by for fault in (FAULTS if number is None else [FAULTS[number]])}
    named = sorted(i for i in ids if "::" in i)
    found = claims(sorted(ids.difference(named)))
    return tests(named, Path(log).parent) if named and found == "nothing" else found


def main() -> None:
    """Answer requests until there are no more."""
    torch.set_num_threads(1)
    gc.freeze()  # what is here by now stays: pytest makes Python look for garbage at each end
    for line in sys.stdin:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, run(*json.loads(line)).encode())
            sys.stdout.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            print(answer.read() or "crash", flush=True)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
