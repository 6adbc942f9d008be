"""The weights of every attention in a model, recorded while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.multihead import MultiHeadAttention


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Float[Tensor, "B H T S"]]]:
    """Keep the weights of every multi-head attention in ``model`` while the block runs.

    Args:
        model: Any module; a `MultiHeadAttention` itself is recorded as ``"attention"``.

    Yields:
        The attentions' names within the model, in its order, to the weights of their latest
        call: before dropout and without gradients.
    """
    maps: dict[str, Tensor] = {}

    def keep(name: str):
        @torch.no_grad()
        def hook(core: nn.Module, heads: tuple, output: Tensor) -> None:
            query, key, _, mask = heads
            maps[name] = core.weights(query, key, mask)

        return hook

    handles = [
        part.core.register_forward_hook(keep(name or "attention"))
        for name, part in model.named_modules()
        if isinstance(part, MultiHeadAttention)
    ]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def attention_weights(
    layer: MultiHeadAttention, *inputs: Tensor | None, **options: Tensor | None
) -> Float[Tensor, "B H T S"]:
    """Each head's weights in one call of ``layer``, before dropout and without gradients.

    Args:
        layer: The attention.
        *inputs: What it is called with.
        **options: Likewise.
    """
    with recording(layer) as maps:
        layer(*inputs, **options)
    return maps["attention"]
