"""Processes for tests in which one is killed, interrupted or meets a limit, or in which two train.

Importing PyTorch and the package takes longer than such a test. So each process is a fork of a
server that has imported both and done nothing else: it has no thread of the test's process, none
of its open files and no hook of pytest's. Windows has no forks; there each one starts anew.
"""

import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from pathlib import Path

FORKS = "forkserver" in multiprocessing.get_all_start_methods()
CONTEXT = multiprocessing.get_context("forkserver" if FORKS else "spawn")
if FORKS:
    # Dynamo is imported by every optimizer at its first step.
    CONTEXT.set_forkserver_preload(["src.train", "torch._dynamo", "torch.distributed.fsdp"])


def start(function, *arguments, out: Path, err: Path | None = None, environment=None, limit=None):
    """Start a process that calls a function and leaves with what it returns.

    Args:
        out: The file for its standard output.
        err: The file for its standard error, if that is another one.
        environment: Variables that it sees besides those of this process.
        limit: The size in bytes beyond which no file of its own may grow, as on a full disk.
    """
    given = (function, arguments, out, err or out, environment or {}, limit)
    process = CONTEXT.Process(target=_call, args=given)
    process.start()
    return process


def _call(function, arguments, out, err, environment, limit):
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environment)
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.exit(function(*arguments))


def finished(*processes, seconds=400, grace=0):
    """Wait for all to end; when one fails, end the others, as torchrun does. Their statuses.

    With ``grace`` the others have as many seconds to end by themselves.
    """
    waiting = {process.sentinel: process for process in processes}
    failed = False
    while waiting:
        ended = multiprocessing.connection.wait(waiting, timeout=grace if failed else seconds)
        for sentinel in ended:
            waiting.pop(sentinel).join()
        failed = any(process.exitcode for process in processes)
        if not ended or (failed and not grace):
            for process in waiting.values():
                process.terminate()
                process.join(5)
                process.kill()
                process.join()
            break
    assert ended, f"a process did not end within {grace if failed else seconds} seconds"
    return [process.exitcode for process in processes]


def wait_for(words, out: Path, process):
    """Return once a process has written these words, or has ended."""
    while process.is_alive() and not (out.exists() and words in out.read_text()):
        time.sleep(0.005)
