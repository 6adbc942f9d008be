"""A tiny task and a tiny model for the tests of training, and what their processes do."""

import json
import os
import random
from pathlib import Path

import torch

from src.config import TransformerConfig
from src.data.batches import BucketedBatches, Example
from src.training.checkpoints import save_checkpoint
from src.training.config import TrainingConfig
from src.training.trainer import Trainer
from src.transformer import Transformer

PAD = 0


def tiny_model(seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 20, "dropout": 0.0, "max_len": 32}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(
        TransformerConfig(**{"src_vocab_size": 13, "tgt_vocab_size": 17} | sizes | layers | fields)
    )


def copy_examples(count=40, seed=0, longest=9):
    """Pairs in which the target is the source plus 3, of very unequal lengths."""
    generator = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = [generator.randrange(4, 13) for _ in range(generator.randint(1, longest))]
        pairs.append(Example([*words, 2], [1, *(w + 3 for w in words), 2]))
    return pairs


def config(**fields):
    defaults = {"steps": 6, "lr": 1e-3, "warmup": 4, "label_smoothing": 0.1, "log_every": 1}
    return TrainingConfig(**defaults | fields)


def trainer(
    model,
    batches,
    /,
    *,
    valid=None,
    metric=None,
    directory=None,
    callbacks=(),
    sharding="ddp",
    **fields,
):
    return Trainer(
        model,
        batches,
        config(**fields),
        pad_id=PAD,
        device="cpu",
        progress=False,
        valid=valid,
        metric=metric,
        directory=directory,
        callbacks=callbacks,
        sharding=sharding,
    )


def trained_in_a_process(directory, steps):
    """Train, saving after each update; resume if there is something; print the losses."""
    batches = BucketedBatches(copy_examples(), batch_size=5, seed=2)
    run = trainer(
        tiny_model(dropout=0.2),
        batches,
        steps=steps,
        accumulate=2,
        save_every=1,
        directory=directory,
    )
    print("resumed", run.resume(), run.step, flush=True)
    run.fit()
    print(json.dumps([(r.step, r.loss, r.grad_norm) for r in run.history]), flush=True)


def write_too_much(path):
    """Save a checkpoint that is larger than a file may be; print the error."""
    try:
        save_checkpoint(path, torch.nn.Linear(200, 300), config={}, state={"step": 2})
    except OSError as error:
        print(error.errno, error.filename)


def distributed_batches(seed=4, shuffle=True, **place):
    """An odd number of batches whose token counts differ much."""
    return BucketedBatches(
        copy_examples(45, longest=12), batch_size=5, seed=seed, shuffle=shuffle, **place
    )


def distributed_run(*runs):
    """Train once for each of the ``runs``, in the same processes and one group."""
    from src.training import distributed

    with distributed.process_group(timeout_s=60.0):
        for options in runs:
            distributed_training(**options)


def distributed_training(
    directory,
    *,
    sharding="ddp",
    device="cpu",
    dropout=0.0,
    count=45,
    longest=12,
    max_tokens=None,
    lists=False,
    held_out=True,
    scores=None,
    disturb=None,
    **fields,
):
    """Train, resuming if there is something; process 0 tells what each process has written.

    Args:
        scores: What a metric says at each evaluation, on the average of all processes.
        disturb: Process, update, and the signal that comes then; None asks to stop instead.
    """
    from src.training import checkpoints, distributed

    rank, world_size = distributed.rank(), distributed.world_size()
    size = {"max_tokens": max_tokens} if max_tokens else {"batch_size": 5}
    examples = copy_examples(count, longest=longest)
    if max_tokens:  # one pair fills a batch, beside many that are short
        examples += [Example([5] * (max_tokens - 3) + [2], [1, *[8] * (max_tokens - 3), 2])]

    def batches(shuffle):
        place = {"rank": rank, "world_size": world_size}
        dealt = BucketedBatches(examples, **size, seed=4, shuffle=shuffle, **place)
        return list(dealt) if lists else dealt

    def metric(model):
        return scores[len(run.evaluations)] + rank - (world_size - 1) / 2

    def happen(run, event):
        if disturb is not None and (rank, event.step) == tuple(disturb[:2]):
            run.stop() if disturb[2] is None else os.kill(os.getpid(), disturb[2])

    def counted(tensors, filename, metadata):
        nonlocal files
        files += 1
        write(tensors, filename, metadata)

    files, write = 0, checkpoints.save_file
    checkpoints.save_file = counted
    run = Trainer(
        tiny_model(dropout=dropout, max_len=40),
        batches(True),
        config(**{"save_every": 1, "eval_every": 5} | fields),
        pad_id=PAD,
        valid=batches(False) if held_out else None,
        metric=metric if scores else None,
        directory=directory,
        device=device,
        sharding=sharding,
        callbacks=[happen],
        progress=False,
    )
    run.resume()
    run.fit()
    checkpoints.save_file = write
    written = [int(n) for n in distributed.gather(torch.tensor(files))]
    if rank == 0:
        print(f"{Path(directory).name}: wrote {written}, stopped {run.stopped}", flush=True)
