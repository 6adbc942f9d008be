"""What a decoder remembers between two tokens: the keys and values it has computed already.

Buffers are allocated once and filled from the left. Rows can be dropped, repeated and reordered,
which is all that beam search and a batch with finished sentences need.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class KVCache:
    """Keys and values of one attention layer, with room for ``max_len`` positions.

    For decoding, under ``torch.no_grad()``: buffers are overwritten in place, so that a backward
    pass through several steps raises.

    Args:
        batch_size: Rows ``B``.
        num_heads: Heads ``H``.
        max_len: Positions that fit.
        head_dim: Width ``K`` of a head.
        dtype: Floating-point type of keys and values.
        device: Where the buffers live.

    Raises:
        ValueError: If a size is below 1.
    """

    def __init__(
        self,
        batch_size: int,
        num_heads: int,
        max_len: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        shape = (batch_size, num_heads, max_len, head_dim)
        if min(shape) < 1:
            raise ValueError(
                "batch_size, num_heads, max_len and head_dim must be at least 1, but are "
                + ", ".join(map(str, shape))
            )
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def max_len(self) -> int:
        """Positions that fit."""
        return self.keys.shape[2]

    def append(
        self, key: Float[Tensor, "B H T K"], value: Float[Tensor, "B H T K"]
    ) -> tuple[Float[Tensor, "B H S K"], Float[Tensor, "B H S K"]]:
        """Store ``T`` more positions and return all ``S`` stored so far, as views.

        Raises:
            TypeError: If the dtype is not the cache's: storing would cast silently.
            ValueError: If the rows are not those of the cache (a single row would broadcast
                silently into all of them), or if more positions come than fit.
        """
        if not key.dtype == value.dtype == self.keys.dtype:
            raise TypeError(
                f"key and value must have dtype {self.keys.dtype} to fit the cache, but have "
                f"dtypes {key.dtype} and {value.dtype}"
            )
        expected = (*self.keys.shape[:2], key.shape[2], self.keys.shape[3])
        if key.shape != expected or value.shape != expected:
            raise ValueError(
                f"key and value must have shape {expected} to fit the cache, but have shapes "
                f"{tuple(key.shape)} and {tuple(value.shape)}"
            )
        end = self.length + key.shape[2]
        if end > self.max_len:
            raise ValueError(
                f"max_len of the cache is {self.max_len}, but position {end - 1} is to be stored"
            )
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, index: Int[Tensor, " M"]) -> None:
        """Make row ``m`` the former row ``index[m]``: keep, reorder, drop or repeat rows."""
        self.keys = _select_filled(self.keys, index, self.length)
        self.values = _select_filled(self.values, index, self.length)


class Memory(NamedTuple):
    """Keys and values of an encoder's output, for one layer that attends to it.

    ``W`` rows of queries in a row may share a row of the memory, as the beams of a sentence share
    its source; they attend to it side by side, as one row of ``W · T`` queries.

    Attributes:
        key: Heads of the keys, ``(B, H, S, K)``.
        value: Heads of the values, ``(B, H, S, K)``.
        mask: Which source positions may be attended to, ``(B, 1, S)``; None allows all.
    """

    key: Float[Tensor, "B H S K"]
    value: Float[Tensor, "B H S K"]
    mask: Bool[Tensor, "B 1 S"] | None = None

    def fold(self, query: Float[Tensor, "BW H T K"]) -> Float[Tensor, "B H WT K"]:
        """Put the queries that share a row of the memory side by side.

        Raises:
            ValueError: If ``query`` has not a multiple of the memory's number of rows.
        """
        # No divmod and no len: compiled, the numbers of rows are symbols.
        rows, own = query.shape[0], self.key.shape[0]
        if own == 0 or rows % own:
            raise ValueError(
                "query must have the number of rows of memory or a multiple of it, but they "
                f"have {rows} and {own}"
            )
        if rows == own:
            return query
        return query.unflatten(0, (-1, rows // own)).transpose(1, 2).flatten(2, 3)

    def unfold(
        self, x: Float[Tensor, "B H WT K"], rows: int
    ) -> Float[Tensor, "BW H T K"]:
        """Undo `fold`: heads of so many ``rows``."""
        own = self.key.shape[0]
        if rows == own:
            return x
        return x.unflatten(2, (rows // own, -1)).transpose(1, 2).flatten(0, 1)

    def select(self, index: Int[Tensor, " M"]) -> "Memory":
        """Make row ``m`` the former row ``index[m]``."""
        kept = (part if part is None else part.index_select(0, index) for part in self)
        return Memory(*kept)


class DecoderCache:
    """All that a Transformer decoder remembers: every layer's own keys and values, and memory's.

    Args:
        layers: One `KVCache` for each decoder layer, all equally long.
        memory: One `Memory` for each layer, all with the same mask. Beams of a sentence share
            its row: see `select`.
    """

    def __init__(self, layers: list[KVCache], memory: list[Memory]) -> None:
        self.layers = layers
        # Heads are views of one product; a step that multiplies by a view copies it first.
        self.memory = [
            m._replace(key=m.key.contiguous(), value=m.value.contiguous())
            for m in memory
        ]
        key = memory[0].key
        self._sources = torch.arange(len(key), device=key.device)  # rows of the memory

    @property
    def length(self) -> int:
        """Target positions stored so far."""
        return self.layers[0].length

    def select(self, index: Int[Tensor, " M"]) -> None:
        """Keep, reorder, drop or repeat rows.

        Rows that stand side by side and have the same source, as beams have, share one row of the
        memory, if all sources have as many of them.
        """
        for layer in self.layers:
            layer.select(index)
        sources = self._sources.index_select(0, index)
        if torch.equal(sources, self._sources):
            return  # as at most steps of a beam: its rows change places, sentences do not
        kept, counts = sources.unique_consecutive(return_counts=True)
        width = len(sources) // max(len(kept), 1)
        if not bool((kept[1:] > kept[:-1]).all() & (counts == width).all()):
            kept, width = sources, 1
        rows = torch.arange(len(kept), device=kept.device)
        if len(kept) != len(self.memory[0].key) or not torch.equal(kept, rows):
            self.memory = [memory.select(kept) for memory in self.memory]
        self._sources = rows.repeat_interleave(width)


def _select_filled(buffer: Tensor, index: Tensor, length: int) -> Tensor:
    """Move rows within ``buffer``, copying only the ``length`` positions that are filled."""
    chosen = buffer[:, :, :length].index_select(0, index)
    if len(index) > len(buffer):
        buffer = buffer.new_empty((len(index), *buffer.shape[1:]))
    buffer = buffer[: len(index)]
    buffer[:, :, :length] = chosen
    return buffer
