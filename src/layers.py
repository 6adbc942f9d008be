"""The blocks that a Transformer is stacked from: embeddings, feed-forward, Add & Norm, layers."""

import math
from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from src.cache import KVCache
from src.config import TransformerConfig
from src.multihead import MultiHeadAttention
from src.packing import Packing
from src.positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from src.token_ids import check_ids

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}

Record = list[Tensor] | None
MemoryHeads = tuple[Tensor, Tensor]


class Embeddings(nn.Module):
    """Ids to vectors: token embedding, position, and what BERT adds, then dropout.

    Args:
        vocab_size: Number of ids.
        config: Width, positions, dropout and the rest.
        num_token_types: Token types to add; 0 for none.

    Source: Vaswani et al. 2017, §3.4 (the factor ``sqrt(d_model)``), §3.5, §5.4.
    """

    def __init__(
        self, vocab_size: int, config: TransformerConfig, num_token_types: int = 0
    ) -> None:
        super().__init__()
        d_model = config.d_model
        self.tokens = nn.Embedding(vocab_size, d_model)
        # With the factor sqrt(d_model) an embedding starts with entries of variance 1, as large
        # as the positions'; as output matrix, with logits of variance 1.
        std = d_model**-0.5 if config.scale_embeddings else 0.02
        nn.init.normal_(self.tokens.weight, std=std)
        self.scale = math.sqrt(d_model) if config.scale_embeddings else 1.0
        kinds = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
        kind = kinds.get(config.positions)
        self.positions = kind(d_model, config.max_len) if kind else None
        self.types = nn.Embedding(num_token_types, d_model) if num_token_types else None
        self.norm = (
            nn.LayerNorm(d_model, config.norm_eps) if config.embedding_norm else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.max_len = config.max_len

    def forward(
        self, ids: Int[Tensor, "B T"], offset: int = 0
    ) -> Float[Tensor, "B T D"]:
        """Embed ``ids``, the first of which stands at position ``offset``.

        Raises:
            ValueError: If ``ids`` is empty, longer than ``max_len``, or holds an id outside the
                vocabulary (on a GPU the last is left to the device's own assertion, since
                looking would stop the pipeline).
        """
        self._check(ids, offset)
        x = self.tokens(ids) * self.scale
        if self.types is not None:
            x = x + self.types.weight[0]
        if self.positions is not None:
            x = self.positions(x, offset)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)

    def _check(self, ids: Tensor, offset: int) -> None:
        if ids.dim() != 2:
            raise ValueError(f"ids must have shape (B, T), but have {tuple(ids.shape)}")
        if ids.numel() == 0:
            raise ValueError(
                f"ids must hold at least one token, but has shape {tuple(ids.shape)}"
            )
        if offset + ids.shape[1] > self.max_len:
            raise ValueError(
                f"max_len is {self.max_len}, but the sequence reaches position "
                f"{offset + ids.shape[1] - 1}"
            )
        check_ids("ids", ids, self.tokens.num_embeddings)


class FeedForward(nn.Module):
    """The same two dense layers on every position: ``W_2 · f(W_1 · x + b_1) + b_2``.

    Args:
        d_model: Width of a token.
        d_ff: Hidden width.
        dropout: Share of the hidden values set to zero while training; the paper has none.
        activation: ``"relu"``, ``"gelu"`` (the exact one) or ``"silu"``.

    Raises:
        ValueError: If ``activation`` is none of these.

    Source: Vaswani et al. 2017, §3.3, eq. 2.
    """

    def __init__(
        self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu"
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(_ACTIVATIONS)}, but is {activation!r}"
            )
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)
        self.activation = _ACTIVATIONS[activation]
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "*axes D"]) -> Float[Tensor, "*axes D"]:
        """Transform each position by itself."""
        return self.outer(self.dropout(self.activation(self.inner(x))))


class AddNorm(nn.Module):
    """Residual connection and layer normalisation around a sublayer.

    Post-norm (the paper): ``LayerNorm(x + dropout(sublayer(x)))``. Pre-norm
    (``norm_first``): ``x + dropout(sublayer(LayerNorm(x)))``.

    Source: Vaswani et al. 2017, §3.1, §5.4; Xiong et al. 2020, §3.2 (pre-norm).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(
        self,
        x: Float[Tensor, "*tokens D"],
        sublayer: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "*tokens D"]:
        """Wrap ``sublayer``, a function of one tensor that keeps its shape."""
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each within Add & Norm.

    Source: Vaswani et al. 2017, §3.1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.add_norms = nn.ModuleList(AddNorm(config) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "*tokens D"],
        mask: Bool[Tensor, "#B #S S"] | None = None,
        rotary: RotaryPositions | None = None,
        packing: Packing | None = None,
        record: Record = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Transform ``x``, ``(B, S, D)`` or packed.

        Args:
            x: Source tokens.
            mask: Which positions may be attended to.
            rotary: Rotary positions, if the model has them.
            packing: How ``x`` is packed, if it is.
            record: List that takes the weights ``(B, H, S, S)``.
        """

        def attend(h: Tensor) -> Tensor:
            keep = record is not None
            result = self.self_attention(
                h,
                mask=mask,
                rotary=rotary,
                packing=packing,
                return_weights=keep,
            )
            return _kept(result, record)

        x = self.add_norms[0](x, attend)
        return self.add_norms[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, then a feed-forward network.

    Source: Vaswani et al. 2017, §3.1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.add_norms = nn.ModuleList(AddNorm(config) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "*tokens D"],
        memory: MemoryHeads,
        memory_mask: Bool[Tensor, "#B2 #T S"] | None = None,
        rotary: RotaryPositions | None = None,
        cache: KVCache | None = None,
        packing: Packing | None = None,
        self_record: Record = None,
        cross_record: Record = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Transform ``x``, ``(B, T, D)`` or packed, looking at ``memory``.

        Args:
            x: Target tokens; with a cache, only those that are not stored in it.
            memory: Heads of keys and values of the encoder's output, as
                ``cross_attention.project_key_value`` makes them.
            memory_mask: Which source positions may be attended to.
            rotary: Rotary positions, if the model has them; for self-attention alone.
            cache: Earlier keys and values; the new ones are appended to it.
            packing: How ``x`` is packed, if it is.
            self_record: List that takes the self-attention's weights ``(B, H, T, T)``.
            cross_record: List that takes the cross-attention's weights ``(B, H, T, S)``.
        """

        def attend_self(h: Tensor) -> Tensor:
            keep = self_record is not None
            result = self.self_attention(
                h,
                is_causal=True,
                rotary=rotary,
                cache=cache,
                packing=packing,
                return_weights=keep,
            )
            return _kept(result, self_record)

        def attend_memory(h: Tensor) -> Tensor:
            keep = cross_record is not None
            query = self.cross_attention.project_query(h, packing)
            result = self.cross_attention.attend(
                query,
                *memory,
                memory_mask,
                packing=packing,
                return_weights=keep,
            )
            return _kept(result, cross_record)

        x = self.add_norms[0](x, attend_self)
        x = self.add_norms[1](x, attend_memory)
        return self.add_norms[2](x, self.feed_forward)


def _attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        dropout=config.attention_dropout,
        backend=config.backend,
    )


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, config.ffn_dropout, config.activation
    )


def _kept(result: Tensor | tuple[Tensor, Tensor], record: Record) -> Tensor:
    """Store the weights, cut from the graph, and hand on the output alone."""
    if record is None:
        return result
    output, weights = result
    record.append(weights.detach())
    return output
