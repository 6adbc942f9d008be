"""Saved results: what comes back, what is written beside it, and what is refused."""

import json
import math
import sys
from pathlib import Path

import pytest

import src.results as results


def test_saved_result_comes_back_with_its_circumstances(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    path = results.save("a_test", {"seeds": [0, 1], "bleu": {"long": 12.5}}, seconds=3.21)
    assert path == tmp_path / "a_test.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["data"] == {"seeds": [0, 1], "bleu": {"long": 12.5}}
    assert saved["name"] == "a_test" and saved["seconds"] == 3.2
    assert set(saved["versions"]) == {"python", "torch", "numpy", "sacrebleu"}
    assert saved["machine"]["threads"] >= 1 and saved["machine"]["cpu"]
    assert len(saved["date"]) == 10
    assert [p.name for p in tmp_path.iterdir()] == ["a_test.json"]  # no part left behind


def test_load_reads_what_the_package_holds():
    names = sorted(path.stem for path in results.FOLDER.glob("*.json"))
    for name in names:
        found = results.load(name)
        assert found["name"] == name and found["data"]
        assert found["command"].startswith("python ")


def test_committed_results_name_no_machine():
    for path in results.FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        for word in ("/home/", "/root/", "/tmp/", "/work/"):
            assert word not in text, f"{path.name} holds the path {word}"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--toy", "--out", "/somewhere/private/folder"], "--toy --out folder"),
        (["--out=/somewhere/private/folder"], "--out=folder"),
        (["--seeds", "0 1"], "--seeds '0 1'"),
        ([], ""),
    ],
)
def test_command_keeps_words_and_drops_folders(monkeypatch, arguments, command):
    class Module:
        __spec__ = type("Spec", (), {"name": "benchmarks.example"})()

    monkeypatch.setitem(sys.modules, "__main__", Module())
    monkeypatch.setattr(sys, "argv", ["/somewhere/example.py", *arguments])
    assert results.environment()["command"] == f"python -m benchmarks.example {command}".strip()
    Module.__spec__ = None
    assert results.environment()["command"] == f"python example.py {command}".strip()


def test_failed_save_leaves_the_old_result(tmp_path):
    path = results.save("kept", {"value": 1}, seconds=0, folder=tmp_path)
    before = path.read_bytes()
    with pytest.raises(TypeError, match="not JSON serializable"):
        results.save("kept", {"value": object()}, seconds=0, folder=tmp_path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_refused(tmp_path, value):
    with pytest.raises(ValueError, match="Out of range float values"):
        results.save("failed", {"value": value}, seconds=0, folder=tmp_path)


@pytest.mark.parametrize("name", ["../secret", "Upper", "", "a-b", "9a"])
def test_names_are_plain(tmp_path, name):
    with pytest.raises(ValueError, match="name must be letters"):
        results.load(name)
    with pytest.raises(ValueError, match="name must be letters"):
        results.save(name, {}, seconds=0, folder=tmp_path)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_seconds_cannot_be_negative(tmp_path, seconds):
    with pytest.raises(ValueError, match="seconds must be at least 0, got"):
        results.save("late", {}, seconds=seconds, folder=tmp_path)


def test_missing_result_says_how_to_make_it():
    with pytest.raises(FileNotFoundError, match="python -m benchmarks.never_measured"):
        results.load("never_measured")


def test_cpu_model_comes_from_the_system_file_where_there_is_one(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Example CPU 3000\n", encoding="utf-8")
    monkeypatch.setattr(results, "_CPUINFO", file)
    assert results.environment()["machine"]["cpu"] == "Example CPU 3000"
    monkeypatch.setattr(results, "_CPUINFO", Path("/nowhere"))
    monkeypatch.setattr(results.platform, "processor", lambda: "")
    monkeypatch.setattr(results.platform, "machine", lambda: "example64")
    assert results.environment()["machine"]["cpu"] == "example64"
