"""The script behind claim 10.7-13 runs from end to end, at toy size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def test_the_race_measures_both_models(tmp_path):
    command = [sys.executable, "-m", "benchmarks.transformer_against_recurrence", "--toy"]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, check=True, timeout=300)
    result = json.loads((tmp_path / "transformer_against_recurrence.json").read_text())
    runs = result["data"]["runs"]
    assert set(runs) == {"transformer", "recurrent"}
    for (run,) in runs.values():
        (point,) = run["points"]
        assert point["step"] >= 5 and point["seconds"] > 0
        assert 0 < point["loss"] < 10 and 0 <= point["bleu"] <= 100
    assert "--toy" in result["command"]
