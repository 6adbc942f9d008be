"""Interleaved timing: all candidates in each round, so that a busy machine slows all alike."""

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from src import results

PEERS = ("torch", "transformers", "x-transformers")


def interleave(
    candidates: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Run every candidate once a round, in turning order, and time each call.

    Args:
        candidates: Functions without arguments, by name.
        rounds: Timed calls of each, at least 1.
        warmup: Calls before them that are not timed.

    Returns:
        Seconds of each round, by name.

    Raises:
        ValueError: If ``rounds`` is below 1 or there is no candidate.
    """
    if rounds < 1 or not candidates:
        raise ValueError(f"rounds and candidates must not be empty: {rounds=}, {len(candidates)=}")
    names = list(candidates)
    for name in names * warmup:
        candidates[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()  # a collection would be billed to whoever runs when it comes
    try:
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                _wait()
                start = time.perf_counter()
                candidates[name]()
                _wait()
                seconds[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return seconds


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratios(seconds: Mapping[str, list[float]], ours: str) -> dict[str, dict[str, float]]:
    """How many times as fast ``ours`` is as each of the others, round by round.

    Returns:
        By name the median over the rounds, and the lowest and the highest round.
    """
    found = {}
    for name, times in seconds.items():
        each = [theirs / own for theirs, own in zip(times, seconds[ours], strict=True)]
        found[name] = spread(each)
    return found


def rates(seconds: Mapping[str, list[float]], work: float) -> dict[str, float]:
    """Median of work done a second, by name."""
    return {name: work / statistics.median(times) for name, times in seconds.items()}


def report(seconds: Mapping[str, list[float]], ours: str, work: float, unit: str) -> None:
    """Print one line a candidate: rate, and the ratio with its spread."""
    each, rate = ratios(seconds, ours), rates(seconds, work)
    print(f"{'':16} {unit:>14}   ours is faster by")
    for name in seconds:
        ratio = each[name]
        print(
            f"{name:16} {rate[name]:14,.0f}   "
            f"{ratio['median']:.2f} ({ratio['low']:.2f} … {ratio['high']:.2f})"
        )


def spread(values: list[float]) -> dict[str, float]:
    """Median, lowest and highest of what the rounds gave."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def run(
    name: str,
    doc: str,
    measure: Callable[[dict], dict],
    full: dict,
    toy: dict,
    cuda: dict | None = None,
    of_size: tuple[str, ...] = (),
) -> None:
    """The command line of every benchmark: parse, measure, print the machine, save.

    Args:
        name: Of the result, ``src/results/<name>.json``.
        doc: The module's docstring.
        measure: Takes the settings, prints and returns what is to be saved.
        full: Settings of a real measurement.
        toy: Settings that show in seconds that the script runs.
        cuda: For what runs on a GPU where there is one: settings of a real measurement there,
            whose result is ``<name>_cuda.json``, so that the CPU's stays.
        of_size: Numbers of ``size`` that an option may change; then save into a folder of yours.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument("--rounds", type=int, help=f"timed rounds ({full.get('rounds')})")
    parser.add_argument("--toy", action="store_true", help="seconds only; saves nothing")
    parser.add_argument("--out", help="folder of the result, instead of the package's own")
    for field in of_size:
        parser.add_argument(f"--{field}", type=float, help="of all models; give --out, too")
    args = parser.parse_args()
    if args.threads < 1:
        parser.error(f"--threads must be at least 1, but is {args.threads}")
    if args.rounds is not None and args.rounds < 1:
        parser.error(f"--rounds must be at least 1, but is {args.rounds}")
    changed = {f: getattr(args, f) for f in of_size if getattr(args, f) is not None}
    if changed and not (args.toy or args.out):
        parser.error(f"--{next(iter(changed))} needs --out: the page shows the usual setting")
    torch.set_num_threads(args.threads)
    if cuda is not None and torch.cuda.is_available():
        name, full = f"{name}_cuda", cuda
    settings = dict(toy if args.toy else full)
    if changed:
        settings["size"] = settings["size"] | changed
    if args.rounds is not None:
        settings["rounds"] = args.rounds
    machine = results.environment(PEERS)
    print(f"{machine['machine']} {platform.python_version()} {machine['versions']}")
    start = time.perf_counter()
    data = {"settings": settings} | measure(settings)
    if not args.toy or args.out:
        seconds = time.perf_counter() - start
        path = results.save(name, data, seconds=seconds, folder=args.out, packages=PEERS)
        print(path.name)
