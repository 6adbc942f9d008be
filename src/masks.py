"""Attention masks, all of them: the only module in which masks are made.

One convention everywhere: a mask is boolean and ``True`` means *this query may attend to this
key*, as in ``torch.nn.functional.scaled_dot_product_attention``. ``torch.nn.MultiheadAttention``
and ``torch.nn.Transformer`` use the opposite (``True`` = ignore); `from_key_padding_mask`
converts. Builders return rank 3, ``(B or 1, T or 1, S)``, so that masks combine with ``&``; the
head axis is added in one place, `src.multihead`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def padding_mask(ids: Int[Tensor, "B S"], pad_id: int) -> Bool[Tensor, "B 1 S"]:
    """Let every query attend to the real tokens only.

    Args:
        ids: Token ids, padded with ``pad_id``.
        pad_id: The id that stands for "nothing here".

    Returns:
        Mask that is True where ``ids`` holds a real token.
    """
    return (ids != pad_id).unsqueeze(1)


def length_mask(lengths: Int[Tensor, " B"], max_len: int) -> Bool[Tensor, "B 1 S"]:
    """Let every query attend to the first ``lengths[b]`` keys of row ``b``.

    Args:
        lengths: Number of real tokens in each row, 0 … ``max_len``.
        max_len: Number of keys ``S``.

    Raises:
        ValueError: If a length is negative or above ``max_len``.
    """
    return valid_lens_mask(lengths, max_len)


def valid_lens_mask(
    valid_lens: Int[Tensor, " B"] | Int[Tensor, "B T"], num_keys: int
) -> Bool[Tensor, "B T_or_1 S"]:
    """Turn d2l's ``valid_lens``, one length a row or one a query, into a mask.

    Args:
        valid_lens: Number of keys that count, for each row ``(B,)`` or each query ``(B, T)``.
        num_keys: Number of keys ``S``.

    Raises:
        ValueError: If ``valid_lens`` has another rank, or a length outside 0 … ``num_keys``.
    """
    if valid_lens.dim() not in (1, 2):
        raise ValueError(
            f"valid_lens must have shape (B,) or (B, T), but has shape {tuple(valid_lens.shape)}"
        )
    if (
        valid_lens.numel()
        and not 0 <= int(valid_lens.min()) <= int(valid_lens.max()) <= num_keys
    ):
        raise ValueError(
            f"valid_lens must lie in 0 … {num_keys} (the number of keys), but it spans "
            f"{int(valid_lens.min())} … {int(valid_lens.max())}"
        )
    lens = (
        valid_lens.unsqueeze(-1) if valid_lens.dim() == 2 else valid_lens[:, None, None]
    )
    return torch.arange(num_keys, device=valid_lens.device) < lens


def causal_mask(
    num_queries: int,
    num_keys: int | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "1 T S"]:
    """Let a query attend to its own position and to every earlier one.

    The mask is aligned at the bottom right: the *last* query sees *all* keys. That is right for
    training (``S = T``), for one-token steps (``T = 1``) and for chunks decoded against a cache
    (``S > T``). The ``is_causal`` flag of ``scaled_dot_product_attention`` is aligned at the top
    left and agrees only where ``S = T``.

    Args:
        num_queries: ``T``, at least 1.
        num_keys: ``S``, at least ``T``; ``T`` if None.
        device: Where to build the mask.

    Raises:
        ValueError: If there are fewer keys than queries, or no query.

    Source: Vaswani et al. 2017, §3.2.3 ("mask out … all values … which correspond to illegal
    connections").
    """
    distance = _distance(num_queries, num_keys, device)
    return distance >= 0


def window_mask(
    num_queries: int,
    num_keys: int | None = None,
    *,
    left: int,
    right: int = 0,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "1 T S"]:
    """Let a query attend to ``left`` keys before it, itself and ``right`` keys after it.

    Args:
        num_queries: ``T``, at least 1.
        num_keys: ``S``, at least ``T``; ``T`` if None. Aligned at the bottom right.
        left: How far back a query may look, ≥ 0.
        right: How far ahead, ≥ 0; 0 makes the window causal.
        device: Where to build the mask.

    Raises:
        ValueError: If ``left`` or ``right`` is negative, or there are fewer keys than queries.

    Source: Vaswani et al. 2017, §4 ("restricted self-attention"); Beltagy et al. 2020, §3.1.
    """
    for name, value in (("left", left), ("right", right)):
        if value < 0:
            raise ValueError(f"{name} must be at least 0, but is {value}")
    distance = _distance(num_queries, num_keys, device)
    return (distance <= left) & (distance >= -right)


def from_key_padding_mask(
    key_padding_mask: Bool[Tensor, "B S"],
) -> Bool[Tensor, "B 1 S"]:
    """Convert ``torch.nn``'s ``key_padding_mask`` (True = ignore this key) to our convention.

    Raises:
        TypeError: If the mask is not boolean.
    """
    _require_bool("key_padding_mask", key_padding_mask)
    return ~key_padding_mask.unsqueeze(1)


def to_additive(
    mask: Bool[Tensor, "*axes"], dtype: torch.dtype
) -> Float[Tensor, "*axes"]:
    """Convert to a mask that is *added* to the scores: 0 where allowed, −inf where not.

    Raises:
        TypeError: If the mask is not boolean or ``dtype`` is not a floating-point type.
    """
    _require_bool("mask", mask)
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point type, but is {dtype}")
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, float("-inf"))


def from_additive(mask: Float[Tensor, "*axes"]) -> Bool[Tensor, "*axes"]:
    """Convert a mask of zeros and −inf to a boolean one.

    Raises:
        ValueError: If the mask holds anything else: such a *bias* is no mask, and a large finite
            number such as −1e9 forbids nothing where a whole row holds it.
    """
    allowed = mask == 0
    if not bool((allowed | (mask == float("-inf"))).all()):
        raise ValueError(
            "mask must hold 0 (may attend) or -inf (may not) and nothing else"
        )
    return allowed


def _distance(
    num_queries: int, num_keys: int | None, device: torch.device | str | None
) -> Int[Tensor, "1 T S"]:
    """Position of the query minus position of the key, the last query standing at the last key."""
    num_keys = num_queries if num_keys is None else num_keys
    if num_queries < 1:
        raise ValueError(f"num_queries must be at least 1, but is {num_queries}")
    if num_keys < num_queries:
        raise ValueError(
            f"num_keys must be at least num_queries ({num_queries}), but is {num_keys}"
        )
    query = torch.arange(num_keys - num_queries, num_keys, device=device)
    key = torch.arange(num_keys, device=device)
    return (query[:, None] - key).unsqueeze(0)


def _require_bool(name: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean, but has dtype {mask.dtype}")
