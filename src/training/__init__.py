"""Training: what a run is told, its loop and updates, checkpoints, processes, evaluation."""

from src.training.checkpoints import load_checkpoint, save_checkpoint
from src.training.config import Evaluation, Record, TrainingConfig
from src.training.distributed import pick_device
from src.training.evaluation import corpus_bleu, evaluate, translate
from src.training.optimization import (
    make_optimizer,
    token_loss,
    warmup_rate,
    warmup_schedule,
)
from src.training.trainer import Trainer

__all__ = [
    "Evaluation",
    "Record",
    "Trainer",
    "TrainingConfig",
    "corpus_bleu",
    "evaluate",
    "load_checkpoint",
    "make_optimizer",
    "pick_device",
    "save_checkpoint",
    "token_loss",
    "translate",
    "warmup_rate",
    "warmup_schedule",
]
