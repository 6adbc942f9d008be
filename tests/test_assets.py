"""`src.assets`: what is pinned is what one gets, or an error that says what to do."""

import errno
import hashlib
import http.server
import io
import multiprocessing
import os
import re
import sys
import tarfile
import threading
import time
import zipfile

import pytest
from pypi_simple import PyPISimple

from src import assets
from src.assets import ASSETS, Archive, Asset, AssetError, Member, fetch

CONTENT = b"id\tJapanese\tEnglish\n" * 997
NAME = "s/SENTENCES"


class Web(http.server.ThreadingHTTPServer):
    """An index and whatever else is at an address, with the faults that a network has."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers = {}  # path → bytes, or what to do; a list is for one request after another
        self.asked = []
        self.address = f"http://127.0.0.1:{self.server_port}"

    def client(self, user=""):
        made = PyPISimple(self.address.replace("//", f"//{user}") + "/simple/")
        made.s.trust_env = False  # no proxy of this machine
        return made


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path, 404)
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, int):
            self.send_error(answer)
        elif callable(answer):
            answer(self)
        else:
            self.head(answer)
            self.wfile.write(answer)

    def head(self, data, kind="text/html"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()

    def log_message(self, *arguments):
        pass


def cut(answer):
    answer.head(GOOD)
    answer.wfile.write(GOOD[: len(GOOD) // 2])


def slow(answer):
    """Never silent for long, but 1 KiB takes almost a second."""
    answer.head(b"?" * 1024)
    for _ in range(64):
        answer.wfile.write(b"?" * 16)
        time.sleep(0.015)


def silent(answer):
    answer.head(GOOD)
    time.sleep(1.0)


def no_json(answer):
    answer.head(b"<p>Log in", "application/vnd.pypi.simple.v1+json")
    answer.wfile.write(b"<p>Log in")


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


GOOD = tar_gz({NAME: CONTENT})
FILE = "/files/demo-1.tar.gz"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("ATTENTION_DATA", str(folder))
    return folder


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr(assets, "PAUSE", 0.0)
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def serve(web, monkeypatch):
    """Return a function that puts an archive on an index and pins assets of it."""

    def serve(data, names=(NAME,), filename="demo-1.tar.gz", pinned=None, inside=(), more=()):
        listed = ("demo-0.9.tar.gz", filename)
        page = "".join(f'<a href="/files/{name}">{name}</a>' for name in listed)
        web.answers |= {"/simple/demo/": page.encode(), f"/files/{filename}": data}
        archive = Archive("demo", filename, pinned or sha256(data))
        sizes = {"size": len(CONTENT), "sha256": sha256(CONTENT), "licence": "CC0", "credit": "me"}
        table = {
            name: Asset((Member(archive, (*inside, name)), *more), f"demo/{name}", **sizes)
            for name in names
        }
        monkeypatch.setattr(assets, "ASSETS", table)
        return web.client()

    return serve


def files_in(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    ("make", "filename", "inside"),
    [
        (tar_gz, "demo-1.tar.gz", ()),
        (wheel, "demo-1.whl", ()),
        (lambda members: wheel({"a.zip": wheel(members)}), "demo-1.whl", ("a.zip",)),
        (lambda members: tar_gz({"a.zip": wheel(members)}), "demo-1.tar.gz", ("a.zip",)),
    ],
    ids=["tar", "zip", "zip in zip", "zip in tar"],
)
def test_first_fetch_downloads_all_members_and_the_second_none(
    cache, serve, web, make, filename, inside
):
    members = {NAME: CONTENT, "s/twin": CONTENT, "s/not wanted": b"other licence"}
    index = serve(make(members), [NAME, "s/twin"], filename, inside=inside)
    path = fetch(NAME, client=index)
    assert path == cache / "demo" / NAME
    assert path.read_bytes() == CONTENT
    os.utime(path, (2**32, 2**32))  # the clock was set back since: nothing goes by it
    assert fetch("s/twin", client=index).read_bytes() == CONTENT
    assert fetch(NAME, client=index) == path
    assert web.asked == ["/simple/demo/", f"/files/{filename}"]
    assert files_in(cache) == ["demo/s/SENTENCES", "demo/s/twin"]


def test_unknown_name():
    with pytest.raises(ValueError, match="name must be one of tatoeba, .*, but is 'tatoba'"):
        fetch("tatoba")


def test_without_network_the_error_says_how_to_do_without(cache, serve, web):
    serve(GOOD, more=["http://127.0.0.1:9/SENTENCES"])  # nobody listens there
    web.answers["/simple/demo/"] = 403
    with pytest.raises(AssetError) as caught:
        fetch(NAME, client=web.client("reader:secret@"))
    path = cache / "demo" / NAME
    by_hand = (
        f"put the file with sha256 {sha256(CONTENT)} at {path}; it is s/SENTENCES in demo-1.tar.gz "
        "of the package index's project demo, or http://127.0.0.1:9/SENTENCES.\n"
    )
    for needed in (by_hand, "no such file", "HTTPError: 403", "ConnectionError", "ATTENTION_DATA"):
        assert needed in str(caught.value)
    assert "secret" not in str(caught.value) and f"{web.address[7:]}/simple/" in str(caught.value)
    assert files_in(cache) == []
    # And it is so: put there by hand, it is found.
    path.write_bytes(CONTENT)
    assert fetch(NAME, client=web.client()) == path


SLOW = pytest.mark.slow
FAULTS = [
    pytest.param("/simple/demo/", 404, "NoSuchProjectError", id="no project"),
    pytest.param("/simple/demo/", b"<p>Log in", "has no file demo-1.tar.gz", id="no page"),
    pytest.param("/simple/demo/", no_json, "Error: ", id="no JSON"),
    pytest.param(FILE, 404, "HTTPError: 404", id="no file"),
    pytest.param(FILE, b"<p>Log in", "the archive is refused, its sha256 is", id="HTML"),
    pytest.param(FILE, 503, "HTTPError: 503", id="overloaded"),
    pytest.param(FILE, cut, "IncompleteRead", id="cut"),
    pytest.param(FILE, slow, "too slow: less than 1 KiB in 0.8 s", id="slow", marks=SLOW),
    pytest.param(FILE, silent, "Read timed out", id="silent", marks=SLOW),
]


@pytest.mark.parametrize(("where", "fault", "reason"), FAULTS)
def test_a_source_that_fails_is_named_and_the_next_is_used(
    cache, serve, web, monkeypatch, where, fault, reason
):
    index = serve(GOOD, more=[f"{web.address}/raw"])
    web.answers |= {where: fault, "/raw": b"?" + CONTENT[1:]}
    with monkeypatch.context() as patch, pytest.raises(AssetError) as caught:
        patch.setattr(assets, "TIMEOUT", 0.8 if fault in (slow, silent) else 30.0)
        fetch(NAME, client=index)
    assert re.search(f"project demo: .*{reason}.*\n", str(caught.value))
    assert f"Tried {web.address}/raw: SENTENCES is refused, its sha256" in str(caught.value)
    assert files_in(cache) == []
    web.answers["/raw"] = CONTENT
    assert fetch(NAME, client=index).read_bytes() == CONTENT


@pytest.mark.parametrize("fault", [503, cut], ids=["overloaded", "cut"])
def test_a_fault_that_passes_is_met_by_a_second_attempt(cache, serve, web, fault):
    index = serve(GOOD)
    web.answers[FILE] = [fault, GOOD]
    assert fetch(NAME, client=index).read_bytes() == CONTENT
    assert web.asked.count(FILE) == 2


@pytest.mark.parametrize(
    ("data", "pinned", "reason"),
    [
        (GOOD[:-100], sha256(GOOD), "the archive is refused, its sha256 is"),
        (GOOD + b"!", sha256(GOOD), "the archive is refused, its sha256 is"),
        # With the archive's own digest pinned, to reach the checks behind it:
        (GOOD[:-100], None, "s/SENTENCES cannot be opened, EOFError"),
        (b"no archive at all", None, "s/SENTENCES cannot be opened, ReadError"),
        (tar_gz({"s/other": CONTENT}), None, "s/SENTENCES cannot be opened, KeyError"),
        (tar_gz({NAME: None}), None, "s/SENTENCES is not a file"),
        (tar_gz({NAME: b"?" + CONTENT[1:]}), None, "is refused, its sha256 is"),
        (tar_gz({NAME: CONTENT[:-1]}), None, "is refused, it has 19939 bytes"),
        (tar_gz({NAME: CONTENT + b"\n"}), None, "is refused, it has 19941 bytes"),
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
def test_wrong_archives_and_members_leave_nothing_behind(cache, serve, web, data, pinned, reason):
    index = serve(data, pinned=pinned)
    with pytest.raises(AssetError, match=reason):
        fetch(NAME, client=index)
    assert web.asked.count(FILE) == 1
    assert files_in(cache) == []


def test_damaged_wheel(cache, serve):
    data = bytearray(wheel({NAME: CONTENT}))
    data[60] ^= 0xFF  # within the compressed member
    with pytest.raises(AssetError, match=r"cannot be copied, (BadZipFile|error)"):
        fetch(NAME, client=serve(bytes(data), filename="demo-1.whl"))
    assert files_in(cache) == []


@pytest.mark.parametrize(
    ("spoilt", "what"),
    [(b"half", "it has 4 bytes and must have 19940"), (b"?" + CONTENT[1:], "its sha256 is")],
)
def test_spoilt_cache_is_named_and_fetched_anew(cache, serve, web, spoilt, what):
    index = serve(GOOD)
    path = cache / "demo" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(spoilt)
    with pytest.warns(UserWarning, match=f"SENTENCES is refused and fetched anew: {what}"):
        assert fetch(NAME, client=index).read_bytes() == CONTENT
    # Where it can't be fetched anew it is not used either.
    path.write_bytes(spoilt)
    web.answers.clear()
    with (
        pytest.warns(UserWarning, match="refused and fetched anew"),
        pytest.raises(AssetError, match=what),
    ):
        fetch(NAME, client=index)


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_downloaded(
    cache, serve, web, monkeypatch
):
    def read_only(dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), dir)

    index = serve(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(assets.tempfile, "TemporaryFile", read_only)
        with pytest.raises(AssetError, match="writing to .*: Read-only(.|\n)*ATTENTION_DATA"):
            fetch(NAME, client=index)
    cache.joinpath("demo/s").rmdir()
    cache.joinpath("demo/s").write_text("a file where the folder should be")
    with pytest.raises(AssetError, match="writing to .*demo/s: "):
        fetch(NAME, client=index)
    assert web.asked == []


def _fetch_at_once(index, table, barrier, results):
    assets.ASSETS = table
    barrier.wait(timeout=60)
    results.put(hashlib.sha256(fetch(NAME, client=index).read_bytes()).hexdigest())


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
    fetch(NAME, client=serve(GOOD))
    assets.main()
    printed = capsys.readouterr().out
    assert str(cache) in printed and "CC0; me" in printed and sha256(CONTENT) in printed


def test_pinned_table():
    assert list(ASSETS) == ["tatoeba", "minilm-weights", "minilm-tokenizer", "minilm-config"]
    assert len({asset.path for asset in ASSETS.values()}) == len(ASSETS)
    for asset in ASSETS.values():
        archives = [source.archive for source in asset.sources if isinstance(source, Member)]
        digests = [asset.sha256, *(archive.sha256 for archive in archives)]
        assert all(len(bytes.fromhex(digest)) == 32 for digest in digests)
        assert (
            len({archive.project for archive in archives}) == len(archives)
            and len(asset.sources) >= 2
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ASSETS))
def test_real_assets(name):
    """Uses the reader's own cache; downloads into it where it is empty."""
    path, asset = fetch(name), ASSETS[name]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == asset.sha256
    assert path.stat().st_size == asset.size
