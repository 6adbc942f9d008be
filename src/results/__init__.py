"""Measured results that pages read: one JSON file an experiment, kept beside this file.

The long experiments live in ``benchmarks/`` and are run by hand (``make experiments``). Each saves
what it measured here, with the machine, the versions and the command; the notebooks load the file,
plot it and assert what they say about it. As package data it travels with every installation, so
a notebook in Colab finds it, too.
"""

import datetime
import json
import os
import platform
import re
import shlex
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import torch

from src.files import replacing

__all__ = ["environment", "load", "save"]

FOLDER = Path(__file__).parent
PACKAGES = ("torch", "numpy", "sacrebleu")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CPUINFO = Path("/proc/cpuinfo")


def load(name: str) -> dict[str, Any]:
    """Read a saved result.

    Args:
        name: The experiment's name, that of its script in ``benchmarks/``.

    Returns:
        A dict with ``"data"``, which is what the script measured, and ``"command"``, ``"date"``,
        ``"seconds"``, ``"machine"`` and ``"versions"``, which say how.

    Raises:
        ValueError: If `name` is not a plain lower-case name.
        FileNotFoundError: If there is no such result; the message says how to make it.
    """
    _check_name(name)
    file = resources.files(__package__) / f"{name}.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"no result {name!r} is saved; measure it with: python -m benchmarks.{name}"
        )
    return json.loads(file.read_text(encoding="utf-8"))


def save(
    name: str,
    data: dict[str, Any],
    *,
    seconds: float | int,
    folder: Path | str | None = None,
    packages: tuple[str, ...] = PACKAGES,
) -> Path:
    """Write a result with what is needed to judge and to repeat it, whole or not at all.

    Args:
        name: The experiment's name, that of its script in ``benchmarks/``.
        data: What was measured, seeds and sizes included: anything that JSON knows, without NaN.
        seconds: What the whole run took.
        folder: Where to write; this package's own folder if None.
        packages: Installed packages whose versions matter.

    Returns:
        The file that was written, ``<folder>/<name>.json``.

    Raises:
        ValueError: If `name` is not a plain lower-case name, `seconds` is negative, or `data`
            holds NaN or an infinity.
        TypeError: If `data` holds something that JSON does not know.
    """
    _check_name(name)
    if not seconds >= 0:
        raise ValueError(f"seconds must be at least 0, got {seconds}")
    content = {
        "name": name,
        "seconds": round(seconds, 1),
        **environment(packages),
        "data": data,
    }
    # `allow_nan=False`: a NaN is a failed measurement, and no valid JSON either.
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    folder = FOLDER if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def environment(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """Say on what something is measured: date, command, machine and versions.

    No host name, user name or path is among it.
    """
    machine = {
        "cpu": _cpu_model(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    versions = {"python": platform.python_version()}
    versions |= {package: metadata.version(package) for package in packages}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": _command(),
        "machine": machine,
        "versions": versions,
    }


def _command() -> str:
    """The command line as one would type it anywhere: modules by name, files without folder."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"-m {spec.name}" if spec else os.path.basename(sys.argv[0])
    words = [re.sub(r"[^=\s]*/(?=[^/]+$)", "", word) for word in sys.argv[1:]]
    return f"python {program} {shlex.join(words)}".strip()


def _cpu_model() -> str:
    """The processor's name: Linux alone keeps it in a file."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"name must be letters a-z, digits and _, got {name!r}")
