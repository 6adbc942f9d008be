"""One update of the weights from several batches, in one process or many, in any precision."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from src.token_ids import check_ids
from src.training import distributed
from src.training.config import PRECISIONS, TrainingConfig
from src.training.optimization import make_optimizer, token_loss, warmup_schedule


class Updater:
    """Model, optimizer, schedule and loss scale: what changes with each update.

    Each update takes a group of batches in each process, adds up all their losses and divides
    by the number of all their real tokens. So one batch of 4·B sentences, four batches of B, and
    four processes with B each move the weights alike, however long their sentences are.

    Args:
        model: Trained in place; moved to ``device``, if sharded part by part. If its ``forward``
            takes ``targets``, it is given them on a CPU and returns the logits of the real ones
            alone. Elsewhere padding is computed: how many tokens are real, an accelerator would
            have to stop and tell, and a compiled graph would break at.
        config: How to train.
        pad_id: Padding of the targets.
        device: Where to train.
        d_model: For the paper's learning rate, if the configuration sets none.
        sharding: ``"ddp"`` or ``"fsdp"``.

    Attributes:
        loss_sum: Summed loss of this process since `clear`; a tensor, so that the device need
            not be waited for at each update.
        grad_norm: Norm of all gradients at the last update, before clipping.
        lr: Learning rate of the last update.

    Raises:
        ValueError: If the arguments do not fit together; the message says how.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        *,
        pad_id: int,
        device: torch.device,
        d_model: int | None = None,
        sharding: str = "ddp",
    ) -> None:
        if config.lr is None and d_model is None:
            raise ValueError("lr must be given where there is no d_model to set it by")
        if config.precision == "float16" and sharding == "fsdp":
            raise ValueError("precision must not be float16 with fsdp: use bfloat16")
        self.config, self.pad_id, self.device = config, pad_id, device
        self.model = model
        takes_targets = "targets" in inspect.signature(model.forward).parameters
        self.packs = takes_targets and device.type == "cpu" and not config.compile
        self.wrapped = distributed.wrap(model, sharding, device)
        # Beside the model, not in it: its weights keep their names, and evaluation its code.
        self.forward, self.token_loss = self.wrapped, token_loss
        if config.compile:
            self.forward = torch.compile(self.wrapped, dynamic=True)
            self.token_loss = torch.compile(token_loss, dynamic=True)
        self.optimizer = make_optimizer(
            self.model,
            config.optimizer,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        peak = {"d_model": d_model} if config.lr is None else {"peak_lr": config.lr}
        self.schedule = warmup_schedule(
            self.optimizer, config.warmup, after=config.schedule, **peak
        )
        self.scaler = torch.amp.GradScaler(
            device.type, enabled=config.precision == "float16"
        )
        self.lr, self.grad_norm = 0.0, torch.zeros(())
        self.clear()

    def clear(self) -> None:
        """Start summing the loss anew."""
        self.loss_sum = torch.zeros((), device=self.device)

    def autocast(self) -> AbstractContextManager:
        """Matrix products inside run in the configured precision."""
        dtype = PRECISIONS[self.config.precision]
        return (
            nullcontext()
            if dtype is None
            else torch.autocast(self.device.type, dtype=dtype)
        )

    def update(self, group: Sequence[Any]) -> int:
        """One step of the optimizer on this process's ``group`` of batches and all the others'.

        Returns:
            The number of real target tokens in the groups of all processes.
        """
        count = int(
            distributed.sum_over_ranks(sum(batch.num_tokens for batch in group))[0]
        )
        # Both ways of sharding average the gradients over the processes: undo the division.
        factor = distributed.world_size() / max(count, 1)
        for i, batch in enumerate(group):
            with distributed.accumulating(self.wrapped, last=i == len(group) - 1):
                loss = self._loss(batch)
                self.scaler.scale(loss * factor).backward()
            self.loss_sum += loss.detach()
        self._step()
        return count

    def to_device(self, batch: Any) -> Any:
        """The batch where the model is, its ids checked while they are still on the CPU.

        Raises:
            ValueError: If an id lies outside the model's vocabulary. A GPU would only notice in
                the midst of a kernel, and be of no more use to this process.
        """
        for side, ids in (("src", batch.src), ("tgt", batch.tgt)):
            size = getattr(
                getattr(self.model, "config", None), f"{side}_vocab_size", None
            )
            if size is not None:
                check_ids(f"{side} ids", ids, size)
        if self.device.type == "cuda" and batch.src.device.type == "cpu":
            return batch.pin_memory().to(self.device, non_blocking=True)
        return batch.to(self.device)

    def _loss(self, batch: Any) -> Tensor:
        batch = self.to_device(batch)
        targets = batch.tgt_out
        with self.autocast():
            if self.packs:
                logits = self.forward(batch.src, batch.tgt_in, targets)
                targets = targets[targets != self.pad_id]
            else:
                logits = self.forward(batch.src, batch.tgt_in)
        return self.token_loss(
            logits, targets, self.pad_id, self.config.label_smoothing
        )[0]

    def _step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        limit = inf if self.config.clip is None else self.config.clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.grad_norm = (
            norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        )  # FSDP2
        self.lr = self.schedule.get_last_lr()[0]
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.get_scale() >= scale:  # float16: an overflow skips the update
            self.schedule.step()

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides weights and moments; JSON types."""
        return {
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
