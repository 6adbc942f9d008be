"""Runs tests on faulty copies of the package, each in a process of its own.

Importing PyTorch takes longer than any of these tests, so it and all else that the package and
its tests use is imported once, here, and every run is a fork of this process. The package itself
is imported in the forks only.

Reads one JSON line a run, ``[folder, [test, …]]``; answers with the exit status of pytest, whose
output goes to ``folder/log.txt``.
"""

import contextlib
import gc
import io
import json
import os
import resource
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a plugin could import the real package

import babel.dates  # noqa: E402, F401
import d2l.torch  # noqa: E402, F401
import hypothesis  # noqa: E402
import IPython.display  # noqa: E402, F401
import jaxtyping  # noqa: E402, F401
import matplotlib.backends.backend_agg  # noqa: E402, F401
import matplotlib.pyplot  # noqa: E402, F401
import platformdirs  # noqa: E402, F401
import pypi_simple  # noqa: E402, F401
import pytest  # noqa: E402
import sacrebleu  # noqa: E402, F401
import safetensors.torch  # noqa: E402, F401
import tokenizers  # noqa: E402, F401
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401
import tqdm.auto  # noqa: E402, F401
import transformers.models.bert.modeling_bert  # noqa: E402, F401

# A test of random examples has failed at the first that fails; the least one need not be found.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
hypothesis.settings.register_profile("planted", phases=PHASES, database=None, derandomize=True)
hypothesis.settings.load_profile("planted")

LIMIT = 120  # seconds of computing: a fault may well make a loop endless


def run(folder: str, tests: list[str]) -> int:
    """Run ``tests`` in ``folder``, where a copy of the package lies, and end this process."""
    log = os.open(os.path.join(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    os.chdir(folder)
    sys.path.insert(0, folder)
    options = ["-q", "-c", "pytest.ini", "-p", "no:cacheprovider", "--basetemp", "temporary"]
    options += ["--assert", "plain"]  # whether it fails is asked, not why
    status = pytest.main([*options, *tests])
    import src  # after the tests: was it the copy that they met?

    sys.stdout.flush()
    return int(status) if src.__file__.startswith(os.path.realpath(folder)) else 99


def main() -> None:
    """Answer requests until there are no more."""
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--markers", "--noconftest", "-c", os.devnull])  # imports pytest's own plugins
    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports SymPy, and more
    assert "src" not in sys.modules
    gc.freeze()  # what is here by now stays: pytest makes Python look for garbage at each end
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 98
            try:
                status = run(*json.loads(line))
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
