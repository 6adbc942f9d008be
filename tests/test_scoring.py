"""Scores against loops written from the formulas, real networks and the layers of d2l."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from src.functional import attention
from src.masks import padding_mask, valid_lens_mask
from src.multihead import MultiHeadAttention
from src.scoring import AdditiveScore, BilinearScore, DotScore, Score, ScaledDotScore, attend

# Batch, heads, queries, keys, width of a query, of a key, of a value, hidden: all different.
B, H, T, S, DQ, DK, DV, HIDDEN = 2, 3, 5, 7, 11, 13, 17, 19
NAMES = ["dot", "scaled", "bilinear", "additive"]


def make(name: str, d_query: int = DQ, d_key: int = DK, dtype=torch.float64) -> tuple[Score, int]:
    """A score and the width of its keys: for the dot products that of the queries."""
    score = {
        "dot": DotScore,
        "scaled": ScaledDotScore,
        "bilinear": lambda: BilinearScore(d_query, d_key),
        "additive": lambda: AdditiveScore(d_query, d_key, HIDDEN),
    }[name]()
    return score.to(dtype), d_query if name in ("dot", "scaled") else d_key


def one_score(name: str, score: Score, q: list[float], k: list[float]) -> float:
    """The formula for one query and one key, in plain numbers."""
    if name in ("dot", "scaled"):
        dot = sum(a * b for a, b in zip(q, k, strict=True))
        return dot if name == "dot" else dot / math.sqrt(len(q))
    if name == "bilinear":
        weight = score.weight.tolist()
        return sum(
            q[i] * weight[i][j] * k[j] for i in range(len(q)) for j in range(len(k))
        )
    total = 0.0
    rows = zip(
        score.query_proj.weight.tolist(), score.key_proj.weight.tolist(),
        score.output.weight[0].tolist(), strict=True,
    )
    for to_query, to_key, weight in rows:
        inside = sum(a * b for a, b in zip(to_query, q, strict=True))
        inside += sum(a * b for a, b in zip(to_key, k, strict=True))
        total += weight * math.tanh(inside)
    return total


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_formula(name):
    score, d_key = make(name)
    query = torch.randn(B, T, DQ, dtype=torch.float64)
    key = torch.randn(B, S, d_key, dtype=torch.float64)
    expected = [
        [[one_score(name, score, q, k) for k in keys] for q in queries]
        for queries, keys in zip(query.tolist(), key.tolist(), strict=True)
    ]
    found = score(query, key)
    assert found.shape == (B, T, S)
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_derivatives(name):
    score, d_key = make(name)
    query = torch.randn(B, 3, DQ, dtype=torch.float64, requires_grad=True)
    key = torch.randn(B, 5, d_key, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*score.named_parameters()) if score.state_dict() else ((), ())

    def run(query, key, *values):
        return torch.func.functional_call(score, dict(zip(names, values)), (query, key))

    assert torch.autograd.gradcheck(run, (query, key, *parameters))


@pytest.mark.parametrize("name", NAMES)
def test_leading_axes_broadcast(name):
    """Each head, and each pairing of a lone axis with a long one, is scored as if alone."""
    score, d_key = make(name)
    query = torch.randn(B, H, T, DQ, dtype=torch.float64)
    key = torch.randn(B, H, S, d_key, dtype=torch.float64)
    found = score(query, key)
    assert found.shape == (B, H, T, S)
    for b in range(B):
        for h in range(H):
            alone = score(query[b, h], key[b, h])
            torch.testing.assert_close(found[b, h], alone, atol=1e-12, rtol=0)
    crossed = score(query[:, :1], key[:1])
    assert crossed.shape == (B, H, T, S)
    torch.testing.assert_close(
        crossed, score(query[:, :1].expand_as(query), key[:1].expand_as(key)), atol=1e-12, rtol=0
    )


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(NAMES), seed=st.integers(0, 10**6), queries=st.integers(1, 7),
    keys=st.integers(1, 7), d_query=st.integers(1, 7), d_key=st.integers(1, 7),
)
def test_a_score_depends_on_its_own_pair_only(name, seed, queries, keys, d_query, d_key):
    """Permuting queries and keys permutes the scores, and a changed key changes one column."""
    torch.manual_seed(seed)
    score, d_key = make(name, d_query, d_key)
    query = torch.randn(queries, d_query, dtype=torch.float64)
    key = torch.randn(keys, d_key, dtype=torch.float64)
    rows, columns = torch.randperm(queries), torch.randperm(keys)
    found = score(query, key)
    torch.testing.assert_close(score(query[rows], key[columns]), found[rows][:, columns])
    changed = key.clone()
    changed[-1] += 1
    torch.testing.assert_close(score(query, changed)[:, :-1], found[:, :-1])


def test_scaled_is_the_score_of_attention():
    """The weights of `functional.attention` are the softmax of these scores."""
    query, key, value = torch.randn(B, T, DQ), torch.randn(B, S, DQ), torch.randn(B, S, DV)
    mask = padding_mask(torch.randint(0, 2, (B, S)), pad_id=0)
    found = attend(ScaledDotScore(), query, key, value, mask, return_weights=True)
    expected = attention(query, key, value, mask, return_weights=True)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bilinear_with_the_identity_is_the_dot_product():
    score = BilinearScore(DQ, DQ)
    nn.init.eye_(score.weight)
    query, key = torch.randn(B, T, DQ), torch.randn(B, S, DQ)
    torch.testing.assert_close(score(query, key), DotScore()(query, key))
    torch.testing.assert_close(
        score(query, key), ScaledDotScore()(query, key) * math.sqrt(DQ), atol=1e-5, rtol=1e-5
    )


def test_bilinear_is_torchs_bilinear_form():
    score = BilinearScore(DQ, DK)
    query, key = torch.randn(B, T, 1, DQ), torch.randn(B, 1, S, DK)
    expected = nn.functional.bilinear(
        query.expand(B, T, S, DQ).contiguous(), key.expand(B, T, S, DK).contiguous(),
        score.weight[None],
    )
    found = score(query.squeeze(2), key.squeeze(1))
    torch.testing.assert_close(found, expected.squeeze(-1), atol=1e-5, rtol=1e-5)


def test_additive_is_a_network_on_the_concatenation():
    """The claim of chapter 10.3, forward and backward, on a network built of linear layers."""
    score = AdditiveScore(DQ, DK, HIDDEN).double()
    network = nn.Sequential(
        nn.Linear(DQ + DK, HIDDEN, bias=False), nn.Tanh(), nn.Linear(HIDDEN, 1, bias=False)
    ).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.cat([score.query_proj.weight, score.key_proj.weight], 1))
        network[2].weight.copy_(score.output.weight)
    query = torch.randn(B, T, DQ, dtype=torch.float64)
    key = torch.randn(B, S, DK, dtype=torch.float64)
    pairs = torch.cat(
        [query[:, :, None].expand(-1, -1, S, -1), key[:, None].expand(-1, T, -1, -1)], dim=-1
    )
    found, expected = score(query, key), network(pairs).squeeze(-1)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    found.square().sum().backward()
    expected.square().sum().backward()
    joint = torch.cat([score.query_proj.weight.grad, score.key_proj.weight.grad], 1)
    torch.testing.assert_close(joint, network[0].weight.grad, atol=1e-10, rtol=0)
    torch.testing.assert_close(
        score.output.weight.grad, network[2].weight.grad, atol=1e-10, rtol=0
    )


def test_additive_keeps_one_hidden_tensor():
    """Exactly one tensor of T·S·h numbers is made, and none larger."""
    made: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
            if isinstance(result, torch.Tensor):
                if result.untyped_storage().data_ptr() not in known:
                    made.append(result.numel())
            return result

    score = AdditiveScore(DQ, DK, HIDDEN)
    query, key = torch.randn(B, T, DQ), torch.randn(B, S, DK)
    with Watch():
        score(query, key)
    assert made.count(B * T * S * HIDDEN) == 1
    assert max(made) == B * T * S * HIDDEN


def test_additive_is_d2ls_layer():
    d2l = pytest.importorskip("d2l.torch", reason="d2l is not installed")
    theirs = d2l.AdditiveAttention(key_size=DK, query_size=DQ, num_hiddens=HIDDEN, dropout=0.0)
    score = AdditiveScore(DQ, DK, HIDDEN)
    score.load_state_dict({
        "query_proj.weight": theirs.W_q.weight, "key_proj.weight": theirs.W_k.weight,
        "output.weight": theirs.w_v.weight,
    })
    query, key, value = torch.randn(B, T, DQ), torch.randn(B, S, DK), torch.randn(B, S, DV)
    lens = torch.tensor([3, 7])
    output, weights = attend(
        score, query, key, value, valid_lens_mask(lens, S), return_weights=True
    )
    expected = theirs(query.clone(), key.clone(), value.clone(), lens.clone())
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, theirs.attention_weights)


def test_scaled_is_d2ls_layer():
    d2l = pytest.importorskip("d2l.torch", reason="d2l is not installed")
    theirs = d2l.DotProductAttention(dropout=0.0)
    query, key, value = torch.randn(B, T, DQ), torch.randn(B, S, DQ), torch.randn(B, S, DV)
    lens = torch.randint(1, S, (B, T))
    output, weights = attend(
        ScaledDotScore(), query, key, value, valid_lens_mask(lens, S), return_weights=True
    )
    expected = theirs(query.clone(), key.clone(), value.clone(), lens.clone())
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, theirs.attention_weights)


@pytest.mark.parametrize("name", NAMES)
def test_multi_head_attention_takes_any_score(name):
    """With the scaled dot product it is the layer without a scorer; the rest goes through it."""
    score, _ = make(name, d_query=5, d_key=5, dtype=torch.float32)
    layer = MultiHeadAttention(H * 5, H, scorer=score)
    x = torch.randn(B, T, H * 5)
    output, weights = layer(x, return_weights=True)
    query, key, value = (
        part.unflatten(-1, (H, 5)).transpose(1, 2) for part in layer.in_proj(x).chunk(3, dim=-1)
    )
    torch.testing.assert_close(weights, score(query, key).softmax(-1))
    joined = (weights @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, layer.out_proj(joined))
    if name == "scaled":
        plain = MultiHeadAttention(H * 5, H)
        plain.load_state_dict(layer.state_dict())
        torch.testing.assert_close(output, plain(x))


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 10**6))
def test_weights_sum_to_one_or_to_zero(name, seed):
    torch.manual_seed(seed)
    score, d_key = make(name)
    query = torch.randn(B, T, DQ, dtype=torch.float64)
    key = torch.randn(B, S, d_key, dtype=torch.float64)
    value = torch.randn(B, S, DV, dtype=torch.float64)
    mask = torch.rand(B, T, S) < 0.4
    mask[0, 0] = False
    output, weights = attend(score, query, key, value, mask, return_weights=True)
    assert torch.all(weights[~mask] == 0) and torch.all(weights >= 0)
    some = mask.any(-1)
    torch.testing.assert_close(weights.sum(-1), some.double())
    assert torch.all(output[~some] == 0)
    torch.testing.assert_close(output, torch.einsum("bts,bsd->btd", weights, value))
    torch.testing.assert_close(attend(score, query, key, value, mask), output)


def test_what_there_is_to_learn():
    count = {name: sum(p.numel() for p in make(name)[0].parameters()) for name in NAMES}
    assert count == {
        "dot": 0, "scaled": 0, "bilinear": DQ * DK, "additive": (DQ + DK + 1) * HIDDEN
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_stays_and_is_near(name, dtype):
    score, d_key = make(name, dtype=torch.float32)
    query, key = torch.randn(B, T, DQ), torch.randn(B, S, d_key)
    expected = score(query, key)
    found = copy.deepcopy(score).to(dtype)(query.to(dtype), key.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=0.15, rtol=0.05)


def test_scaling_first_saves_half_precision_from_overflow():
    """q·k = 4,096 · 16 = 65,536 does not fit in float16, q·k / √4,096 = 1,024 does."""
    query = key = torch.full((1, 4096), 4.0, dtype=torch.float16)
    assert DotScore()(query, key).isinf().all()
    assert ScaledDotScore()(query, key).item() == 1024


def test_names_of_the_widths():
    assert (BilinearScore(DQ, DK).query_dim, BilinearScore(DQ, DK).key_dim) == (DQ, DK)
    assert (DotScore().query_dim, DotScore().key_dim) == (None, None)
    assert repr(BilinearScore(3, 5)) == "BilinearScore(query_dim=3, key_dim=5)"
    assert repr(DotScore()) == "DotScore()"


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", NAMES)
def test_wrong_widths_are_refused(name):
    score, d_key = make(name)
    with pytest.raises(ValueError, match=f"key must be {d_key} wide, but is 23"):
        score(torch.randn(T, DQ).double(), torch.randn(S, 23).double())
    if name in ("bilinear", "additive"):
        with pytest.raises(ValueError, match=f"query must be {DQ} wide, but is 23"):
            score(torch.randn(T, 23).double(), torch.randn(S, d_key).double())


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="the width of a query must be at least 1, but is 0"):
        BilinearScore(0, DK)
    with pytest.raises(ValueError, match="the width of a key must be at least 1, but is -1"):
        AdditiveScore(DQ, -1, HIDDEN)
    with pytest.raises(ValueError, match="d_hidden must be at least 1, but is 0"):
        AdditiveScore(DQ, DK, 0)


def test_a_score_must_be_written():
    class Empty(Score):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty must define score\(query, key\)"):
        Empty()(torch.randn(T, DQ), torch.randn(S, DQ))


def test_attend_refuses_what_does_not_fit():
    query, key, value = torch.randn(B, T, DQ), torch.randn(B, S, DQ), torch.randn(B, S, DV)
    with pytest.raises(ValueError, match="key and value must hold as many rows, but hold 7 and 6"):
        attend(DotScore(), query, key, value[:, 1:])
    with pytest.raises(ValueError, match="mask must have rank 3"):
        attend(DotScore(), query, key, value, torch.ones(T, S, dtype=torch.bool))
