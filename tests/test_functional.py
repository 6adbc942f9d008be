"""Attention and its softmax at the edges: the kernel taken, no key, dropout, every refusal."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from src.functional import attention, masked_softmax

BACKENDS = ("explicit", "sdpa")
B, H, T, S, K, KV = 3, 2, 5, 7, 11, 13
HALVES = (torch.float32, torch.bfloat16, torch.float16)


def heads(dtype=torch.float64, num_queries=T, num_keys=S, width=KV):
    """Random query, key and value that want gradients."""
    shapes = ((B, H, num_queries, K), (B, H, num_keys, K), (B, H, num_keys, width))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def random_mask(num_queries=T, num_keys=S):
    """A mask in which one query of row 0 and every query of row 1 has no key at all."""
    mask = torch.rand(B, 1, num_queries, num_keys) > 0.4
    mask[..., 0] = True
    mask[0, 0, 2] = False
    mask[1] = False
    return mask


def grads(output, inputs, seed=1):
    """Gradients of a random weighting of ``output``, the same for every caller."""
    generator = torch.Generator().manual_seed(seed)
    weighting = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return torch.autograd.grad((output * weighting.to(output)).sum(), inputs)


def assert_close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_without_keys_gets_zeros_and_finite_gradients(backend, dtype, causal):
    inputs, mask = heads(dtype, width=K), random_mask()
    output = attention(*inputs, mask, is_causal=causal, backend=backend)
    assert output.dtype == dtype
    assert bool((output[0, :, 2] == 0).all() and (output[1] == 0).all())
    assert bool(output.isfinite().all()) and bool((output[2] != 0).any())
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, either
        gradients = grads(attention(*inputs, mask, is_causal=causal, backend=backend), inputs)
    for grad in gradients:
        assert bool(grad.isfinite().all())
        assert bool((grad[1] == 0).all()) and bool((grad[2] != 0).any())
    _, weights = attention(*inputs, mask, backend=backend, return_weights=True)
    assert bool((weights[1] == 0).all() and (weights[0, :, 2] == 0).all())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axes", [(), (3,), (3, 2), (3, 2, 2)])
def test_any_number_of_leading_axes(backend, axes):
    query, key, value = (torch.randn(*axes, n, K).double() for n in (T, S, S))
    mask = torch.rand(*axes, T, S) > 0.3
    output = attention(query, key, value, mask, backend=backend)
    flat = [x.reshape(-1, 1, *x.shape[-2:]) for x in (query, key, value, mask)]
    expected = F.scaled_dot_product_attention(*flat[:3], attn_mask=flat[3]).view(*axes, T, K)
    assert_close(output, expected, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_queries", [1, 2])
def test_scores_may_be_larger_and_finer_than_a_half(backend, dtype, num_queries):
    """Scores of 80,000, beyond float16, and of 300 and 301, which are one number in bfloat16."""
    query = torch.full((1, num_queries, 64), 100.0, dtype=dtype)
    key = torch.full((1, 3, 64), 100.0, dtype=dtype)
    value = torch.tensor([[[1.0], [2.0], [6.0]]], dtype=dtype)
    for kwargs in ({}, {"return_weights": True}):
        output = attention(query, key, value, backend=backend, **kwargs)
        output = output[0] if kwargs else output
        assert_close(output, torch.full((1, num_queries, 1), 3.0, dtype=dtype), 0.02)
    query = torch.tensor([300.0, 1.0], dtype=dtype).expand(1, num_queries, 2)
    key = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]], dtype=dtype)
    value = torch.tensor([[[0.0], [1.0]]], dtype=dtype)
    output = attention(query, key, value, scale=1.0, backend=backend)
    expected = torch.full((1, num_queries, 1), 1 / (1 + math.exp(-1)), dtype=dtype)
    assert_close(output, expected, 0.005)


def test_sdpa_is_the_fused_kernel_for_one_query_too(monkeypatch):
    calls = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k)
    )
    attention(*heads(num_queries=1))
    attention(*heads(num_queries=1), is_causal=True)
    assert len(calls) == 2


class Says(TorchFunctionMode):
    """All tensors say that they are on ``device``; they are on the CPU."""

    def __init__(self, device):
        super().__init__()
        self.device = torch.device(device, 0)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return self.device
        kwargs = kwargs or {}
        return func(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps", "xpu"])
@pytest.mark.parametrize("case", ["plain", "mask", "causal", "chunk", "width"])
def test_only_where_the_kernel_is_trusted_is_it_taken(monkeypatch, device, case):
    calls = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k)
    )
    inputs = heads(num_keys=S if case == "chunk" else T, width=KV if case == "width" else K)
    mask = random_mask(T, T) if case == "mask" else None
    options = {"is_causal": case in ("causal", "chunk")}
    with Says(device):
        output = attention(*inputs, mask, **options)
    assert bool(calls) == (device in ("cpu", "cuda"))
    assert_close(output, attention(*inputs, mask, backend="explicit", **options), 1e-12)


def test_weights_are_those_before_dropout():
    inputs = heads(torch.float32)
    output, weights = attention(*inputs, dropout=0.5, return_weights=True)
    assert_close(weights.sum(-1), torch.ones(B, H, T), 1e-6)
    undropped = attention(*inputs)
    assert (output - undropped).abs().max() > 0.1, "dropout has to act on the output"
    torch.manual_seed(7)
    output, weights = attention(*inputs, dropout=0.5, return_weights=True)
    torch.manual_seed(7)
    assert_close(output, F.dropout(weights, 0.5) @ inputs[2], 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_the_mean(backend):
    query, key, value = torch.zeros(1, 1, 2, K), torch.zeros(1, 1, 20_000, K), torch.ones(1)
    value = value.expand(1, 1, 20_000, 1)
    output = attention(query, key, value, dropout=0.5, backend=backend)
    assert bool((output != 1).all() and ((output - 1).abs() < 0.05).all())  # σ = 0.007


def test_the_callers_tensors_stay_as_they_are():
    scores, mask = torch.randn(T, S), torch.rand(T, S) > 0.5
    copies = scores.clone(), mask.clone()
    masked_softmax(scores, mask)
    assert torch.equal(scores, copies[0]) and torch.equal(mask, copies[1])


def test_scores_far_below_any_large_negative_fill():
    """Where a fill of −1e9 is used, the forbidden key would win here."""
    scores = torch.tensor([[-2e9, -2e9, 0.0]])
    mask = torch.tensor([[True, True, False]])
    assert masked_softmax(scores, mask).tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_softmax_runs_in_float32(dtype):
    """70,000 keys: the sum of their exponentials, taken in float16, would be infinite."""
    scores = torch.randn(3, 70_000).to(dtype)
    weights = masked_softmax(scores)
    assert weights.dtype == dtype
    assert torch.equal(weights, scores.float().softmax(-1).to(dtype))


def three(*shapes):
    return [torch.zeros(shape) for shape in shapes]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": torch.ones(3, 5, dtype=torch.bool)}, r"mask must have rank 3.* shape \(3, 5\)"),
        ({"mask": torch.ones(1, 3, 5, 7, dtype=torch.bool)}, "mask must have rank 3"),
        ({"mask": torch.ones(3, 5, 6, dtype=torch.bool)}, r"\(3, 5, 6\) does not broadcast to"),
        ({"mask": torch.ones(2, 1, 7, dtype=torch.bool)}, r"scores of shape \(3, 5, 7\)"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, but is 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, but is -0.1"),
        ({"dropout": float("nan")}, "dropout must be at least 0 and below 1, but is nan"),
        ({"key": torch.zeros(3, 7, 13)}, "query and key must be equally wide, but are 11 and 13"),
        ({"value": torch.zeros(3, 6, 11)}, "key and value must hold as many rows.* 7 and 6"),
        ({"query": torch.zeros(1, 5, 11)}, r"leading axes.*\(1, 5, 11\), \(3, 7, 11\)"),
        ({"query": torch.zeros(3, 8, 11), "is_causal": True}, "num_keys must be at least"),
    ],
)
def test_bad_values_are_refused(unchecked, backend, changes, message):
    query, key, value = three((3, 5, 11), (3, 7, 11), (3, 7, 11))
    arguments = {"query": query, "key": key, "value": value} | changes
    with pytest.raises(ValueError, match=message):
        attention(**arguments, backend=backend)


def test_unknown_backend_is_refused():
    inputs = three((3, 5, 11), (3, 7, 11), (3, 7, 11))
    with pytest.raises(ValueError, match="backend must be one of sdpa, explicit, but is 'flash'"):
        attention(*inputs, backend="flash")


@pytest.mark.parametrize("mask", [torch.zeros(3, 5, 7), torch.ones(3, 5, 7, dtype=torch.uint8)])
def test_masks_must_be_boolean(unchecked, mask):
    """An additive mask or one of 0 and 1 would be read the wrong way."""
    with pytest.raises(TypeError, match=f"mask must be boolean .*dtype {mask.dtype}"):
        attention(*three((3, 5, 11), (3, 7, 11), (3, 7, 11)), mask)
    with pytest.raises(TypeError, match="mask must be boolean"):
        masked_softmax(torch.zeros(3, 5, 7), mask)


def test_softmax_refuses_a_mask_of_lower_rank(unchecked):
    with pytest.raises(ValueError, match="mask must have rank 3"):
        masked_softmax(torch.zeros(5, 5, 7), torch.ones(5, 7, dtype=torch.bool))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_gpu_equals_cpu(backend, dtype, causal):
    inputs, mask = heads(torch.float64, width=K), random_mask()
    expected = attention(*inputs, mask, is_causal=causal, backend="explicit")
    there = [x.detach().to("cuda", dtype).requires_grad_() for x in inputs]
    output = attention(*there, mask.cuda(), is_causal=causal, backend=backend)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype, 3e-2)
    assert_close(output.cpu().double(), expected, tolerance)
    assert bool((output[1] == 0).all()) and bool((output[0, :, 2] == 0).all())
    for ours, theirs in zip(grads(output, there), grads(expected, inputs), strict=True):
        assert bool(ours.isfinite().all())
        assert_close(ours.cpu().double(), theirs, 10 * tolerance)
