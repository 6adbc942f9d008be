"""The blocks that a Transformer is stacked from: embeddings, feed-forward, Add & Norm, layers."""

import math
from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from src.cache import KVCache, Memory
from src.config import LayerConfig, TransformerConfig
from src.multihead import CrossAttention, MultiHeadAttention
from src.padding import Padding
from src.positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from src.scoring import DotProduct
from src.token_ids import check_ids

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


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

    def __init__(self, config: LayerConfig) -> None:
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

    Args:
        config: Widths, heads, dropouts, norm, activation.
        rotary: Rotary positions, if the model has them.

    Source: Vaswani et al. 2017, §3.1.
    """

    def __init__(
        self, config: LayerConfig, rotary: RotaryPositions | None = None
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            config.d_model, config.num_heads, rotary=rotary, core=_core(config)
        )
        self.feed_forward = _feed_forward(config)
        self.add_norms = nn.ModuleList(AddNorm(config) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "*tokens D"],
        mask: Bool[Tensor, "#B #S S"] | Padding | None = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Transform ``x``.

        Args:
            x: Source tokens ``(B, S, D)``, or packed by their padding.
            mask: Which positions may be attended to, or the tokens' padding.
        """
        x = self.add_norms[0](x, lambda h: self.self_attention(h, mask=mask))
        return self.add_norms[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, then a feed-forward network.

    Args:
        config: Widths, heads, dropouts, norm, activation.
        rotary: Rotary positions, if the model has them; for self-attention only.

    Source: Vaswani et al. 2017, §3.1.
    """

    def __init__(
        self, config: LayerConfig, rotary: RotaryPositions | None = None
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            config.d_model,
            config.num_heads,
            rotary=rotary,
            core=_core(config, is_causal=True),
        )
        self.cross_attention = CrossAttention(
            config.d_model, config.num_heads, core=_core(config)
        )
        self.feed_forward = _feed_forward(config)
        self.add_norms = nn.ModuleList(AddNorm(config) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "*tokens D"],
        memory: Memory,
        *,
        cache: KVCache | None = None,
        padding: Padding | None = None,
    ) -> Float[Tensor, "*tokens D"]:
        """Transform ``x``, looking at ``memory``.

        Args:
            x: Target tokens ``(B, T, D)``, or packed by their padding; with a cache, only those
                that are not stored in it.
            memory: What ``cross_attention.remember`` makes of the encoder's output.
            cache: Earlier keys and values; the new ones are appended to it.
            padding: The padding of the target tokens.
        """
        x = self.add_norms[0](
            x, lambda h: self.self_attention(h, mask=padding, cache=cache)
        )
        x = self.add_norms[1](x, lambda h: self.cross_attention(h, memory, padding))
        return self.add_norms[2](x, self.feed_forward)


def _core(config: LayerConfig, is_causal: bool = False) -> DotProduct:
    return DotProduct(
        config.attention_dropout, is_causal=is_causal, backend=config.backend
    )


def _feed_forward(config: LayerConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, config.ffn_dropout, config.activation
    )
