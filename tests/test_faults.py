"""Plants faults into copies of the package and demands that the tests notice.

A test that stays green whatever the code does proves nothing. Each fault of `faults.py` is a
mistake seen in real codebases; the test named beside it must fail on a copy with that fault, and
pass on an untouched copy.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults import FAULTS

ROOT = Path(__file__).parents[1]
SERVER = Path(__file__).with_name("fault_server.py")


@pytest.fixture(scope="session")
def server():
    """The process that runs tests on copies; one for all faults of a worker."""
    with subprocess.Popen(
        [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


def copy_package(folder):
    """The package, the tests and a pytest configuration without the annotations' checks."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")


def run(server, folder, tests):
    """Exit status of pytest and what it printed."""
    server.stdin.write(json.dumps([str(folder), tests]) + "\n")
    server.stdin.flush()
    status = int(server.stdout.readline())
    return status, (folder / "log.txt").read_text()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_is_noticed(server, tmp_path, fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.old!r} must occur exactly once in {fault.file}"
    copy_package(tmp_path)
    (tmp_path / fault.file).write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    status, log = run(server, tmp_path, ["--maxfail=1", fault.test])
    summary = log.splitlines()[-1]
    failed = "1 failed" in summary and "error" not in summary
    assert status == pytest.ExitCode.TESTS_FAILED and failed, f"{fault.test} did not fail:\n{log}"


def test_the_same_tests_pass_without_a_fault(server, tmp_path):
    copy_package(tmp_path)
    status, log = run(server, tmp_path, sorted({fault.test for fault in FAULTS}))
    assert status == pytest.ExitCode.OK, log
    assert "skipped" not in log.splitlines()[-1], log


def test_no_two_faults_are_alike():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)
