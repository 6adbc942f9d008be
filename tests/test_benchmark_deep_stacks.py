"""The long experiment with deep stacks of chapter 10.7 at toy size, and the saved result."""

import json

import pytest
import torch

import src.results as results
from benchmarks import deep_stacks as script

pytestmark = pytest.mark.slow


def test_toy_size_measures_every_stack(tmp_path, capsys):
    script.main(["--toy", "--out", str(tmp_path)])
    data = json.loads((tmp_path / "deep_stacks.json").read_text(encoding="utf-8"))["data"]
    assert [entry["stack"] for entry in data["runs"]] == list(script.STACKS)
    for entry in data["runs"]:
        assert len(entry["gradients"]) == 3 and min(entry["gradients"]) > 0
        assert len(entry["losses"]) == 2
    assert len(capsys.readouterr().out.splitlines()) == len(script.STACKS) + 1


def test_seeds_decide_everything():
    first, again, other = (script.measure("post-norm", s, script.TOY) for s in (0, 0, 1))
    assert first == again
    assert first["losses"] != other["losses"] and first["gradients"] != other["gradients"]


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_parts_are_what_they_are_called(add, norm):
    """With both parts the wrapper is the package's post-norm."""
    x = 3 * torch.randn(2, 5, 8)
    found = script.Parts(8, add, norm)(x, torch.sin)
    expected = torch.sin(x) + (x if add else 0)
    if norm:
        expected = torch.nn.functional.layer_norm(expected, [8])
    torch.testing.assert_close(found, expected)


def test_warm_up_changes_training_and_not_the_start():
    plain, warm = (script.measure(n, 0, script.TOY) for n in ("post-norm, no warm-up", "post-norm"))
    assert plain["gradients"] == warm["gradients"] and plain["losses"] != warm["losses"]


def test_saved_result_is_that_of_the_full_settings():
    data = results.load("deep_stacks")["data"]
    assert data["settings"] == script.FULL
    cases = {(entry["stack"], entry["seed"]) for entry in data["runs"]}
    assert cases == {(name, seed) for name in script.STACKS for seed in script.FULL["seeds"]}
    for entry in data["runs"]:
        assert len(entry["gradients"]) == 12 and len(entry["losses"]) == 16
