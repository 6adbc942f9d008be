"""Attention as plain functions: no parameters, no state.

`attention` is the one place where scores become weights and weights become an output. It has two
backends that agree to rounding: ``"sdpa"`` hands the work to PyTorch's fused kernel, ``"explicit"``
writes the formula out and can return the weights.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from src.masks import causal_mask

BACKENDS = ("sdpa", "explicit")
# Where the fused kernel is right in every case. On others it was reported to give NaN for a query
# without keys, a wrong width, no dropout, or weight to later keys (pytorch issues 156707, 176767,
# 184126, 195910, all of MPS).
FUSED_DEVICES = ("cpu", "cuda")


def masked_softmax(
    scores: Float[Tensor, "*axes S"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*axes S"]:
    """Softmax over the last axis that gives every forbidden key exactly 0.

    The softmax runs in float32 at least. A row without any allowed key gets zeros, not the
    uniform weights of a large negative fill and not the NaN of a fill with −inf; its gradients
    are zeros, too.

    Args:
        scores: Scores before the softmax.
        mask: True = may attend; same rank as ``scores``, broadcastable to it. None allows all.

    Returns:
        Weights in the dtype of ``scores``; each row sums to 1, or to 0 where it has no key.

    Raises:
        TypeError: If ``mask`` is not boolean.
        ValueError: If ``mask`` has another rank or does not broadcast to ``scores``.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return wide.softmax(dim=-1).to(scores.dtype)
    check_mask(mask, scores.shape)
    # A row of −inf alone has a softmax of NaN. The last fill would hide it, and
    # the first would stop its gradient, but anomaly detection would rightly
    # halt in between. So empty rows are filled with zeros before the softmax.
    empty = ~mask.any(dim=-1, keepdim=True)
    wide = wide.masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)
    return wide.softmax(dim=-1).masked_fill(empty, 0.0).to(scores.dtype)


def attention(
    query: Float[Tensor, "*axes T K"],
    key: Float[Tensor, "*axes S K"],
    value: Float[Tensor, "*axes S Kv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    backend: str = "sdpa",
    return_weights: bool = False,
) -> (
    Float[Tensor, "*axes T Kv"]
    | tuple[Float[Tensor, "*axes T Kv"], Float[Tensor, "*axes T S"]]
):
    """Scaled dot-product attention: ``softmax(query·keyᵀ · scale) · value``.

    Args:
        query: Queries; the leading axes are any batch or head axes.
        key: Keys, as wide as the queries.
        value: Values, one for each key, of any width.
        mask: True = may attend; same rank as ``query``, broadcastable to ``(*axes, T, S)``.
        is_causal: Also forbid every later key. Aligned at the bottom right, so it is right for
            chunks against a cache (``S > T``), too.
        scale: Factor on the scores; ``1 / sqrt(K)`` if None.
        dropout: Share of the weights set to zero, 0 ≤ dropout < 1. It is applied whenever it is
            not 0: pass 0 in evaluation.
        backend: ``"sdpa"`` (fused) or ``"explicit"`` (the formula). Weights exist only in the
            explicit one, which is taken when they are asked for, and on other devices than CPU
            and CUDA. Second derivatives exist only there, too.
        return_weights: Also return the weights, as they are before dropout.

    Returns:
        The output, or ``(output, weights)``. A query without any allowed key gets zeros. Under
        ``torch.autocast`` the output has autocast's dtype, the weights still the queries'.

    Raises:
        TypeError: If ``mask`` is not boolean.
        ValueError: If shapes do not fit, or ``dropout`` or ``backend`` is not one of those above.

    Source: Vaswani et al. 2017, §3.2.1, eq. 1.
    Differs from: ``F.scaled_dot_product_attention`` takes a mask of lower rank silently, aligns
    ``is_causal`` at the top left, and calls the axes L, S, E, Ev.
    """
    _check_attention(query, key, value, dropout, backend)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    if mask is not None:
        check_mask(mask, (*query.shape[:-1], num_keys))
    fused = (
        backend == "sdpa" and not return_weights and query.device.type in FUSED_DEVICES
    )
    # One query sees the whole cache, and the kernel's own flag is right where
    # S = T without a mask; only the rest needs the causal mask as a tensor.
    fused_causal = fused and is_causal and mask is None and num_queries == num_keys
    if is_causal and num_queries > 1 and not fused_causal:
        causal = causal_mask(num_queries, num_keys, device=query.device)
        causal = causal.view((1,) * (query.dim() - 2) + causal.shape[-2:])
        mask = causal if mask is None else mask & causal

    if fused:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout,
            scale=scale,
            # Compiled, lengths are symbols, and the kernel wants a plain bool.
            is_causal=True if fused_causal else False,
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    # Products of halves may not fit into a half: scores are wide.
    wide = torch.promote_types(query.dtype, torch.float32)
    with wide_products(query.device):
        scores = (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)
    weights = masked_softmax(scores, mask).to(query.dtype)
    output = F.dropout(weights, dropout) @ value
    return (output, weights) if return_weights else output


def wide_products(device: torch.device) -> AbstractContextManager:
    """Keep autocast, where it is on, from narrowing the matrix products of the block."""
    if device.type == "meta":  # autocast does not know it
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Demand a boolean mask of the scores' rank that broadcasts to the scores' ``shape``.

    Raises:
        TypeError: If ``mask`` is not boolean.
        ValueError: If its rank differs or it does not broadcast. A mask of lower rank would
            broadcast silently over the wrong axes: ``(B, S)`` is taken for ``(T, S)`` if B = T.
    """
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean (True = may attend), but has dtype {mask.dtype}"
        )
    if mask.dim() != len(shape):
        raise ValueError(
            f"mask must have rank {len(shape)}, as the scores have, but has shape "
            f"{tuple(mask.shape)} for scores of shape {tuple(shape)}"
        )
    if any(m not in (1, s) for m, s in zip(mask.shape, shape, strict=True)):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape "
            f"{tuple(shape)}"
        )


def check_dropout(dropout: float) -> None:
    """Demand a share that dropout can take.

    Raises:
        ValueError: If ``dropout`` is not at least 0 and below 1.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, but is {dropout}")


def _check_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, backend: str
) -> None:
    if backend not in BACKENDS:
        raise ValueError(
            f"backend must be one of {', '.join(BACKENDS)}, but is {backend!r}"
        )
    check_dropout(dropout)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query and key must be equally wide, but are {query.shape[-1]} and {key.shape[-1]}"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"key and value must hold as many rows, but hold {key.shape[-2]} and {value.shape[-2]}"
        )
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(
            "query, key and value must agree in their leading axes, but have shapes "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
