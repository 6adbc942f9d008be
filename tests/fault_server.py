"""Plants faults, each in a fork of this process, which has imported all that takes long.

Reads one line a fault: the number of a fault of `faults.py` (−1 for none) and the file for what is
said. Answers with one word a line: what became of the chapter or test that has to notice it.
"""

import gc
import json
import os
import resource
import sys
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
import IPython.core.interactiveshell  # noqa: E402
import matplotlib.pyplot  # noqa: E402, F401
import torch._dynamo  # noqa: E402, F401
import torch.utils.flop_counter  # noqa: E402, F401

import notebooks  # noqa: E402
from faults import FAULTS, Fault  # noqa: E402

import src.train  # noqa: E402, F401
from src import classification, live, pooling, pretrained, vision  # noqa: E402, F401

LIMIT = 120  # seconds of computing: a fault may well make a loop endless
# A test of random examples has failed at the first that fails; the least one need not be found.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)


def plant(fault: Fault) -> None:
    """Put the wrong function wherever the right one is."""
    module, *path = fault.place.split(".")
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


def chapter(number: str) -> str:
    """Run a chapter's cells until one raises; return the name of the error, or ``nothing``."""
    path = next(p for p in notebooks.all_notebooks() if notebooks.chapter_of(p) == number)
    os.chdir(path.parent)
    shell = IPython.core.interactiveshell.InteractiveShell.instance()
    cells = [c for c in notebooks.read(path) if c["cell_type"] == "code"]
    for cell in cells[1:]:
        result = shell.run_cell(cell["source"], silent=True)
        if not result.success:
            print(f"In the cell that begins {cell['source'][:60]!r}", flush=True)
            return type(result.error_in_exec or result.error_before_exec).__name__
        matplotlib.pyplot.close("all")
    return "nothing"


def tests(names: list[str], folder: Path) -> str:
    """Run tests; return ``AssertionError`` if one failed, ``nothing`` if all passed."""
    hypothesis.settings.register_profile("planted", phases=PHASES, database=None, derandomize=True)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n slow\n", encoding="utf-8")
    options = ["-q", "-x", "-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider"]
    options += ["--hypothesis-profile", "planted", "-p", "no:nbval", "-p", "no:xdist"]
    status = pytest.main([*options, *(str(ROOT / "tests" / name) for name in names)])
    return {0: "nothing", 1: "AssertionError"}.get(status, f"pytest ended with {status}")


def run(number: int, log: str) -> str:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    folder = Path(log).parent
    if number < 0:
        return tests([f.seen_by for f in FAULTS if "::" in f.seen_by], folder)
    fault = FAULTS[number]
    plant(fault)
    return tests([fault.seen_by], folder) if "::" in fault.seen_by else chapter(fault.seen_by)


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
