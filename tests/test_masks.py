"""Masks: every builder against a loop, both conventions, and every refusal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from src.masks import (
    causal_mask,
    from_additive,
    from_key_padding_mask,
    length_mask,
    padding_mask,
    to_additive,
    valid_lens_mask,
    window_mask,
)

SIZES = st.integers(1, 7).flatmap(lambda t: st.tuples(st.just(t), st.integers(t, 11)))


def test_padding_mask_is_true_on_real_tokens():
    ids = torch.tensor([[5, 3, 9, 9], [9, 9, 9, 9], [1, 9, 2, 4]])
    expected = [[[True, True, False, False]], [[False] * 4], [[True, False, True, True]]]
    assert padding_mask(ids, pad_id=9).tolist() == expected


def test_length_mask_allows_the_first_keys_and_none_for_length_zero():
    mask = length_mask(torch.tensor([2, 0, 5]), 5)
    assert mask.shape == (3, 1, 5)
    assert mask.sum(-1).flatten().tolist() == [2, 0, 5]
    assert mask[0, 0].tolist() == [True, True, False, False, False]


def test_valid_lens_of_one_length_a_query():
    lens = torch.tensor([[1, 4, 0], [2, 3, 5]])
    mask = valid_lens_mask(lens, 5)
    expected = [[[s < lens[b, t] for s in range(5)] for t in range(3)] for b in range(2)]
    assert mask.tolist() == expected


@given(SIZES)
def test_causal_mask_is_aligned_at_the_bottom_right(sizes):
    mask = causal_mask(*sizes)
    assert mask.shape == (1, *sizes)
    assert torch.equal(mask[0], reference.causal(*sizes))
    assert bool(mask[0, -1].all()), "the last query sees every key"


def test_causal_mask_of_one_argument_is_square():
    assert torch.equal(causal_mask(3)[0], torch.ones(3, 3, dtype=torch.bool).tril())


@given(SIZES, st.integers(0, 4), st.integers(0, 4))
def test_window_mask_reaches_exactly_left_and_right(sizes, left, right):
    num_queries, num_keys = sizes
    mask = window_mask(*sizes, left=left, right=right)[0]
    for t in range(num_queries):
        position = t + num_keys - num_queries
        for s in range(num_keys):
            assert bool(mask[t, s]) == (position - left <= s <= position + right)


def test_a_wide_window_is_the_causal_mask():
    assert torch.equal(window_mask(5, 7, left=7), causal_mask(5, 7))


def test_key_padding_mask_is_turned_round():
    theirs = torch.tensor([[False, False, True], [True, False, False]])
    assert from_key_padding_mask(theirs).tolist() == [[[True, True, False]], [[False, True, True]]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_additive_round_trip(dtype):
    mask = causal_mask(5, 7)
    additive = to_additive(mask, dtype)
    assert additive.dtype == dtype
    assert bool((additive[mask] == 0).all() and (additive[~mask] == float("-inf")).all())
    assert torch.equal(from_additive(additive), mask)


def test_builders_combine_with_and():
    ids = torch.tensor([[4, 4, 0], [4, 0, 0]])
    both = padding_mask(ids, 0) & causal_mask(3)
    assert both.shape == (2, 3, 3)
    assert both[1].tolist() == [[True, False, False]] * 3


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
