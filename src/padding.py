"""Padding of a batch: which tokens are real, the mask that says so, and work on these only.

Projections, feed-forward networks, norms and the output matrix look at one token at a time, so
what they compute for padding is thrown away. A packed batch lays its real tokens one behind the
other, ``(N, D)`` instead of ``(B, T, D)``; only attention, which needs the rows, unpacks them.
"""

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


class Padding:
    """The real tokens of one side of a batch.

    Args:
        real: True for a real token; each row holds its tokens first and its padding last.
        packed: Pack the tokens where that is worth it: if there is padding, and on a CPU. An
            accelerator would have to stop and tell how many tokens are real; there, let batches
            of equal length keep the padding small.

    Raises:
        TypeError: If ``real`` is not boolean.
        ValueError: If tokens to be packed come after padding: a causal query could no longer
            tell which keys come before it.
    """

    def __init__(self, real: Bool[Tensor, "B T"], *, packed: bool = False) -> None:
        if real.dtype != torch.bool:
            raise TypeError(f"real must be boolean, but has dtype {real.dtype}")
        self.real = real
        self.packed = packed and real.device.type == "cpu" and not bool(real.all())
        if self.packed:
            if bool((real[:, 1:] & ~real[:, :-1]).any()):
                raise ValueError(
                    "real must hold each row's tokens first and its padding last"
                )
            self.index = real.flatten().nonzero().squeeze(1)

    @property
    def mask(self) -> Bool[Tensor, "B 1 T"]:
        """Let every query attend to the real tokens only."""
        return self.real.unsqueeze(1)

    def pack(self, x: Shaped[Tensor, "B T *axes"]) -> Shaped[Tensor, "..."]:
        """The real tokens row by row, ``(N, *axes)``; ``x`` itself if nothing is packed."""
        return x.flatten(0, 1).index_select(0, self.index) if self.packed else x

    def unpack(self, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "B T *axes"]:
        """The padded batch, with zeros for padding: undoes `pack`."""
        if not self.packed:
            return x
        padded = x.new_zeros(self.real.numel(), *x.shape[1:])
        return padded.index_copy(0, self.index, x).unflatten(0, self.real.shape)
