"""The long experiment of chapter 10.4 at toy size, and the result that the page reads."""

import json
from dataclasses import asdict

import pytest

import src.results as results
from benchmarks import seq2seq_attention as script
from src.data.tokenization import split_words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toy():
    return script.run(script.TOY, script.toy_splits())


def test_toy_size_runs_every_model_with_every_seed(toy):
    cases = [(entry["model"], entry["seed"]) for entry in toy["runs"]]
    assert cases == [(model, seed) for seed in (0, 1) for model in script.MODELS]
    assert toy["buckets"] == ["2–4", "5–6", "7–8"]
    assert sum(toy["bucket_sizes"]) == toy["sizes"]["test_pairs"] == 60
    lengths = [len(split_words(source)) for source, _ in toy["samples"]]
    assert [script._bucket(n, script.TOY.buckets) for n in lengths] == [0, 1, 2]
    assert all(len(entry["samples"]) == 3 for entry in toy["runs"])
    for entry in toy["runs"]:
        assert 0 <= entry["bleu"] <= 100 and len(entry["bleu_by_length"]) == 3
        assert entry["loss"][0] == pytest.approx(3.5, abs=0.5)  # about ln(34): nothing learnt yet


def test_models_differ_by_the_scorer_alone(toy):
    count = {name: summary["parameters"] for name, summary in toy["summary"].items()}
    d, h = script.TOY.d_state, script.TOY.d_score
    assert count["previous"] == count["current"] == count["fixed"] + h * (2 * d + 1)


def test_seeds_decide_everything_but_the_time(toy):
    def timeless(data):
        runs = [{k: v for k, v in run.items() if k != "cpu_seconds"} for run in data["runs"]]
        return data | {"runs": runs, "summary": None}

    again = script.run(script.TOY, script.toy_splits())
    assert timeless(again) == timeless(toy)


def test_summary_is_mean_and_spread_over_seeds():
    def entry(model, bleu, by_length):
        return {
            "model": model,
            "bleu": bleu,
            "bleu_by_length": by_length,
            "cpu_seconds": 1.0,
            "parameters": 7,
        }

    runs = [entry("a", 10.0, [1.0, 4.0]), entry("b", 99.0, [9, 9]), entry("a", 14.0, [3.0, 4.0])]
    found = script.summarise("a", runs)
    assert found["bleu"] == [12.0, 2.83] and found["bleu_by_length"] == [[2.0, 1.41], [4.0, 0.0]]
    assert found["parameters"] == 7
    assert script.summarise("b", runs)["bleu"] == [99.0, 0.0]  # one seed has no spread


def test_buckets():
    assert script.bucket_names((2, 6, 8), 12) == ["2–5", "6–7", "8–12"]
    assert [script._bucket(n, (2, 6, 8)) for n in (1, 2, 5, 6, 7, 8, 30)] == [0, 0, 0, 1, 1, 2, 2]
    for starts in ((2, 2), (6, 2), (), (2, 13)):
        with pytest.raises(ValueError, match="buckets must rise up to at most 12, got"):
            script.bucket_names(starts, 12)


def test_toy_runs_save_only_where_they_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "FOLDER", tmp_path / "package")
    script.main(["--toy", "--steps", "1", "--seeds", "5"])
    assert not (tmp_path / "package").exists()
    script.main(["--toy", "--steps", "1", "--seeds", "5", "--out", str(tmp_path / "own")])
    saved = json.loads((tmp_path / "own" / "seq2seq_attention.json").read_text(encoding="utf-8"))
    assert saved["data"]["settings"]["seeds"] == [5] and saved["data"]["settings"]["steps"] == 1
    assert "saved seq2seq_attention.json" in capsys.readouterr().out


def test_toy_sentences_are_reversed():
    splits = script.toy_splits()
    for source, target in splits.train + splits.test:
        assert split_words(source) == split_words(target)[::-1]


def test_saved_result_is_that_of_the_full_settings():
    data = results.load(script.NAME)["data"]
    assert data["settings"] == json.loads(json.dumps(asdict(script.Settings())))
    assert len(data["runs"]) == len(script.MODELS) * len(script.Settings().seeds)
    assert data["summary"] == {name: script.summarise(name, data["runs"]) for name in script.MODELS}
    assert sum(data["bucket_sizes"]) == data["sizes"]["test_pairs"] > 1000
