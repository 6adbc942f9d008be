"""Ids of tokens: whether they lie within a vocabulary, and their padding at the end."""

import torch
from torch import Tensor


def check_ids(name: str, ids: Tensor, size: int) -> None:
    """Demand ids in 0 … ``size`` - 1, where looking is free.

    On a GPU looking would stop the pipeline, and within a compiled graph there is nothing to see:
    there nothing is checked, so check a batch while it is on the CPU.

    Args:
        name: What the message calls them.
        ids: Integers, of any shape.
        size: Of the vocabulary.

    Raises:
        ValueError: If one lies outside.
    """
    if ids.numel() == 0 or ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    low, high = (int(end) for end in ids.aminmax())
    if low < 0 or high >= size:
        raise ValueError(f"{name} must lie in 0 … {size - 1}, but span {low} … {high}")


def check_padding(name: str, ids: Tensor, pad_id: int) -> None:
    """Demand each row's tokens first and its padding last, where looking is free as above.

    A token behind padding would get another position than it has without.

    Args:
        name: What the message calls them.
        ids: Ids ``(B, T)``.
        pad_id: The padding.

    Raises:
        ValueError: If a token comes after padding.
    """
    if ids.dim() != 2 or ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    real = ids != pad_id
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        raise ValueError(
            f"{name} must hold each row's tokens first and its padding last"
        )
