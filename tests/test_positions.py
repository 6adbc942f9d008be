"""Positions: what survives a cast, what is stored, and every refusal."""

import copy

import pytest
import torch

import oracles
from src.positions import (
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    check_span,
    sinusoidal_table,
)


def test_table_far_out_is_exact_to_float32():
    table = sinusoidal_table(20_000, 6)
    expected = [oracles.sinusoid(19_999, c, 6) for c in range(6)]
    assert table.dtype == torch.float32
    assert table[-1].tolist() == pytest.approx(expected, abs=1e-7)


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


def test_constant_tables_are_not_stored():
    assert not SinusoidalPositions(6, 9).state_dict()
    assert not RotaryPositions(6, 9).state_dict()
    assert list(LearnedPositions(6, 9).state_dict()) == ["weight"]


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
