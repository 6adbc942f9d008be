"""Ids of tokens: whether they lie within a vocabulary."""

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
