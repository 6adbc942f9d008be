"""Leave padding out of everything that treats each token by itself.

Projections, feed-forward networks, norms and the output matrix look at one token at a time, so
what they compute for padding is thrown away. `Packing` lays the real tokens of a padded batch
``(B, T)`` one behind the other, ``(N,)``; only attention, which needs to know the rows, unpacks.
"""

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


class Packing:
    """Where the real tokens of a padded batch stand.

    Args:
        real: True for a real token.

    Raises:
        TypeError: If ``real`` is not boolean.
        ValueError: If a row is not padded at its end alone: a token behind padding would be
            packed, but a causal query could no longer tell which keys come before it.
    """

    def __init__(self, real: Bool[Tensor, "B T"]) -> None:
        if real.dtype != torch.bool:
            raise TypeError(f"real must be boolean, but has dtype {real.dtype}")
        if bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise ValueError(
                "real must hold each row's tokens first and its padding last"
            )
        self.shape = real.shape
        self.index = real.flatten().nonzero().squeeze(1)

    @classmethod
    def of(cls, real: Bool[Tensor, "B T"]) -> "Packing | None":
        """A packing, or None where there is nothing to gain.

        That is without padding, and on an accelerator, which would have to stop and tell how
        many tokens are real; there, let batches of equal length keep the padding small.
        """
        if real.device.type != "cpu" or bool(real.all()):
            return None
        return cls(real)

    def pack(self, x: Shaped[Tensor, "B T *axes"]) -> Shaped[Tensor, "N *axes"]:
        """The real tokens, row by row."""
        return x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, x: Shaped[Tensor, "N *axes"]) -> Shaped[Tensor, "B T *axes"]:
        """The padded batch, with zeros for padding."""
        padded = x.new_zeros(self.shape.numel(), *x.shape[1:])
        return padded.index_copy(0, self.index, x).unflatten(0, self.shape)
