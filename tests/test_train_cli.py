"""The commands `python -m src.train` and `python -m src.translate`, run for real on toy data."""

import errno
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import processes
from src import train, translate
from src.cli import options as option_parsing
from src.cli.train_options import DERIVED, build_parser
from src.config import TransformerConfig
from src.data.tokenization import SubwordTokenizer, Tokenizer, WordTokenizer
from src.training import distributed
from src.training.checkpoints import CheckpointError, read_header, save_checkpoint
from src.training.config import TrainingConfig
from src.training.evaluation import Translation
from src.transformer import Transformer

pytestmark = pytest.mark.slow

ADJECTIVES = ["red", "green", "blue", "old", "new", "big", "small"]
NOUNS = ["cat", "dog", "house", "tree", "car", "bird", "man"]
VERBS = ["sees", "likes", "has", "finds"]
SMALL = [
    "--preset",
    "tiny",
    "--d-model",
    "24",
    "--num-heads",
    "2",
    "--d-ff",
    "32",
    "--tokenizer",
    "word",
    "--vocab-size",
    "60",
    "--batch-size",
    "32",
    "--lr",
    "0.006",
    "--warmup",
    "30",
    "--dropout",
    "0",
    "--valid-share",
    "0.1",
    "--test-share",
    "0.1",
    "--bleu-sentences",
    "8",
    "--device",
    "cpu",
    "--no-tensorboard",
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """300 sentences in which every word is spelt backwards in the other language."""
    generator = random.Random(0)
    sentences = set()
    while len(sentences) < 300:
        words = [generator.choice(c) for c in (ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS)]
        sentences.add(" ".join(words[generator.randint(0, 2) :]))
    path = tmp_path_factory.mktemp("corpus") / "toy.tsv"
    lines = [f"{s}\t{' '.join(w[::-1] for w in s.split())}\n" for s in sorted(sentences)]
    path.write_text("".join(lines))
    return path


def call(module, *arguments):
    """A command in this process, which saves the start; returns its exit status."""
    try:
        return module.main([str(argument) for argument in arguments])
    except SystemExit as leave:
        return leave.code


def fork(folder, *arguments, limit=None):
    """The same command in a process without its start; the process, and the files it writes to."""
    out, err = folder / "stdout", folder / "stderr"
    for file in (out, err):
        file.unlink(missing_ok=True)
    given = [str(argument) for argument in arguments]
    return processes.start(train.main, given, out=out, err=err, limit=limit), out, err


def losses(run):
    history = read_header(run / "last.safetensors")["state"]["history"]
    return [(row[0], row[4]) for row in history]


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A run of 150 updates by the real command, and what it printed."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    arguments = [a for a in SMALL if a != "--no-tensorboard"]
    arguments += [
        "--tsv",
        corpus,
        "--out",
        run,
        "--steps",
        150,
        "--eval-every",
        50,
        "--log-every",
        5,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    result = subprocess.run(
        [sys.executable, "-m", "src.train", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return run, result.stdout


# ---------------------------------------------------------------- training


def test_a_run_learns_and_says_so(trained):
    run, out = trained
    lines = out.splitlines()
    assert "a new run in" in lines[0] and "1 × cpu" in lines[0]
    assert [line.split(",")[0] for line in lines[1:4]] == ["update 50", "update 100", "update 150"]
    evaluations = read_header(run / "last.safetensors")["state"]["evaluations"]
    assert evaluations[-1][4] < 0.5 * evaluations[0][4]
    assert evaluations[-1][5] > 30  # BLEU
    result = json.loads((run / "test.json").read_text())
    assert result["score"] > 30 and "case:lc" in result["signature"]
    assert f"test BLEU {result['score']:.2f} on {result['sentences']} sentences" in lines[-1]


def test_the_folder_of_a_run(trained):
    run, _ = trained
    names = {
        "best.safetensors",
        "config.json",
        "last.safetensors",
        "model.json",
        "source.json",
        "target.json",
        "tensorboard",
        "test.json",
    }
    assert {path.name for path in run.iterdir()} == names
    kept = json.loads((run / "config.json").read_text())
    assert kept["d_model"] == 24 and kept["lr"] == 0.006 and kept["betas"] == [0.9, 0.98]
    assert len(Tokenizer.from_file(run / "source.json")) == len(ADJECTIVES + NOUNS + VERBS) + 4


def test_the_configuration_of_the_model_is_a_file_of_its_own(trained):
    run, _ = trained
    model = json.loads((run / "model.json").read_text())
    assert model == read_header(run / "last.safetensors")["config"]
    assert json.loads((run / "config.json").read_text())["num_encoder_layers"] is None
    assert model["num_encoder_layers"] == 2  # as the preset says


def test_the_vocabularies_come_from_the_training_side_alone(tmp_path):
    corpus, run = tmp_path / "toy.tsv", tmp_path / "run"
    corpus.write_text("".join(f"dog s{i}\tgod t{i}\n" for i in range(60)))
    assert (
        call(train, "--tsv", corpus, "--out", run, *SMALL, "--vocab-size", 500, "--steps", 1) == 0
    )
    splits = train.read_corpus(json.loads((run / "config.json").read_text()))
    assert min(map(len, (splits.valid, splits.test))) >= 2
    for side, name in enumerate(("source", "target")):
        tokenizer = Tokenizer.from_file(run / f"{name}.json")
        for pairs, known in ((splits.train, True), (splits.valid, False), (splits.test, False)):
            for pair in pairs:
                shared, own = tokenizer.encode(pair[side])
                assert shared != tokenizer.unk_id
                assert (own != tokenizer.unk_id) == known, pair


def test_the_bar_shows_the_speed_and_the_time_left(corpus, tmp_path, capsys):
    arguments = ["--tsv", corpus, *SMALL, "--log-every", 1, "--bleu-sentences", 0, "--progress"]
    assert call(train, *arguments, "--out", tmp_path / "run", "--steps", 40) == 0
    bar = capsys.readouterr().err
    assert re.search(r" [1-9]\d*/40 \[\d\d:\d\d<\d\d:\d\d, .*loss \d.*, [\d,]+ tokens/s\]", bar)


def test_tensorboard_has_the_curves(trained):
    run, _ = trained
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    curve = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert [step for step, _ in curve] == list(range(5, 151, 5))
    assert [value for _, value in curve] == pytest.approx([v for _, v in losses(run)], rel=1e-6)
    assert [e.step for e in events.Scalars("valid/bleu")] == [50, 100, 150]


def test_a_run_continues_with_its_own_settings(trained, capsys):
    run, _ = trained
    before = losses(run)
    assert call(train, "--out", run, "--resume", "--steps", 155, "--no-tensorboard") == 0
    assert "resumed after update 150" in capsys.readouterr().out
    assert losses(run)[: len(before)] == before and losses(run)[-1][0] == 155


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_ctrl_c_saves_and_the_rest_is_exact(corpus, tmp_path):
    steps = ["--steps", 40, "--eval-every", 2, "--log-every", 1]
    arguments = ["--tsv", corpus, *SMALL, *steps]
    process, out, err = fork(tmp_path, *arguments, "--out", tmp_path / "whole")
    assert processes.finished(process) == [0], err.read_text()
    process, out, err = fork(tmp_path, *arguments, "--out", tmp_path / "cut")
    processes.wait_for("update 4", out, process)
    os.kill(process.pid, signal.SIGINT)
    assert processes.finished(process) == [128 + signal.SIGINT]
    assert "all is saved, --resume goes on from here" in out.read_text()
    assert "Traceback" not in err.read_text()
    step = losses(tmp_path / "cut")[-1][0]
    assert 4 <= step < 40
    process, out, err = fork(tmp_path, "--out", tmp_path / "cut", "--resume")
    assert processes.finished(process) == [0], err.read_text()
    assert f"resumed after update {step}" in out.read_text()
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    whole, cut = ((tmp_path / n / "test.json").read_text() for n in ("whole", "cut"))
    assert whole == cut


def test_early_stop_on_request(corpus, tmp_path, capsys):
    status = call(
        train,
        "--tsv",
        corpus,
        "--out",
        tmp_path / "run",
        *SMALL,
        "--epochs",
        9,
        "--lr",
        "1e-12",
        "--patience",
        2,
        "--eval-every",
        3,
        "--best-by",
        "score",
    )
    assert status == 0
    evaluations = read_header(tmp_path / "run" / "last.safetensors")["state"]["evaluations"]
    assert len(evaluations) == 3 and "update 9," in capsys.readouterr().out


def test_settings_from_a_file_are_overridden_by_flags(corpus, tmp_path):
    toml = tmp_path / "settings.toml"
    toml.write_text(
        f'tsv = "{corpus.as_posix()}"\nout = "{(tmp_path / "run").as_posix()}"\nseed = 5\ntensorboard = false\n'
        '[model]\npreset = "tiny"\nd_model = 12\nnum-heads = 2\nnorm_first = true\n'
        '[training]\nsteps = 3\nlr = 1\nbetas = [0.5, 0.6]\n[data]\ntokenizer = "word"\n'
        "vocab_size = 60\nbatch_size = 16\n"
    )
    assert call(train, "--config", toml, "--seed", 7, "--device", "cpu", "--clip", "none") == 0
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    expected = {
        "seed": 7,
        "d_model": 12,
        "norm_first": True,
        "lr": 1.0,
        "betas": [0.5, 0.6],
        "batch_size": 16,
        "max_tokens": None,
        "clip": None,
        "label_smoothing": 0.1,
    }
    assert {name: kept[name] for name in expected} == expected
    header = read_header(tmp_path / "run" / "last.safetensors")
    assert header["config"]["norm_first"] and header["state"]["training"]["seed"] == 7
    again = tmp_path / "again.json"
    again.write_text(
        json.dumps(
            {
                "out": str(tmp_path / "run"),
                "resume": True,
                "steps": 4,
                "clip": None,
                "patience": None,
            }
        )
    )
    assert call(train, "--config", again, "--no-tensorboard") == 0
    assert losses(tmp_path / "run")[-1][0] == 4


def test_moses_and_subwords(corpus, tmp_path):
    pairs = [line.split("\t") for line in corpus.read_text().splitlines()]
    for side, name in enumerate(("toy.en", "toy.xx")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in pairs))
    status = call(
        train,
        "--moses",
        tmp_path / "toy.en",
        tmp_path / "toy.xx",
        "--out",
        tmp_path / "run",
        *SMALL,
        "--tokenizer",
        "subword",
        "--vocab-size",
        300,
        "--steps",
        2,
    )
    assert status == 0
    tokenizer = Tokenizer.from_file(tmp_path / "run" / "source.json")
    assert tokenizer.decode(tokenizer.encode("Big Cat?")) == "Big Cat?"


def test_help_shows_every_option_with_its_default(capsys):
    assert call(train, "--help") == 0
    out, err = capsys.readouterr()
    assert err == ""
    text = " ".join(out.split())
    assert "Under torchrun the status is the launcher's: 1 after whatever went wrong" in text
    for name, value in build_parser("").defaults.items():
        assert f"--{name.replace('_', '-')}" in text
        if value not in (None, False, True) and not isinstance(value, tuple):
            assert f"(default: {value})" in text, name
    assert "(default: 0.9 0.98)" in text and "Updates until the peak (default: 4000)" in text
    assert call(translate, "--help") == 0


def test_each_field_is_an_option_and_is_explained():
    import dataclasses

    parser = build_parser("")
    for cls in (TrainingConfig, TransformerConfig):
        texts = option_parsing.describe(cls)
        for field in dataclasses.fields(cls):
            assert texts[field.name], field.name
            assert field.name in parser.defaults or field.name in DERIVED
    assert "eval_every" in parser.defaults


# ---------------------------------------------------------------- bad input to training


def refused(capsys, message, *arguments):
    """The command must leave with status 2 and one sentence on stderr."""
    assert call(train, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert error.startswith(("src.train: ", "python -m src.train: "))


def test_bad_corpora_are_refused_in_a_sentence(tmp_path, capsys):
    out = ["--out", tmp_path / "run", *SMALL, "--steps", 1]
    bad = tmp_path / "bad.tsv"
    refused(
        capsys, "absent.tsv: cannot be read, No such file", "--tsv", tmp_path / "absent.tsv", *out
    )
    bad.write_text("one\tuno\n\ttwo\n")
    refused(capsys, "bad.tsv, line 2: the sentence is empty", "--tsv", bad, *out)
    bad.write_bytes(b"one\tuno\ntwo\td\xf3s\n")
    refused(capsys, "bad.tsv, line 2: not UTF-8", "--tsv", bad, *out)
    bad.write_text("one\tuno\ntwo dos\n")
    refused(capsys, "bad.tsv, line 2: needs 2 tab-separated columns", "--tsv", bad, *out)
    bad.write_text("")
    refused(capsys, "bad.tsv: the file is empty", "--tsv", bad, *out)
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("uno\n")
    refused(capsys, "has 2 lines, but", "--moses", tmp_path / "a", tmp_path / "b", *out)
    assert not (tmp_path / "run").exists()


def test_bad_flags_are_refused_in_a_sentence(corpus, tmp_path, capsys):
    base = ["--tsv", corpus, "--out", tmp_path / "run", *SMALL]
    refused(capsys, "unrecognized arguments: --stepz 3", *base, "--stepz", 3)
    refused(capsys, "argument --steps: invalid int value: 'many'", *base, "--steps", "many")
    refused(capsys, "--steps, --epochs or --seconds must be given", *base)
    refused(capsys, ": --steps must be at least 1, got 0", *base, "--steps", 0)
    refused(
        capsys,
        "--num-heads must be a divisor of d_model 24, but is 5",
        *base,
        "--steps",
        1,
        "--num-heads",
        5,
    )
    refused(capsys, "argument --preset: invalid choice: 'huge'", *base, "--preset", "huge")
    refused(capsys, "one corpus must be given", "--out", tmp_path / "run", "--steps", 1)
    refused(capsys, "one corpus must be given", *base, "--moses", "a", "b", "--steps", 1)
    refused(capsys, "--out must say where to keep the run", "--tsv", corpus, "--steps", 1)
    refused(
        capsys,
        "--device must be usable here, but abacus is not",
        *base,
        "--steps",
        1,
        "--device",
        "abacus",
    )
    refused(
        capsys,
        "no training pair fits into max_len and max_tokens",
        *base,
        "--steps",
        1,
        "--max-len",
        1,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        ("--beam-size must be at least 1, got 0", ["--beam-size", 0]),
        ("--bleu-sentences must be at least 0, got -1", ["--bleu-sentences", -1]),
        ("--seed must be in 0 … 2**63 - 1, got -1", ["--seed", -1]),
        ("--seed must be in 0 … 2**63 - 1, got 9223372036854775808", ["--seed", 2**63]),
        ("--vocab-size must be above 4, but is 3", ["--vocab-size", 3]),
        (
            "--vocab-size must be at least 260, but is 259",
            ["--tokenizer", "subword", "--vocab-size", 259],
        ),
        ("--max-words goes with --tatoeba", ["--max-words", 5]),
        ("--batch-size must be at least 1, got 0", ["--batch-size", 0]),
        ("--max-tokens must be at least 1, got 0", ["--max-tokens", 0]),
        (
            "--valid-share and --test-share must be at least 0 and sum to less than 1, got 0.5 and 0.5",
            ["--valid-share", 0.5, "--test-share", 0.5],
        ),
        ("--valid-share and --test-share must be at least 0", ["--valid-share", "nan"]),
        ("--weight-decay must be 0 with --optimizer adam", ["--weight-decay", 0.1]),
        (
            "--precision must not be float16 with --sharding fsdp",
            ["--precision", "float16", "--sharding", "fsdp"],
        ),
        ("--dropout must be at least 0 and below 1, but is 1.0", ["--dropout", 1]),
        ("--label-smoothing must be in [0, 1), got 1.0", ["--label-smoothing", 1]),
        (
            "--tie-embeddings must be other than all: source and target each get a vocabulary",
            ["--tie-embeddings", "all"],
        ),
        ("absent.tsv: cannot be read", ["--tsv", "absent.tsv"]),
    ],
    ids=str,
)
def test_each_number_is_checked_before_the_corpus_is_read(tmp_path, capsys, message, flags):
    # There is no such corpus: whatever comes before it in the message was checked before it.
    refused(
        capsys,
        message,
        "--tsv",
        "absent.tsv",
        "--out",
        tmp_path / "new" / "run",
        *SMALL,
        "--steps",
        1,
        *flags,
    )
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_the_corpus_leaves_nothing_behind(corpus, tmp_path, capsys):
    out = tmp_path / "new" / "run"
    base = ["--tsv", corpus, "--out", out, *SMALL, "--steps", 1]
    refused(
        capsys,
        "--patience needs a validation set, but it is empty: raise --valid-share",
        *base,
        "--valid-share",
        0,
        "--patience",
        2,
    )
    refused(
        capsys,
        "--best-by score needs a validation set",
        *base,
        "--valid-share",
        0,
        "--best-by",
        "score",
    )
    # These are noticed with the tokenizers, that is, after those have been written.
    refused(capsys, "no training pair fits", *base, "--max-len", 1)
    assert list(tmp_path.iterdir()) == []
    out.mkdir(parents=True)
    (out / "source.json").write_text("somebody's")
    (tmp_path / "empty.tsv").write_text("")
    refused(capsys, "no training pair fits", *base, "--max-len", 1)
    assert [path.name for path in out.iterdir()] == ["source.json"]
    refused(capsys, "the file is empty", *base, "--tsv", tmp_path / "empty.tsv")
    assert [path.name for path in out.iterdir()] == ["source.json"]


def test_bad_configuration_files_are_refused_in_a_sentence(tmp_path, capsys):
    file = tmp_path / "c.toml"
    refused(capsys, "c.toml: No such file or directory", "--config", file)
    file.write_text("steps = = 3")
    refused(capsys, "c.toml is not a configuration: ", "--config", file)
    file.write_text("warmpu = 3")
    refused(capsys, "unknown setting 'warmpu'; did you mean warmup?", "--config", file)
    file.write_text("steps = 'many'")
    refused(capsys, "argument --steps: invalid int value: 'many'", "--config", file)
    file.write_text("steps = true")
    refused(capsys, "steps must not be true or false", "--config", file)
    nothing = tmp_path / "null.json"
    nothing.write_text('{"warmup": null}')
    refused(capsys, "null.json: warmup must not be null", "--config", nothing)
    file.write_bytes(b"out = '\xff'")
    refused(capsys, "c.toml is not a configuration: 'utf-8' codec", "--config", file)
    other = tmp_path / "c.json"
    other.write_text("[1]")
    refused(capsys, "c.json is not a configuration: it must hold an object", "--config", other)
    third = tmp_path / "c.yaml"
    third.write_text("steps: 1")
    refused(capsys, "c.yaml must end with .toml or .json", "--config", third)
    named = tmp_path / "seed.yaml"  # a setting's name, but not a setting
    named.write_text("")
    refused(capsys, f"{named} must end with", "--config", named)


def test_another_run_is_neither_overwritten_nor_resumed(trained, corpus, tmp_path, capsys):
    run, _ = trained
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    capsys.readouterr()
    refused(
        capsys,
        "holds a run: add --resume, or choose another --out",
        "--tsv",
        corpus,
        "--out",
        run,
        *SMALL,
        "--steps",
        1,
    )
    refused(
        capsys,
        "another configuration: d_ff = 32 there and 64 here; lr = 0.006 there and 0.5",
        "--out",
        run,
        "--resume",
        "--d-ff",
        64,
        "--lr",
        0.5,
    )
    other = tmp_path / "other.tsv"
    other.write_text("".join(corpus.read_text().splitlines(keepends=True)[:-1]))
    config = json.loads((run / "config.json").read_text())
    refused(capsys, "the corpus has changed", "--out", run, "--resume", "--tsv", other)
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert config["tsv"] == str(corpus)


def test_a_corpus_that_changed_is_noticed(corpus, tmp_path, capsys):
    copy = tmp_path / "copy.tsv"
    copy.write_text(corpus.read_text())
    arguments = ["--tsv", copy, "--out", tmp_path / "run", *SMALL, "--bleu-sentences", 0]
    assert call(train, *arguments, "--steps", 1) == 0
    # Elsewhere and under another name it is still the same one.
    moved = copy.rename(tmp_path / "moved.tsv")
    resumed = ["--out", tmp_path / "run", "--resume", "--steps", 2]
    assert call(train, *resumed, "--tsv", moved) == 0
    copy.write_text(corpus.read_text() + "the end\tdne eht\n")
    capsys.readouterr()
    refused(capsys, "the corpus has changed since the run", *resumed, "--tsv", copy)


def test_a_null_in_a_file_is_none(corpus, tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"training": {"clip": null, "eval_every": null, "steps": 1}, "tsv": null}')
    arguments = ["--config", file, "--tsv", corpus, "--out", tmp_path / "run", *SMALL]
    assert call(train, *arguments, "--bleu-sentences", 0) == 0
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["clip"] is None and kept["tsv"] == str(corpus)


def test_a_corpus_too_small_to_be_split_says_so(tmp_path, capsys):
    path = tmp_path / "small.tsv"
    path.write_text("big cat\tgib tac\nold dog\tdlo god\nnew fox\twen xof\n")
    small = ["--tsv", path, *SMALL, "--steps", 1, "--lr", "1e-3"]
    few = ["--valid-share", "0.001", "--test-share", "0.002"]
    assert call(train, *small, *few, "--out", tmp_path / "run") == 0
    out = capsys.readouterr().out
    assert "note: --valid-share 0.001 of 3 pairs is not a single one: nothing says which" in out
    assert "note: --test-share 0.002 of 3 pairs is not a single one: no BLEU" in out
    none = ["--valid-share", 0, "--test-share", 0]
    assert call(train, *small, *none, "--out", tmp_path / "asked") == 0
    assert "note:" not in capsys.readouterr().out


def test_a_missing_tensorboard_leaves_nothing_behind(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    refused(
        capsys,
        "--tensorboard must be installed, or switched off by --no-tensorboard",
        "--tsv",
        corpus,
        "--out",
        tmp_path / "run",
        *SMALL,
        "--steps",
        1,
        "--tensorboard",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_a_closed_terminal_stops_a_run_unless_it_is_ignored():
    class Run(train.Trainer):
        def __init__(self):
            self._asked = False

    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, expected in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, handler)
            run = Run()
            with train.stopping(run) as received:
                signal.raise_signal(signal.SIGHUP)
            assert run._asked is expected and bool(received) is expected
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform == "win32", reason="a folder can be locked on POSIX")
def test_a_second_run_in_the_same_folder_is_refused(corpus, tmp_path, capsys):
    run = tmp_path / "new" / "run"
    with train.alone(run):
        refused(
            capsys,
            f"another run is at work in {run}",
            "--tsv",
            corpus,
            "--out",
            run,
            *SMALL,
            "--steps",
            1,
        )
        assert list(run.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    torn = run / f"last.safetensors.{'0a' * 16}.partial"
    torn.mkdir(parents=True)
    (torn / "last.safetensors").write_text("of a run that was killed")
    assert call(train, "--tsv", corpus, "--out", run, *SMALL, "--steps", 1) == 0
    assert not torn.exists() and (run / "last.safetensors").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are POSIX")
def test_a_full_disk_ends_the_run_and_damages_nothing(corpus, tmp_path):
    run = tmp_path / "run"
    assert call(train, "--tsv", corpus, "--out", run, *SMALL, "--steps", 2) == 0
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    process, _, err = fork(tmp_path, "--out", run, "--resume", "--steps", 4, limit=60_000)
    assert processes.finished(process) == [2]
    (line,) = err.read_text().splitlines()
    assert line.startswith("src.train: ") and "safetensors: File too large" in line
    after = {path.name: path.read_bytes() for path in run.iterdir()}
    assert after.keys() == before.keys()
    for name in ("last.safetensors", "best.safetensors", "source.json", "target.json"):
        assert after[name] == before[name], name


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are POSIX")
def test_a_full_disk_behind_tensorboard_ends_the_run_in_a_sentence(corpus, tmp_path):
    run = tmp_path / "run"
    arguments = [
        "--tsv",
        corpus,
        "--out",
        run,
        *SMALL,
        "--tensorboard",
        "--log-every",
        1,
        "--eval-every",
        300,
        "--steps",
        300,
    ]
    process, out, err = fork(tmp_path, *arguments, limit=5_000)
    assert processes.finished(process) == [2]
    assert err.read_text() == f"src.train: {run / 'tensorboard'}: File too large\n"
    assert "a new run in" in out.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_each_file_names_it(corpus, tmp_path, capsys, monkeypatch):
    run, write = tmp_path / "run", Path.write_text
    arguments = ["--tsv", corpus, "--out", run, *SMALL, "--steps", 1]
    for name in ("source.json", "model.json", "config.json"):

        def full(path, text, name=name, **kwargs):
            target = "/dev/full" if path.name.lstrip(".").startswith(name) else path
            return write(Path(target), text, **kwargs)

        monkeypatch.setattr(Path, "write_text", full)
        refused(capsys, f"{run / name}: No space left on device", *arguments)
        monkeypatch.undo()
        assert list(tmp_path.iterdir()) == []


def test_the_other_processes_say_so_in_a_sentence_when_the_writer_fails(
    corpus, tmp_path, capsys, monkeypatch
):
    """As in process 1 of two; `test_distributed.py` has them for real."""
    monkeypatch.setattr(distributed, "is_writer", lambda: False)
    monkeypatch.setattr(distributed, "any_rank", lambda flag: True)
    refused(
        capsys,
        "process 0 failed while it wrote for all",
        "--tsv",
        corpus,
        "--out",
        tmp_path / "run",
        *SMALL,
        "--steps",
        1,
    )


# ---------------------------------------------------------------- translating


def test_translates_standard_input_in_order(trained, tmp_path, capfd, monkeypatch):
    run, _ = trained
    (tmp_path / "in").write_text("the old dog\n\nsmall tree has big house\nred cat\n")
    with open(tmp_path / "in") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert call(translate, "--run", run, "--device", "cpu") == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.split("\n")
    assert len(lines) == 5 and lines[1] == "" and lines[4] == ""
    assert lines[2] and set(lines[2].split()) <= {w[::-1] for w in ADJECTIVES + NOUNS + VERBS}


def test_translates_well_what_it_has_not_seen(trained, corpus, tmp_path, capsys):
    run, _ = trained
    (tmp_path / "in").write_text("blue man likes small tree\nold bird\n")
    assert (
        call(
            translate,
            "--run",
            run,
            "--input",
            tmp_path / "in",
            "--device",
            "cpu",
            "--output",
            tmp_path / "out",
        )
        == 0
    )
    found = (tmp_path / "out").read_text().split()
    wanted = ["eulb", "nam", "sekil", "llams", "eert", "dlo", "drib"]
    assert len(set(wanted) & set(found)) >= 6


def test_nbest_with_scores_and_alignments(trained, tmp_path):
    run, _ = trained
    (tmp_path / "in").write_text("big dog\n\nsmall tree has big house\n")
    options = [
        "--run",
        run,
        "--input",
        tmp_path / "in",
        "--output",
        tmp_path / "out",
        "--device",
        "cpu",
        "--beam-size",
        3,
    ]
    assert call(translate, *options, "--nbest", 3, "--align", "--buffer", 2) == 0
    rows = [line.split(" ||| ") for line in (tmp_path / "out").read_text().splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    for start in (0, 6):
        scores = [float(row[2]) for row in rows[start : start + 3]]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0
        assert len({row[1] for row in rows[start : start + 3]}) == 3
    for number, text, _, alignment in rows[:3] + rows[6:]:
        pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
        assert [t for _, t in pairs] == list(range(len(text.split())))
        assert all(0 <= s < (2 if number == "0" else 5) for s, _ in pairs)
    assert call(translate, *options, "--scores") == 0
    best = [line.split(" ||| ") for line in (tmp_path / "out").read_text().splitlines()]
    assert [row[:2] for row in best if row[0]] == [rows[0][1:3], rows[6][1:3]]


def refuses_to_translate(capsys, message, *arguments):
    assert call(translate, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_bad_input_to_translation(trained, tmp_path, capsys):
    run, _ = trained
    out = tmp_path / "out"
    out.write_text("kept")
    base = ["--run", run, "--output", out, "--device", "cpu"]
    bad = tmp_path / "bad"
    refuses_to_translate(
        capsys, "absent: No such file or directory", *base, "--input", tmp_path / "absent"
    )
    bad.write_bytes(b"old dog\nd\xf3g\n")
    refuses_to_translate(
        capsys, "bad, line 2: not UTF-8, invalid continuation byte at byte 1", *base, "--input", bad
    )
    bad.write_text("old dog\n")
    base += ["--input", bad]
    refuses_to_translate(
        capsys,
        "--nbest must be at most --beam-size = 4, got 9",
        *base,
        "--nbest",
        9,
        "--beam-size",
        4,
    )
    for flag in ("--beam-size", "--nbest", "--max-len", "--batch-size", "--max-tokens", "--buffer"):
        refuses_to_translate(capsys, f"{flag} must be at least 1, got 0", *base, flag, 0)
    refuses_to_translate(
        capsys, "--length-penalty must be in [0, 10], got -1.0", *base, "--length-penalty=-1"
    )
    refuses_to_translate(capsys, "unrecognized arguments: --fast", *base, "--fast")
    refuses_to_translate(capsys, "--run must say where the trained model is", "--input", bad)
    refuses_to_translate(capsys, "source.json: No such file", "--run", tmp_path)
    refuses_to_translate(capsys, "No such checkpoint", *base, "--checkpoint", tmp_path / "no")
    refuses_to_translate(capsys, "bad is not a checkpoint", *base, "--checkpoint", bad)
    other = tmp_path / "other.safetensors"
    model = Transformer(TransformerConfig.tiny(9, 8, d_model=12))
    save_checkpoint(other, model, config=model.config.to_dict())
    refuses_to_translate(
        capsys,
        "belongs to another run: its vocabularies have 9 and 8 tokens",
        *base,
        "--checkpoint",
        other,
    )
    save_file(
        {"a": torch.zeros(1)},
        other,
        {"checkpoint": json.dumps({"format": 1, "config": {}, "state": {}, "aliases": {}})},
    )
    refuses_to_translate(
        capsys, "other.safetensors holds no translator", *base, "--checkpoint", other
    )
    assert out.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "other.safetensors", "out"]


def test_a_checkpoint_of_a_run_with_other_words_of_the_same_number_is_refused(tmp_path):
    runs = [tmp_path / "one", tmp_path / "two"]
    model = Transformer(TransformerConfig.tiny(6, 6, d_model=12))
    for run, words in zip(runs, (["dog", "cat"], ["cat", "dog"]), strict=True):
        run.mkdir()
        for name in ("source", "target"):
            WordTokenizer(words if name == "target" else ["a", "b"]).to_file(run / f"{name}.json")
        save_checkpoint(run / "best.safetensors", model, config=model.config.to_dict())
    translate.load_run(runs[0])
    foreign = runs[1] / "best.safetensors"
    with pytest.raises(CheckpointError, match=f"{foreign} belongs to another run: source.json and"):
        translate.load_run(runs[0], foreign)
    old = tmp_path / "old.safetensors"  # written where there were no tokenizers, or long ago
    save_checkpoint(old, model, config=model.config.to_dict())
    translate.load_run(runs[0], old)


@pytest.mark.parametrize("named", [True, False], ids=["file", "standard input"])
def test_a_line_that_is_too_long_is_named_before_its_buffer(
    trained, tmp_path, capsys, monkeypatch, named
):
    run, _ = trained
    text, seen = "old dog\n" * 5 + "dog " * 300 + "\nred cat\n", []
    file = tmp_path / "in"
    file.write_text(text)
    nbest = translate.translate_nbest

    def watched(model, sentences, *args, **kwargs):
        seen.extend(sentences)
        return nbest(model, sentences, *args, **kwargs)

    monkeypatch.setattr(translate, "translate_nbest", watched)
    with open(file) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        refuses_to_translate(
            capsys,
            f"{file if named else 'standard input'}, line 6: 301 tokens, "
            "but the model takes at most 128",
            "--run",
            run,
            "--device",
            "cpu",
            "--buffer",
            4,
            "--output",
            tmp_path / "out",
            *(["--input", file] if named else []),
        )
    assert seen == ["old dog"] * 4  # the first buffer, and nothing of the second
    assert not (tmp_path / "out").exists()


def test_alignments_are_of_words_where_tokens_are_pieces(tmp_path):
    """Every word is many bytes here: no number may reach beyond the words that one sees."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("source", "target"):
        SubwordTokenizer.train([], 260).to_file(run / f"{name}.json")
    torch.manual_seed(0)
    config = TransformerConfig.tiny(260, 260, d_model=12, num_heads=2)
    save_checkpoint(run / "best.safetensors", Transformer(config), config=config.to_dict())
    (tmp_path / "in").write_text("small trees « have » houses\n")
    assert (
        call(
            translate,
            "--run",
            run,
            "--input",
            tmp_path / "in",
            "--output",
            tmp_path / "out",
            "--device",
            "cpu",
            "--nbest",
            3,
            "--align",
        )
        == 0
    )
    for line in (tmp_path / "out").read_text().split("\n")[:3]:
        _, text, _, alignment = line.split(" ||| ")
        pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
        assert pairs and len(set(pairs)) == len(pairs) and len(text) > len(text.split())
        assert {t for _, t in pairs} == set(range(len(text.split())))
        assert all(0 <= s < 6 for s, _ in pairs)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_disk_behind_an_output_file(trained, tmp_path, capsys, monkeypatch):
    run, _ = trained
    (tmp_path / "in").write_text("old dog\n")
    out = tmp_path / "out"
    out.symlink_to("/dev/full")
    refuses_to_translate(
        capsys,
        f"src.translate: {out}: No space left on device",
        "--run",
        run,
        "--input",
        tmp_path / "in",
        "--output",
        out,
        "--device",
        "cpu",
    )
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in", "out"]
    assert os.readlink(out) == "/dev/full"


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes with names are POSIX")
def test_links_and_devices_stay_what_they_are(tmp_path):
    real, link, pipe = tmp_path / "folder" / "real", tmp_path / "link", tmp_path / "pipe"
    real.parent.mkdir()
    link.symlink_to(real)
    for text in (b"new", b"newer"):
        with translate.output_file(str(link)) as stream:
            stream.write(text)
        assert link.is_symlink() and real.read_bytes() == text
    assert list(real.parent.iterdir()) == [real]
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with translate.output_file(str(pipe)) as stream:
        stream.write(b"through")
    assert os.read(reader, 99) == b"through" and pipe.is_fifo()
    os.close(reader)


@pytest.mark.parametrize(
    ("flags", "written"),
    [
        ([], ["a ||| b |||", ""]),
        (["--scores"], ["a || b || ||| -1.0000", " ||| 0.0000"]),
    ],
    ids=str,
)
def test_every_translation_stays_in_its_line_and_field(
    trained, tmp_path, monkeypatch, flags, written
):
    found = [[Translation("a ||| b\r\n\u2028 |||\n", [4], -1.0)], [Translation("\n", [], 0.0)]]
    monkeypatch.setattr(translate, "translate_nbest", lambda *args, **kwargs: found)
    (tmp_path / "in").write_text("old dog\nred cat\n")
    assert (
        call(
            translate,
            "--run",
            trained[0],
            "--input",
            tmp_path / "in",
            "--device",
            "cpu",
            "--output",
            tmp_path / "out",
            *flags,
        )
        == 0
    )
    assert (tmp_path / "out").read_text() == "".join(line + "\n" for line in written)


def test_the_callers_standard_output_outlives_an_error(tmp_path, capfd, monkeypatch):
    assert call(translate, "--run", tmp_path) == 2

    def broken(options):
        raise BrokenPipeError

    monkeypatch.setattr(translate, "run", broken)
    assert call(translate, "--run", tmp_path) == 0
    os.write(1, b"still here")
    assert capfd.readouterr().out == "still here"


def test_what_was_translated_comes_before_the_message(trained, tmp_path):
    (tmp_path / "in").write_bytes(b"old dog\nd\xf3g\n")
    command_line = [
        sys.executable,
        "-m",
        "src.translate",
        "--run",
        str(trained[0]),
        "--device",
        "cpu",
        "--buffer",
        "1",
        "--input",
        str(tmp_path / "in"),
    ]
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    result = subprocess.run(
        command_line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, env=buffered
    )
    first, second = result.stdout.decode().splitlines()
    assert first and second.startswith(f"src.translate: {tmp_path / 'in'}, line 2: not UTF-8")
    assert result.returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="broken pipes are POSIX")
def test_a_reader_who_has_seen_enough_ends_it_quietly(trained):
    end, write = os.pipe()
    os.close(end)
    command_line = [
        sys.executable,
        "-m",
        "src.translate",
        "--run",
        str(trained[0]),
        "--device",
        "cpu",
    ]
    result = subprocess.run(
        command_line, input=b"old dog\n", stdout=write, stderr=subprocess.PIPE, timeout=120
    )
    os.close(write)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_disk_that_fails_under_the_input_is_not_blamed_on_the_output(tmp_path, unchecked):
    class Broken(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError) as found, translate.output_file(str(tmp_path / "out")):
        list(translate.read_lines(io.BufferedReader(Broken()), "some/file"))
    assert found.value.filename == "some/file"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_disk_behind_standard_output(trained):
    run, _ = trained
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "src.translate", "--run", str(run), "--device", "cpu"],
            input="old dog\n",
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    message = "src.translate: standard output: No space left on device\n"
    assert (result.returncode, result.stderr) == (2, message)


def test_a_message_is_one_write(monkeypatch):
    """Under torchrun several processes share a standard error that holds nothing back."""
    writes = []

    class Pipe(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            writes.append(bytes(data))
            return len(data)

    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(Pipe(), write_through=True))
    assert option_parsing.complain("src.train", ValueError("two\nlines")) == 2
    assert writes == [b"src.train: two lines\n"]
