"""The long experiments of chapter 10.6 at toy size: positions, and convolution against attention."""

import pytest
import torch

import src.results as results
from benchmarks import cnn_against_attention, positions
from src.applications.classification import IGNORED

pytestmark = pytest.mark.slow


def test_beyond_keeps_the_later_targets():
    targets = torch.arange(14).view(2, 7)
    later = positions.beyond(targets, 5)
    assert torch.equal(later[:, 5:], targets[:, 5:]) and (later[:, :5] == IGNORED).all()
    assert targets.tolist() == torch.arange(14).view(2, 7).tolist()  # the argument is left alone


def test_positions_at_toy_size():
    data = positions.run(positions.TOY)
    assert [r["kind"] for r in data["runs"]] == list(positions.KINDS)
    for run in data["runs"]:
        assert len(run["accuracy"]) == 3 and all(0 <= a <= 1 for a in run["accuracy"])
        assert run["beyond"][:2] == [None, None] and 0 <= run["beyond"][2] <= 1
    assert data == positions.run(positions.TOY)  # the seeds decide everything


def test_positions_are_those_of_the_kind():
    counts = {
        kind: sum(p.numel() for p in positions.build(kind, positions.FULL).parameters())
        for kind in positions.KINDS
    }
    table = max(positions.FULL["lengths"]) * positions.FULL["d_model"]
    assert counts["learned"] == counts["none"] + table
    assert counts["sinusoidal"] == counts["rotary"] == counts["none"]


def test_digits_are_split_once_and_shuffled_by_seed():
    (first, first_labels), test = cnn_against_attention.digits(397, 0)
    (second, _), again = cnn_against_attention.digits(397, 1)
    assert first.shape == (1400, 1, 8, 8) and test[0].shape == (397, 1, 8, 8)
    assert torch.equal(test[0], again[0]) and torch.equal(test[1], again[1])
    assert not torch.equal(first, second)
    assert first.min() >= 0 and first.max() == 1
    assert sorted(first_labels.unique().tolist()) == list(range(10))
    rows = torch.cat([first, test[0]]).flatten(1).sum(1).sort().values
    assert torch.equal(rows, torch.cat([second, again[0]]).flatten(1).sum(1).sort().values)


def test_cnn_against_attention_at_toy_size():
    data = cnn_against_attention.run(cnn_against_attention.TOY)
    cases = [(r["size"], r["model"]) for r in data["runs"]]
    assert cases == [(s, m) for s in (20, 40) for m in ("convolution", "attention")]
    assert all(0 <= r["accuracy"] <= 1 for r in data["runs"])
    assert data["weights"] == {"convolution": 36_190, "attention": 39_514}
    assert data == cnn_against_attention.run(cnn_against_attention.TOY)


def test_sizes_out_of_range_are_named():
    with pytest.raises(ValueError, match="test_images must lie in 1 … 1796, but is 1797"):
        cnn_against_attention.digits(1797, 0)
    with pytest.raises(ValueError, match="size must lie in 1 … 1400, but is 1401"):
        cnn_against_attention.measure("attention", 1401, 0, cnn_against_attention.TOY)


@pytest.mark.parametrize("script", [positions, cnn_against_attention])
def test_toy_runs_save_nothing(script, monkeypatch, capsys):
    saved = []
    monkeypatch.setattr(results, "save", lambda *a, **k: saved.append(a))
    script.main(["--toy"])
    assert saved == [] and len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize("name", ["positions", "cnn_against_attention"])
def test_saved_results_are_those_of_the_full_settings(name):
    script = {"positions": positions, "cnn_against_attention": cnn_against_attention}[name]
    data = results.load(name)["data"]
    assert data["settings"] == script.FULL
    models = len(positions.KINDS) if name == "positions" else 2 * len(script.FULL["sizes"])
    assert len(data["runs"]) == models * len(script.FULL["seeds"])
