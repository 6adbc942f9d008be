"""Memory of attention against the length: fused and explicit backend, each in a fresh process.

What counts is the growth of the process's highest resident size while one head attends, forwards
and backwards; on a GPU, of the allocator's peak. The explicit backend stops where its weights
would pass the limit.

    python -m benchmarks.speed.attention_memory         about a minute
    python -m benchmarks.speed.attention_memory --toy   seconds; saves nothing
"""

import math
import re
import resource
import subprocess
import sys
from pathlib import Path
from statistics import linear_regression

import torch

from benchmarks.speed import measure
from src.functional import attention

FULL = {"lengths": [1024, 2048, 4096, 8192, 16384], "width": 64, "limit": 5e9}
TOY = {"lengths": [16, 32], "width": 4, "limit": 1e6}
WORKER = "--worker"
MODULE = "benchmarks.speed.attention_memory"
STATUS = Path("/proc/self/status")  # Linux


def peak(backend: str, length: int, width: int) -> int:
    """Bytes that attention over ``length`` positions adds to this process's peak."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(1, 1, length, width, device=device, requires_grad=True) for _ in range(3)
    )
    small = query[:, :, :16]
    attention(small, small, small, backend=backend).sum().backward()  # libraries are loaded now
    _forget(device)
    before = _highest(device)
    attention(query, key, value, backend=backend).sum().backward()
    return _highest(device) - before


def _highest(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if STATUS.exists():
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", STATUS.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts in bytes


def _forget(device: str) -> None:
    """Start the highest size anew, at the present one."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif STATUS.exists():
        STATUS.with_name("clear_refs").write_text("5")


def compare(settings: dict) -> dict:
    """Measure each backend at each length, one process each."""
    width = settings["width"]
    found: dict[str, dict[str, int]] = {"sdpa": {}, "explicit": {}}
    for length in settings["lengths"]:
        for backend, sizes in found.items():
            # Scores, weights and their gradients, float32.
            if backend == "explicit" and 16 * length**2 > settings["limit"]:
                continue
            command = [sys.executable, "-m", MODULE, WORKER, backend, str(length), str(width)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            sizes[str(length)] = int(run.stdout)
            print(f"{backend:9} n = {length:6}: {sizes[str(length)] / 2**20:8.1f} MiB")
    slopes = {backend: slope(sizes) for backend, sizes in found.items() if len(sizes) > 1}
    for backend, value in slopes.items():
        print(f"{backend:9} grows as n to the power {value:.2f}")
    return {"bytes": found, "slopes": slopes}


def slope(sizes: dict[str, int]) -> float:
    """Exponent of the power law that fits best: 1 is linear, 2 quadratic."""
    lengths = [math.log(int(n)) for n in sizes]
    return linear_regression(lengths, [math.log(max(b, 1)) for b in sizes.values()]).slope


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        backend, length, width = sys.argv[2:]
        torch.set_num_threads(1)
        print(peak(backend, int(length), int(width)))
    else:
        measure.run("speed_attention_memory", __doc__, compare, FULL, TOY, cuda=FULL)
