"""Training in bfloat16 against float32: speed, and whether the loss follows the same curve.

A processor without instructions for bfloat16 emulates it, many times slower than float32: there
the script says so and measures nothing.

    python -m benchmarks.speed.bfloat16         a few minutes
    python -m benchmarks.speed.bfloat16 --toy   seconds; saves nothing
"""

import dataclasses

import torch

from benchmarks.speed import measure, peers
from benchmarks.speed.matmul_share import has_bfloat16

FULL = {
    "rounds": 5,
    "updates": 60,
    "pairs": 64,
    "shortest": 4,
    "longest": 32,
    "size": {},
    "emulate": False,
}
TOY = {
    "rounds": 1,
    "updates": 2,
    "pairs": 3,
    "shortest": 2,
    "longest": 5,
    "emulate": True,
    "size": {"vocab_size": 31, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
}
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


def compare(settings: dict) -> dict:
    """Time both precisions on one batch, then train both on it and compare the losses."""
    if not (has_bfloat16() or settings["emulate"]):
        print("this processor has no instructions for bfloat16: nothing to measure")
        raise SystemExit(0)
    size = peers.Size(**settings["size"])
    batch = peers.random_pairs(
        settings["pairs"],
        size,
        settings["shortest"],
        settings["longest"],
        torch.Generator().manual_seed(0),
    )
    steps = {}
    for name, dtype in PRECISIONS.items():
        steps[name] = peers.trainer(peers.build(size, ("ours",))["ours"], [batch], dtype)
    torch.manual_seed(0)
    losses = {name: [step() for _ in range(settings["updates"])] for name, step in steps.items()}
    seconds = measure.interleave(steps, settings["rounds"])
    measure.report(seconds, "bfloat16", batch.num_tokens, "tokens/s")
    gap = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    print(f"largest difference of the losses: {gap:.3f}")
    return {
        "size": dataclasses.asdict(size),
        "losses": losses,
        "seconds": seconds,
        "rates": measure.rates(seconds, batch.num_tokens),
        "ratios": measure.ratios(seconds, "bfloat16"),
    }


if __name__ == "__main__":
    measure.run("speed_bfloat16", __doc__, compare, FULL, TOY)
