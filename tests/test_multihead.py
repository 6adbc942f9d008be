"""Multi-head attention: its cache, shared keys, initial weights, and every refusal."""

import copy
import math

import pytest
import torch
from torch import nn

from src.cache import KVCache
from src.masks import causal_mask
from src.multihead import MultiHeadAttention

BACKENDS = ("explicit", "sdpa")
B, T, S, H, K = 3, 5, 7, 2, 11
D = H * K


def close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def make(dtype=torch.float64, **options):
    module = MultiHeadAttention(D, H, **options).to(dtype)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return module


def tokens(length, dtype=torch.float64):
    return torch.randn(B, length, D, dtype=dtype, requires_grad=True)


def test_returned_weights_do_not_stay_on_the_module():
    module, x = make(), tokens(T)
    _, weights = module(x, is_causal=True, return_weights=True)
    assert weights.shape == (B, H, T, T)
    assert bool((weights.triu(1) == 0).all()), "weights are causal, too"
    close(weights.sum(-1), torch.ones(B, H, T, dtype=torch.float64), 1e-12)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x), module(x))


class Closeness(nn.Module):
    """A score unlike the dot product: the negative distance of query and key."""

    def forward(self, query, key):
        return -(query.unsqueeze(-2) - key.unsqueeze(-3)).norm(dim=-1)


def test_each_square_matrix_is_drawn_by_xaviers_rule():
    module = MultiHeadAttention(128, 2)
    bound = math.sqrt(6 / 256)
    for matrix in (*module.in_proj.weight.chunk(3), module.out_proj.weight):
        assert 0.95 * bound < matrix.abs().max() <= bound
    assert not module.in_proj.bias.any() and not module.out_proj.bias.any()


def test_state_dict_round_trip_and_gradients_everywhere():
    module, twin, x = make(), make(), tokens(T)
    assert set(module.state_dict()) == {
        f"{part}.{kind}" for part in ("in_proj", "out_proj") for kind in ("weight", "bias")
    }
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin(x), module(x))
    (module(x) * torch.randn(B, T, D)).sum().backward()
    for name, parameter in module.named_parameters():
        rows = parameter.grad.reshape(len(parameter), -1).abs().amax(1)
        if name == "in_proj.bias":  # a bias on the keys shifts all scores of a row alike
            assert rows[D : 2 * D].max() < 1e-12
            rows = torch.cat([rows[:D], rows[2 * D :]])
        assert bool((rows > 0).all()), name


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((22, 3), {}, "num_heads must divide d_model, but d_model is 22 and num_heads is 3"),
        ((22, 0), {}, "num_heads must divide d_model.* num_heads is 0"),
        ((0, 1), {}, "num_heads must divide d_model, but d_model is 0"),
        ((22, 2), {"dropout": 1.0}, "dropout must be at least 0 and below 1, but is 1.0"),
    ],
)
def test_bad_sizes_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(*arguments, **options)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(B, S, dtype=torch.bool), ValueError, r"rank 3, .* shape \(3, 7\)"),
        (torch.ones(B, H, T, S, dtype=torch.bool), ValueError, "mask must have rank 3"),
        (torch.ones(B, T, 6, dtype=torch.bool), ValueError, "does not broadcast to scores"),
        (torch.ones(2, T, S, dtype=torch.bool), ValueError, "does not broadcast to scores"),
        (torch.zeros(B, T, S), TypeError, "mask must be boolean"),
    ],
)
@pytest.mark.parametrize("scorer", [None, Closeness()])
def test_bad_masks_are_refused(unchecked, mask, error, message, scorer):
    module = make(torch.float32, scorer=scorer)
    with pytest.raises(error, match=message):
        module(tokens(T, torch.float32), tokens(S, torch.float32), mask=mask)


def test_a_scorer_wants_a_causal_mask():
    module, x = make(scorer=Closeness()), tokens(T)
    with pytest.raises(ValueError, match="is_causal goes with the scaled dot product"):
        module(x, is_causal=True)
    weights = module(x, mask=causal_mask(T), return_weights=True)[1]
    assert bool((weights.triu(1) == 0).all())


@pytest.mark.parametrize("rows", [(4, 2), (2, 4), (3, 2), (1, 3)])
def test_other_rows_of_keys_are_refused(unchecked, rows):
    """Twice as many queries as keys are no beams unless one says so, by `attend`."""
    module = make(torch.float32)
    query, key = (torch.randn(n, length, D) for n, length in zip(rows, (T, S), strict=True))
    message = f"query and key must have equally many rows, but have {rows[0]} and {rows[1]}"
    with pytest.raises(ValueError, match=message):
        module(query, key)
    with pytest.raises(ValueError, match=message):
        module(query, value=key, key=key)


@pytest.mark.parametrize(
    ("name", "shape"), [("query", (B, T, D + 1)), ("key", (T, D)), ("value", (B, S, 1))]
)
def test_what_has_another_rank_or_width_is_named(unchecked, name, shape):
    inputs = {"query": torch.randn(B, T, D), "key": torch.randn(B, S, D), "value": None}
    message = rf"{name} must have shape \(B, T, {D}\), but has \({', '.join(map(str, shape))}\)"
    with pytest.raises(ValueError, match=message):
        make(torch.float32)(**inputs | {name: torch.randn(shape)})


@pytest.mark.parametrize("rows", [(2, 4), (3, 2), (1, 3), (3, 0)])
def test_rows_that_cannot_share_their_keys_are_refused(unchecked, rows):
    module = make(torch.float32)
    query, key = (torch.randn(n, H, length, K) for n, length in zip(rows, (T, S), strict=True))
    message = f"query must have as many rows as key or a multiple .* {rows[0]} and {rows[1]}"
    with pytest.raises(ValueError, match=message):
        module.attend(query, key, key)


@pytest.mark.parametrize(
    ("mask", "scorer"),
    [
        (torch.ones(B, 2, 4, dtype=torch.bool), None),
        (torch.ones(2, 2, 5, dtype=torch.bool), None),
        (torch.ones(2, 5, dtype=torch.bool), None),
        (torch.ones(B, 2, 5), None),
        (None, Closeness()),
    ],
)
def test_a_refused_call_leaves_the_cache_as_it_was(unchecked, mask, scorer):
    module = make(scorer=scorer)
    cache = KVCache(B, H, S, K, dtype=torch.float64)
    with torch.no_grad():
        module(tokens(3), cache=cache)
        with pytest.raises((TypeError, ValueError), match=r"must|is_causal goes with|broadcast"):
            module(tokens(2), mask=mask, cache=cache, is_causal=True)
        assert cache.length == 3
        module(tokens(2), mask=torch.ones(B, 2, 5, dtype=torch.bool), cache=cache)
    assert cache.length == 5


def test_a_cache_of_other_rows_is_refused():
    module = make()
    cache = KVCache(1, H, T, K, dtype=torch.float64)
    with pytest.raises(ValueError, match="to fit the cache"):
        module(tokens(1), cache=cache)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_gpu_equals_cpu(backend):
    module, query, key = make(backend=backend), tokens(T), tokens(S)
    mask = torch.rand(B, T, S) > 0.4
    expected = module(query, key, mask=mask)
    there = copy.deepcopy(module).cuda()
    close(there(query.cuda(), key.cuda(), mask=mask.cuda()).cpu(), expected, 1e-10)


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("length", [1, 3])
def test_rows_that_share_their_keys(backend, length):
    """Two rows of queries for each row of keys: as if every query had a copy of its keys."""
    torch.manual_seed(0)
    module = MultiHeadAttention(22, 2, backend=backend).double()
    query = torch.randn(6, 2, length, 11, dtype=torch.float64)
    key, value = torch.randn(2, 3, 2, 7, 11, dtype=torch.float64)
    mask = torch.rand(3, 1, 7) > 0.4
    copies = [x.repeat_interleave(2, 0) for x in (key, value, mask)]
    expected = module.attend(query, *copies)
    torch.testing.assert_close(module.attend(query, key, value, mask), expected)
    for rows in (1, 3):  # a mask of its own for each query
        mask_of_each = torch.rand(rows, length, 7) > 0.4
        masks = mask_of_each.expand(3, -1, -1).repeat_interleave(2, 0)
        expected_of_each = module.attend(query, *copies[:2], masks)
        found = module.attend(query, key, value, mask_of_each)
        torch.testing.assert_close(found, expected_of_each)
    _, weights = module.attend(query, key, value, mask, return_weights=True)
    assert weights.shape == (6, 2, length, 7)
    assert (weights[2:4, :, :, ~mask[1, 0]] == 0).all()
    with pytest.raises(ValueError, match="is_causal does not go with queries that share"):
        module.attend(query, key, value, is_causal=True)
