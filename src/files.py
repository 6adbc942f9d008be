"""Files that are written whole or not at all, and errors that say which file is meant."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file to write to, in a folder of its own beside ``path``; after the block it is renamed.

    The file is forced to disk before it is renamed and its folder after, so that ``path`` is the
    old file or the new one, whole, even after a power cut. If the block fails, ``path`` stays as
    it was and nothing stays beside it.

    Raises:
        OSError: If something cannot be written; names ``path``.
    """
    path = Path(path)
    folder = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    partial = folder / path.name
    try:
        with naming(path):
            folder.mkdir()  # a library may put a file of its own beside the one that it writes
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
            _flush_folder(path.parent)
    except OSError as error:
        if error.filename not in (str(folder), str(partial)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    """Force to disk which names a folder has, where a system or a file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)  # which Windows refuses
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_partials(folder: Path) -> None:
    """Remove what `replacing` left in a folder where a process was killed while it wrote."""
    for partial in folder.glob(f"*.{'[0-9a-f]' * 32}.partial"):
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name the file in an `OSError` that names none, as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
