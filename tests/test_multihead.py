"""Multi-head attention: its cache, shared keys, initial weights, and every refusal."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from src.cache import KVCache
from src.masks import causal_mask
from src.multihead import CrossAttention, MultiHeadAttention
from src.recording import recording
from src.scoring import DotProduct, Scored

BACKENDS = ("explicit", "sdpa")
B, T, S, H, K = 3, 5, 7, 2, 11
D = H * K


def close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def make(dtype=torch.float64, kind=MultiHeadAttention, **options):
    module = kind(D, H, **options).to(dtype)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return module


def tokens(length, dtype=torch.float64):
    return torch.randn(B, length, D, dtype=dtype, requires_grad=True)


class Closeness(nn.Module):
    """A score unlike the dot product: the negative distance of query and key."""

    def forward(self, query, key):
        return -(query.unsqueeze(-2) - key.unsqueeze(-3)).norm(dim=-1)


def test_recorded_weights_are_cut_from_the_graph_and_do_not_stay_on_the_module():
    module, x = make(core=DotProduct(is_causal=True)), tokens(T)
    with recording(module) as maps:
        output = module(x)
    weights = maps["attention"]
    assert weights.shape == (B, H, T, T) and not weights.requires_grad
    assert output.requires_grad
    assert bool((weights.triu(1) == 0).all()), "weights are causal, too"
    close(weights.sum(-1), torch.ones(B, H, T, dtype=torch.float64), 1e-12)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x), module(x)) and torch.equal(maps["attention"], weights)


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
    ],
)
def test_bad_sizes_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(*arguments, **options)


@pytest.mark.parametrize("core", [DotProduct, partial(Scored, Closeness())])
def test_bad_dropout_is_refused(core):
    with pytest.raises(ValueError, match=r"dropout must be at least 0 and below 1, but is 1\.0"):
        core(dropout=1.0)


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
@pytest.mark.parametrize("core", [None, Scored(Closeness())])
def test_bad_masks_are_refused(unchecked, mask, error, message, core):
    module = make(torch.float32, core=core)
    with pytest.raises(error, match=message):
        module(tokens(T, torch.float32), tokens(S, torch.float32), mask=mask)


def test_another_score_takes_a_causal_mask():
    module, x = make(core=Scored(Closeness())), tokens(T)
    with recording(module) as maps:
        module(x, mask=causal_mask(T))
    assert bool((maps["attention"].triu(1) == 0).all())


@pytest.mark.parametrize("rows", [(4, 2), (2, 4), (3, 2), (1, 3)])
def test_other_rows_of_keys_are_refused(unchecked, rows):
    module = make(torch.float32)
    query, key = (torch.randn(n, length, D) for n, length in zip(rows, (T, S), strict=True))
    message = f"must have the same number of rows, but have {rows[0]}, {rows[1]}"
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
    module = make(torch.float32, CrossAttention)
    query, memory = (torch.randn(n, length, D) for n, length in zip(rows, (T, S), strict=True))
    message = f"number of rows of memory or a multiple of it.* {rows[0]} and {rows[1]}"
    with pytest.raises(ValueError, match=message):
        module(query, module.remember(memory))


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(B, 2, 4, dtype=torch.bool),
        torch.ones(2, 2, 5, dtype=torch.bool),
        torch.ones(2, 5, dtype=torch.bool),
        torch.ones(B, 2, 5),
    ],
)
def test_a_refused_call_leaves_the_cache_as_it_was(unchecked, mask):
    module = make(core=DotProduct(is_causal=True))
    cache = KVCache(B, H, S, K, dtype=torch.float64)
    with torch.no_grad():
        module(tokens(3), cache=cache)
        with pytest.raises((TypeError, ValueError), match=r"must|broadcast"):
            module(tokens(2), mask=mask, cache=cache)
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
    module = make(core=DotProduct(backend=backend))
    query, key = tokens(T), tokens(S)
    mask = torch.rand(B, T, S) > 0.4
    expected = module(query, key, mask=mask)
    there = copy.deepcopy(module).cuda()
    close(there(query.cuda(), key.cuda(), mask=mask.cuda()).cpu(), expected, 1e-10)


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("length", [1, 3])
def test_rows_that_share_their_memory(backend, length):
    """Two rows of queries for each row of the memory: as if each had a copy of its own."""
    module = make(kind=CrossAttention, core=DotProduct(backend=backend))
    query = torch.randn(6, length, D, dtype=torch.float64)
    source, mask = tokens(S), torch.rand(B, 1, S) > 0.4
    copies = [x.repeat_interleave(2, 0) for x in (source, mask)]
    expected = module(query, module.remember(*copies))
    with recording(module) as maps:
        close(module(query, module.remember(source, mask)), expected, 1e-12)
    assert maps["attention"].shape == (B, H, 2 * length, S)
    assert (maps["attention"][1, :, :, ~mask[1, 0]] == 0).all()
