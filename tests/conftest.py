"""What every test shares: one thread, one seed, and GPU tests skipped where there is no GPU.

Nothing here imports `src` at the top: the jaxtyping hook, which checks the annotations,
has to be in place before the package is imported for the first time.
"""

import multiprocessing.process
import os
import re
import subprocess

# More threads than cores makes small matrix products slower, and with pytest-xdist each worker
# has a core of its own. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import jaxtyping
import matplotlib
import pytest
import torch

matplotlib.use("Agg")
torch.set_num_threads(1)
# A busy machine is no fault of the code, and what fails once shall fail again.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=100, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _same_start():
    """Start each test from the same random state, with numbers next to 0 kept as they are."""
    torch.manual_seed(0)
    torch.set_flush_denormal(False)


@pytest.fixture
def unchecked():
    """Switch the annotations' checks off, so that the package's own message is what is raised."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def pytest_addoption(parser):
    parser.addoption(
        "--package",
        action="store_true",
        help="only the tests of the package: no book, no tool of it, no other library but PyTorch",
    )


def pytest_ignore_collect(collection_path, config):
    """Leave out, under `--package`, what needs more than `pip install -e .[tests]` brings."""
    if config.getoption("--package") and collection_path.name.startswith("test_"):
        text = collection_path.read_text(encoding="utf-8")
        if re.search(
            r"^(?:import|from) (?:sample|nbclient|d2l|transformers)\b", text, re.MULTILINE
        ):
            return True
    return None


def _refuse(*arguments, **options):
    raise AssertionError("a test that starts a process is marked `slow`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Hold `make check` fast: what it runs may start no process, nor may its fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("slow") is None:
            patch.setattr(subprocess.Popen, "__init__", _refuse)
            patch.setattr(multiprocessing.process.BaseProcess, "start", _refuse)
        return (yield)


def pytest_collection_modifyitems(items):
    """Skip tests marked `gpu`, and say why, where no CUDA device is present."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
