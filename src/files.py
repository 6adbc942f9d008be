"""Files that are written whole or not at all, and errors that say which file is meant."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A name beside ``path``, unlike any other, to write to; after the block it is renamed.

    If the block fails, ``path`` stays as it was and nothing stays beside it.

    Raises:
        OSError: If something cannot be written; names ``path``.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with naming(path):
            yield partial
            os.replace(partial, path)
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
