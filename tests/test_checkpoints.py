"""Checkpoints: complete, exact when resumed, refused when damaged, never pickled."""

import ast
import errno
import json
import os
import random
import stat
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

import processes
from src.data.batches import BucketedBatches
from src.training import checkpoints
from src.training.checkpoints import (
    CheckpointError,
    ConfigMismatch,
    load_checkpoint,
    read_header,
    rng_state,
    save_checkpoint,
    set_rng_state,
)
from toy_training import (
    copy_examples,
    tiny_model,
    trainer,
    write_too_much,
)

CPU = torch.device("cpu")


def trained(directory=None, **fields):
    batches = BucketedBatches(copy_examples(), batch_size=5, seed=2)
    run = trainer(tiny_model(dropout=0.2), batches, directory=directory, **fields)
    run.fit()
    return run


def equal_states(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_weights_moments_and_state_come_back_bit_for_bit(tmp_path):
    run = trained(optimizer="adamw", weight_decay=0.1)
    path = tmp_path / "a.safetensors"
    save_checkpoint(
        path,
        run.model,
        config={"d_model": 12},
        optimizer=run.updater.optimizer,
        state={"step": 6, "best": -float("inf")},
    )
    batches = BucketedBatches(copy_examples(), batch_size=5)
    fresh = trainer(tiny_model(seed=9), batches, optimizer="adamw", weight_decay=0.1)
    state = load_checkpoint(
        path, fresh.model, config={"d_model": 12}, optimizer=fresh.updater.optimizer
    )
    assert state == {"step": 6, "best": -float("inf")}
    assert equal_states(run.model.state_dict(), fresh.model.state_dict())
    old, new = run.updater.optimizer.state_dict(), fresh.updater.optimizer.state_dict()
    assert old["state"].keys() == new["state"].keys() and len(old["state"]) > 10
    for index in old["state"]:
        assert equal_states(old["state"][index], new["state"][index])
    assert old["param_groups"] == new["param_groups"]


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_tied_weights_are_written_once_and_stay_tied(tmp_path, tie):
    model = tiny_model(src_vocab_size=17, tie_embeddings=tie)
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, model, config={})
    names = {"none": 3, "target": 2, "all": 1}
    matrices = [name for name, t in load_file(path).items() if t.shape == (17, 12)]
    assert len(matrices) == names[tie]
    other = tiny_model(seed=5, src_vocab_size=17, tie_embeddings=tie)
    load_checkpoint(path, other)
    assert equal_states(model.state_dict(), other.state_dict())
    tied = other.output.weight is other.decoder.embeddings.tokens.weight
    assert tied == (tie != "none")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accumulate": 3},
        {"precision": "float16"},
        {"optimizer": "adamw", "weight_decay": 0.1},
        {"schedule": "constant", "clip": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("cut", [1, 5, 8])  # within an epoch, over its end (8 batches), at it
def test_resuming_gives_exactly_the_uninterrupted_losses(tmp_path, fields, cut):
    whole = trained(steps=11, **fields)
    trained(tmp_path, steps=cut, **fields)
    batches = BucketedBatches(copy_examples(), batch_size=5, seed=2)
    rest = trainer(tiny_model(seed=3, dropout=0.2), batches, steps=11, directory=tmp_path, **fields)
    torch.manual_seed(99)  # the generator's state comes from the file, not from here
    assert rest.resume() and rest.step == cut
    rest.fit()
    old = [(r.step, r.epoch, r.tokens, r.loss, r.lr, r.grad_norm) for r in whole.history]
    new = [(r.step, r.epoch, r.tokens, r.loss, r.lr, r.grad_norm) for r in rest.history]
    assert new == old
    assert equal_states(whole.model.state_dict(), rest.model.state_dict())


def test_evaluation_between_does_not_change_training(tmp_path):
    batches = BucketedBatches(copy_examples(), batch_size=7, shuffle=False)
    plain = trained(steps=6)
    looked = trained(tmp_path, steps=6, eval_every=2, valid=batches)
    assert len(looked.evaluations) == 3
    assert [r.loss for r in looked.history] == [r.loss for r in plain.history]


def test_early_stop_counts_on_after_resuming(tmp_path):
    scores = {1: 5.0, 2: 4.0, 3: 3.0, 4: 2.0}
    fields = {"eval_every": 1, "patience": 3, "best_by": "score"}
    batches = BucketedBatches(copy_examples(), batch_size=5)
    first = trainer(
        tiny_model(),
        batches,
        steps=2,
        directory=tmp_path,
        metric=lambda m: scores[first.step],
        **fields,
    )
    first.fit()
    second = trainer(
        tiny_model(),
        batches,
        steps=9,
        directory=tmp_path,
        metric=lambda m: scores[second.step],
        **fields,
    )
    assert second.resume()
    second.fit()
    assert second.step == 4 and [e.score for e in second.evaluations] == [5.0, 4.0, 3.0, 2.0]


def test_resume_without_a_checkpoint_changes_nothing(tmp_path):
    run = trainer(tiny_model(), BucketedBatches(copy_examples(), batch_size=5), directory=tmp_path)
    before = {k: v.clone() for k, v in run.model.state_dict().items()}
    assert run.resume() is False and run.step == 0
    assert equal_states(before, run.model.state_dict())


# ---------------------------------------------------------------- a disk that is full


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are POSIX")
def test_a_file_that_cannot_grow_leaves_the_old_one(tmp_path):
    path, out = tmp_path / "a.safetensors", tmp_path / "out.txt"
    save_checkpoint(path, nn.Linear(2, 3), config={}, state={"step": 1})
    process = processes.start(write_too_much, path, out=out, limit=20_000)
    assert processes.finished(process) == [0], out.read_text()
    assert out.read_text().split() == [str(errno.EFBIG), str(path)]
    out.unlink()
    assert read_header(path)["state"] == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_is_an_oserror_with_its_number(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, nn.Linear(2, 3), config={}, state={"step": 1})

    def full(tensors, filename, metadata):
        Path(filename).write_bytes(b"half a fi")
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(OSError, match="No space left on device.*a.safetensors") as error:
        save_checkpoint(path, nn.Linear(2, 3), config={}, state={"step": 2})
    assert error.value.errno == errno.ENOSPC
    assert read_header(path)["state"] == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        save_checkpoint(tmp_path / "no" / "a.safetensors", nn.Linear(2, 3), config={})


# ---------------------------------------------------------------- what is not accepted


def test_checkpoint_of_another_model_is_refused_and_nothing_changed(tmp_path):
    trained(tmp_path)
    batches = BucketedBatches(copy_examples(), batch_size=5)
    other = trainer(tiny_model(d_model=24, d_ff=21), batches, directory=tmp_path)
    before = {k: v.clone() for k, v in other.model.state_dict().items()}
    message = "another configuration: d_ff = 20 there and 21 here; d_model = 12 there and 24 here"
    with pytest.raises(ConfigMismatch, match=message):
        other.resume()
    assert equal_states(before, other.model.state_dict()) and other.step == 0


def test_checkpoint_of_another_training_is_refused(tmp_path):
    trained(tmp_path)
    batches = BucketedBatches(copy_examples(), batch_size=5)
    other = trainer(tiny_model(dropout=0.2), batches, directory=tmp_path, lr=0.5, betas=(0.9, 0.9))
    with pytest.raises(ConfigMismatch, match=r"betas = \[0.9, 0.98\] there .* lr = 0.001 there"):
        other.resume()


def test_longer_training_and_other_intervals_are_accepted(tmp_path):
    trained(tmp_path, steps=3)
    batches = BucketedBatches(copy_examples(), batch_size=5, seed=2)
    longer = trainer(
        tiny_model(dropout=0.2),
        batches,
        directory=tmp_path,
        steps=5,
        eval_every=1,
        save_every=2,
        log_every=1,
    )
    assert longer.resume()
    assert [r.step for r in longer.fit()] == [1, 2, 3, 4, 5]


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, nn.Linear(2, 3), config={})
    with pytest.raises(ConfigMismatch, match=r"weight has shape \(3, 2\) there and \(3, 5\) here"):
        load_checkpoint(path, nn.Linear(5, 3))
    with pytest.raises(ConfigMismatch, match=r"bias has shape \(3,\) there and absent here"):
        load_checkpoint(path, nn.Linear(2, 3, bias=False))


def test_weights_alone_do_not_continue_a_run(tmp_path):
    path = tmp_path / "best.safetensors"
    model = nn.Linear(2, 3)
    save_checkpoint(path, model, config={})
    with pytest.raises(CheckpointError, match="holds weights only: it cannot continue a run"):
        load_checkpoint(path, model, optimizer=torch.optim.Adam(model.parameters()))


def test_files_that_are_no_checkpoints(tmp_path):
    model = nn.Linear(2, 3)
    with pytest.raises(FileNotFoundError, match="No such checkpoint.*absent"):
        load_checkpoint(tmp_path / "absent.safetensors", model)
    text = tmp_path / "text.safetensors"
    text.write_text("this is no checkpoint, however long it is " * 9)
    with pytest.raises(CheckpointError, match="text.safetensors is not a checkpoint"):
        read_header(text)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(2)}, foreign)
    with pytest.raises(CheckpointError, match="is a safetensors file, but not a checkpoint"):
        read_header(foreign)
    later = tmp_path / "later.safetensors"
    save_file({"a": torch.zeros(1)}, later, {"checkpoint": json.dumps({"format": 9})})
    with pytest.raises(CheckpointError, match="has format 9; this version reads 1"):
        read_header(later)


def test_a_flipped_bit_or_a_missing_end_is_refused_by_name_wherever_it_is(tmp_path):
    model, file, damaged = nn.Linear(2, 3), tmp_path / "a", tmp_path / "damaged"
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(file, model, config={"d_model": 2}, optimizer=optimizer)
    data = file.read_bytes()
    flipped = [bytearray(data) for _ in range(0, len(data), 7)]
    for number, copy in enumerate(flipped):
        copy[7 * number] ^= 1 << number % 8
    for content in [*flipped, *(data[:length] for length in range(0, len(data), 50))]:
        damaged.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"^{damaged} is (damaged|not a c|a safetensors)"):
            load_checkpoint(damaged, nn.Linear(2, 3))


def test_vocabularies_that_changed_beside_a_checkpoint_are_refused(tmp_path):
    for name in ("source.json", "target.json"):
        (tmp_path / name).write_text("cat")
    path, model = tmp_path / "a.safetensors", nn.Linear(2, 3)
    save_checkpoint(path, model, config={})
    load_checkpoint(path, model)
    (tmp_path / "target.json").write_text("bat")
    with pytest.raises(CheckpointError, match=f"{path} was written beside another source.json"):
        load_checkpoint(path, model)
    load_checkpoint(path.rename(tmp_path.parent / "elsewhere.safetensors"), model)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("hello", "is not a checkpoint: its header is no JSON"),
        ("[1]", "has format None"),
        ('{"format": 1}', "is not a checkpoint: its header has no config"),
        ('{"format": 1, "config": {}, "state": 5}', "is not a checkpoint: its header has no state"),
    ],
)
def test_a_header_that_is_none_is_refused_by_name(tmp_path, header, message):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"checkpoint": header})
    with pytest.raises(CheckpointError, match=f"{path} {message}"):
        read_header(path)


def test_a_tied_weight_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    header = {"format": 1, "config": {}, "state": {}, "aliases": {"weight": "absent"}}
    save_file({"model.bias": torch.zeros(3)}, path, {"checkpoint": json.dumps(header)})
    with pytest.raises(ConfigMismatch, match="a.safetensors does not fit the model: weight"):
        load_checkpoint(path, nn.Linear(2, 3))


def test_an_optimizer_with_other_groups_is_refused_and_nothing_changed(tmp_path):
    path, model = tmp_path / "a.safetensors", nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    save_checkpoint(path, model, config={}, optimizer=optimizer)
    other = nn.Linear(2, 3)
    before = {k: v.clone() for k, v in other.state_dict().items()}
    groups = [{"params": [other.weight]}, {"params": [other.bias]}]
    with pytest.raises(CheckpointError, match="with 1 groups of parameters, but this one has 2"):
        load_checkpoint(path, other, optimizer=torch.optim.Adam(groups))
    assert equal_states(before, other.state_dict())


def test_a_float_is_not_loaded_as_an_integer(tmp_path):
    path, models = tmp_path / "a.safetensors", [nn.Linear(2, 3), nn.Linear(2, 3)]
    models[0].register_buffer("seen", torch.tensor(1.5))
    models[1].register_buffer("seen", torch.tensor(1))
    save_checkpoint(path, models[0], config={})
    before = {k: v.clone() for k, v in models[1].state_dict().items()}
    message = "seen is of torch.float32 there and of torch.int64 here"
    with pytest.raises(ConfigMismatch, match=message):
        load_checkpoint(path, models[1])
    assert equal_states(before, models[1].state_dict())
    load_checkpoint(path, models[0].double())  # precisions may differ


def test_the_header_is_plain_json(tmp_path):
    path = tmp_path / "last.safetensors"
    trained(tmp_path, steps=2)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["checkpoint"])
    assert header["state"]["step"] == 2 and header["config"]["d_model"] == 12
    assert header["state"]["training"]["betas"] == [0.9, 0.98]


def test_nothing_in_the_package_pickles():
    banned = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for path in (Path(__file__).parents[1] / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.split(".")[0] for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in banned, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                call = f"{node.value.id}.{node.attr}"
                assert call not in {"torch.save", "torch.load"}, path


# ---------------------------------------------------------------- random generators


def test_random_generators_go_on_where_they_were():
    torch.rand(3), random.random(), random.gauss(0, 1)
    state = json.loads(json.dumps(rng_state(CPU)))
    expected = (torch.rand(5).tolist(), random.random(), random.gauss(0, 1))
    torch.manual_seed(77), random.seed(77)
    assert set_rng_state(state, CPU)
    assert (torch.rand(5).tolist(), random.random(), random.gauss(0, 1)) == expected


def test_generators_of_a_process_that_was_not_there():
    state = rng_state(CPU)
    assert not set_rng_state(state | {"cpu": []}, CPU)
    assert not set_rng_state(state, torch.device("cuda"))


@pytest.mark.gpu
def test_resuming_on_the_gpu_is_exact(tmp_path):
    from src.training.config import TrainingConfig
    from src.training.trainer import Trainer

    def run(steps, directory):
        batches = BucketedBatches(copy_examples(), batch_size=5, seed=2)
        settings = TrainingConfig(steps=steps, lr=1e-3, warmup=4, log_every=1, precision="float16")
        made = Trainer(
            tiny_model(dropout=0.2),
            batches,
            settings,
            pad_id=0,
            directory=directory,
            progress=False,
        )
        made.resume()
        made.fit()
        return [r.loss for r in made.history]

    whole = run(9, tmp_path / "whole")
    run(4, tmp_path / "cut")
    assert run(9, tmp_path / "cut") == whole


@pytest.mark.parametrize("part", ["header", "weight", "moment"])
def test_one_flipped_bit_is_noticed(tmp_path, part):
    path = tmp_path / "last.safetensors"
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_checkpoint(path, model, config={"width": 3}, optimizer=optimizer)
    raw = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = json.loads(raw[8:start])
    name = {"weight": "model.weight", "moment": "optimizer.weight.exp_avg"}.get(part)
    at = start + tensors[name]["data_offsets"][0] if name else raw.index(b"width")
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="last.safetensors is damaged: its"):
        load_checkpoint(path, model, config={"width": 3}, optimizer=optimizer)


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    steps = []
    replace, fsync = os.replace, os.fsync

    def recorded_fsync(number):
        steps.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        fsync(number)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append("name"), replace(*paths)))
    save_checkpoint(tmp_path / "last.safetensors", nn.Linear(3, 2), config={})
    assert steps == ["file", "name", "folder"]
