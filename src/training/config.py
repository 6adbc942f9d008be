"""What a training run is told (`TrainingConfig`) and what it reports (`Record`, `Evaluation`)."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch

from src.config import check_types
from src.training.optimization import OPTIMIZERS, SCHEDULES

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class TrainingConfig:
    """How to train. At least one of ``steps``, ``epochs`` and ``seconds`` ends the run.

    Args:
        steps: Updates of the weights.
        epochs: Passes over the training batches.
        seconds: Time spent in training, evaluation excluded. Such a run cannot be repeated
            exactly.
        optimizer: ``"adam"`` or ``"adamw"``.
        lr: Peak learning rate; None takes the paper's, which follows from the model's width.
        warmup: Updates until the peak.
        schedule: What follows: ``"inverse_sqrt"`` (the paper) or ``"constant"``.
        betas: Decay rates of the moments.
        eps: Added to Adam's denominator.
        weight_decay: For AdamW.
        label_smoothing: ε of `token_loss`.
        accumulate: Batches (in each process) that make one update.
        clip: Largest norm of the gradient; None leaves the gradient alone.
        precision: Of the matrix products: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
            Weights, loss and moments stay in float32.
        compile: Whether `torch.compile` makes the kernels of training: the first updates take
            minutes, the others less. Padding is then computed, and dropout draws other numbers.
        seed: Of dropout; on the command line of weights, order and split, too.
        log_every: Updates summed up in one record of the history.
        eval_every: Updates between two evaluations; None evaluates after each epoch.
        save_every: Updates between two savings besides those at each evaluation and at the end.
        patience: Evaluations in a row without improvement after which training stops; None
            never stops early.
        best_by: ``"loss"`` or ``"score"``: which checkpoint is the best one.

    Raises:
        ValueError: If a value is out of its range; the message names it.
        TypeError: If a value is of another type than its field.

    Source: Vaswani et al. 2017, § 5.
    """

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    optimizer: str = "adam"
    lr: float | None = None
    warmup: int = 4000
    schedule: str = "inverse_sqrt"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.0
    label_smoothing: float = 0.1
    accumulate: int = 1
    clip: float | None = 1.0
    precision: str = "float32"
    compile: bool = False
    seed: int = 0
    log_every: int = 10
    eval_every: int | None = None
    save_every: int | None = None
    patience: int | None = None
    best_by: str = "loss"

    def __post_init__(self) -> None:
        """Refuse what cannot be trained with."""
        check_types(self)
        if self.steps is None and self.epochs is None and self.seconds is None:
            raise ValueError(
                "steps, epochs or seconds must be given, or training never ends"
            )
        for name in (
            "steps",
            "epochs",
            "warmup",
            "accumulate",
            "log_every",
            "eval_every",
            "save_every",
            "patience",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("seconds", "lr", "eps", "clip"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and isfinite(value)):
                raise ValueError(f"{name} must be above 0 and finite, got {value}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if not (self.weight_decay >= 0 and isfinite(self.weight_decay)):
            raise ValueError(
                f"weight_decay must be at least 0 and finite, got {self.weight_decay}"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in 0 … 2**63 - 1, got {self.seed}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be in [0, 1), got {self.label_smoothing}"
            )
        for name, choices in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("precision", tuple(PRECISIONS)),
            ("best_by", ("loss", "score")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {choices}, got {getattr(self, name)!r}"
                )

    def what_decides(self) -> dict[str, Any]:
        """The fields that a resumed run must share: all but how long, when to look, what with."""
        free = {
            "steps",
            "epochs",
            "seconds",
            "eval_every",
            "save_every",
            "patience",
            "log_every",
            "compile",
        }
        return {k: v for k, v in asdict(self).items() if k not in free}


@dataclass(frozen=True)
class Record:
    """A few updates of a run: one point of its learning curve."""

    step: int  # updates so far
    epoch: int  # passes finished
    tokens: int  # real target tokens so far
    seconds: float  # spent training so far, over all resumed parts
    loss: float  # per token, since the last record, label smoothing included
    lr: float  # of the last update
    grad_norm: float  # of the last update, before clipping


@dataclass(frozen=True)
class Evaluation:
    """What held-out data said after ``step`` updates."""

    step: int
    epoch: int
    tokens: int
    seconds: float
    loss: float | None  # per token, without label smoothing
    score: float | None  # of the metric, usually BLEU
