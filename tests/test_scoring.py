"""Scores: leading axes, memory, d2l's layer, half precision, every refusal."""

import pytest
import torch

from src.masks import valid_lens_mask
from src.scoring import AdditiveScore, BilinearScore, DotScore, ScaledDotScore, Score, attend

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
    score.load_state_dict(
        {
            "query_proj.weight": theirs.W_q.weight,
            "key_proj.weight": theirs.W_k.weight,
            "output.weight": theirs.w_v.weight,
        }
    )
    query, key, value = torch.randn(B, T, DQ), torch.randn(B, S, DK), torch.randn(B, S, DV)
    lens = torch.tensor([3, 7])
    output, weights = attend(
        score, query, key, value, valid_lens_mask(lens, S), return_weights=True
    )
    expected = theirs(query.clone(), key.clone(), value.clone(), lens.clone())
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, theirs.attention_weights)


def test_what_there_is_to_learn():
    count = {name: sum(p.numel() for p in make(name)[0].parameters()) for name in NAMES}
    assert count == {"dot": 0, "scaled": 0, "bilinear": DQ * DK, "additive": (DQ + DK + 1) * HIDDEN}


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
