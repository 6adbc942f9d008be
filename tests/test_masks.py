"""Masks: how they combine, where they are built, and every refusal."""

import pytest
import torch

from src.masks import (
    causal_mask,
    from_additive,
    from_key_padding_mask,
    length_mask,
    to_additive,
    valid_lens_mask,
    window_mask,
)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: length_mask(torch.tensor([2, 6]), 5), r"valid_lens must lie in 0 … 5.*2 … 6"),
        (lambda: length_mask(torch.tensor([-1, 2]), 5), r"valid_lens must lie in 0 … 5.*-1 … 2"),
        (
            lambda: valid_lens_mask(torch.ones(2, 3, 5, dtype=torch.long), 5),
            r"valid_lens must have shape \(B,\) or \(B, T\), but has shape \(2, 3, 5\)",
        ),
        (lambda: causal_mask(5, 3), r"num_keys must be at least num_queries \(5\), but is 3"),
        (lambda: causal_mask(0), "num_queries must be at least 1, but is 0"),
        (lambda: window_mask(3, left=-1), "left must be at least 0, but is -1"),
        (lambda: window_mask(3, left=1, right=-2), "right must be at least 0, but is -2"),
        (lambda: window_mask(3, 2, left=1), r"num_keys must be at least num_queries \(3\)"),
        (lambda: from_additive(torch.tensor([0.0, -1e9])), "mask must hold 0 .* or -inf"),
        (lambda: from_additive(torch.tensor([0.0, float("nan")])), "mask must hold 0 .* or -inf"),
    ],
)
def test_bad_values_are_refused(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: from_key_padding_mask(torch.zeros(2, 3)),
            "key_padding_mask must be boolean, but has dtype torch.float32",
        ),
        (lambda: to_additive(torch.ones(3), torch.float32), "mask must be boolean"),
        (
            lambda: to_additive(torch.ones(3, dtype=torch.bool), torch.int64),
            "dtype must be a floating-point type, but is torch.int64",
        ),
    ],
)
def test_bad_types_are_refused(unchecked, call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.gpu
def test_masks_are_built_where_they_are_asked_for():
    assert causal_mask(3, device="cuda").device.type == "cuda"
    assert window_mask(3, left=1, device="cuda").device.type == "cuda"
    assert length_mask(torch.tensor([1, 2], device="cuda"), 3).device.type == "cuda"
