"""Plants faults into copies of the package and demands that the tests notice.

A test that stays green whatever the code does proves nothing. Each fault of `faults.py` is a
mistake seen in real codebases; the test named beside it must fail on a copy with that fault, and
pass on an untouched copy.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sample  # noqa: F401 - puts tools/ on the path
from faults import FAULTS

import browser

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SERVER = Path(__file__).with_name("fault_server.py")


def runs_here(fault):
    """Scripts for the reader's browser are tested in one."""
    return browser.find() is not None or not fault.file.endswith(".js")


@pytest.fixture(scope="session")
def server():
    """The process that runs tests on copies; one for all faults of a worker."""
    with subprocess.Popen(
        [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


def copy_package(folder):
    """The package, what its tests use, and a configuration without the annotations' checks."""
    for name in ("src", "tests", "benchmarks", "tools"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n slow\n")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A copy that the faults are planted into, one after the other; it keeps its bytecode."""
    path = tmp_path_factory.mktemp("copy")
    copy_package(path)
    return path


@contextlib.contextmanager
def planted(folder, fault):
    """Plant a fault, and take it out again."""
    path = folder / fault.file
    text, times = path.read_text(encoding="utf-8"), path.stat()
    assert text.count(fault.old) == 1, f"{fault.old!r} must occur exactly once in {fault.file}"
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    # Bytecode belongs to a second and a size: each fault gets a second of its own, long ago.
    os.utime(path, (1 + FAULTS.index(fault),) * 2)
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def run(server, folder, tests):
    """Exit status of pytest and what it printed."""
    server.stdin.write(json.dumps([str(folder), tests]) + "\n")
    server.stdin.flush()
    status = int(server.stdout.readline())
    return status, (folder / "log.txt").read_text()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_is_noticed(server, folder, fault):
    if not runs_here(fault):
        pytest.skip("no Chromium or Chrome on this machine")
    with planted(folder, fault):
        status, log = run(server, folder, ["--maxfail=1", fault.test])
    summary = log.splitlines()[-1]
    failed = "1 failed" in summary and "error" not in summary
    assert status == pytest.ExitCode.TESTS_FAILED and failed, f"{fault.test} did not fail:\n{log}"


def test_the_same_tests_pass_without_a_fault(server, folder):
    status, log = run(server, folder, sorted({f.test for f in FAULTS if runs_here(f)}))
    assert status == pytest.ExitCode.OK, log
    assert "skipped" not in log.splitlines()[-1], log


def test_no_two_faults_are_alike():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)
