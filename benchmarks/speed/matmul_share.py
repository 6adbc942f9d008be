"""Share of the machine's own matrix-product rate that training the base model reaches.

The limit is measured, not looked up: the rate of `torch.matmul` over square products, of that size
among several which is fastest, in the same precision and the same rounds. The work of an update is
counted by PyTorch's FLOP counter, forwards and backwards.

    python -m benchmarks.speed.matmul_share         a few minutes
    python -m benchmarks.speed.matmul_share --toy   seconds; saves nothing
"""

import dataclasses
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import measure, peers

BASE = {"vocab_size": 8000, "d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6}
FULL = {
    "rounds": 5,
    "pairs": 32,
    "length": 48,
    "squares": [512, 1024, 2048],
    "flops": 4e9,
    "size": BASE,
}
# Large enough that starting a product takes no part of its time.
CUDA = FULL | {"rounds": 9, "pairs": 256, "squares": [4096, 8192], "flops": 4e12}
TOY = {
    "rounds": 1,
    "pairs": 2,
    "length": 5,
    "squares": [8],
    "flops": 1e5,
    "size": {"vocab_size": 31, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
}


def compare(settings: dict) -> dict:
    """Measure the limit and the training in each precision the machine has."""
    found = {}
    for name, dtype in precisions().items():
        found[name] = share(settings, dtype)
        part = found[name]["spread"]["share"]
        print(
            f"{name}: products {found[name]['limit'] / 1e9:.0f} GFLOP/s, "
            f"training {found[name]['rate'] / 1e9:.0f} GFLOP/s, "
            f"share {found[name]['share']:.0%} ({part['low']:.0%} … {part['high']:.0%}), "
            f"{found[name]['tokens_per_second']:,.0f} tokens/s"
        )
    return {"size": dataclasses.asdict(peers.Size(**settings["size"])), "precisions": found}


def precisions() -> dict[str, torch.dtype | None]:
    """Float32, and bfloat16 where the device multiplies in it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"float32": None} | ({"bfloat16": torch.bfloat16} if has_bfloat16(device) else {})


def has_bfloat16(device: str = "cpu") -> bool:
    """Whether processor or GPU has instructions for products in bfloat16."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def share(settings: dict, dtype: torch.dtype | None) -> dict:
    """Rate of products, rate of training, and their quotient."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = peers.Size(**settings["size"])
    length = settings["length"]
    batch = peers.random_pairs(
        settings["pairs"], size, length, length, torch.Generator().manual_seed(0)
    ).to(device)
    model = peers.build(size, ("ours",))["ours"]
    model.module.to(device)
    step = peers.trainer(model, [batch], dtype)
    with FlopCounterMode(display=False) as counter:
        step()
    candidates = {"training": step}
    work = {"training": counter.get_total_flops()}
    for n in settings["squares"]:
        a, b = (torch.randn(n, n, device=device, dtype=dtype or torch.float32) for _ in range(2))
        repeats = max(1, int(settings["flops"] / (2 * n**3)))
        candidates[f"product {n}"] = lambda a=a, b=b, r=repeats: [a @ b for _ in range(r)]
        work[f"product {n}"] = repeats * 2 * n**3
    seconds = measure.interleave(candidates, settings["rounds"])
    reached = {name: [work[name] / time for time in times] for name, times in seconds.items()}
    rates = reached.pop("training")
    limits = max(reached.values(), key=median)
    each = {
        "limit": limits,
        "rate": rates,
        "share": [rate / limit for rate, limit in zip(rates, limits, strict=True)],
        "tokens_per_second": [batch.num_tokens / time for time in seconds["training"]],
    }
    spread = {name: measure.spread(values) for name, values in each.items()}
    found = {name: values["median"] for name, values in spread.items()}
    return found | {"spread": spread, "flops": work["training"], "seconds": seconds}


if __name__ == "__main__":
    measure.run("speed_matmul_share", __doc__, compare, FULL, TOY, cuda=CUDA)
