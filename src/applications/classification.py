"""Put a class on each token or on each whole input, and train such a model in a few lines.

The experiments that compare architectures need the same loop for all of them; the loop of
`src.training` is made for translation, with its two sequences and its checkpoints.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from src.config import TransformerConfig
from src.transformer import Encoder

IGNORED = -100  # a target that does not count, as in F.cross_entropy

Sample = Callable[[], tuple[Tensor, Tensor]]


class TokenClassifier(nn.Module):
    """A Transformer encoder with a linear layer on top: one class for each token.

    Args:
        config: Of the encoder; its target vocabulary is not used.
        num_classes: Number ``C`` of classes, ≥ 1.

    Raises:
        ValueError: If ``num_classes`` is below 1.
    """

    def __init__(self, config: TransformerConfig, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, but is {num_classes}")
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.d_model, num_classes)

    def forward(
        self,
        ids: Int[Tensor, "B S"],
        mask: Bool[Tensor, "#B #S S"] | None = None,
    ) -> Float[Tensor, "B S C"]:
        """Logits for each token.

        Args:
            ids: Token ids.
            mask: True = may attend.
        """
        return self.head(self.encoder(ids, mask))


def minibatches(
    inputs: Tensor, targets: Tensor, batch_size: int, generator: torch.Generator
) -> Sample:
    """A function that returns the next batch of a shuffled data set at each call, without end.

    Every example is seen once before any is seen again. The last batch of a round may be smaller.

    Args:
        inputs: Examples along the first axis.
        targets: As many.
        batch_size: Examples in a batch, ≥ 1.
        generator: Decides the order.

    Raises:
        ValueError: If there is no example, there are not as many targets, or ``batch_size`` is
            below 1.
    """
    if not 0 < len(inputs) == len(targets):
        raise ValueError(
            f"inputs and targets must be as many and at least one, but are {len(inputs)} and "
            f"{len(targets)}"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, but is {batch_size}")

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            order = torch.randperm(len(inputs), generator=generator)
            for rows in order.split(batch_size):
                yield inputs[rows], targets[rows]

    return batches().__next__


def look_back_batch(
    batch_size: int,
    length: int,
    vocab_size: int,
    back: int,
    generator: torch.Generator,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Random ids and, as target of each, the id ``back`` places before it.

    The simplest task that needs positions: which token is meant depends on distance alone.

    Args:
        batch_size: Sequences ``B``.
        length: Tokens ``T`` in each.
        vocab_size: Ids are 0 … ``vocab_size − 1``, all equally likely.
        back: How far to look back, 1 … ``length − 1``; earlier targets are `IGNORED`.
        generator: Draws the ids.

    Raises:
        ValueError: If ``back`` is out of range: no target would count.
    """
    if not 0 < back < length:
        raise ValueError(
            f"back must lie in 1 … {length - 1} (the length minus 1), but is {back}"
        )
    ids = torch.randint(vocab_size, (batch_size, length), generator=generator)
    targets = torch.full_like(ids, IGNORED)
    targets[:, back:] = ids[:, :-back]
    return ids, targets


def fit(
    model: nn.Module,
    sample: Sample,
    *,
    steps: int,
    lr: float,
    weight_decay: float = 0.0,
) -> list[float]:
    """Minimise the cross-entropy with AdamW; the rate rises and falls once (Smith 2018, §3).

    Args:
        model: Maps inputs to logits ``(…, C)``. **Trained in place**, left in ``eval()`` mode.
        sample: Returns the next batch: inputs and targets ``(…)``; `IGNORED` ones do not count.
        steps: Number of updates, ≥ 1.
        lr: The highest learning rate, > 0.
        weight_decay: Of AdamW, ≥ 0.

    Returns:
        The loss before each update.

    Raises:
        ValueError: If ``steps`` or ``lr`` is out of range.
        FloatingPointError: If the loss is not finite.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, but is {steps}")
    if not lr > 0:
        raise ValueError(f"lr must be above 0, but is {lr}")
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    losses = []
    model.train()
    for step in range(steps):
        inputs, targets = sample()
        logits = model(inputs)
        loss = F.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED
        )
        losses.append(loss.item())
        if losses[-1] != losses[-1] or abs(losses[-1]) == float("inf"):
            raise FloatingPointError(f"the loss is {losses[-1]} at update {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    return losses


@torch.no_grad()
def accuracy(
    model: nn.Module, inputs: Tensor, targets: Tensor, batch_size: int = 256
) -> float:
    """Share of the targets, `IGNORED` ones aside, whose logit is the highest.

    The model is used in the mode in which it is: call ``eval()`` first if it has dropout.

    Raises:
        ValueError: If no target counts.
    """
    counts = targets != IGNORED
    if not bool(counts.any()):
        raise ValueError(
            "targets must hold at least one class, but all of them are ignored"
        )
    guesses = torch.cat(
        [model(part).argmax(dim=-1) for part in inputs.split(batch_size)]
    )
    return (guesses == targets)[counts].float().mean().item()
