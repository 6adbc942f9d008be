"""Positions: the formulas, offsets, what survives a cast, and every refusal."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from src.positions import (
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    check_span,
    sinusoidal_table,
)

ADDING = {
    "sinusoidal": lambda: SinusoidalPositions(11, 29),
    "learned": lambda: LearnedPositions(11, 29),
}


@pytest.mark.parametrize("d_model", [1, 2, 11, 14])
def test_table_equals_the_formula(d_model):
    table = sinusoidal_table(13, d_model, torch.float64)
    for i in range(13):
        for c in range(d_model):
            assert table[i, c].item() == pytest.approx(
                reference.sinusoid(i, c, d_model), abs=1e-13
            )


def test_table_far_out_is_exact_to_float32():
    table = sinusoidal_table(20_000, 6)
    expected = [reference.sinusoid(19_999, c, 6) for c in range(6)]
    assert table.dtype == torch.float32
    assert table[-1].tolist() == pytest.approx(expected, abs=1e-7)


def test_a_shift_is_a_linear_map_of_the_encodings():
    table = sinusoidal_table(31, 14, torch.float64)
    shift = 5
    for j in range(7):
        angle = shift / 10000 ** (2 * j / 14)
        turn = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]],
            dtype=torch.float64,
        )
        plane = table[:, 2 * j : 2 * j + 2]
        torch.testing.assert_close(plane[:-shift] @ turn.T, plane[shift:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ADDING)
def test_positions_are_added(kind):
    positions, x = ADDING[kind](), torch.randn(3, 5, 11)
    table = positions.table if kind == "sinusoidal" else positions.weight
    torch.testing.assert_close(positions(x), x + table[:5], rtol=0, atol=0)
    torch.testing.assert_close(positions(x, offset=7), x + table[7:12], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ADDING)
def test_offset_continues_where_the_last_chunk_ended(kind):
    positions, x = ADDING[kind](), torch.randn(3, 7, 11)
    chunks = [positions(x[:, :2]), positions(x[:, 2:3], offset=2), positions(x[:, 3:], offset=3)]
    assert torch.equal(torch.cat(chunks, 1), positions(x))


def test_learned_gradients_reach_the_used_rows_only():
    positions = LearnedPositions(11, 13)
    positions(torch.randn(3, 5, 11), offset=2).sum().backward()
    used = torch.zeros(13, dtype=torch.bool)
    used[2:7] = True
    assert bool((positions.weight.grad[used] == 3).all())
    assert bool((positions.weight.grad[~used] == 0).all())


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make", [lambda: SinusoidalPositions(6, 600), lambda: RotaryPositions(6, 600)]
)
def test_a_cast_to_half_precision_keeps_positions_apart(make, half):
    """Angles computed in bfloat16 collide from position 256 on; the table stays float32."""
    positions, before = make(), make().table
    positions.to(half)
    assert positions.table.dtype == torch.float32
    assert torch.equal(positions.table, before)
    assert len(positions.table.flatten(1).unique(dim=0)) == 600
    assert copy.deepcopy(positions).to(torch.float32).table.equal(before)


@pytest.mark.parametrize(
    "make", [lambda: SinusoidalPositions(6, 600), lambda: RotaryPositions(6, 600)]
)
def test_double_builds_the_table_anew_in_float64(make):
    single, double = make().table, make().double().table
    assert double.dtype == torch.float64
    assert torch.equal(double.float(), single)
    assert not torch.equal(double, single.double()), "a cast table keeps the error of float32"
    assert torch.equal(make().to(torch.bfloat16).double().table, double)


@pytest.mark.parametrize(
    "make", [lambda: SinusoidalPositions(6, 600), lambda: RotaryPositions(6, 600)]
)
def test_a_table_made_without_storage_is_filled_on_arrival(make):
    """``torch.device("meta")`` allocates nothing; no state dict would bring the table."""
    with torch.device("meta"):
        positions = make()
    assert positions.to_empty(device="cpu").table.equal(make().table)


def test_half_precision_tokens_stay_half_precision():
    x = torch.randn(3, 5, 6, dtype=torch.bfloat16)
    assert SinusoidalPositions(6, 9)(x).dtype == torch.bfloat16
    assert LearnedPositions(6, 9)(x).dtype == torch.bfloat16
    assert RotaryPositions(6, 9)(x).dtype == torch.bfloat16


def test_constant_tables_are_not_stored():
    assert not SinusoidalPositions(6, 9).state_dict()
    assert not RotaryPositions(6, 9).state_dict()
    assert list(LearnedPositions(6, 9).state_dict()) == ["weight"]


def test_rotary_turns_complex_numbers():
    x = torch.randn(3, 2, 5, 14, dtype=torch.float64)
    turned = RotaryPositions(14, 29).double()(x, offset=11)
    for b in range(3):
        for h in range(2):
            for t in range(5):
                expected = reference.rotate(x[b, h, t].tolist(), 11 + t)
                assert turned[b, h, t].tolist() == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_rotary_scores_depend_on_the_distance_only(query_at, key_at, shift):
    rotary = RotaryPositions(14, 100).double()
    query, key = torch.randn(2, 1, 14, dtype=torch.float64)

    def score(i, j):
        return (rotary(query, i) * rotary(key, j)).sum().item()

    assert score(query_at, key_at) == pytest.approx(
        score(query_at + shift, key_at + shift), abs=1e-12
    )
    assert rotary(query, query_at).norm().item() == pytest.approx(query.norm().item(), abs=1e-12)


def test_rotary_at_position_zero_is_the_identity():
    x = torch.randn(1, 14)
    assert torch.equal(RotaryPositions(14, 3)(x), x)


def test_rotary_offset_continues():
    rotary, x = RotaryPositions(14, 29), torch.randn(3, 2, 7, 14)
    chunks = [rotary(x[:, :, :4]), rotary(x[:, :, 4:], offset=4)]
    assert torch.equal(torch.cat(chunks, 2), rotary(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoidal_table(0, 6), "max_len must be at least 1, but is 0"),
        (lambda: sinusoidal_table(6, 0), "d_model must be at least 1, but is 0"),
        (lambda: SinusoidalPositions(6, 0), "max_len must be at least 1, but is 0"),
        (lambda: LearnedPositions(6, 0), "max_len must be at least 1, but is 0"),
        (lambda: LearnedPositions(0, 6), "d_model must be at least 1, but is 0"),
        (lambda: RotaryPositions(6, 0), "max_len must be at least 1, but is 0"),
        (lambda: RotaryPositions(7, 5), "head_dim must be even for rotary positions, but is 7"),
        (lambda: RotaryPositions(0, 5), "head_dim must be even for rotary positions, but is 0"),
        (lambda: check_span(3, -1, 5), "offset must be at least 0, but is -1"),
        (
            lambda: SinusoidalPositions(6, 5)(torch.zeros(1, 6, 6)),
            r"max_len is 5, but positions up to 5 are asked for \(offset 0, length 6\)",
        ),
        (lambda: SinusoidalPositions(6, 5)(torch.zeros(1, 2, 6), offset=4), "positions up to 5"),
        (lambda: LearnedPositions(6, 5)(torch.zeros(1, 2, 6), offset=4), "positions up to 5"),
        (lambda: LearnedPositions(6, 5)(torch.zeros(1, 2, 6), offset=-2), "offset must be"),
        (lambda: RotaryPositions(6, 5)(torch.zeros(2, 6), offset=4), "positions up to 5"),
    ],
)
def test_bad_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make", [lambda: SinusoidalPositions(14, 600), lambda: RotaryPositions(14, 600)]
)
def test_gpu_equals_cpu(make):
    here, there = make(), make().to("cuda", torch.bfloat16)
    assert there.table.device.type == "cuda"
    assert torch.equal(there.table.cpu(), here.table)
    x = torch.randn(3, 5, 14)
    torch.testing.assert_close(there(x.cuda(), 500).cpu(), here(x, 500), rtol=0, atol=1e-6)
