"""Scores: how well a query matches a key, before the softmax.

Four answers behind one interface. Each is a module that maps queries (..., T, Dq) and keys
(..., S, Dk) to scores (..., T, S). The leading axes broadcast, so that the same module scores a
batch, or every head of multi-head attention (B, H, T, K) with parameters the heads share.

* `DotScore`: q·k; learns nothing; equal widths.
* `ScaledDotScore`: q·k / √d; learns nothing; equal widths.
* `BilinearScore`: qᵀ W k; learns Dq·Dk numbers; any widths.
* `AdditiveScore`: wᵀ tanh(W_q q + W_k k); learns (Dq + Dk + 1)·h numbers; any widths.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from src.functional import attention, check_dropout, masked_softmax

__all__ = [
    "AdditiveScore",
    "BilinearScore",
    "DotProduct",
    "DotScore",
    "Score",
    "ScaledDotScore",
    "Scored",
    "attend",
]


class Score(nn.Module):
    """What all scores share: the check of the widths. A subclass writes `score`.

    Args:
        query_dim: Width Dq that queries must have, at least 1; None leaves it open.
        key_dim: Width Dk that keys must have, at least 1; None means: that of the queries.

    Raises:
        ValueError: If a width is below 1.
    """

    def __init__(
        self, query_dim: int | None = None, key_dim: int | None = None
    ) -> None:
        super().__init__()
        for name, value in (("query", query_dim), ("key", key_dim)):
            if value is not None and value < 1:
                raise ValueError(
                    f"the width of a {name} must be at least 1, but is {value}"
                )
        self.query_dim, self.key_dim = query_dim, key_dim

    def forward(
        self, query: Float[Tensor, "*#axes T Dq"], key: Float[Tensor, "*#axes S Dk"]
    ) -> Float[Tensor, "*axes T S"]:
        """Score every query against every key.

        Args:
            query: Queries, shape (..., T, Dq).
            key: Keys, shape (..., S, Dk); the leading axes broadcast with those of `query`.

        Returns:
            Scores, shape (..., T, S), in the dtype of the arguments, or of autocast.

        Raises:
            ValueError: If a width is not the one that this score was made for.
        """
        query_dim = query.shape[-1] if self.query_dim is None else self.query_dim
        key_dim = query_dim if self.key_dim is None else self.key_dim
        if query.shape[-1] != query_dim:
            raise ValueError(
                f"query must be {query_dim} wide, but is {query.shape[-1]}"
            )
        if key.shape[-1] != key_dim:
            raise ValueError(f"key must be {key_dim} wide, but is {key.shape[-1]}")
        return self.score(query, key)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute the scores; the widths are right when this is called."""
        raise NotImplementedError(
            f"{type(self).__name__} must define score(query, key)"
        )

    def project_key(
        self, key: Float[Tensor, "*axes S Dk"]
    ) -> Float[Tensor, "*axes S Dp"]:
        """Do the part of the work that depends on the keys alone.

        ``score_projected(query, project_key(key))`` is ``forward(query, key)``. A decoder, whose
        queries come one after another, projects its keys once and not at every step.
        """
        return key

    def score_projected(
        self,
        query: Float[Tensor, "*#axes T Dq"],
        projected: Float[Tensor, "*#axes S Dp"],
    ) -> Float[Tensor, "*axes T S"]:
        """Score queries against keys that went through `project_key`."""
        return self.score(query, projected)

    def extra_repr(self) -> str:
        """Name the widths that are fixed."""
        dims = {"query_dim": self.query_dim, "key_dim": self.key_dim}
        return ", ".join(
            f"{name}={value}" for name, value in dims.items() if value is not None
        )


class DotScore(Score):
    """The dot product: score(q, k) = q·k. Nothing to learn; its size grows with √d.

    Source: Luong et al. 2015, §3.1, equation 8 ("dot").
    """

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute q·k for all pairs."""
        return query @ key.transpose(-2, -1)


class ScaledDotScore(Score):
    """The dot product over the root of the width: score(q, k) = q·k / √d. Nothing to learn.

    For independent entries of mean 0 and variance 1 its variance is 1 at every width.

    Source: Vaswani et al. 2017, §3.2.1, equation 1.
    """

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute q·k / √d for all pairs."""
        # Dividing the queries, not the scores: fewer numbers,
        # and half precision overflows later.
        return (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)


class BilinearScore(Score):
    """A learned matrix between query and key: score(q, k) = qᵀ W k. With W = 1 it is the dot.

    Args:
        d_query: Width Dq of a query.
        d_key: Width Dk of a key.

    Attributes:
        weight: W, shape (Dq, Dk), drawn by Glorot's uniform rule.

    Raises:
        ValueError: If a width is below 1.

    Source: Luong et al. 2015, §3.1, equation 8 ("general").
    """

    def __init__(self, d_query: int, d_key: int) -> None:
        super().__init__(d_query, d_key)
        self.weight = nn.Parameter(torch.empty(d_query, d_key))
        nn.init.xavier_uniform_(self.weight)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute qᵀ W k for all pairs: (T, Dq)(Dq, Dk)(Dk, S)."""
        return query @ self.weight @ key.transpose(-2, -1)


class AdditiveScore(Score):
    """A small network on query and key: score(q, k) = wᵀ tanh(W_q q + W_k k).

    It is a multilayer perceptron without biases and with one hidden layer on the concatenation
    [q; k]: a matrix [W_q W_k] times [q; k] is W_q q + W_k k. Written as a sum, each query and
    each key is projected once instead of once a pair. Still there is one hidden vector a pair,
    so memory grows as T·S·h where the dot product needs T·S.

    Args:
        d_query: Width Dq of a query.
        d_key: Width Dk of a key.
        d_hidden: Number h of hidden units.

    Attributes:
        query_proj: W_q, a linear layer Dq → h without bias.
        key_proj: W_k, a linear layer Dk → h without bias.
        output: wᵀ, a linear layer h → 1 without bias.

    Raises:
        ValueError: If a width is below 1.

    Source: Bahdanau et al. 2015, §A.1.2 (v_a, W_a, U_a there).
    Differs from: d2l's `AdditiveAttention` also masks, normalises and pools; the names there are
    `W_q`, `W_k`, `w_v`.
    """

    def __init__(self, d_query: int, d_key: int, d_hidden: int) -> None:
        super().__init__(d_query, d_key)
        if d_hidden < 1:
            raise ValueError(f"d_hidden must be at least 1, but is {d_hidden}")
        self.query_proj = nn.Linear(d_query, d_hidden, bias=False)
        self.key_proj = nn.Linear(d_key, d_hidden, bias=False)
        self.output = nn.Linear(d_hidden, 1, bias=False)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute wᵀ tanh(W_q q + W_k k) for all pairs."""
        return self.score_projected(query, self.project_key(key))

    def project_key(
        self, key: Float[Tensor, "*axes S Dk"]
    ) -> Float[Tensor, "*axes S Dp"]:
        """Compute W_k k for all keys."""
        return self.key_proj(key)

    def score_projected(
        self,
        query: Float[Tensor, "*#axes T Dq"],
        projected: Float[Tensor, "*#axes S Dp"],
    ) -> Float[Tensor, "*axes T S"]:
        """Compute wᵀ tanh(W_q q + p) for all pairs, where p = W_k k is known."""
        # (..., T, 1, h) + (..., 1, S, h) -> (..., T, S, h)
        hidden = self.query_proj(query).unsqueeze(-2) + projected.unsqueeze(-3)
        # In place, so that there is one tensor of this size and not two;
        # the sum itself is not needed for the gradient, the tanh is.
        return self.output(hidden.tanh_()).squeeze(-1)


def attend(
    score: nn.Module,
    query: Float[Tensor, "*#axes T Dq"],
    key: Float[Tensor, "*#axes S Dk"],
    value: Float[Tensor, "*#axes Sv Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    return_weights: bool = False,
) -> (
    Float[Tensor, "*axes T Dv"]
    | tuple[Float[Tensor, "*axes T Dv"], Float[Tensor, "*pairs T S"]]
):
    """Attention with any score: softmax(score(query, key)) · value.

    Args:
        score: A `Score`, or any module with the same interface.
        query: Queries, shape (..., T, Dq).
        key: Keys, shape (..., S, Dk).
        value: Values, shape (..., S, Dv), one for each key.
        mask: True = may attend; of the rank of the scores, broadcastable to (..., T, S).
        return_weights: Also return the weights.

    Returns:
        The output, shape (..., T, Dv), or the output and the weights, shape (..., T, S). A query
        without any allowed key gets zeros.

    Raises:
        TypeError: If `mask` is not boolean.
        ValueError: If widths, mask or numbers of keys and values do not fit.
    """
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"key and value must hold as many rows, but hold {key.shape[-2]} and {value.shape[-2]}"
        )
    weights = masked_softmax(score(query, key), mask)
    output = weights @ value
    return (output, weights) if return_weights else output


class DotProduct(nn.Module):
    """Scaled dot-product attention within each head.

    Args:
        dropout: Share of the weights set to zero while training, 0 ≤ dropout < 1.
        is_causal: Whether later keys are forbidden.
        backend: Backend of `src.functional.attention`.
    """

    def __init__(
        self, dropout: float = 0.0, *, is_causal: bool = False, backend: str = "sdpa"
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        self.dropout, self.is_causal, self.backend = dropout, is_causal, backend

    def forward(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        value: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "#B 1 #T S"] | None = None,
    ) -> Float[Tensor, "B H T K"]:
        """The heads' outputs."""
        return attention(
            query,
            key,
            value,
            mask,
            is_causal=self.is_causal,
            dropout=self.dropout if self.training else 0.0,
            backend=self.backend,
        )

    def weights(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "#B 1 #T S"] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """The weights behind the outputs, before dropout."""
        causal = self.is_causal
        found = attention(query, key, key, mask, is_causal=causal, return_weights=True)
        return found[1]


class Scored(nn.Module):
    """Attention by any score within each head, shared by the heads.

    Args:
        score: Turns queries ``(B, H, T, K)`` and keys ``(B, H, S, K)`` into scores
            ``(B, H, T, S)``: see `src.scoring`.
        dropout: Share of the weights set to zero while training, 0 ≤ dropout < 1.
    """

    is_causal = False  # pass a causal mask

    def __init__(self, score: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        check_dropout(dropout)
        self.score, self.dropout = score, dropout

    def forward(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        value: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "#B 1 #T S"] | None = None,
    ) -> Float[Tensor, "B H T K"]:
        """The heads' outputs."""
        weights = self.weights(query, key, mask)
        return F.dropout(weights, self.dropout, self.training) @ value

    def weights(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "#B 1 #T S"] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """The weights behind the outputs, before dropout."""
        return masked_softmax(self.score(query, key), mask)
