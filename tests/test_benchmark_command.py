"""The command line of the long experiments: which settings, and what is saved where."""

import json

import pytest

import src.results as results
from benchmarks import _command


@pytest.fixture
def experiment(monkeypatch, tmp_path):
    """Run the command line of a made-up experiment; the package's folder is another one."""
    monkeypatch.setattr(results, "FOLDER", tmp_path / "package")

    def run(*arguments):
        def measure(settings):
            return {"settings": settings, "runs": [1, 2]}

        def tell(data):
            print(sum(data["runs"]))

        full, toy = {"steps": 9}, {"steps": 1}
        _command.run("made_up", "Made up.", measure, tell, full, toy, arguments)

    return run


def test_a_toy_run_saves_only_where_it_is_told(experiment, tmp_path, capsys):
    experiment("--toy")
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == "3\n"
    experiment("--toy", "--out", str(tmp_path / "own"))
    saved = json.loads((tmp_path / "own" / "made_up.json").read_text(encoding="utf-8"))
    assert saved["data"]["settings"] == {"steps": 1} and not (tmp_path / "package").exists()
    assert capsys.readouterr().out == "3\nsaved made_up.json\n"


def test_a_full_run_saves_in_the_package(experiment, tmp_path):
    experiment()
    saved = json.loads((tmp_path / "package" / "made_up.json").read_text(encoding="utf-8"))
    assert saved["data"]["settings"] == {"steps": 9} and saved["machine"]["threads"] == 1
