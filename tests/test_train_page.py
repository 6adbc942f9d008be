"""The page "Train your own translator": its commands are read from it, checked and run."""

import json
import os
import random
import re
import shlex
from pathlib import Path

import pytest

from src import train, translate
from src.cli import train_options
from src.cli.options import Parser

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "book" / "train_your_own.md").read_text(encoding="utf-8")
PROGRAMS = {
    "src.train": train_options.build_parser("page"),
    "src.translate": translate.build_parser(),
}
# What makes a command of the page small: the last of two equal flags wins.
TINY = [
    "--preset",
    "tiny",
    "--d-model",
    "16",
    "--num-heads",
    "2",
    "--d-ff",
    "16",
    "--num-encoder-layers",
    "1",
    "--num-decoder-layers",
    "1",
    "--vocab-size",
    "300",
    "--bleu-sentences",
    "2",
    "--beam-size",
    "1",
    "--device",
    "cpu",
    "--no-tensorboard",
]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def lines() -> list[str]:
    """The lines of the shell blocks; one that goes on after a backslash is one line."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def calls(line: str) -> list[tuple[str, list[str]]]:
    """The calls of our programs in a line of shell: each one's name and arguments."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split, found, command = True, [], []
    for word in [*words, ";"]:
        if word and set(word) <= set("|&;<>"):
            if command[1:2] == ["-m"] or command[:1] == ["torchrun"]:
                at = command.index("-m") + 1
                if command[at] in PROGRAMS:
                    found.append((command[at], command[at + 1 :]))
            command = []
        else:
            command.append(word)
    return found


CALLS = [call for line in lines() for call in calls(line) if call[1] != ["--help"]]


def the_call(name: str, *flags: str) -> list[str]:
    """The arguments of the first call on the page with these flags."""
    return next(a for n, a in CALLS if n == name and set(flags) <= set(a))


def flags(parser: Parser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings}


# --- reading


def test_calls_are_found_in_a_line_of_shell():
    line = 'echo "a | b" | python -m src.translate --run r --nbest 3 > out && python -m other -x'
    assert calls(line) == [("src.translate", ["--run", "r", "--nbest", "3"])]
    line = "torchrun --nproc-per-node 2 -m src.train --tsv 'my file'"
    assert calls(line) == [("src.train", ["--tsv", "my file"])]
    assert calls("tensorboard --logdir runs") == [] == calls("cat a")


def test_the_page_shows_what_it_is_to_show():
    given = {name: {w for n, a in CALLS if n == name for w in a} for name in PROGRAMS}
    assert given["src.train"] >= {
        "--tatoeba",
        "--tsv",
        "--moses",
        "--config",
        "--resume",
        "--patience",
        "--sharding",
        "fsdp",
    }
    assert given["src.translate"] >= {"--input", "--output", "--nbest", "--scores", "--align"}
    assert any("torchrun" in line for line in lines())
    assert any(line.startswith("tensorboard ") for line in lines())
    asks = [line for line in lines() if any(f"-m {name}" in line for name in PROGRAMS)]
    assert len(asks) == len(CALLS) + sum(line.endswith("--help") for line in asks)


# --- what it says is true


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[f"{n}-{a[1]}" for n, a in CALLS])
def test_a_command_of_the_page_is_understood(name, arguments):
    parser = PROGRAMS[name]
    assert {a.partition("=")[0] for a in arguments if a.startswith("--")} <= flags(parser)
    given = parser.given(arguments)
    assert given
    if name == "src.translate":
        assert "run" in given
    elif "config" not in given:
        assert "out" in given


def test_each_option_that_the_text_names_is_there():
    known = set.union(*map(flags, PROGRAMS.values()))
    named = set(re.findall(r"`(--[\w-]+)", PAGE))
    assert named and named <= known, named - known


def test_each_file_that_the_text_lists_in_a_run_is_made(run):
    (table,) = re.findall(r"^\| file \|.*\n\|-.*\n((?:\|.*\n)+)", PAGE, re.M)
    first = [row.split("|")[1] for row in table.splitlines()]
    listed = {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}
    made = {path.name for path in (run / "runs" / "mine").iterdir()}
    assert listed - {"tensorboard/"} == made


def test_the_configuration_files_are_read_and_say_the_same(tmp_path):
    (toml,), (text,) = blocks("toml"), blocks("json")
    (tmp_path / "a.toml").write_text(toml, encoding="utf-8")
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    parser = PROGRAMS["src.train"]
    found = parser.given_in(tmp_path / "a.toml")
    assert found == parser.given_in(tmp_path / "a.json")
    assert found["tsv"] == "my.tsv" and len(found) > 5
    options = train_options.read_options(
        ["--config", str(tmp_path / "a.toml"), "--out", str(tmp_path / "run")], "page"
    )
    assert options["preset"] == "tiny"


# --- it runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The page's training on a corpus of one's own, at toy size, in a folder of its own."""
    folder = tmp_path_factory.mktemp("page")
    generator = random.Random(0)
    words = [
        "red",
        "green",
        "blue",
        "old",
        "new",
        "big",
        "small",
        "cat",
        "dog",
        "house",
        "tree",
        "car",
        "bird",
        "man",
    ]
    sentences = sorted({" ".join(generator.choices(words, k=4)) for _ in range(80)})
    pairs = [f"{s}\t{' '.join(w[::-1] for w in s.split())}\n" for s in sentences]
    (folder / "my.tsv").write_text("".join(pairs), encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert train.main([*the_call("src.train", "--tsv"), *TINY, "--steps", "3"]) == 0
    finally:
        os.chdir(before)
    return folder


def test_the_training_of_the_page_runs_and_goes_on(run, monkeypatch, capsys):
    monkeypatch.chdir(run)
    arguments = the_call("src.train", "--resume")
    kept = Path(PROGRAMS["src.train"].given(arguments)["out"])
    assert kept == Path("runs/mine") and (run / kept / "last.safetensors").is_file()
    assert train.main([*arguments, "--steps", "5"]) == 0
    assert "resumed after update 3" in capsys.readouterr().out
    assert json.loads((kept / "config.json").read_text())["steps"] == 5


def test_a_translation_of_the_page_runs(run, monkeypatch):
    monkeypatch.chdir(run)
    Path("in.txt").write_text("red cat\nbig old dog\n", encoding="utf-8")
    toy = [
        "--run",
        "runs/mine",
        "--input",
        "in.txt",
        "--output",
        "out.txt",
        "--max-len",
        "4",
        "--device",
        "cpu",
    ]
    assert translate.main([*the_call("src.translate", "--nbest", "--align"), *toy]) == 0
    rows = [row.split(" ||| ") for row in Path("out.txt").read_text(encoding="utf-8").splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3 and {len(row) for row in rows} == {4}
