"""Files that are written whole or not at all, and errors that say which file is meant."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A name beside ``path``, unlike any other, to write to; after the block it is renamed.

    If the block fails, ``path`` stays as it was and nothing stays beside it. The file is on the
    disk before it is renamed, and the name before this returns, so that after a loss of power
    there is the old file or the new one.

    Raises:
        OSError: If something cannot be written; names ``path``.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with naming(path):
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
            if os.name == "posix":
                folder = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
    except OSError as error:
        if error.filename != str(partial):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink()


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name the file in an `OSError` that names none, as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
