"""Would the notebooks say the same on another machine, and with other random numbers?

    python tools/steady.py seeds [NOTEBOOK …]     six shifts of every seed, assertions in force
    python tools/steady.py machines [NOTEBOOK …]  other kernels and threads, outputs compared

`seeds` looks at both sides of every assertion ``assert a < b`` that changes with the seed, and
counts how many standard deviations lie between the mean of the quantity and its bound. Both write
what they found into `book/steady.json`; other notebooks' rows stay. Exit status 1 if anything is
red or a bound is too near.
"""

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import notebooks  # noqa: E402
from tests.kernels import PrivateKernelManager  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NBVAL = (ROOT / "tests" / "nbval.args").read_text(encoding="utf-8").split()
FOUND = ROOT / "book" / "steady.json"
SHIFTS = range(6)
MARGIN = 3.0  # standard deviations between a quantity and its bound
ROUNDING = 1e-4  # what changes by less, relatively, changes by rounding and not with the seed
SMALLEST = 2.0**-126  # of the normal numbers in float32: below it all is rounding
APART = 1000  # between two shifts' seeds, so that no cell's own seeds occur in two of them
LEVELS = {
    "SSE": ("default", "SSE41", "SSE4_2"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
    "all the processor has": None,
}
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def run_shifted(path: Path, shift: int) -> tuple[list[dict], list[list]]:
    """Run a notebook with shifted seeds; return its red cells and the comparisons seen."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        kept = f"{folder}/seen.json"
        names = {}
        cells = [
            "import probe\n"
            f"probe.shift_seeds({APART * shift})\n"
            "_watcher = probe.watch(get_ipython())"
        ]
        for number, cell in enumerate(c for c in notebook.cells if c.cell_type == "code"):
            claim = cell.metadata.get("claim", f"cell {number + 1}")
            names[number] = claim if isinstance(claim, str) else " ".join(claim)
            cells += [f"_watcher.cell = {number}", cell.source]
        cells.append(f"_watcher.save({kept!r})")
        notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tools")])
        client = NotebookClient(
            notebook,
            timeout=1800,
            allow_errors=True,
            kernel_manager_class=PrivateKernelManager,
            resources={"metadata": {"path": path.parent}},
        )
        client.execute()
        red = [
            {"cell": names[(i - 2) // 2], "error": f"{output.ename}: {output.evalue}"[:300]}
            for i, cell in enumerate(notebook.cells)
            for output in cell.outputs
            if output.output_type == "error"
        ]
        seen = json.loads(Path(kept).read_text(encoding="utf-8")) if Path(kept).exists() else []
    return red, [[names[number], *rest] for number, *rest in seen]


def distances(runs: list[list[list]]) -> list[dict]:
    """Join what the runs saw of each comparison that changes with the seed."""
    places: dict[tuple, list[list]] = {}
    for seen in runs:
        for *place, pairs in seen:
            places.setdefault(tuple(place), []).append(pairs)
    rows = []
    for (cell, left, sign, right), pairs in places.items():
        above = sign in (">", ">=")
        for bound, values, turned in _quantities(pairs, above):
            if len(values) < 2:
                continue
            mean, spread = fmean(values), stdev(values)
            rounding = max(ROUNDING * max(abs(mean), abs(bound)), SMALLEST)
            if not math.isfinite(mean) or spread <= rounding:
                continue
            distance = mean - bound if above != turned else bound - mean
            rows.append(
                {
                    "cell": cell,
                    "assertion": f"{left} {sign} {right}",
                    "mean": _short(mean),
                    "spread": _short(spread),
                    "bound": _short(bound),
                    "margin": _short(distance / spread),
                }
            )
    return rows


def _quantities(runs: list[list], above: bool) -> Iterator[tuple[float, list[float], bool]]:
    """Yield a bound, the quantity in each run, and whether the bound is on the left side.

    In a loop the run's worst value counts, for each bound apart. Where both sides change, their
    difference is the quantity and 0 the bound.
    """
    for turned, (fixed, free) in ((False, (1, 0)), (True, (0, 1))):
        if len({tuple(sorted({pair[fixed] for pair in pairs})) for pairs in runs}) == 1:
            worst = min if above != turned else max
            for bound in sorted({pair[fixed] for pair in runs[0]}):
                yield (
                    bound,
                    [worst(p[free] for p in pairs if p[fixed] == bound) for pairs in runs],
                    turned,
                )
            return
    worst = min if above else max
    yield 0.0, [worst(left - right for left, right in pairs) for pairs in runs], False


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def seeds(paths: list[Path]) -> bool:
    """Run all notebooks with all shifts, two at a time; write and print what was found."""
    jobs = [(path, shift) for path in paths for shift in SHIFTS]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        results = dict(zip(jobs, pool.map(lambda job: run_shifted(*job), jobs), strict=True))
    found = _read()
    good = True
    for path, group in groupby(jobs, key=lambda job: job[0]):
        runs = [results[job] for job in group]
        red = [{"shift": s, **r} for s, (red, _) in zip(SHIFTS, runs, strict=True) for r in red]
        rows = distances([seen for _, seen in runs])
        found.setdefault("seeds", {})[path.stem] = {
            "code": notebooks.code_digest(path),
            "red": red,
            "comparisons": rows,
        }
        for row in red:
            print(f"RED {path.stem} shift {row['shift']}, {row['cell']}: {row['error']}")
        near = [row for row in rows if row["margin"] < MARGIN]
        for row in near:
            print(f"NEAR {path.stem}, {row['cell']}: {row}")
        print(f"{path.stem}: {len(red)} red, {len(rows)} comparisons, {len(near)} too near")
        good &= not red and not near
    _write(found)
    return good


def machines(paths: list[Path]) -> bool:
    """Compare all notebooks' outputs under other kernels and threads; keep each result at once."""
    good = True
    for threads in (1, 2, 4):
        for level, values in LEVELS.items():
            if threads > os.cpu_count():
                continue
            env = os.environ | {"OMP_NUM_THREADS": str(threads)}
            env |= dict(zip(VARIABLES, values, strict=True)) if values else {}
            workers = max(1, os.cpu_count() // threads)
            start = time.monotonic()
            run = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    *NBVAL,
                    "-n",
                    str(workers),
                    "--dist",
                    "loadfile",
                    *map(str, paths),
                ],
                cwd=ROOT,
                env=env,
                text=True,
                capture_output=True,
            )
            counts = dict.fromkeys(("passed", "failed"), 0)
            counts |= {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed)", run.stdout)}
            print(f"{level}, threads {threads}: {counts}, {time.monotonic() - start:.0f} s")
            if run.returncode:
                print(run.stdout + run.stderr)
            good &= run.returncode == 0
            if set(paths) == set(NOTEBOOKS):
                _keep({"kernels": level, "threads": threads, **counts})
    return good


def _keep(run: dict) -> None:
    """Add a run to those on this machine and this PyTorch, in place of an earlier one like it."""
    found = _read()
    about = {"processor": processor(), "torch": version("torch")}
    before = found.get("machines", {})
    runs = before.get("runs", []) if {k: before.get(k) for k in about} == about else []
    runs = [r for r in runs if (r["kernels"], r["threads"]) != (run["kernels"], run["threads"])]
    _write(found | {"machines": about | {"runs": [*runs, run]}})


def processor() -> str:
    """Name the processor as the system does."""
    cpus = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpus.read_text()) if cpus.exists() else []
    return names[0] if names else platform.processor()


def _read() -> dict:
    return json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}


def _write(found: dict) -> None:
    beside = FOUND.with_suffix(".new")
    beside.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(FOUND)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["seeds", "machines"])
    parser.add_argument("notebook", nargs="*", type=Path)
    args = parser.parse_args()
    paths = [path.resolve() for path in args.notebook] or NOTEBOOKS
    return not {"seeds": seeds, "machines": machines}[args.what](paths)


if __name__ == "__main__":
    sys.exit(main())
