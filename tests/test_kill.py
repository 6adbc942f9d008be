"""A run that is killed at any moment: what is on disk is whole, and what follows is the same.

``KILLS=20 python -m pytest -s tests/test_kill.py`` kills more often and says where it struck.
"""

import json
import os
import random
import signal
import time

import pytest

import processes
from src.files import remove_partials
from src.training.checkpoints import load_checkpoint
from toy_training import tiny_model, trained_in_a_process

KILLS = int(os.environ.get("KILLS", "3"))
STEPS = 16 * KILLS  # four times what the kills leave time for, on average


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_like_one_never_killed(tmp_path):
    def start(name):
        out = tmp_path / f"{name}.txt"
        out.unlink(missing_ok=True)
        process = processes.start(trained_in_a_process, tmp_path / name, STEPS, out=out)
        processes.wait_for("\n", out, process)
        return process, out, time.monotonic()

    process, out, begun = start("whole")
    assert processes.finished(process) == [0], out.read_text()
    update = (time.monotonic() - begun) / STEPS
    expected = json.loads(out.read_text().splitlines()[-1])
    assert [step for step, _, _ in expected] == list(range(1, STEPS + 1))

    last = tmp_path / "killed" / "last.safetensors"
    generator, reached, struck = random.Random(KILLS), [0], []
    for number in range(KILLS):
        process, out, _ = start("killed")
        time.sleep(generator.uniform(0, 8) * update)
        while number % 2 and process.is_alive() and not any(last.parent.glob("*.partial")):
            pass  # every second one while a checkpoint is being written
        process.kill()
        assert processes.finished(process) == [-signal.SIGKILL], out.read_text()
        assert out.read_text().split()[:3] == ["resumed", str(reached[-1] > 0), str(reached[-1])]
        reached.append(load_checkpoint(last, tiny_model())["step"] if last.exists() else 0)
        struck.append(len(list(last.parent.glob("*.partial"))))
        remove_partials(last.parent)
    assert reached == sorted(reached)
    print(f"{KILLS} kills, after updates {reached[1:]}; {sum(struck)} while it wrote")
    process, out, _ = start("killed")
    assert processes.finished(process) == [0], out.read_text()
    assert json.loads(out.read_text().splitlines()[-1]) == expected  # equal to the last bit
    assert [path.name for path in last.parent.iterdir()] == ["last.safetensors"]
