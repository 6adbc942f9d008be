"""Autocast narrows matrix products; what is wide on purpose has to stay wide.

Each place is run in float16 and in bfloat16 autocast, with arguments that are still float32 and
with some that are halves already, as a linear layer under autocast returns them.
"""

import math

import pytest
import torch

from src.config import TransformerConfig
from src.functional import attention, masked_softmax
from src.layers import AddNorm
from src.multihead import MultiHeadAttention
from src.pooling import KERNELS, KernelRegression, nadaraya_watson
from src.positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from src.recording import recording
from src.scoring import (
    AdditiveScore,
    BilinearScore,
    DotProduct,
    DotScore,
    ScaledDotScore,
    Scored,
    attend,
)
from src.training.optimization import token_loss
from toy_training import tiny_model

B, T, S, D = 3, 5, 7, 8
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-8}  # of a number next to 1
HALVES = pytest.mark.parametrize("half", ROUNDING)
INPUTS = pytest.mark.parametrize("halved", [False, True])


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def inputs(half, halved):
    """Query, key, value and a mask with a query that has no key."""
    mask = torch.rand(B, T, S) > 0.3
    mask[0, 2] = False
    dtype = half if halved else torch.float32
    return *(normal(B, n, D, dtype=dtype) for n in (T, S, S)), mask


# ---------------------------------------------------------------- what no autocast may change

MASK = torch.arange(S) < torch.tensor([[[3]], [[0]], [[7]]])
TARGETS = torch.arange(B * T).view(B, T) % D
NORM = AddNorm(TransformerConfig(3, 3, d_model=D, num_heads=2, dropout=0.0))
REGRESSION, LEARNED = KernelRegression(0.7), LearnedPositions(D, T)
UNCHANGED = {
    "softmax": lambda x: masked_softmax(x[..., :S], MASK),
    "regression": lambda x: REGRESSION(x[0, 0], x[0, 0], x[0, 1], leave_one_out=True),
    "loss": lambda x: token_loss(x, TARGETS, 0, 0.1)[0],
    "norm": lambda x: NORM(x, lambda h: h),
    "sinusoidal": SinusoidalPositions(D, T),
    "learned": LEARNED,
    "rotary": RotaryPositions(D, T),
    "table": lambda x: x[0] + SinusoidalPositions(D, T).table,
} | {
    f"{name} kernel": lambda x, name=name: nadaraya_watson(x[0, 0], x[0, 1], x[0, 2], name)
    for name in KERNELS
}


@HALVES
@INPUTS
@pytest.mark.parametrize("place", UNCHANGED)
def test_is_the_same_inside_and_outside(place, half, halved):
    x = normal(B, T, D, dtype=half if halved else torch.float32)
    expected = UNCHANGED[place](x)
    with torch.autocast("cpu", half):
        found = UNCHANGED[place](x)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


# ---------------------------------------------------------------- attention


@HALVES
@INPUTS
@pytest.mark.parametrize("kwargs", [{}, {"return_weights": True}])
def test_scores_stay_wide(half, halved, kwargs):
    """Scores of 80,000, beyond float16, and of 300 and 301, which are one number in bfloat16."""
    dtype = half if halved else torch.float32
    query, key = (torch.full((1, n, 64), 100.0, dtype=dtype) for n in (2, 3))
    value = torch.tensor([[[1.0], [2.0], [6.0]]], dtype=dtype)
    near = torch.tensor([[300.0, 1.0]], dtype=dtype)[None]
    keys = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]], dtype=dtype)
    with torch.autocast("cpu", half):
        large = attention(query, key, value, backend="explicit", **kwargs)
        fine = attention(near, keys, keys[..., 1:], scale=1.0, backend="explicit", **kwargs)
    large, fine = (x[0] if kwargs else x for x in (large, fine))
    assert large.dtype == fine.dtype == half
    assert large.flatten().tolist() == pytest.approx([3.0, 3.0], rel=ROUNDING[half])
    assert fine.item() == pytest.approx(1 / (1 + math.exp(-1)), rel=2 * ROUNDING[half])


@HALVES
@INPUTS
def test_backends_agree_in_numbers_and_dtype(half, halved):
    *tensors, mask = inputs(half, halved)
    with torch.autocast("cpu", half):
        fused, explicit = (attention(*tensors, mask, backend=b) for b in ("sdpa", "explicit"))
        again, weights = attention(*tensors, mask, return_weights=True)
    assert fused.dtype == explicit.dtype == again.dtype == half
    assert weights.dtype == tensors[0].dtype
    # Values are below 4. Weights are rounded in the one and not in the other.
    near = {"rtol": 0, "atol": 8 * ROUNDING[half]}
    torch.testing.assert_close(explicit, fused, **near)
    assert torch.equal(again, explicit)
    wide = attention(*(x.float() for x in tensors), mask, return_weights=True)[1]
    torch.testing.assert_close(weights.float(), wide, rtol=2 * ROUNDING[half], atol=1e-6)


@HALVES
def test_gradients_of_the_backends_agree(half):
    *tensors, mask = inputs(half, False)
    found = []
    for backend in ("sdpa", "explicit"):
        leaves = [x.clone().requires_grad_() for x in tensors]
        with torch.autocast("cpu", half):
            output = attention(*leaves, mask, backend=backend)
        found.append(torch.autograd.grad(output.float().square().sum(), leaves))
    for fused, explicit in zip(*found, strict=True):
        assert bool(explicit.isfinite().all())
        assert (explicit - fused).norm() < 8 * ROUNDING[half] * fused.norm()


@HALVES
@INPUTS
def test_scores_have_autocasts_dtype_and_are_near(half, halved):
    """They are not wide, in autocast or with arguments that are halves; see `Score.forward`."""
    *tensors, mask = inputs(half, halved)
    scores = [DotScore(), ScaledDotScore(), BilinearScore(D, D), AdditiveScore(D, D, 6)]
    for score in scores:
        expected = attend(score, *(x.float() for x in tensors), mask)
        with torch.autocast("cpu", half):
            assert score(*tensors[:2]).dtype == half
            found = attend(score, *tensors, mask)
        assert found.dtype == half
        # A score below 16 is off by 16 roundings at most, and a weight by that share of itself.
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=40 * ROUNDING[half])


@HALVES
@pytest.mark.parametrize("scorer", [None, "same"])
def test_heads_agree(half, scorer):
    """Multi-head attention by the kernel, by the formula, and by a score module."""
    heads = MultiHeadAttention(D, 2)
    core = Scored(ScaledDotScore()) if scorer else DotProduct(backend="explicit")
    explicit = MultiHeadAttention(D, 2, core=core)
    explicit.load_state_dict(heads.state_dict())
    x, mask = normal(B, T, D), torch.rand(B, 1, T) > 0.3
    with torch.autocast("cpu", half):
        found = explicit(x, mask=mask)
        with recording(heads) as maps:
            fused = heads(x, mask=mask)
    assert fused.dtype == found.dtype == maps["attention"].dtype == half
    torch.testing.assert_close(found, fused, rtol=0, atol=8 * ROUNDING[half])


@HALVES
@torch.no_grad()
def test_whole_models_agree(half):
    fused, explicit = (tiny_model(backend=b, num_encoder_layers=2) for b in ("sdpa", "explicit"))
    src, tgt = torch.randint(3, 13, (B, S)), torch.randint(3, 17, (B, T))
    src[1, 3:] = 0
    with torch.autocast("cpu", half):
        logits = [model(src, tgt) for model in (fused, explicit)]
    assert logits[0].dtype == logits[1].dtype == half
    # Three layers of rounding, and logits of up to 4.
    torch.testing.assert_close(*logits, rtol=0, atol=24 * ROUNDING[half])
