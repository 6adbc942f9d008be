"""What might make decoding faster and was tried: each attempt beside our plain decoding and Marian.

The inputs are those of `decoding`. The attempts change copies of the model and leave the package as
it is: a decoder compiled by `torch.compile`, dense layers whose weights are stored in float16
(fbgemm), and the output product with the weights on the left instead of a transposed copy.

    python -m benchmarks.speed.decoding_attempts         several minutes
    python -m benchmarks.speed.decoding_attempts --toy   seconds; saves nothing
"""

import dataclasses
import time
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.speed import decoding, measure, peers
from src.multihead import MultiHeadAttention
from src.transformer import Transformer, TransformerStepper

FULL = decoding.FULL | {"backend": "inductor"}
TOY = decoding.TOY | {"backend": "eager"}
BESIDE = ("plain", "MarianMT")


class Compiled(peers.Ours):
    """The decoder's step compiled, with lengths left open."""

    def __init__(self, size: peers.Size, backend: str) -> None:
        super().__init__(size)
        step = torch.compile(self.module.decode_hidden, dynamic=True, backend=backend)
        self.module.decode_hidden = step


class HalfLinear(nn.Module):
    """A dense layer that multiplies by a float16 copy of its weights, packed once."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.packed = {}

    @torch.no_grad()
    def forward(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        """Multiply by those rows of the weights; all by default."""
        key = (rows.start, rows.stop)
        if key not in self.packed:
            bias = None if self.bias is None else self.bias[rows].contiguous()
            self.packed[key] = torch.ops.quantized.linear_prepack_fp16(
                self.weight[rows].contiguous(), bias
            )
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed[key])


class Half(peers.Ours):
    """All dense layers, the output's too, with float16 weights."""

    def __init__(self, size: peers.Size, backend: str) -> None:
        super().__init__(size)
        for module in list(self.module.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, HalfLinear(child))
            if isinstance(module, MultiHeadAttention):
                module._project = partial(_project, module)
        self.module.stepper = partial(HalfStepper, self.module)


def _project(attention: MultiHeadAttention, x: Tensor, first: int, last: int) -> Tensor:
    """Stand in for the method of that name, which multiplies by rows of a plain weight."""
    width = attention.d_model
    return attention.in_proj(x, slice(first * width, last * width))


class _Stepper(TransformerStepper):
    """A stepper without the transposed copy of the output matrix."""

    @torch.no_grad()
    def __init__(self, model: Transformer, src: Tensor, max_len: int | None = None) -> None:
        self.model, self.device = model, src.device
        self.cache = model.new_cache(src, max_len)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Feed the last token of each row; the decoder's vectors."""
        return self.model.decode_hidden(tokens.unsqueeze(1), self.cache).squeeze(1)


class HalfStepper(_Stepper):
    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        return self.model.output(self.hidden(tokens))


class LeftStepper(_Stepper):
    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        return (self.model.output.weight @ self.hidden(tokens).t()).t()


class Left(peers.Ours):
    """The output product as ``W @ x.T``."""

    def __init__(self, size: peers.Size, backend: str) -> None:
        super().__init__(size)
        self.module.stepper = partial(LeftStepper, self.module)


ATTEMPTS: dict[str, type] = {"compiled": Compiled, "float16 weights": Half, "W @ x.T": Left}


def build(size: peers.Size, backend: str) -> dict[str, peers.Peer]:
    """Ours, Marian and the attempts this machine can run, each with the weights of ours."""
    models = peers.build(size, ("ours", "MarianMT"))
    models = {"plain": models["ours"], "MarianMT": models["MarianMT"]}
    for name, attempt in ATTEMPTS.items():
        if attempt is Half and "fbgemm" not in torch.backends.quantized.supported_engines:
            print(f"{name}: left out, since PyTorch has no fbgemm here")
            continue
        torch.manual_seed(0)
        models[name] = attempt(size, backend)
    for model in models.values():
        model.module.eval()
    return models


def compare(settings: dict) -> dict:
    """Time greedy decoding, then beam search."""
    size = peers.Size(**settings["size"])
    src = peers.random_pairs(
        settings["sentences"],
        size,
        settings["shortest"],
        settings["longest"],
        torch.Generator().manual_seed(0),
    ).src
    models = build(size, settings["backend"])
    length = settings["length"]
    tokens = len(src) * length
    found = {"size": dataclasses.asdict(size), "tokens": tokens}
    for kind, beam_size in (("greedy", 1), ("beam", settings["beam_size"])):
        calls = {n: partial(m.generate, src, length, beam_size) for n, m in models.items()}
        plain = calls["plain"]()
        first, same = {}, {}  # the first call compiles and packs
        for name in ATTEMPTS:
            if name in calls:
                start = time.perf_counter()
                same[name] = float((calls[name]() == plain).float().mean())
                first[name] = time.perf_counter() - start
        seconds = measure.interleave(calls, settings["rounds"])
        print(kind)
        measure.report(seconds, "plain", tokens, "tokens/s")
        for name in first:
            print(f"{name}: first call {first[name]:.1f} s, {same[name]:.0%} of tokens the same")
        faster = {n: measure.ratios(seconds, n) for n in first}
        found[kind] = {
            "seconds": seconds,
            "rates": measure.rates(seconds, tokens),
            "first_call": first,
            "same_tokens": same,
            "ratios": {n: {other: each[other] for other in BESIDE} for n, each in faster.items()},
        }
    return found


if __name__ == "__main__":
    measure.run("speed_decoding_attempts", __doc__, compare, FULL, TOY)
