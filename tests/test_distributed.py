"""Several processes: the same as one on the joined batches, or all end with a sentence."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

import processes
from src import decoding, train
from src.data.batches import BucketedBatches
from src.training import checkpoints, distributed
from src.training.checkpoints import read_header
from src.transformer import Transformer
from toy_training import distributed_batches, distributed_run, tiny_model, trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="several processes: Linux and macOS"),
]

# Forks of a server that has imported PyTorch, started as torchrun does: a group costs a second.
# The command itself is run under torchrun below.


class Ranks:
    """Processes of one training, each of which calls a function; None is one without torchrun."""

    def __init__(self, size, folder, function, *arguments):
        # As under torchrun, the store at which they meet is the launcher's; its port is free.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "WORLD_SIZE": str(size),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        for file in (self.out, self.err):
            file.unlink(missing_ok=True)
        self.processes = [
            processes.start(
                function,
                *arguments,
                out=self.out,
                err=self.err,
                environment=size and place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(size or 1)
        ]

    def statuses(self, **options):
        return processes.finished(*self.processes, **options)


def trained(size, folder, *runs):
    """Train as `toy_training.distributed_run` says; what was printed."""
    ranks = Ranks(size, folder, distributed_run, *runs)
    assert set(ranks.statuses()) == {0}, ranks.err.read_text()
    return ranks.out.read_text()


def state_of(folder, name="last"):
    return read_header(folder / f"{name}.safetensors")["state"]


# What several processes do as one does that joins their batches in each update: what differs from
# ten updates with an evaluation after each five, and whether `best.safetensors` comes of it.
SAME = {
    "last update of an epoch without a batch for some": {},
    "two batches an update": {"accumulate": 2},
    "no validation set": {"held_out": False},
    "plain lists": {"lists": True, "count": 30},
    "one long sentence beside short ones": {"max_tokens": 36, "longest": 4},
    "best by score": {"scores": [1.0, 3.0, 2.0], "best_by": "score", "eval_every": 3, "steps": 9},
    "patience by score": {
        "scores": [2.0, 1.0, 1.5, 9.0],
        "best_by": "score",
        "eval_every": 1,
        "patience": 2,
    },
    "patience by loss": {"lr": 0.3, "warmup": 1, "eval_every": 1, "patience": 2, "steps": 40},
    "epochs": {"epochs": 2, "steps": None, "eval_every": None},
    "shards": {"sharding": "fsdp"},
    "shards, two batches an update": {"sharding": "fsdp", "accumulate": 2},
    "shards, no validation set": {"sharding": "fsdp", "held_out": False},
    "shards, patience by loss": {
        "lr": 0.3,
        "warmup": 1,
        "eval_every": 1,
        "patience": 2,
        "steps": 40,
        "sharding": "fsdp",
    },
}


@pytest.fixture(scope="module", params=[2, 3])
def several(request, tmp_path_factory):
    """All scenarios in two or three processes, and in one: the folders, and what those printed."""
    size, many = request.param, tmp_path_factory.mktemp("many")
    one = tmp_path_factory.mktemp("one")
    common = {"steps": 10, "save_every": None}
    out = trained(
        size, many, *(common | run | {"directory": str(many / name)} for name, run in SAME.items())
    )
    trained(
        None,
        one,
        *(
            common
            | run
            | {"directory": str(one / name), "accumulate": size * run.get("accumulate", 1)}
            for name, run in SAME.items()
            if "sharding" not in run
        ),
    )
    return many, one, out


@pytest.mark.parametrize("name", SAME)
def test_several_processes_are_one_on_the_joined_batches(several, name):
    """Sums of float32 in another order differ by 2**-24; a run of ten updates by a few times that."""
    many, one, out = several
    whole = {k: v for k, v in SAME[name].items() if k != "sharding"}
    many, one = many / name, one / next(n for n, run in SAME.items() if run == whole)
    assert sorted(os.listdir(many)) == sorted(os.listdir(one))
    found, wanted = state_of(many), state_of(one)
    assert len(found["history"]) == len(wanted["history"]) > 0
    for ours, theirs in zip(found["history"], wanted["history"], strict=False):
        assert ours[:3] == theirs[:3] and ours[5] == theirs[5]  # step, epoch, tokens; rate
        assert ours[4] == pytest.approx(theirs[4], rel=LOSS)
        assert ours[6] == pytest.approx(theirs[6], rel=NORM)
    for ours, theirs in zip(found["evaluations"], wanted["evaluations"], strict=True):
        assert ours[:3] == theirs[:3] and ours[5] == theirs[5]  # score
        assert ours[4] == (theirs[4] and pytest.approx(theirs[4], rel=LOSS))
    assert (found["step"], found["stale"]) == (wanted["step"], wanted["stale"])
    if (one / "best.safetensors").exists():
        assert state_of(many, "best")["step"] == state_of(one, "best")["step"]
    written = re.search(rf"^{name}: wrote \[(\d+)(?:, 0)+\], stopped False$", out, re.MULTILINE)
    assert written and int(written[1]) >= len(found["evaluations"])  # and no other process any


LOSS, NORM = 1e-6, 3e-6  # found: 1.2e-7 and 3.1e-7


# ---------------------------------------------------------------- interrupted and resumed


def test_a_killed_run_of_two_resumes_exactly(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = {"directory": str(killed), "steps": 12, "dropout": 0.2}
    kill = run | {"disturb": (1, 5, signal.SIGKILL)}
    ranks = Ranks(2, tmp_path, distributed_run, kill)
    assert ranks.statuses(grace=10) == [1, -signal.SIGKILL]
    assert "OtherFailed: another process ended and did not say why" in ranks.err.read_text()
    assert state_of(killed)["step"] in (4, 5)
    trained(2, tmp_path, run, run | {"directory": str(whole)})
    rows = [[row[:3] + row[4:] for row in state_of(d)["history"]] for d in (whole, killed)]
    assert rows[0] == rows[1]  # all but the seconds


def test_a_run_resumes_with_another_number_of_processes(tmp_path):
    """Nothing but the size of an update depends on it: with three processes, three batches."""
    sizes = {}
    for size, steps in ((2, 3), (3, 4), (None, 5)):
        run = {"directory": str(tmp_path / "run"), "steps": steps}
        trained(size, tmp_path, run)
        state = state_of(tmp_path / "run")
        sizes[size] = state["batches_of_epoch"]
    assert sizes == {2: 6, 3: 9, None: 1}  # of nine
    dealt = distributed_batches()
    batches = [b.num_tokens for b in dealt]
    dealt.set_epoch(1)
    batches += [b.num_tokens for b in dealt]
    tokens = [row[2] for row in state["history"]]
    assert tokens == [sum(batches[:n]) for n in (2, 4, 6, 9, 10)]


def test_an_epoch_that_was_filled_up_is_not_begun_again(tmp_path):
    """Seven batches in two processes are four rounds; three processes have nothing left of them."""
    run = {"directory": str(tmp_path / "run"), "count": 35}
    trained(2, tmp_path, run | {"steps": 4})
    trained(3, tmp_path, run | {"steps": 5})
    assert [row[1] for row in state_of(tmp_path / "run")["history"]] == [0, 0, 0, 0, 1]


def test_the_epoch_does_not_divide_evenly():
    """What the tests above rely on: an odd number of batches, so some process gets a filler."""
    assert len(distributed_batches()) == 10 - 1
    for size, fillers in ((2, 1), (3, 0)):
        dealt = [distributed_batches(rank=rank, world_size=size) for rank in range(size)]
        assert sum(b.num_tokens == 0 for batches in dealt for b in batches) == fillers
    counts = [b.num_tokens for b in distributed_batches()]
    assert max(counts) > 2 * min(counts)  # so that a mean of means would show


def unequal(folder):
    """In each of two processes: data that differ between them so that all have to refuse."""
    with distributed.process_group(timeout_s=60.0):
        rank = distributed.rank()
        mine = list(distributed_batches(rank=rank, world_size=2))
        for batches, valid, sharding in (
            (mine[: 2 + rank], None, "ddp"),
            (mine, mine if rank else None, "ddp"),
            (mine, mine[: 2 + rank], "fsdp"),
        ):
            with pytest.raises(ValueError) as caught:
                trainer(tiny_model(), batches, valid=valid, sharding=sharding, steps=5).fit()
            # One write: print makes two, and the other process writes between them.
            os.write(1, f"{rank} {str(caught.value).partition(', but')[0]}\n".encode())


def test_all_refuse_lists_that_differ_between_processes(tmp_path):
    ranks = Ranks(2, tmp_path, unequal, tmp_path)
    assert ranks.statuses() == [0, 0], ranks.err.read_text()
    assert sorted(ranks.out.read_text().splitlines()) == sorted(
        f"{rank} {sentence}"
        for rank in (0, 1)
        for sentence in (
            "train must hold the same number of batches in every process",
            "valid must be given in every process or in none",
            "valid must hold the same number of batches in every process with fsdp",
        )
    )


# ---------------------------------------------------------------- the command, and its ends


def command_line(corpus, out, *options):
    """Arguments for a training of a few updates by `src.train`."""
    arguments = [
        "--tsv",
        corpus,
        "--out",
        out,
        "--preset",
        "tiny",
        "--d-model",
        16,
        "--dropout",
        0,
        "--num-heads",
        2,
        "--d-ff",
        16,
        "--tokenizer",
        "word",
        "--vocab-size",
        40,
        "--batch-size",
        8,
        "--eval-every",
        2,
        "--valid-share",
        0.2,
        "--lr",
        0.01,
        "--bleu-sentences",
        3,
        "--device",
        "cpu",
        "--log-every",
        1,
        *options,
    ]
    return list(map(str, arguments))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "toy.tsv"
    words = ["red", "green", "blue", "old", "new", "big", "small", "cat", "dog", "house"]
    path.write_text("".join(f"{a} {b}\t{a[::-1]} {b[::-1]}\n" for a in words for b in words))
    return path


def raising(owner, name, error, when=1):
    """Replace a function by one that raises when it is called for the ``when``-th time."""
    calls, original = 0, getattr(owner, name)

    def call(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == when:
            raise error
        return original(*arguments, **options)

    setattr(owner, name, call)


def signalled(number):
    return train, "report", None, number


# What goes wrong in a command of two or three: where, at which call, with which error or signal; in which
# processes; the statuses of all; and, in each, the sentence or the end of the traceback.
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "last.safetensors")
ENDS = {
    "model": (
        (Transformer, "forward", 3, RuntimeError("no")),
        [1],
        [2, 1, 2],
        [
            "src.train: process 1 failed: RuntimeError: no",
            "RuntimeError: no",
            "src.train, process 2: process 1 failed: RuntimeError: no",
        ],
    ),
    "data": (
        (BucketedBatches, "_collate", 3, OSError(5, "no", "corpus")),
        [1],
        [2, 2],
        [
            "src.train: process 1 failed: OSError: [Errno 5] no: 'corpus'",
            "src.train, process 1: corpus: no",
        ],
    ),
    "ids": (
        (BucketedBatches, "_collate", 3, ValueError("src ids: no")),
        [0],
        [2, 2],
        [
            "src.train: src ids: no",
            "src.train, process 1: process 0 failed: ValueError: src ids: no",
        ],
    ),
    "metric": (
        (train, "bleu", 1, ValueError("no")),
        [0],
        [2, 2],
        ["src.train: no", "src.train, process 1: process 0 failed: ValueError: no"],
    ),
    "full disk": (
        (checkpoints, "save_file", 2, FULL),
        [0],
        [2, 2],
        [
            "src.train: last.safetensors: No space left on device",
            "src.train, process 1: process 0 failed while it wrote for all: see its message",
        ],
    ),
    "SIGTERM to one": (signalled(signal.SIGTERM), [1], [143, 143], []),
    "SIGINT to all": (signalled(signal.SIGINT), [0, 1], [130, 130], []),
    "SIGTERM in the last evaluation": ((train, "bleu", None, signal.SIGTERM), [1], [143, 143], []),
}


def ending(scenario, *arguments):
    """In each process: run the command, in which something goes wrong in some."""
    (owner, name, call, what), ranks, *_ = ENDS[scenario]
    if int(os.environ["RANK"]) in ranks:
        if isinstance(what, Exception):
            raising(owner, name, what, call)
        else:
            original = getattr(owner, name)

            def signal_first(*arguments, **options):
                os.kill(os.getpid(), what)
                setattr(owner, name, original)
                return original(*arguments, **options)

            setattr(owner, name, signal_first)
    return train.main(list(arguments))


@pytest.mark.parametrize("name", ENDS)
def test_all_end_with_one_sentence_each(name, corpus, tmp_path):
    _, _, statuses, sentences = ENDS[name]
    steps = 1 if "last" in name else 500  # which is evaluated when all updates are done
    arguments = command_line(corpus, tmp_path / "run", "--steps", steps, "--no-tensorboard")
    run = Ranks(len(statuses), tmp_path, ending, name, *arguments)
    assert run.statuses(grace=10) == statuses, run.err.read_text()
    said = run.err.read_text().splitlines()
    for sentence in sentences:
        assert said.count(sentence) == 1, said
    if not any(sentence.startswith("RuntimeError") for sentence in sentences):
        assert len(said) == len(sentences)
    if not sentences:
        assert "stopped after update 1; all is saved" in run.out.read_text()
        assert state_of(tmp_path / "run")["step"] == 1
    assert not list(tmp_path.glob("run/*.partial"))


def torchrun(*arguments):
    """Train by the command that the page names; what it wrote to standard output."""
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "src.train",
            *arguments,
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_command_under_torchrun_and_with_shards(corpus, tmp_path):
    """Nothing held out; then with copies, and with shards that are cut, resumed and translate."""
    none = ["--valid-share", 0, "--test-share", 0, "--steps", 1]
    out = torchrun(*command_line(corpus, tmp_path / "all", *none))
    assert "100 + 0 + 0 pairs" in out and "2 × cpu" in out and "note:" not in out
    for folder, options in (
        ("copies", ["--steps", 4]),
        ("shards", ["--steps", 2]),
        ("shards", ["--steps", 4, "--resume"]),
    ):
        sharding = "fsdp" if folder == "shards" else "ddp"
        arguments = command_line(corpus, tmp_path / folder, "--sharding", sharding, *options)
        ranks = Ranks(2, tmp_path, train.main, arguments)
        assert ranks.statuses() == [0, 0], ranks.err.read_text()
    assert "resumed after update 2" in ranks.out.read_text()
    copies, shards = (state_of(tmp_path / folder) for folder in ("copies", "shards"))
    assert [row[0] for row in copies["history"]] == [1, 2, 3, 4]
    for name in ("history", "evaluations"):
        ours, theirs = ([row[:3] + row[4:] for row in state[name]] for state in (shards, copies))
        for mine, other in zip(ours, theirs, strict=True):  # all but the seconds
            assert mine == pytest.approx(other, rel=1e-5)
    for name in ("copies", "shards"):
        assert (tmp_path / name / "test.json").exists()


# ---------------------------------------------------------------- decoding with shards


def decoded(model):
    """Tokens of two sentences, by a model whose output is plain and by one with a hook on it."""
    src = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
    rules = {"bos_id": 1, "eos_id": 2, "pad_id": 0, "max_len": 6}
    plain = decoding.greedy(model.stepper(src), 2, **rules)
    hook = model.output.register_forward_hook(lambda layer, given, out: -out)
    hooked = decoding.beam_search(model.stepper(src), 2, beam_size=2, **rules).tokens
    hook.remove()
    maps = model.attention_maps(src, plain)["cross"][0]
    return [plain.tolist(), hooked.tolist(), maps.argmax(-1).tolist()]


def decode_with_shards():
    """In each process: each entrance is the first use of a model that was just sharded."""
    with distributed.process_group(timeout_s=60.0):
        wanted = decoded(tiny_model().eval())
        assert decoded(distributed.wrap(tiny_model().eval(), "fsdp")) == wanted
        src, tgt = torch.tensor([[5, 6, 2]]), torch.tensor([[1, 4]])
        maps, shards = (
            model.attention_maps(src, tgt)["cross"][0]
            for model in (tiny_model().eval(), distributed.wrap(tiny_model().eval(), "fsdp"))
        )
        assert torch.allclose(maps, shards)
        model = distributed.wrap(tiny_model().eval(), "fsdp")
        cache = model.new_cache(src)
        model.reshard()
        logits = model.decode_cached(tgt, cache)
        assert torch.allclose(logits, tiny_model().eval()(src, tgt), atol=1e-6)


def test_a_sharded_model_decodes_the_tokens_of_the_whole_one(tmp_path):
    ranks = Ranks(2, tmp_path, decode_with_shards)
    assert ranks.statuses() == [0, 0], ranks.err.read_text()


def test_entrances_are_methods_that_the_package_calls():
    sources = "".join(path.read_text() for path in Path(train.__file__).parent.glob("*.py"))
    for name in distributed.ENTRANCES:
        assert callable(getattr(Transformer, name))
        assert re.search(rf"\bmodel\.{name}\(", sources), name


# ---------------------------------------------------------------- without torchrun


def test_one_process_needs_no_group():
    with distributed.process_group():
        assert not torch.distributed.is_initialized()
    assert (distributed.rank(), distributed.world_size()) == (0, 1)
    assert distributed.is_writer()
    assert distributed.sum_over_ranks(1, 2.5) == [1.0, 2.5]
    assert distributed.any_rank(True) and not distributed.any_rank(False)
    state = torch.arange(3)
    assert distributed.gather(state) == [state]
    layer = torch.nn.Linear(2, 2)
    assert distributed.wrap(layer) is layer
    with pytest.raises(ValueError, match="sharding must be one of .* got 'zero'"):
        distributed.wrap(layer, "zero")
    with pytest.raises(OSError, match="no room"):
        distributed.on_writer(lambda: (_ for _ in ()).throw(OSError("no room")))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_gpus_train(tmp_path, sharding):
    run = {"directory": str(tmp_path / "run"), "steps": 5, "sharding": sharding, "device": None}
    trained(2, tmp_path, run)
    rows = state_of(tmp_path / "run")["history"]
    assert rows[-1][4] < rows[0][4]
