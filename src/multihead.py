"""Multi-head attention: several small attentions side by side, each in a space of its own."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from src.cache import KVCache, Memory
from src.functional import check_mask
from src.padding import Padding
from src.positions import RotaryPositions
from src.scoring import DotProduct


class MultiHeadAttention(nn.Module):
    """Project to ``H`` heads of width ``D / H``, attend in each, concatenate, project back.

    The three input projections are one matrix whose rows are ``W_q``, ``W_k`` and ``W_v``:
    self-attention then needs one product instead of three. What happens within a head is the
    module ``core``.

    Args:
        d_model: Width ``D`` of queries, keys, values and output.
        num_heads: Number ``H`` of heads; must divide ``d_model``.
        bias: Whether the projections have a bias.
        rotary: Turns queries and keys by their positions.
        core: Attention within each head, a `src.scoring.DotProduct` (causal or not, with or
            without dropout) or `src.scoring.Scored`; None means ``DotProduct()``.

    Raises:
        ValueError: If ``num_heads`` does not divide ``d_model``.

    Source: Vaswani et al. 2017, §3.2.2.
    Differs from: ``nn.MultiheadAttention`` averages the returned weights over heads, applies
    dropout to them, has its mask the other way round and puts time first by default.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        bias: bool = True,
        rotary: RotaryPositions | None = None,
        core: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model < 1 or d_model % num_heads:
            raise ValueError(
                f"num_heads must divide d_model, but d_model is {d_model} and num_heads "
                f"is {num_heads}"
            )
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.core = DotProduct() if core is None else core
        self.rotary = rotary
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each of the four square matrices by Xavier's uniform rule; biases are zero."""
        for matrix in (*self.in_proj.weight.chunk(3), self.out_proj.weight):
            nn.init.xavier_uniform_(matrix)
        if self.in_proj.bias is not None:
            nn.init.zeros_(self.in_proj.bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Float[Tensor, "*tokens D"],
        key: Float[Tensor, "B S D"] | None = None,
        value: Float[Tensor, "B S D"] | None = None,
        mask: Bool[Tensor, "#B #T S_all"] | Padding | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Attend from ``query`` to ``key`` and ``value``.

        Args:
            query: Queries ``(B, T, D)``, not projected yet; packed, ``(N, D)``, if ``mask`` is
                a `Padding` that packs.
            key: Keys; None means ``query``: self-attention.
            value: Values; None means ``key``.
            mask: True = may attend, rank 3; the head axis is added here and nowhere else. Or
                the padding of the queries that are keys as well.
            cache: Earlier keys and values of self-attention. The new ones are **appended to it**.

        Raises:
            TypeError: If ``mask`` is not boolean.
            ValueError: If ``mask`` or the cache does not fit, or query, key or value is not as
                wide as the layer, or they differ in their number of rows. The cache then stays
                as it was.
        """
        padding = mask if isinstance(mask, Padding) else None
        if padding is not None:  # at a row's end, where no causal query looks
            mask = None if self.core.is_causal else padding.mask
        q, k, v = self.project(query, key, value, padding)
        start = 0 if cache is None else cache.length
        if self.rotary is not None:
            q, k = self.rotary(q, start), self.rotary(k, start)
        if mask is not None:
            check_mask(mask, (k.shape[0], q.shape[2], start + k.shape[2]))
            mask = mask.unsqueeze(1)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.merge(self.core(q, k, v, mask), padding)

    def project(
        self,
        query: Float[Tensor, "*tokens D"],
        key: Float[Tensor, "B S D"] | None = None,
        value: Float[Tensor, "B S D"] | None = None,
        padding: Padding | None = None,
    ) -> tuple[Tensor, ...]:
        """Heads of queries, keys and values, each ``(B, H, T or S, K)``."""
        _check_inputs(self.d_model, padding, query=query, key=key, value=value)
        if key is None and value is None:
            return self.split(self.in_proj(query), padding)
        key = query if key is None else key
        if value is None or value is key:
            keys_values = self.split(self._product(key, 1, 3))
        else:
            keys_values = (
                *self.split(self._product(key, 1, 2)),
                *self.split(self._product(value, 2, 3)),
            )
        return *self.split(self._product(query, 0, 1), padding), *keys_values

    def split(
        self, x: Float[Tensor, "*tokens parts_D"], padding: Padding | None = None
    ) -> tuple[Float[Tensor, "B H T K"], ...]:
        """Cut each of the parts side by side in ``x``, ``(B, T, D)``, into heads."""
        x = x if padding is None else padding.unpack(x)
        parts = x.shape[-1] // self.d_model
        x = x.unflatten(-1, (parts, self.num_heads, self.head_dim))
        return x.permute(2, 0, 3, 1, 4).unbind(0)  # (B, T, P, H, K) -> P × (B, H, T, K)

    def merge(
        self, heads: Float[Tensor, "B H T K"], padding: Padding | None = None
    ) -> Float[Tensor, "*tokens D"]:
        """Concatenate the heads and mix them by ``out_proj``."""
        x = heads.transpose(1, 2).flatten(2)  # (B, H, T, K) -> (B, T, D)
        return self.out_proj(x if padding is None else padding.pack(x))

    def _product(self, x: Tensor, first: int, last: int) -> Tensor:
        """Apply ``in_proj``'s rows ``first·D … last·D``: 0 is W_q, 1 W_k, 2 W_v."""
        rows = slice(first * self.d_model, last * self.d_model)
        bias = self.in_proj.bias
        return F.linear(
            x, self.in_proj.weight[rows], None if bias is None else bias[rows]
        )


class CrossAttention(MultiHeadAttention):
    """Multi-head attention to a memory, whose keys and values are computed once and kept."""

    def remember(
        self,
        memory: Float[Tensor, "*tokens D"],
        mask: Bool[Tensor, "#B 1 S"] | Padding | None = None,
    ) -> Memory:
        """Heads of keys and values of ``memory``, ``(B, S, D)`` or packed.

        Args:
            memory: The encoder's output.
            mask: Which of it may be attended to, or its padding.
        """
        padding = mask if isinstance(mask, Padding) else None
        _check_inputs(self.d_model, padding, memory=memory)
        key, value = self.split(self._product(memory, 1, 3), padding)
        mask = mask if padding is None else padding.mask
        if mask is not None:
            check_mask(mask, (key.shape[0], 1, key.shape[2]))
            mask = mask.expand(key.shape[0], -1, key.shape[2])
        return Memory(key, value, mask)

    def forward(  # type: ignore[override]  # a memory takes the place of key, value and mask
        self,
        query: Float[Tensor, "*tokens D"],
        memory: Memory,
        padding: Padding | None = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Attend from ``query``, ``(B, T, D)`` or packed by its ``padding``, to ``memory``.

        ``W`` rows of queries in a row may share one row of the memory, as the beams of a
        sentence do: then the queries have ``W`` times as many rows.

        Raises:
            ValueError: If the rows of query and memory do not fit, or a width does not.
        """
        _check_inputs(self.d_model, padding, query=query)
        (q,) = self.split(self._product(query, 0, 1), padding)
        mask = None if memory.mask is None else memory.mask.unsqueeze(1)
        heads = self.core(memory.fold(q), memory.key, memory.value, mask)
        return self.merge(memory.unfold(heads, q.shape[0]), padding)


def _check_inputs(
    d_model: int, padding: Padding | None, **tensors: Tensor | None
) -> None:
    """Refuse what does not have the layer's rank and width, or another number of rows."""
    first = next(iter(tensors))
    if tensors[first] is None:
        raise TypeError(f"{first} must be a tensor, but is None")
    for name, x in tensors.items():
        packed = padding is not None and padding.packed and name == first
        if x is not None and (x.dim() != 3 - packed or x.shape[-1] != d_model):
            axes = f"(N, {d_model})" if packed else f"(B, T, {d_model})"
            raise ValueError(f"{name} must have shape {axes}, but has {tuple(x.shape)}")
    # No set of numbers of rows: compiled, they are symbols.
    rows = {name: x.shape[0] for name, x in tensors.items() if x is not None}
    if any(number != rows[first] for number in rows.values()):
        raise ValueError(
            f"{', '.join(rows)} must have the same number of rows, but have "
            f"{', '.join(map(str, rows.values()))}"
        )
