"""A tiny task and a tiny model for the tests of training, and what their processes do."""

import json
import random

import torch

from src.batches import BucketedBatches, Example
from src.checkpoints import save_checkpoint
from src.training import Trainer, TrainingConfig
from src.transformer import Transformer, TransformerConfig

PAD = 0


def tiny_model(seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 20, "dropout": 0.0, "max_len": 32}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(**{"src_vocab_size": 13, "tgt_vocab_size": 17}
                                         | sizes | layers | fields))


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


def trainer(model, batches, /, *, valid=None, metric=None, directory=None, callbacks=(), **fields):
    return Trainer(
        model, batches, config(**fields), pad_id=PAD, device="cpu", progress=False,
        valid=valid, metric=metric, directory=directory, callbacks=callbacks,
    )


def trained_in_a_process(directory):
    """Train 24 updates, saving after each; resume if there is something; print the losses."""
    batches = BucketedBatches(copy_examples(), batch_size=5, seed=2)
    announce = [lambda trainer, event: print("step", event.step, flush=True)]
    run = trainer(tiny_model(dropout=0.2), batches, steps=24, accumulate=2, save_every=1,
                  directory=directory, callbacks=announce)
    print("resumed", run.resume(), run.step, flush=True)
    run.fit()
    print(json.dumps([(r.step, r.loss, r.grad_norm) for r in run.history]), flush=True)


def write_for_ever(path):
    """Save one checkpoint over the other, each of equal numbers, and print which is there."""
    model = torch.nn.Linear(700, 701)
    for step in range(1, 10_000):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        save_checkpoint(path, model, config={}, state={"step": step})
        print(step, flush=True)


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
    """Train once for each of the ``runs``, in the same processes: a start takes many seconds."""
    from src import distributed

    with distributed.process_group():
        for options in runs:
            distributed_training(options)


def distributed_training(options):
    """Train, resuming if there is something, with whatever should go wrong on the way."""
    import os
    import signal

    from src import checkpoints, distributed

    place = {"rank": distributed.rank(), "world_size": distributed.world_size()}
    rank = distributed.rank()
    settings = config(
        steps=options["steps"], accumulate=options.get("accumulate", 1), save_every=1,
        eval_every=5,
    )  # fmt: skip

    def disturb(run, event):
        if [rank, event.step] == options.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if [rank, event.step] == options.get("interrupt"):
            run.stop()

    def counted(tensors, filename, metadata):
        nonlocal files
        files += 1
        write(tensors, filename, metadata)

    files, write = 0, checkpoints.save_file
    checkpoints.save_file = counted
    run = Trainer(
        tiny_model(dropout=options.get("dropout", 0.0), max_len=40),
        distributed_batches(**place), settings, pad_id=PAD,
        valid=distributed_batches(shuffle=False, **place), directory=options["directory"],
        device=options.get("device", "cpu"), sharding=options.get("sharding", "ddp"),
        callbacks=[disturb], progress=False,
    )  # fmt: skip
    run.resume()
    run.fit()
    checkpoints.save_file = write
    print(f"process {rank} wrote {files} files", flush=True)
    if run.stopped:
        print(f"stopped after {run.step}", flush=True)
