"""Where a token stands: sinusoidal, learned and rotary position encodings.

Attention itself sees a set, not a sequence. Each class here tells it the order in its own way,
and each takes an ``offset``: the position of the first token, needed when tokens arrive one by
one against a cache.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def sinusoidal_table(
    max_len: int, d_model: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "max_len d_model"]:
    """Sines in even columns, cosines in odd ones, of falling frequency.

    ``P[i, 2j] = sin(i / 10000^(2j/d_model))``, ``P[i, 2j+1] = cos(i / 10000^(2j/d_model))``.
    Computed in float64 and cast last; an odd ``d_model`` ends with a sine.

    Raises:
        ValueError: If ``max_len`` or ``d_model`` is below 1.

    Source: Vaswani et al. 2017, §3.5.
    """
    _check_at_least_one(max_len=max_len, d_model=d_model)
    columns = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(max_len)[:, None] / 10000 ** (columns / d_model)
    table = torch.empty(max_len, d_model, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : d_model // 2]
    return table.to(dtype)


class _Table(nn.Module):
    """A constant table of positions that never falls below float32.

    ``model.to(torch.bfloat16)`` casts buffers, and bfloat16 tells no two angles apart from
    position 256 on; so the table is built anew instead of being cast. It is built anew, too, when
    a module made on the device "meta" gets its storage: no state dict would bring the table.
    """

    table: Tensor

    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.max_len = max_len
        self.register_buffer("table", self._build(torch.float32), persistent=False)

    def _build(self, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def _apply(self, fn, recurse=True):
        before = self.table
        super()._apply(fn, recurse)
        if self.table.dtype != before.dtype or before.is_meta:
            dtype = torch.promote_types(self.table.dtype, torch.float32)
            self.table = self._build(dtype).to(self.table.device)
        return self

    def rows(self, length: int, offset: int) -> Tensor:
        """Rows ``offset … offset + length − 1`` of the table.

        Raises:
            ValueError: If they are not all there.
        """
        check_span(length, offset, self.max_len)
        return self.table[offset : offset + length]


class SinusoidalPositions(_Table):
    """Add a row of the sinusoidal table to each token; nothing is learned.

    Args:
        d_model: Width of a token, ≥ 1 (odd widths work).
        max_len: Number of positions, ≥ 1.

    Source: Vaswani et al. 2017, §3.5.
    """

    def __init__(self, d_model: int, max_len: int) -> None:
        self.d_model = d_model
        super().__init__(max_len)

    def _build(self, dtype: torch.dtype) -> Tensor:
        return sinusoidal_table(self.max_len, self.d_model, dtype)

    def forward(
        self, x: Float[Tensor, "B T D"], offset: int = 0
    ) -> Float[Tensor, "B T D"]:
        """Return ``x`` plus the encodings of positions ``offset … offset + T − 1``.

        Raises:
            ValueError: If a position is negative or not below ``max_len``.
        """
        return x + self.rows(x.shape[1], offset).to(x.dtype)


class LearnedPositions(nn.Module):
    """Add a learned vector for each position; positions never trained mean nothing.

    Args:
        d_model: Width of a token, ≥ 1.
        max_len: Number of positions, ≥ 1.

    Source: Gehring et al. 2017, §3.1; Vaswani et al. 2017, §3.5 ("learned positional
    embeddings").
    """

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        _check_at_least_one(max_len=max_len, d_model=d_model)
        self.max_len = max_len
        self.weight = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "B T D"], offset: int = 0
    ) -> Float[Tensor, "B T D"]:
        """Return ``x`` plus vectors of positions ``offset … offset + T − 1``.

        Raises:
            ValueError: If a position is negative or not below ``max_len``.
        """
        check_span(x.shape[1], offset, self.max_len)
        return x + self.weight[offset : offset + x.shape[1]].to(x.dtype)


class RotaryPositions(_Table):
    """Turn queries and keys by angles that grow with the position.

    Column ``j`` and column ``j + K/2`` form a plane, turned by ``i / 10000^(2j/K)``. The dot
    product of a turned query and a turned key depends on the *distance* of their positions only.
    Nothing is learned, and values are left alone.

    Args:
        head_dim: Width ``K`` of a head, even.
        max_len: Number of positions, ≥ 1.

    Raises:
        ValueError: If ``head_dim`` is odd or below 2.

    Source: Su et al. 2021, §3.2.2, with the pairs laid out as two halves.
    """

    def __init__(self, head_dim: int, max_len: int) -> None:
        if head_dim < 2 or head_dim % 2:
            raise ValueError(
                f"head_dim must be even for rotary positions, but is {head_dim}"
            )
        self.head_dim = head_dim
        super().__init__(max_len)

    def _build(self, dtype: torch.dtype) -> Tensor:
        _check_at_least_one(max_len=self.max_len)
        columns = torch.arange(0, self.head_dim, 2, dtype=torch.float64)
        angles = torch.arange(self.max_len)[:, None] / 10000 ** (
            columns / self.head_dim
        )
        return torch.stack([angles.cos(), angles.sin()], dim=1).to(dtype)

    def forward(
        self, x: Float[Tensor, "*axes T K"], offset: int = 0
    ) -> Float[Tensor, "*axes T K"]:
        """Turn the heads ``x`` at positions ``offset … offset + T − 1``.

        The rotation is done in float32 at least and cast back.

        Raises:
            ValueError: If a position is negative or not below ``max_len``.
        """
        cos, sin = self.rows(x.shape[-2], offset).unbind(dim=1)
        first, second = x.to(torch.promote_types(x.dtype, self.table.dtype)).chunk(
            2, dim=-1
        )
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1).to(x.dtype)


def fill_tables(module: nn.Module, device: torch.device) -> None:
    """Build the tables in ``module`` that have no storage yet.

    A model made on the device "meta" gets its weights by ``load_state_dict(…, assign=True)``; a
    state dict holds no table.
    """
    for part in module.modules():
        if isinstance(part, _Table) and part.table.is_meta:
            part.table = part._build(torch.float32).to(device)


def check_span(length: int, offset: int, max_len: int) -> None:
    """Demand that positions ``offset … offset + length − 1`` exist.

    Raises:
        ValueError: If they reach below 0 or beyond ``max_len``.
    """
    if offset < 0:
        raise ValueError(f"offset must be at least 0, but is {offset}")
    if offset + length > max_len:
        raise ValueError(
            f"max_len is {max_len}, but positions up to {offset + length - 1} are asked for "
            f"(offset {offset}, length {length})"
        )


def _check_at_least_one(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
