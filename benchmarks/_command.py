"""The command line that the long experiments share: parse, measure, tell, save."""

import argparse
import time
from collections.abc import Callable, Sequence

import torch

from src import results


def run(
    name: str,
    doc: str,
    measure: Callable[[dict], dict],
    tell: Callable[[dict], None],
    full: dict,
    toy: dict,
    arguments: Sequence[str] | None = None,
    packages: tuple[str, ...] = results.PACKAGES,
) -> None:
    """Run an experiment on one CPU thread and save what it measured.

    Args:
        name: Of the result, ``src/results/<name>.json``.
        doc: The module's docstring.
        measure: Takes the settings and returns what is to be saved.
        tell: Prints what was measured.
        full: Settings of the book's experiment.
        toy: Settings that show in seconds that the script runs; saved only with ``--out``.
        arguments: Of the command line; None takes those of the process.
        packages: Whose versions matter.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="tiny sizes; saved only with --out")
    parser.add_argument("--out", help="folder of the result, instead of the package's own")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start = time.perf_counter()
    data = measure(toy if options.toy else full)
    tell(data)
    if not options.toy or options.out:
        seconds = time.perf_counter() - start
        path = results.save(name, data, seconds=seconds, folder=options.out, packages=packages)
        print("saved", path.name)
