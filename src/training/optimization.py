"""What training minimises, and how fast: loss per token, warm-up schedule, optimizer.

These are the stateless parts of `src.training`, which offers them under its own name, too.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

SCHEDULES = ("inverse_sqrt", "constant")
OPTIMIZERS = ("adam", "adamw")


def token_loss(
    logits: Float[Tensor, "*positions V"],
    targets: Int[Tensor, "*positions"],
    pad_id: int,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Cross-entropy summed over the real tokens, and how many these are.

    The mean is left to the caller on purpose. Sums and counts of several batches add up to those
    of the joined batch, whatever their padding; means of batches do not.

    Args:
        logits: Scores of the next token, (B, T, V) or packed (N, V), any float dtype. The loss is
            computed in float32 at least.
        targets: Right answers (B, T) or (N,), int64; ``pad_id`` where there is none.
        pad_id: Id of the padding: these positions add nothing to sum or count.
        label_smoothing: Share ε of the probability spread evenly over the vocabulary,
            0 ≤ ε < 1.

    Returns:
        ``(sum, count)``, both scalars on the device of ``logits``.

    Raises:
        TypeError: If ``targets`` is not int64.
        ValueError: If the shapes differ or ``label_smoothing`` is out of range.

    Source: Vaswani et al. 2017, § 5.4 (label smoothing, after Szegedy et al. 2016, § 7).
    """
    if targets.dtype != torch.int64:
        raise TypeError(f"targets must be int64, got {targets.dtype}")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets must have shape {tuple(logits.shape[:-1])}, as logits have, "
            f"got {tuple(targets.shape)}"
        )
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
    # The dtype argument lets half-precision logits be read as they are: the one float32 array of
    # size (B, T, V) is the result, which backward needs anyway. `F.cross_entropy` would stay in
    # half precision, and `.float()` before it would be one more copy.
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_probs = F.log_softmax(logits.flatten(0, -2), dim=-1, dtype=wide)
    flat = targets.flatten()
    real = flat != pad_id
    total = F.nll_loss(log_probs, flat, ignore_index=pad_id, reduction="sum")
    if label_smoothing > 0.0:
        even = -log_probs.mean(dim=-1).masked_fill(~real, 0.0).sum()
        total = torch.lerp(total, even, label_smoothing)
    return total, real.sum()


def warmup_rate(
    step: int, warmup: int, *, d_model: int | None = None, peak_lr: float | None = None
) -> float:
    """Learning rate of update ``step``: linear warm-up, then the inverse square root.

    The paper's ``d_model^−0.5 · min(step^−0.5, step · warmup^−1.5)`` peaks at step ``warmup``,
    with ``(d_model · warmup)^−0.5``. Only this peak depends on ``d_model``; ``peak_lr`` sets it
    directly and keeps the shape.

    Args:
        step: Number of the update; the first is 1.
        warmup: Updates until the peak, at least 1.
        d_model: Width of the model, for the paper's peak.
        peak_lr: The peak itself. Exactly one of ``d_model`` and ``peak_lr`` is given.

    Raises:
        ValueError: If ``step`` or ``warmup`` is below 1, or not exactly one peak is given.

    Source: Vaswani et al. 2017, eq. 3.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1 (the first update), got {step}")
    if warmup < 1:
        raise ValueError(f"warmup must be at least 1, got {warmup}")
    if (d_model is None) == (peak_lr is None):
        raise ValueError(
            f"give d_model or peak_lr, one of them: got {d_model=}, {peak_lr=}"
        )
    peak = (d_model * warmup) ** -0.5 if peak_lr is None else peak_lr
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def warmup_schedule(
    optimizer: Optimizer,
    warmup: int,
    *,
    d_model: int | None = None,
    peak_lr: float | None = None,
    after: str = "inverse_sqrt",
) -> LambdaLR:
    """The schedule of `warmup_rate` on an optimizer: call ``.step()`` after each update.

    The optimizer's own learning rate is replaced.

    Args:
        optimizer: Its parameter groups all get the same rate.
        warmup: Updates until the peak, at least 1.
        d_model: As in `warmup_rate`.
        peak_lr: As in `warmup_rate`.
        after: What follows the warm-up: ``"inverse_sqrt"``, as in the paper, or ``"constant"``.

    Raises:
        ValueError: As `warmup_rate`, and if ``after`` is unknown.
    """
    if after not in SCHEDULES:
        raise ValueError(f"after must be one of {SCHEDULES}, got {after!r}")
    peak = warmup_rate(warmup, warmup, d_model=d_model, peak_lr=peak_lr)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = peak

    def factor(done: int) -> float:
        step = done + 1  # LambdaLR counts the updates that are done: 0 before the first
        if after == "constant":
            step = min(step, warmup)
        return warmup_rate(step, warmup, peak_lr=1.0)

    return LambdaLR(optimizer, factor)


def make_optimizer(
    model: nn.Module,
    name: str = "adam",
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adam as in the paper, or AdamW, fused into one kernel where PyTorch has it.

    With AdamW only the matrices decay: pulling biases and the gains of a normalisation towards
    zero limits what the layer can express and regularises nothing.

    Args:
        model: Its trainable parameters, wherever they lie now: move the model first.
        name: ``"adam"`` or ``"adamw"``.
        lr: Learning rate, > 0.
        betas: Decay rates of the two moments.
        eps: Added to the denominator.
        weight_decay: Decoupled decay, ≥ 0; for AdamW alone.

    Raises:
        ValueError: If ``name`` is unknown, Adam is given a decay, or the model has nothing to
            train.

    Source: Vaswani et al. 2017, § 5.3; AdamW: Loshchilov & Hutter 2019.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {OPTIMIZERS}, got {name!r}")
    if name == "adam" and weight_decay:
        raise ValueError(
            f"weight_decay must be 0 with adam, got {weight_decay}: "
            "there it would act through the moments; use adamw"
        )
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(
            "model must have at least one parameter that requires a gradient"
        )
    # MPS has a fused kernel only in newer versions of PyTorch.
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
    options = {"lr": lr, "betas": betas, "eps": eps, "fused": fused}
    if name == "adam":
        return torch.optim.Adam(parameters, **options)
    groups = [
        {
            "params": [p for p in parameters if p.ndim >= 2],
            "weight_decay": weight_decay,
        },
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], **options)
