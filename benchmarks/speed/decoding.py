"""Decoding 16 sentences for 48 steps, greedily and with a beam of five, beside the peers.

Weights are random and the end of a sentence is forbidden, so that every model makes exactly as
many tokens. `nn.Transformer` keeps no cache and brings no search. The profiler tells how much of
our time goes into matrix products, which every library needs: what is left is all that can be
saved.
Their number of operations tells how far they are from the rate of large matrices.

    python -m benchmarks.speed.decoding         a few minutes
    python -m benchmarks.speed.decoding --toy   seconds; saves nothing
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import measure, peers

FULL = {
    "rounds": 7,
    "sentences": 16,
    "length": 48,
    "beam_size": 5,
    "shortest": 4,
    "longest": 32,
    "size": {},
}
TOY = {
    "rounds": 1,
    "sentences": 3,
    "length": 5,
    "beam_size": 2,
    "shortest": 2,
    "longest": 5,
    "size": {"vocab_size": 31, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
}

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def operator_seconds(call: Callable[[], object]) -> dict[str, float]:
    """Processor time of each operator within a call, without those it calls, in seconds."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return {event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()}


def product_seconds(operators: dict[str, float]) -> float:
    """The part of it that is spent in matrix products."""
    return sum(operators.get(name, 0.0) for name in PRODUCTS)


def shares(profiles: list[dict[str, float]], kept: int = 6) -> dict[str, float]:
    """Shares of the operators that take most, and of the rest."""
    total: Counter[str] = Counter()
    for operators in profiles:
        total.update(operators)
    whole = total.total()
    found = {name: seconds / whole for name, seconds in total.most_common(kept)}
    return found | {"rest": max(0.0, 1 - sum(found.values()))}


def product_flops(call: Callable[[], object]) -> int:
    """Floating-point operations of the same products."""
    with FlopCounterMode(display=False) as counter:
        call()
    counts = counter.get_flop_counts()["Global"]
    return sum(n for op, n in counts.items() if str(op).replace(".", "::") in PRODUCTS)


def compare(settings: dict) -> dict:
    """Time greedy decoding, then beam search."""
    size = peers.Size(**settings["size"])
    generator = torch.Generator().manual_seed(0)
    src = peers.random_pairs(
        settings["sentences"], size, settings["shortest"], settings["longest"], generator
    ).src
    models = peers.build(size)
    for model in models.values():
        model.module.eval()
    length = settings["length"]
    tokens = len(src) * length
    found = {"size": dataclasses.asdict(size), "tokens": tokens}
    for kind, beam_size in (("greedy", 1), ("beam", settings["beam_size"])):
        calls = {
            name: partial(model.generate, src, length, beam_size)
            for name, model in models.items()
            if beam_size == 1 or model.searches
        }
        for name, call in calls.items():
            if call().shape != (len(src), length):
                raise RuntimeError(f"{name} made {tuple(call().shape)} tokens")
        seconds = measure.interleave(calls, settings["rounds"])
        print(kind)
        measure.report(seconds, "ours", tokens, "tokens/s")
        profiles = [operator_seconds(calls["ours"]) for _ in range(settings["rounds"])]
        found[kind] = {
            "seconds": seconds,
            "rates": measure.rates(seconds, tokens),
            "ratios": measure.ratios(seconds, "ours"),
            "product_seconds": median(map(product_seconds, profiles)),
            "product_flops": product_flops(calls["ours"]),
            "operators": shares(profiles),
        }
        for name, share in found[kind]["operators"].items():
            print(f"{share:6.1%} {name}")
    return found


if __name__ == "__main__":
    measure.run("speed_decoding", __doc__, compare, FULL, TOY)
