"""`src.files`: what is on disk is the old file or the new one, whatever happens on the way."""

import os
import stat
from functools import partial

import pytest
from torch import nn

from src.cli.options import write_json
from src.data.tokenization import WordTokenizer
from src.files import remove_partials, replacing
from src.training.checkpoints import save_checkpoint
from src.translate import output_file


def translation(path):
    with output_file(str(path)) as stream:
        stream.write(b"un chien\n")


WRITERS = {
    "checkpoint": partial(save_checkpoint, model=nn.Linear(2, 3), config={}),
    "options": partial(write_json, content={"lr": 0.1}),
    "vocabulary": WordTokenizer(["dog"]).to_file,
    "translation": translation,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=list(WRITERS))
def test_a_file_is_on_disk_before_its_name_and_its_name_before_the_end(
    tmp_path, monkeypatch, write
):
    calls, rename, path = [], os.replace, tmp_path / "a"

    def flush(descriptor):
        found = os.fstat(descriptor)
        calls.append("folder" if stat.S_ISDIR(found.st_mode) else found.st_size)

    def replace(source, target):
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", replace)
    write(path)
    folder = ["folder"] if os.name == "posix" else []
    assert calls == [path.stat().st_size, "rename", *folder] and path.stat().st_size > 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_refuses_the_flush_keeps_the_old_file(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(5, "Input/output error")

    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as error:
        write_json(path, {})
    assert error.value.filename == str(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as one:
        one.write_text("one, and more")
        with replacing(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one, and more" and list(tmp_path.iterdir()) == [path]
    assert one.parent != other.parent and {one.parent.suffix, other.parent.suffix} == {".partial"}
    with (
        pytest.raises((NotADirectoryError, FileNotFoundError)) as error,
        replacing(path / "b") as new,
    ):
        new.write_text("")
    assert error.value.filename == str(path / "b")


def test_only_what_a_killed_writer_left_is_removed(tmp_path):
    foreign = tmp_path / "film.partial"
    foreign.write_text("of another program")
    with replacing(tmp_path / "a.json") as new:
        new.write_text("half")
        new.with_name(".tmpXy").write_text("of a library")
        remove_partials(tmp_path)
        assert list(tmp_path.iterdir()) == [foreign]
        new.parent.mkdir()
        new.write_text("whole")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a.json", foreign]
