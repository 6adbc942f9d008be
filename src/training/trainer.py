"""Training: one loop for one process or many, with evaluation, early stop and exact resumption."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from itertools import islice
from math import ceil, inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from src.training import distributed
from src.training.checkpoints import (
    CheckpointError,
    check_config,
    load_checkpoint,
    read_header,
    rng_state,
    save_checkpoint,
    set_rng_state,
)
from src.training.config import Evaluation, Record, TrainingConfig
from src.training.distributed import pick_device
from src.training.evaluation import evaluate, switched
from src.training.updater import Updater

Callback = Callable[["Trainer", Record | Evaluation], None]
COUNTERS = ("step", "epoch", "tokens", "seconds", "best", "stale", "_looked")


class Trainer:
    """Trains a model that maps ``(src, tgt_in)`` to logits.

    Args:
        model: Trained in place; moved to ``device``.
        train: This process's batches of one epoch each time it is iterated, in an order that
            depends on ``set_epoch(epoch)`` only: `src.data.batches.BucketedBatches` made with
            ``rank`` and ``world_size`` of `src.training.distributed`, or a list, which must be
            equally long in all processes.
        config: How to train.
        pad_id: Padding of the *targets*.
        valid: Batches for the loss on held-out data; this process's, too.
        metric: Score of a model on held-out data, higher is better; called in eval mode. Where
            several processes train, the mean of their scores counts.
        directory: Folder for ``last.safetensors`` (the whole run) and ``best.safetensors``
            (weights); made if absent. Without it nothing is written.
        model_config: What the model is made of, kept with each checkpoint and compared when
            resuming; by default ``model.config.to_dict()``, if there is such a thing.
        d_model: For the paper's learning rate; by default ``model.config.d_model``.
        device: By default the best one at hand.
        sharding: ``"ddp"`` or ``"fsdp"``: how several processes divide the work.
        callbacks: Called with the trainer and each new `Record` and `Evaluation`.
        progress: Whether to show a bar; None shows it in notebooks and terminals.

    Attributes:
        history: Every `Record` since the start of the run.
        evaluations: Every `Evaluation`.
        step: Updates done.
        stopped: Whether `stop` ended the last `fit`.

    Raises:
        ValueError: If the arguments do not fit together; the message says how.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Iterable,
        config: TrainingConfig,
        *,
        pad_id: int,
        valid: Iterable | None = None,
        metric: Callable[[nn.Module], float] | None = None,
        directory: str | Path | None = None,
        model_config: Mapping[str, Any] | None = None,
        d_model: int | None = None,
        device: torch.device | str | None = None,
        sharding: str = "ddp",
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
    ) -> None:
        _check(config, train, valid, metric, sharding)
        own = getattr(model, "config", None)
        if model_config is None:
            model_config = own.to_dict() if own is not None else {}
        self.model, self.train, self.config = model, train, config
        self.valid, self.metric, self.callbacks = valid, metric, list(callbacks)
        self.directory = None if directory is None else Path(directory)
        self.model_config = dict(model_config)
        self.updater = Updater(
            model,
            config,
            pad_id=pad_id,
            device=pick_device(device),
            d_model=d_model or getattr(own, "d_model", None),
            sharding=sharding,
        )
        self.history: list[Record] = []
        self.evaluations: list[Evaluation] = []
        self.step = self.epoch = self.position = self.tokens = self.stale = 0
        self.seconds, self.best, self.stopped = 0.0, -inf, False
        self._asked = False  # by `stop`, in this process, at any moment
        self._window = (0, 0.0)  # tokens and seconds at the last record
        self._looked, self._resumed, self._clock = -1, False, 0.0
        # For tqdm, None means: shown in a terminal or a notebook only.
        shown = progress if distributed.is_writer() else False
        self._hidden = None if shown is None else not shown

    def fit(self) -> list[Record]:
        """Train until the configuration says so, or `stop` is called; return the history.

        The model comes back in the mode, train or eval, in which it was.

        Raises:
            FloatingPointError: If loss, gradients or the loss on held-out data are no longer
                finite. Then nothing is written: the last checkpoint is kept.
            ValueError: If a batch holds an id outside the model's vocabularies.
            OSError: If a checkpoint cannot be written. The one before is kept.
        """
        if not self._resumed and self.step == 0:
            seed = (
                self.config.seed + distributed.rank()
            )  # dropout differs between processes
            torch.manual_seed(seed)
            random.seed(seed)
        self.stopped = self._asked = False
        if self.directory is not None:
            distributed.on_writer(
                lambda: self.directory.mkdir(parents=True, exist_ok=True)
            )
        self._bar = self._new_bar()
        with switched(self.model, training=True), self._bar:
            self._clock = time.perf_counter()
            while not self._finished():
                self._run_epoch()
            if self.stopped:
                self._save()
            elif self._looked != self.step:
                self._look()
        # One process may have been asked during the last evaluation: all say the same.
        self.stopped = distributed.any_rank(self._asked)
        return self.history

    def stop(self) -> None:
        """Let `fit` save and return after the update that is running: for signal handlers."""
        self._asked = True

    def _run_epoch(self) -> None:
        """Train on what is left of the epoch; evaluate and save when it is time."""
        config = self.config
        for group in self._rest_of_epoch():
            self.tokens += self.updater.update(group)
            self.step += 1
            self._tick()
            done = (
                min(int(self.seconds), self._bar.total) if self._by_clock else self.step
            )
            self._bar.update(done - self._bar.n)
            if self.step % config.log_every == 0:
                self._log()
            if config.eval_every and self.step % config.eval_every == 0:
                self._look()
            elif config.save_every and self.step % config.save_every == 0:
                self._save()
            if self._finished():
                return
        self.epoch, self.position = self.epoch + 1, 0
        if config.eval_every is None and self._looked != self.step:
            self._look()

    def _rest_of_epoch(self) -> Iterator[list]:
        """Groups of this process's batches, one for each update; as many in every process.

        Raises:
            ValueError: In all processes, if one of them has fewer batches than another.
        """
        if hasattr(self.train, "set_epoch"):
            self.train.set_epoch(self.epoch)
        batches = islice(iter(self.train), self.position, None)
        while True:
            group = list(islice(batches, self.config.accumulate))
            sizes = distributed.gather(torch.tensor(len(group)))
            if len({int(size) for size in sizes}) > 1:
                raise ValueError(
                    "train must hold the same number of batches in every process, but one ended "
                    f"before another after {self.position} in process {distributed.rank()}"
                )
            if not group:
                break
            self.position += len(group)
            yield group
        if self.position == 0:
            raise ValueError("train must hold at least one batch")

    def _finished(self) -> bool:
        """Whether any process has a reason to end: clocks and signals differ between them."""
        config = self.config
        self.stopped = distributed.any_rank(self._asked)
        return self.stopped or distributed.any_rank(
            (config.steps is not None and self.step >= config.steps)
            or (config.epochs is not None and self.epoch >= config.epochs)
            or (config.seconds is not None and self.seconds >= config.seconds)
            or (config.patience is not None and self.stale >= config.patience)
        )

    @property
    def _by_clock(self) -> bool:
        """Whether seconds alone say when to end."""
        return self.config.steps is None and self.config.epochs is None

    def _new_bar(self) -> tqdm:
        """A bar over updates, or over seconds where these alone say when to end."""
        if self._by_clock:
            total, done, unit = ceil(self.config.seconds), int(self.seconds), "s"
        else:
            total, done, unit = self._total_steps(), self.step, "update"
        return tqdm(total=total, initial=done, unit=unit, disable=self._hidden)

    def _total_steps(self) -> int | None:
        totals = [] if self.config.steps is None else [self.config.steps]
        length = _length(self.train)
        if self.config.epochs is not None and length is not None:
            totals.append(self.config.epochs * -(-length // self.config.accumulate))
        return min(totals, default=None)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now

    def _log(self) -> None:
        """Turn the updates since the last record into the next one."""
        tokens, seconds = self.tokens - self._window[0], self._window[1]
        if tokens == 0:
            return
        loss = distributed.sum_over_ranks(self.updater.loss_sum.item())[0] / tokens
        grad_norm = self.updater.grad_norm.item()
        self._check_finite("the loss", loss)
        if self.config.precision != "float16":  # whose scaler leaves out such updates
            self._check_finite("the norm of the gradients", grad_norm)
        self._tick()  # after .item(), which waits for the device
        speed = tokens / max(self.seconds - seconds, 1e-9)
        self._bar.set_postfix_str(
            f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False
        )
        self._window = (self.tokens, self.seconds)
        self.updater.clear()
        record = Record(
            self.step,
            self.epoch,
            self.tokens,
            self.seconds,
            loss,
            self.updater.lr,
            grad_norm,
        )
        self.history.append(record)
        self._tell(record)

    def _check_finite(self, name: str, value: float) -> None:
        if not isfinite(value):
            raise FloatingPointError(
                f"{name} is {value} at update {self.step}: try a lower lr or a longer warmup"
            )

    def _look(self) -> None:
        """Evaluate on held-out data, keep the best weights, save."""
        self._log()
        self._looked = self.step
        if self.valid is not None or self.metric is not None:
            loss = score = None
            with switched(self.model, training=False):
                if self.valid is not None:
                    updater = self.updater
                    valid = map(updater.to_device, self.valid)
                    loss = evaluate(self.model, valid, updater.pad_id, updater.autocast)
                    self._check_finite("the loss on held-out data", loss)
                if self.metric is not None:
                    score = float(self.metric(self.model))
                    # What decides what all do next has to be the same in all.
                    score = (
                        distributed.sum_over_ranks(score)[0] / distributed.world_size()
                    )
            found = Evaluation(
                self.step, self.epoch, self.tokens, self.seconds, loss, score
            )
            self.evaluations.append(found)
            self._compare(found)
            self._tell(found)
        self._save()

    def _compare(self, found: Evaluation) -> None:
        if self.config.best_by == "score":
            value = found.score
        elif found.loss is not None:
            value = -found.loss
        else:
            return
        self.stale += 1
        if value > self.best:
            self.best, self.stale = value, 0
            if self.directory is not None:
                path = self.directory / "best.safetensors"
                save_checkpoint(
                    path, self.model, config=self.model_config, state=asdict(found)
                )

    def _tell(self, event: Record | Evaluation) -> None:
        for callback in self.callbacks:
            callback(self, event)

    def _save(self) -> None:
        if self.directory is not None:
            self._log()  # so that a record never spans a checkpoint
            self.save(self.directory / "last.safetensors")
        self._clock = time.perf_counter()  # the clock counts training alone

    def save(self, path: str | Path) -> None:
        """Write the whole run: weights, moments, schedule, position, generators, history."""
        state = {name: getattr(self, name) for name in COUNTERS}
        state |= {
            "batches_of_epoch": self.position * distributed.world_size(),
            "training": self.config.what_decides(),
            "updater": self.updater.state(),
            "rng": rng_state(self.updater.device),
            "history": [astuple(record) for record in self.history],
            "evaluations": [astuple(found) for found in self.evaluations],
        }
        distributed.on_writer(
            lambda: Path(path).parent.mkdir(parents=True, exist_ok=True)
        )
        save_checkpoint(
            path,
            self.model,
            config=self.model_config,
            optimizer=self.updater.optimizer,
            state=state,
        )

    def resume(self, path: str | Path | None = None) -> bool:
        """Go on where a checkpoint was written; `fit` then gives what it would have given.

        Args:
            path: By default ``last.safetensors`` in ``directory``.

        Returns:
            False if there is no such file: then nothing is changed.

        Raises:
            ConfigMismatch: If model or training differ from those of the checkpoint in more than
                how long to train and when to evaluate.
            CheckpointError: If the file is not a checkpoint of a run.
            ValueError: If neither ``path`` nor ``directory`` says where.
        """
        if path is None and self.directory is None:
            raise ValueError("path must be given where the trainer has no directory")
        path = Path(path) if path is not None else self.directory / "last.safetensors"
        if not path.exists():
            return False
        state = read_header(path)["state"]
        if "training" not in state:
            raise CheckpointError(
                f"{path} holds weights alone, as best.safetensors does: resume from "
                "last.safetensors"
            )
        check_config(path, state["training"], self.config.what_decides())
        state = load_checkpoint(
            path, self.model, config=self.model_config, optimizer=self.updater.optimizer
        )
        self.updater.load_state(state["updater"])
        for name in COUNTERS:
            setattr(self, name, state[name])
        # Upwards: where the last round of an epoch was filled up, nothing of it is left.
        self.position = -(-state["batches_of_epoch"] // distributed.world_size())
        self.history = [Record(*row) for row in state["history"]]
        self.evaluations = [Evaluation(*row) for row in state["evaluations"]]
        self._window, self._resumed = (self.tokens, self.seconds), True
        if self.evaluations:
            self._looked = self.evaluations[-1].step
        if not set_rng_state(state["rng"], self.updater.device):
            torch.manual_seed(
                self.config.seed + distributed.rank() + 1000 * (1 + self.step)
            )
        return True


def _check(
    config: TrainingConfig, train: Any, valid: Any, metric: Any, sharding: str
) -> None:
    for name, batches in (("train", train), ("valid", valid)):
        dealt = getattr(batches, "world_size", None)  # a list is this process's own
        if dealt is not None and dealt != distributed.world_size():
            raise ValueError(
                f"{name} must deal its batches to world_size = {distributed.world_size()} "
                f"processes, but has {dealt}"
            )
    for name, value in (("valid", valid), ("metric", metric)):
        if distributed.any_rank(value is None) and distributed.any_rank(
            value is not None
        ):
            raise ValueError(f"{name} must be given in every process or in none")
    if (
        sharding == "fsdp" and valid is not None
    ):  # whose layers are fetched from all for each batch
        lengths = [
            int(n) for n in distributed.gather(torch.tensor(_length(valid) or 0))
        ]
        if len(set(lengths)) > 1:
            raise ValueError(
                "valid must hold the same number of batches in every process with fsdp, but they "
                f"hold {lengths}"
            )
    if config.best_by == "score" and metric is None:
        raise ValueError("metric must be given if best_by is 'score'")
    if config.best_by == "loss" and config.patience and valid is None:
        raise ValueError(
            "valid must be given if patience is, or nothing says when to stop"
        )


def _length(batches: Any) -> int | None:
    """How many batches there are; None where they do not know (a `DataLoader` may not)."""
    try:
        return len(batches)
    except TypeError:
        return None
