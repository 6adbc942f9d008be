"""Train a translator: ``python -m src.train --tatoeba fra --epochs 20 --out runs/fra``.

Several processes: ``torchrun --nproc-per-node 8 -m src.train …``. The folder of a run holds
``config.json`` (the options), ``model.json`` (the model's own configuration, every size in it),
``source.json`` and ``target.json`` (the tokenizers), ``last.safetensors`` (to resume from),
``best.safetensors`` (to translate with), ``test.json`` and TensorBoard's events.

Ctrl-C saves and ends, as does a terminal that is closed; a second signal ends at once. The exit
status is 0 after a complete run, 2 after bad input, and 128 + n after signal n. Under torchrun the
status is the launcher's: 1 after whatever went wrong, bad input too, and its own report stands
below the sentence that says what.
"""

import hashlib
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from src.assets import AssetError
from src.cli.options import complain, in_flags, write_json
from src.cli.train_options import (
    BATCHES,
    TOKENIZERS,
    build_parser,
    model_config,
    read_options,
    training_config,
)
from src.data.batches import BucketedBatches, encode_pairs
from src.data.readers import Pair, read_moses, read_tsv
from src.data.splits import Splits, split_pairs
from src.data.tatoeba import load_pairs
from src.data.tokenization import Tokenizer
from src.files import naming, remove_partials
from src.training import distributed
from src.training.checkpoints import load_checkpoint
from src.training.config import Evaluation, Record
from src.training.evaluation import BLEUScore, corpus_bleu, translate
from src.training.trainer import Trainer
from src.transformer import Transformer

try:
    import fcntl
except ImportError:  # Windows, where a folder cannot be locked
    fcntl = None

PROGRAM = "src.train"


def read_corpus(options: dict[str, Any]) -> Splits:
    """The pairs of the chosen corpus, split so that no sentence is on two sides."""
    if options["tatoeba"]:
        pairs = load_pairs(options["tatoeba"], max_words=options["max_words"])
    elif options["tsv"]:
        pairs = read_tsv(options["tsv"])
    else:
        pairs = read_moses(*options["moses"])
    digest = hashlib.sha256("\n".join(map("\t".join, pairs)).encode()).hexdigest()
    known = options.setdefault("corpus_sha256", digest)
    if known != digest:
        raise ValueError(
            f"the corpus has changed since the run in {options['out']} began"
        )
    shares = {"valid": options["valid_share"], "test": options["test_share"]}
    splits = split_pairs(pairs, **shares, seed=options["seed"])
    if not splits.train:
        raise ValueError(f"no pair of {len(pairs)} is left to train on")
    need = "--best-by score" if options["best_by"] == "score" else "--patience"
    if (options["patience"] or options["best_by"] == "score") and not splits.valid:
        raise ValueError(
            f"{need} needs a validation set, but it is empty: raise --valid-share"
        )
    return splits


def warn_of_empty_sides(splits: Splits, options: dict[str, Any]) -> None:
    """Say which held-out side a small corpus left empty, and what that means for the run."""
    pairs = len(splits.train) + len(splits.valid) + len(splits.test)
    for side, lost in (
        ("valid", "nothing says which weights are best, so the last ones count"),
        ("test", "no BLEU is computed in the end"),
    ):
        share = options[f"{side}_share"]
        if share and not getattr(splits, side):
            say(
                f"note: --{side}-share {share:g} of {pairs} pairs is not a single one: {lost}"
            )


def make_tokenizers(options: dict[str, Any], train: Sequence[Pair]) -> list[Tokenizer]:
    """Source and target tokenizer: those of the run, or learnt from the training side."""
    out = Path(options["out"])
    made = TOKENIZERS[options["tokenizer"]]

    def learn() -> None:
        if (out / "config.json").exists():  # a run that is resumed
            return
        out.mkdir(parents=True, exist_ok=True)
        for side, name in enumerate(("source", "target")):
            sentences = [pair[side] for pair in train]
            made.train(sentences, options["vocab_size"]).to_file(out / f"{name}.json")

    distributed.on_writer(learn)
    tokenizers = [made.from_file(out / f"{name}.json") for name in ("source", "target")]
    distributed.any_rank(
        False
    )  # from here on all have read them, and `undone` may remove them
    return tokenizers


def make_batches(
    options: dict[str, Any],
    pairs: Sequence[Pair],
    tokenizers: Sequence[Tokenizer],
    limit: int,
    shuffle: bool,
) -> tuple[BucketedBatches | None, int]:
    """This process's batches of the pairs that fit, and how many did not; None without a pair."""
    size = {name: options[name] for name in BATCHES}
    most = min(limit, size["max_tokens"] or limit)
    examples = encode_pairs(pairs, *tokenizers)
    fitting = [e for e in examples if max(len(e.src), len(e.tgt)) <= most]
    if not fitting:
        return None, len(examples)
    batches = BucketedBatches(
        fitting,
        **size,
        shuffle=shuffle,
        seed=options["seed"],
        pad_id=tokenizers[0].pad_id,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
    )
    return batches, len(examples) - len(fitting)


def make_model(
    options: dict[str, Any], source: Tokenizer, target: Tokenizer
) -> Transformer:
    """The model, the same in every process."""
    ids = {name: getattr(target, name) for name in ("pad_id", "bos_id", "eos_id")}
    config = model_config(options, len(source), len(target), **ids)
    torch.manual_seed(options["seed"])
    return Transformer(config)


def prepare(options: dict[str, Any]) -> tuple[Trainer, Callable[[], None]]:
    """Everything up to the first update; the trainer, and what is to be done after the last."""
    if options["tensorboard"] and find_spec("tensorboard") is None:
        raise ValueError(
            "tensorboard must be installed, or switched off by --no-tensorboard"
        )
    settings = training_config(options)
    out, device = Path(options["out"]), distributed.pick_device(options["device"])
    splits = read_corpus(options)
    tokenizers = make_tokenizers(options, splits.train)
    model = make_model(options, *tokenizers)
    limit = model.config.max_len
    train, long = make_batches(options, splits.train, tokenizers, limit, True)
    if train is None:
        raise ValueError("no training pair fits into max_len and max_tokens")
    valid, _ = make_batches(options, splits.valid, tokenizers, limit, False)
    sample = [p for p in splits.valid if len(tokenizers[0].encode(p.source)) < limit]
    sample = sample[: options["bleu_sentences"]]

    def metric(model: Transformer) -> float:
        hypotheses = translate(model, [p.source for p in sample], *tokenizers)
        return bleu(hypotheses, sample, options).score

    trainer = Trainer(
        model,
        train,
        settings,
        pad_id=tokenizers[1].pad_id,
        valid=valid,
        metric=metric if sample else None,
        directory=out,
        device=device,
        sharding=options["sharding"],
        callbacks=[report],
        progress=options["progress"],
    )
    resumed = options["resume"] and trainer.resume()
    distributed.on_writer(
        lambda: write_json(out / "model.json", model.config.to_dict())
    )
    distributed.on_writer(lambda: write_json(out / "config.json", options))
    if options["tensorboard"]:
        trainer.callbacks.append(tensorboard(out / "tensorboard", trainer.step))
    origin = (
        f"resumed after update {trainer.step}" if resumed else f"a new run in {out}"
    )
    say(
        f"{len(splits.train)} + {len(splits.valid)} + {len(splits.test)} pairs to train, validate "
        f"and test on, {long} too long; {model.num_parameters():,} parameters; "
        f"{distributed.world_size()} × {trainer.updater.device}; "
        f"{origin}"
    )
    warn_of_empty_sides(splits, options)
    return trainer, lambda: test(model, splits.test, tokenizers, options)


def bleu(
    hypotheses: list[str], pairs: Sequence[Pair], options: dict[str, Any]
) -> BLEUScore:
    """BLEU, without regard to case where the tokenizer has none."""
    references = [pair.target for pair in pairs]
    return corpus_bleu(hypotheses, references, lowercase=options["tokenizer"] == "word")


def test(
    model: Transformer, pairs: Sequence[Pair], tokenizers, options: dict[str, Any]
) -> None:
    """Score the best weights on the test side and keep the result beside them."""
    out = Path(options["out"])
    best = out / "best.safetensors"
    if best.exists():
        load_checkpoint(best, model, config=model.config.to_dict())
    limit = model.config.max_len
    pairs = [p for p in pairs if len(tokenizers[0].encode(p.source)) < limit]
    if not pairs:
        return
    sources = [pair.source for pair in pairs]
    hypotheses = translate(model, sources, *tokenizers, beam_size=options["beam_size"])
    result = asdict(bleu(hypotheses, pairs, options)) | {"sentences": len(pairs)}
    distributed.on_writer(lambda: write_json(out / "test.json", result))
    say(
        f"test BLEU {result['score']:.2f} on {len(pairs)} sentences ({result['signature']})"
    )


def say(text: str) -> None:
    """Print a line above the progress bar, once for all processes."""
    if distributed.is_writer():
        with naming("standard output"):
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()


def report(trainer: Trainer, event: Record | Evaluation) -> None:
    """Say what an evaluation found."""
    if isinstance(event, Evaluation):
        parts = [f"update {event.step}, epoch {event.epoch}, {event.seconds:.0f} s"]
        if trainer.history:
            parts.append(f"loss {trainer.history[-1].loss:.3f}")
        if event.loss is not None:
            parts.append(
                f"valid {event.loss:.3f} (perplexity {math.exp(min(event.loss, 99)):.2f})"
            )
        if event.score is not None:
            parts.append(f"BLEU {event.score:.2f}")
        say(", ".join(parts))


def tensorboard(
    folder: Path, step: int
) -> Callable[[Trainer, Record | Evaluation], None]:
    """A callback that writes curves; what an earlier part wrote after ``step`` is hidden.

    `torch.utils.tensorboard.SummaryWriter` would write in a thread of its own, where a full disk
    ends in a traceback; here it is an `OSError`, and all processes end.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard.summary import scalar

    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"

    def append(events: Sequence[Event]) -> None:
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / name, "ab") as file:
                for event in events:
                    event.wall_time = time.time()
                    RecordWriter(file).write(event.SerializeToString())

    begin = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
    distributed.on_writer(lambda: append([Event(file_version="brain.Event:2"), begin]))

    def write(trainer: Trainer, event: Record | Evaluation) -> None:
        kind = "train" if isinstance(event, Record) else "valid"
        values = {"loss": event.loss}
        if isinstance(event, Record):
            values |= {
                "lr": event.lr,
                "grad_norm": event.grad_norm,
                "tokens": event.tokens,
            }
        else:
            values["bleu"] = event.score
        events = [
            Event(step=event.step, summary=scalar(f"{kind}/{name}", value))
            for name, value in values.items()
            if value is not None
        ]
        distributed.on_writer(lambda: append(events))

    return write


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Make the folder of a run, keep other runs out of it, and remove it if it stays empty.

    The folder itself is locked, so nothing is left behind, however the process ends. On Windows
    and on a file system without locks, nothing keeps another run out.

    Raises:
        ValueError: If another run is at work there.
    """
    made = [path for path in (out, *out.parents) if not path.exists()]
    with ExitStack() as held:

        def lock() -> None:
            out.mkdir(parents=True, exist_ok=True)
            if fcntl is None:
                return
            folder = os.open(out, os.O_RDONLY)
            held.callback(os.close, folder)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                made.clear()
                raise ValueError(f"another run is at work in {out}") from error
            except OSError:  # a file system without locks
                return
            remove_partials(out)

        try:
            distributed.on_writer(lock)
            yield
        finally:
            if distributed.is_writer():
                with suppress(OSError):
                    for path in made:
                        path.rmdir()


@contextmanager
def undone(out: Path) -> Iterator[None]:
    """Remove what a new run has made if it could not begin; what was there before stays."""
    files = [out / name for name in ("source.json", "target.json", "model.json")]
    absent = [path for path in files if not path.exists()]
    try:
        yield
    except BaseException:
        if distributed.is_writer() and not (out / "config.json").exists():
            with suppress(OSError):
                for path in absent:
                    path.unlink(missing_ok=True)
        raise


@contextmanager
def stopping(trainer: Trainer) -> Iterator[list[int]]:
    """Let the first SIGINT, SIGTERM or SIGHUP end training after the update that is running.

    SIGHUP counts as well, which a closed terminal sends, unless it is ignored, as `nohup` asks.

    Yields:
        The numbers of the signals that came. The next one acts as it would have without this.
    """
    received: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        numbers.append(hang_up)

    def stop(number: int, frame: Any) -> None:
        received.append(number)
        trainer.stop()
        signal.signal(number, before[number])

    before = {n: signal.signal(n, stop) for n in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    try:
        options = read_options(argv, __doc__)
        out = Path(options["out"])
        with distributed.process_group(), alone(out):
            with undone(out):
                trainer, finish = prepare(options)
            return train(trainer, finish)
    except (
        OSError,
        AssetError,
        FloatingPointError,
        distributed.WriterFailed,
        distributed.OtherFailed,
    ) as error:
        return complain(PROGRAM, error)
    except torch.OutOfMemoryError as error:
        advice = "lower --max-tokens and raise --accumulate by as much"
        return complain(PROGRAM, MemoryError(f"{advice}: {error}"))
    except ValueError as error:
        return complain(
            PROGRAM, ValueError(in_flags(str(error), build_parser("").defaults))
        )
    except KeyboardInterrupt:
        complain(
            PROGRAM, InterruptedError("interrupted before anything was there to save")
        )
        return 128 + signal.SIGINT


def train(trainer: Trainer, finish: Callable[[], None]) -> int:
    """Train and test, unless a signal comes; returns the exit status."""
    with stopping(trainer) as received:
        trainer.fit()
    if not trainer.stopped:
        finish()
        return 0
    say(
        f"stopped after update {trainer.step}; all is saved, --resume goes on from here"
    )
    return 128 + (received or [signal.SIGTERM])[0]


if __name__ == "__main__":
    sys.exit(main())
