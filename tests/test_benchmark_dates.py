"""The long experiment with dates of chapter 10.4 at toy size, and the result that the page reads."""

import json

import pytest

import src.results as results
from benchmarks import dates as script
from src.data.dates import load_dates

pytestmark = pytest.mark.slow


def test_toy_size_measures_every_model(tmp_path, capsys):
    script.main(["--toy", "--out", str(tmp_path)])
    data = json.loads((tmp_path / "dates.json").read_text(encoding="utf-8"))["data"]
    assert [entry["model"] for entry in data["runs"]] == list(script.MODELS)
    for entry in data["runs"]:
        assert 0 <= entry["exact"] <= 1
        assert set(entry["right_by_length"]) == set(data["dates_by_length"])
        assert (entry["agreement"] is None) == entry["model"].startswith("fixed")
        if entry["agreement"]:
            assert 0 <= entry["agreement"]["argmax"] <= entry["agreement"]["or_next"] <= 1
    assert len(capsys.readouterr().out.splitlines()) == len(script.MODELS) + 1


def test_seeds_decide_everything():
    train, test = load_dates(80, 20)
    first, again, other = (
        script.measure("attention", seed, train, test, script.TOY) for seed in (0, 0, 1)
    )
    assert first == again
    assert first["agreement"] != other["agreement"]


def test_saved_result_is_that_of_the_full_settings():
    data = results.load("dates")["data"]
    assert data["settings"] == script.FULL
    cases = {(entry["model"], entry["seed"]) for entry in data["runs"]}
    assert cases == {(name, seed) for name in script.MODELS for seed in script.FULL["seeds"]}
    assert sum(data["dates_by_length"].values()) == script.FULL["test_dates"]
    for entry in data["runs"]:
        right = sum(entry["right_by_length"].values())
        assert right == round(entry["exact"] * script.FULL["test_dates"])
        for n, count in entry["right_by_length"].items():
            assert 0 <= count <= data["dates_by_length"][n]
