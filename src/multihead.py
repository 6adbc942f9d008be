"""Multi-head attention: several small attentions side by side, each in a space of its own."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from src.cache import KVCache
from src.functional import attention, check_mask, masked_softmax
from src.packing import Packing
from src.positions import RotaryPositions


class MultiHeadAttention(nn.Module):
    """Project to ``H`` heads of width ``D / H``, attend in each, concatenate, project back.

    The three input projections are one matrix whose rows are ``W_q``, ``W_k`` and ``W_v``:
    self-attention then needs one product instead of three.

    Args:
        d_model: Width ``D`` of queries, keys, values and output.
        num_heads: Number ``H`` of heads; must divide ``d_model``.
        dropout: Share of the weights set to zero while training, 0 ≤ dropout < 1.
        bias: Whether the projections have a bias.
        scorer: A module that turns heads of queries ``(B, H, T, K)`` and keys ``(B, H, S, K)``
            into scores ``(B, H, T, S)``, shared by the heads (see `src.scoring`); None stands
            for the scaled dot product.
        backend: Backend of `src.functional.attention` for the scaled dot product.

    Raises:
        ValueError: If ``num_heads`` does not divide ``d_model``, or ``dropout`` is out of range.

    Source: Vaswani et al. 2017, §3.2.2.
    Differs from: ``nn.MultiheadAttention`` averages the returned weights over heads, applies
    dropout to them, has its mask the other way round and puts time first by default.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        scorer: nn.Module | None = None,
        backend: str = "sdpa",
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model < 1 or d_model % num_heads:
            raise ValueError(
                f"num_heads must divide d_model, but d_model is {d_model} and num_heads "
                f"is {num_heads}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(
                f"dropout must be at least 0 and below 1, but is {dropout}"
            )
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.dropout = dropout
        self.backend = backend
        self.scorer = scorer
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
        mask: Bool[Tensor, "#B #T S_all"] | None = None,
        *,
        is_causal: bool = False,
        rotary: RotaryPositions | None = None,
        cache: KVCache | None = None,
        packing: Packing | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "*tokens D"]
        | tuple[Float[Tensor, "*tokens D"], Float[Tensor, "B H T S_all"]]
    ):
        """Attend from ``query`` to ``key`` and ``value``.

        Args:
            query: Queries ``(B, T, D)``. Alone, they are keys and values as well: self-attention.
            key: Keys; None means ``query``.
            value: Values; None means ``key``.
            mask: True = may attend, rank 3; the head axis is added here and nowhere else.
            is_causal: Forbid later keys.
            rotary: Turns queries and keys by their positions; the first stands at ``cache.length``.
            cache: Earlier keys and values of self-attention. The new ones are **appended to it**.
            packing: Given, ``query`` and the output are packed, ``(N, D)``; self-attention only.
            return_weights: Also return each head's weights, before dropout.

        Raises:
            TypeError: If ``mask`` is not boolean.
            ValueError: If ``mask`` is not of rank 3 or does not fit, or the cache does not, or
                query, key or value is not as wide as the layer, or query and key differ in their
                number of rows. The cache then stays as it was.
        """
        self._check_widths(packing is not None, query=query, key=key, value=value)
        if key is None and value is None:
            q, k, v = self.split(self.in_proj(query), 3, packing)
        else:
            key = query if key is None else key
            if query.shape[0] != key.shape[0]:
                raise ValueError(
                    "query and key must have equally many rows, but have "
                    f"{query.shape[0]} and {key.shape[0]}"
                )
            q = self.project_query(query, packing)
            k, v = self.project_key_value(key, value)
        if rotary is not None:
            offset = 0 if cache is None else cache.length
            q, k = rotary(q, offset), rotary(k, offset)
        if cache is not None:
            num_keys = cache.length + k.shape[2]
            self._check(mask, (k.shape[0], q.shape[2], num_keys), is_causal)
            k, v = cache.append(k, v)
        return self.attend(
            q,
            k,
            v,
            mask,
            is_causal=is_causal,
            packing=packing,
            return_weights=return_weights,
        )

    def project_query(
        self, query: Float[Tensor, "*tokens D"], packing: Packing | None = None
    ) -> Float[Tensor, "B H T K"]:
        """Heads of the queries."""
        return self.split(self._project(query, 0, 1), 1, packing)[0]

    def project_key_value(
        self,
        key: Float[Tensor, "*tokens D"],
        value: Float[Tensor, "*tokens D"] | None = None,
        packing: Packing | None = None,
    ) -> tuple[Float[Tensor, "B H S K"], Float[Tensor, "B H S K"]]:
        """Heads of keys and values; computed once where the keys stay, as a memory's do."""
        if value is None or value is key:
            k, v = self.split(self._project(key, 1, 3), 2, packing)
        else:
            k = self.split(self._project(key, 1, 2), 1, packing)[0]
            v = self.split(self._project(value, 2, 3), 1, packing)[0]
        return k, v

    def attend(
        self,
        query: Float[Tensor, "BW H T K"],
        key: Float[Tensor, "B H S K"],
        value: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "#B #T S"] | None = None,
        *,
        is_causal: bool = False,
        packing: Packing | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "*tokens D"]
        | tuple[Float[Tensor, "*tokens D"], Float[Tensor, "BW H T S"]]
    ):
        """Attend within each head, concatenate the heads and mix them by ``out_proj``.

        ``W`` rows of queries in a row may share one row of keys and values, as the beams of a
        sentence share its source: then the batch of the queries is ``W`` times that of the keys.
        The mask has a row for each row of keys.

        Raises:
            TypeError: If ``mask`` is not boolean.
            ValueError: If ``mask`` is not of rank 3 or does not fit, or the rows do not.
        """
        shape = (key.shape[0], query.shape[2], key.shape[2])
        self._check(mask, shape, is_causal)
        mask = mask if mask is None else mask.unsqueeze(1)
        dropout = self.dropout if self.training else 0.0
        shared = _rows_per_key(query, key)
        if shared > 1:
            if is_causal:
                raise ValueError(
                    "is_causal does not go with queries that share their keys"
                )
            query = _beside(query, shared)
            if mask is not None and mask.shape[2] > 1:
                mask = mask.repeat(1, 1, shared, 1)
        if self.scorer is None:
            result = attention(
                query,
                key,
                value,
                mask,
                is_causal=is_causal,
                dropout=dropout,
                backend=self.backend,
                return_weights=return_weights,
            )
            output, weights = result if return_weights else (result, None)
        else:
            weights = masked_softmax(self.scorer(query, key), mask)
            output = F.dropout(weights, dropout) @ value
        if shared > 1:
            output = _apart(output, shared)
            weights = _apart(weights, shared) if return_weights else None
        output = output.transpose(1, 2).flatten(2)  # (B, H, T, K) -> (B, T, D)
        output = self.out_proj(output if packing is None else packing.pack(output))
        return (output, weights) if return_weights else output

    def split(
        self,
        x: Float[Tensor, "*tokens parts_D"],
        parts: int,
        packing: Packing | None = None,
    ) -> tuple[Tensor, ...]:
        """Cut ``(B, T, parts·D)`` into heads: ``parts`` times ``(B, H, T, K)``."""
        if packing is not None:
            x = packing.unpack(x)
        x = x.unflatten(-1, (parts, self.num_heads, self.head_dim))
        # (B, T, P, H, K) -> P × (B, H, T, K)
        return x.permute(2, 0, 3, 1, 4).unbind(0)

    def _check(
        self, mask: Tensor | None, shape: tuple[int, ...], is_causal: bool
    ) -> None:
        """Refuse what attending to scores ``(B, T, S)`` would refuse."""
        if mask is not None:
            check_mask(mask, shape)
        if is_causal and self.scorer is not None:
            raise ValueError(
                "is_causal goes with the scaled dot product; pass a causal mask"
            )

    def _check_widths(self, packed: bool, **tensors: Tensor | None) -> None:
        """Refuse what does not have the layer's rank and width, by its name."""
        for name, x in tensors.items():
            rank = 2 if packed and name == "query" else 3
            if x is not None and (x.dim() != rank or x.shape[-1] != self.d_model):
                axes = "(N, {})" if rank == 2 else "(B, T, {})"
                raise ValueError(
                    f"{name} must have shape {axes.format(self.d_model)}, but has {tuple(x.shape)}"
                )

    def _project(self, x: Tensor, first: int, last: int) -> Tensor:
        """Apply ``in_proj``'s rows ``first·D … last·D``: 0 is W_q, 1 W_k, 2 W_v."""
        rows = slice(first * self.d_model, last * self.d_model)
        bias = self.in_proj.bias
        return F.linear(
            x, self.in_proj.weight[rows], None if bias is None else bias[rows]
        )


def _rows_per_key(query: Tensor, key: Tensor) -> int:
    """Count the rows of queries that share one row of keys."""
    # No divmod and no len: compiled, the numbers of rows are symbols.
    rows, keys = query.shape[0], key.shape[0]
    if keys == 0 or rows % keys:
        raise ValueError(
            "query must have as many rows as key or a multiple of them, but they have "
            f"{rows} and {keys}"
        )
    return rows // keys


def _beside(x: Tensor, width: int) -> Tensor:
    """Put ``width`` rows in a row side by side: (B · W, H, T, K) -> (B, H, W · T, K)."""
    return x.unflatten(0, (-1, width)).transpose(1, 2).flatten(2, 3)


def _apart(x: Tensor, width: int) -> Tensor:
    """Undo `_beside`: (B, H, W · T, K) -> (B · W, H, T, K)."""
    return x.unflatten(2, (width, -1)).transpose(1, 2).flatten(0, 1)
