"""Plants the faults of `faults.py`: for each, an assertion of a claim or a test must fail."""

import collections
import json
import os
import subprocess
import sys

import pytest

from faults import FAULTS
from sample import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here"),
]
SERVER = ROOT / "tests" / "fault_server.py"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A function that plants a fault and returns what was seen of it, and what was said."""
    log = tmp_path_factory.mktemp("faults") / "log.txt"
    command = [sys.executable, SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:

        def planted(number):
            server.stdin.write(json.dumps([number, str(log)]) + "\n")
            server.stdin.flush()
            return server.stdout.readline().strip(), log.read_text(encoding="utf-8")

        yield planted
        server.stdin.close()


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=lambda n: FAULTS[n].name)
def test_the_fault_is_noticed(planted, number):
    seen, log = planted(number)
    assert seen == "AssertionError", log


def test_the_same_claims_and_tests_pass_without_a_fault(planted):
    seen, log = planted(None)
    assert seen == "nothing" and "skipped" not in log.splitlines()[-1], log


def test_each_chapter_notices_two():
    seen = collections.Counter(f.seen_by.split("-")[0] for f in FAULTS if "::" not in f.seen_by)
    assert len(seen) == 8 and min(seen.values()) >= 2
    assert len({f.name for f in FAULTS}) == len(FAULTS)
