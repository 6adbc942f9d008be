"""On one GPU: training the paper's base and big models, and greedy decoding, beside peers.

Training runs in bfloat16 under autocast; ours is compiled, `nn.Transformer` is as its
documentation has it. Decoding compares bfloat16 models.

    python -m benchmarks.speed.gpu         a few minutes; needs a CUDA device
    python -m benchmarks.speed.gpu --toy   seconds, on any device; saves nothing
"""

import dataclasses
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import measure, peers

MODELS = {
    "base": {"vocab_size": 32000, "d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6},
    "big": {"vocab_size": 32000, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 6},
}
FULL = {
    "rounds": 10,
    "pairs": 256,
    "length": 62,
    "square": 8192,
    "models": MODELS,
    "sentences": 64,
    "steps": 64,
    "backend": "inductor",
}
TOY = {
    "rounds": 1,
    "pairs": 3,
    "length": 5,
    "square": 32,
    "sentences": 3,
    "steps": 4,
    "backend": "eager",
    "models": {
        "base": {"vocab_size": 31, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1}
    },
}


class Compiled:
    """Ours, compiled; with the logits of every position, so that all shapes are known."""

    def __init__(self, peer: peers.Ours, backend: str) -> None:
        self.module = peer.module
        self.forward = torch.compile(peer.module, backend=backend)

    def loss(self, batch) -> torch.Tensor:
        total, count = peers.token_loss(
            self.forward(batch.src, batch.tgt_in), batch.tgt_out, peers.PAD
        )
        return total / count


def compare(settings: dict) -> dict:
    """Training of each model, then decoding with the first."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and settings["backend"] != "eager":
        raise SystemExit("no CUDA device is here: run it on a machine with a GPU, or with --toy")
    rates = product_rate(settings["square"], device, settings["rounds"])
    limit = rates["median"]
    print(
        f"matrix products in bfloat16: {limit / 1e12:.1f} TFLOP/s "
        f"({rates['low'] / 1e12:.1f} … {rates['high'] / 1e12:.1f})"
    )
    found = {"limit": limit, "limit_spread": rates, "training": {}}
    for name, fields in settings["models"].items():
        found["training"][name] = training(settings, peers.Size(**fields), device, limit)
    first = peers.Size(**next(iter(settings["models"].values())))
    found["decoding"] = decoding(settings, first, device)
    found["size"] = dataclasses.asdict(first)
    return found


def product_rate(n: int, device: str, rounds: int) -> dict[str, float]:
    """FLOP/s of one square product in bfloat16: median, lowest and highest round."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = measure.interleave({"product": lambda: a @ b}, rounds, warmup=3)
    return measure.spread([2 * n**3 / time for time in seconds["product"]])


def training(settings: dict, size: peers.Size, device: str, limit: float) -> dict:
    """Tokens a second of both models, and the share of the limit that ours reaches."""
    length = settings["length"]
    batch = peers.random_pairs(
        settings["pairs"], size, length, length, torch.Generator().manual_seed(0)
    ).to(device)
    models = peers.build(size, ("ours", "nn.Transformer"))
    for model in models.values():
        model.module.to(device)
    with FlopCounterMode(display=False) as counter:
        peers.trainer(models["ours"], [batch], torch.bfloat16)()
    models["ours"] = Compiled(models["ours"], settings["backend"])
    steps = {n: peers.trainer(m, [batch], torch.bfloat16) for n, m in models.items()}
    seconds = measure.interleave(steps, settings["rounds"], warmup=3)
    measure.report(seconds, "ours", batch.num_tokens, "tokens/s")
    work = counter.get_total_flops()
    share = measure.spread([work / time / limit for time in seconds["ours"]])
    print(
        f"share of the rate of matrix products: {share['median']:.0%} "
        f"({share['low']:.0%} … {share['high']:.0%})"
    )
    return {
        "seconds": seconds,
        "rates": measure.rates(seconds, batch.num_tokens),
        "ratios": measure.ratios(seconds, "ours"),
        "share": share["median"],
        "share_spread": share,
    }


def decoding(settings: dict, size: peers.Size, device: str) -> dict:
    """Greedy decoding of ours and Marian."""
    length = settings["length"]
    src = peers.random_pairs(
        settings["sentences"], size, length, length, torch.Generator().manual_seed(0)
    ).src.to(device)
    models = peers.build(size, ("ours", "MarianMT"))
    for model in models.values():
        model.module.to(device, torch.bfloat16).eval()
    calls = {n: partial(m.generate, src, settings["steps"], 1) for n, m in models.items()}
    seconds = measure.interleave(calls, settings["rounds"])
    tokens = settings["sentences"] * settings["steps"]
    measure.report(seconds, "ours", tokens, "tokens/s")
    return {
        "seconds": seconds,
        "rates": measure.rates(seconds, tokens),
        "ratios": measure.ratios(seconds, "ours"),
    }


if __name__ == "__main__":
    measure.run("speed_gpu", __doc__, compare, FULL, TOY)
