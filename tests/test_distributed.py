"""Several processes: the same losses as one on the joined batch, and failing together."""

import os
import re
import signal
import subprocess
import sys

import processes
import pytest
import torch
from torch.distributed import TCPStore
from toy_training import distributed_batches, distributed_run, tiny_model, trainer

from src import distributed, train
from src.checkpoints import read_header

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="several processes: Linux and macOS"),
]

# Most of these tests need two processes, but not the launcher: they are started as torchrun does,
# without importing PyTorch anew. The command itself is run under torchrun below.


class Ranks:
    """Two processes of one training, each of which calls a function."""

    def __init__(self, folder, function, *arguments, limit=None):
        # As under torchrun, the store at which they meet is the launcher's; its port is free.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port),
                 "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}  # fmt: skip
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        for file in (self.out, self.err):
            file.unlink(missing_ok=True)
        self.processes = [
            processes.start(
                function, *arguments, out=self.out, err=self.err, limit=limit,
                environment=place | {"RANK": rank, "LOCAL_RANK": rank},
            )
            for rank in ("0", "1")
        ]  # fmt: skip

    def statuses(self):
        return processes.finished(*self.processes)


def trained_by_two(folder, *runs, **run):
    """Train as `toy_training.distributed_run` says, once or more; what both printed."""
    ranks = Ranks(folder, distributed_run, *runs, *([run] if run else []))
    assert ranks.statuses() == [0, 0], ranks.err.read_text()
    return ranks.out.read_text()


def history_of(path):
    return read_header(path)["state"]["history"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process that makes each update from the batches of two, or from two of each."""
    folder = tmp_path_factory.mktemp("alone")
    runs = [{"directory": str(folder / str(n)), "accumulate": 2 * n, "steps": 10} for n in (1, 2)]
    distributed_run(*runs)
    return folder


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_are_one_on_the_joined_batch(alone, tmp_path, sharding):
    """Whether each update takes a batch of each process, or two."""
    one, two = (
        {"directory": str(tmp_path / str(n)), "accumulate": n, "steps": 10, "sharding": sharding}
        for n in (1, 2)
    )
    out = trained_by_two(tmp_path, one, two)
    for folder in ("1", "2"):
        same_training(alone / folder / "last.safetensors", tmp_path / folder / "last.safetensors")
    # Counted at each run's end: ten savings and up to two best ones, all by one process.
    assert out.count("process 1 wrote 0 files") == 2
    counts = [int(n) for n in re.findall(r"process 0 wrote (\d+) files", out)]
    assert len(counts) == 2 and all(10 < count <= 12 for count in counts)


def same_training(one_process, two_processes):
    wanted, found = history_of(one_process), history_of(two_processes)
    assert len(wanted) == len(found) == 10
    for one, two in zip(wanted, found):
        assert one[:3] == two[:3]  # step, epoch, tokens
        assert two[4] == pytest.approx(one[4], rel=1e-6)  # loss
        assert two[5] == one[5]  # learning rate
        assert two[6] == pytest.approx(one[6], rel=1e-5)  # norm of the gradient
    evaluations = [read_header(p)["state"]["evaluations"] for p in (one_process, two_processes)]
    assert [e[4] for e in evaluations[1]] == pytest.approx([e[4] for e in evaluations[0]], rel=1e-6)


def test_the_epoch_does_not_divide_evenly():
    """What the test above relies on: an odd number of batches, so one process gets a filler."""
    one, two = (distributed_batches(rank=0, world_size=n) for n in (1, 2))
    assert len(one) % 2 == 1 and len(two) == len(one) // 2 + 1
    fillers = [b for b in distributed_batches(rank=1, world_size=2) if b.num_tokens == 0]
    assert len(fillers) == 1
    counts = [b.num_tokens for b in one]
    assert max(counts) > 2 * min(counts)  # so that a mean of means would show


def test_a_killed_run_of_two_resumes_exactly(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trained_by_two(tmp_path, directory=str(whole), steps=12, dropout=0.2)
    run = {"directory": str(killed), "steps": 12, "dropout": 0.2}
    assert Ranks(tmp_path, distributed_run, run | {"kill": [1, 5]}).statuses()[1] == -signal.SIGKILL
    reached = read_header(killed / "last.safetensors")["state"]["step"]
    assert reached in (4, 5)
    trained_by_two(tmp_path, run)
    names = [0, 1, 2, 4, 5, 6]  # all but the seconds
    wanted, found = (history_of(d / "last.safetensors") for d in (whole, killed))
    assert [[r[i] for i in names] for r in found] == [[r[i] for i in names] for r in wanted]


def test_a_run_of_two_goes_on_as_one(tmp_path):
    """Without dropout nothing depends on the number of processes but the size of an update."""
    trained_by_two(tmp_path, directory=str(tmp_path), steps=3, accumulate=1)
    header = read_header(tmp_path / "last.safetensors")["state"]
    assert header["batches_of_epoch"] == 6
    distributed_run({"directory": str(tmp_path), "steps": 5, "accumulate": 1})
    rows = history_of(tmp_path / "last.safetensors")
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[3][2] - rows[2][2] < rows[2][2] - rows[1][2]  # half as many batches an update


def test_all_stop_when_one_is_asked_to(tmp_path):
    out = trained_by_two(tmp_path, directory=str(tmp_path), steps=50, interrupt=[1, 4])
    step = read_header(tmp_path / "last.safetensors")["state"]["step"]
    assert 4 <= step < 50
    assert out.count(f"stopped after {step}") == 2


def unequal(folder):
    """In each of two processes: lists, scores and ends that differ between them."""
    from src import distributed as group

    def say(text):  # one write: print makes two, and the other process writes between them
        sys.stdout.write(f"{rank} {text}\n")
        sys.stdout.flush()

    with group.process_group(timeout_s=60):
        rank = group.rank()
        mine = list(distributed_batches(rank=rank, world_size=2))
        run = trainer(tiny_model(), mine[:2], steps=None, epochs=2)
        run.fit()
        say(f"lists {run.step} updates")
        scores = iter([1.0, 0.0, 1.0] if rank else [0.0, 1.0, 0.0])
        run = trainer(tiny_model(), mine, steps=9, eval_every=1, best_by="score", patience=2,
                      metric=lambda model: next(scores), directory=folder / "run")
        run.fit()
        say(f"scores {[e.score for e in run.evaluations]} stale {run.stale}")
        for batches, valid in ((mine[: 2 + rank], None), (mine, mine if rank else None)):
            with pytest.raises(ValueError) as caught:
                trainer(tiny_model(), batches, valid=valid, steps=5).fit()
            say(str(caught.value).partition(", but")[0])


def test_lists_scores_and_ends_that_differ_between_processes(tmp_path):
    """Two processes decide alike, or both refuse; none waits for the other."""
    ranks = Ranks(tmp_path, unequal, tmp_path)
    assert ranks.statuses() == [0, 0], ranks.err.read_text()
    lines = ranks.out.read_text().splitlines()
    for rank in (0, 1):
        assert f"{rank} lists 4 updates" in lines
        assert f"{rank} scores [0.5, 0.5, 0.5] stale 2" in lines
        assert f"{rank} train must hold the same number of batches in every process" in lines
        assert f"{rank} valid must be given in every process or in none" in lines


def command_line(corpus, out, *options):
    """Arguments for a training of a few updates by `src.train`."""
    arguments = ["--tsv", corpus, "--out", out, "--preset", "tiny", "--d-model", 16, "--dropout", 0,
                 "--num-heads", 2, "--d-ff", 16, "--tokenizer", "word", "--vocab-size", 40,
                 "--batch-size", 8, "--eval-every", 2, "--valid-share", 0.2, "--lr", 0.01,
                 "--bleu-sentences", 3, "--device", "cpu", "--log-every", 1, *options]  # fmt: skip
    return list(map(str, arguments))


def torchrun(*arguments):
    """Train by the command that the page names; what it wrote to standard output."""
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "src.train", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "toy.tsv"
    words = "red green blue old new big small cat dog house".split()
    path.write_text("".join(f"{a} {b}\t{a[::-1]} {b[::-1]}\n" for a in words for b in words))
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are POSIX")
def test_all_fail_in_a_sentence_when_the_writer_fails(corpus, tmp_path):
    """The curves reach the limit first; then no process may wait for another, or say more."""
    arguments = command_line(
        corpus, tmp_path / "run", "--tensorboard", "--steps", 500, "--eval-every", 500
    )
    ranks = Ranks(tmp_path, train.main, arguments, limit=5_000)
    assert ranks.statuses() == [2, 2]
    assert sorted(ranks.err.read_text().splitlines()) == [
        "src.train, process 1: process 0 failed while it wrote for all: see its message",
        f"src.train: {tmp_path / 'run' / 'tensorboard'}: File too large",
    ]


def test_the_command_under_torchrun_with_copies_and_with_shards(corpus, tmp_path):
    """The sharded run is cut and resumed, and translates for its BLEU with its shards."""
    nothing_held_out = ["--valid-share", 0, "--test-share", 0]
    out = torchrun(*command_line(corpus, tmp_path / "all", "--steps", 1, *nothing_held_out))
    assert "100 + 0 + 0 pairs" in out and "note:" not in out
    out = torchrun(*command_line(corpus, tmp_path / "copies", "--steps", 4))
    assert "2 × cpu" in out
    evaluations = [line.split(",")[0] for line in out.splitlines() if line.startswith("update")]
    assert evaluations == ["update 2", "update 4"]
    for options in (["--steps", 2], ["--steps", 4, "--resume"]):
        sharded = ["--sharding", "fsdp", *options]
        ranks = Ranks(tmp_path, train.main, command_line(corpus, tmp_path / "shards", *sharded))
        assert ranks.statuses() == [0, 0], ranks.err.read_text()
    assert "resumed after update 2" in ranks.out.read_text()
    copies, shards = (read_header(tmp_path / name / "last.safetensors")["state"]
                      for name in ("copies", "shards"))  # fmt: skip
    assert [row[0] for row in copies["history"]] == [1, 2, 3, 4]
    for name in ("history", "evaluations"):
        ours, theirs = ([row[:3] + row[4:] for row in state[name]] for state in (shards, copies))
        for mine, other in zip(ours, theirs, strict=True):  # all but the seconds
            assert mine == pytest.approx(other, rel=1e-5)
    for name in ("copies", "shards"):
        assert (tmp_path / name / "test.json").exists()


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
    trained_by_two(tmp_path, directory=str(tmp_path), steps=5, sharding=sharding, device=None)
    rows = history_of(tmp_path / "last.safetensors")
    assert rows[-1][4] < rows[0][4]
