"""Which position encodings still work on sequences longer than those trained on?

One task, four encodings: of every token, name the one that stands three places before it. A layer
of self-attention is trained on sequences of 24 random tokens and then reads shorter and longer
ones, up to 96. ``none`` is the control: without positions the task cannot be solved.

    python -m benchmarks.positions           about three minutes on one CPU thread
    python -m benchmarks.positions --toy     seconds; checks that everything runs, saves nothing
"""

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks import _command
from src.applications.classification import IGNORED, TokenClassifier, accuracy, fit, look_back_batch
from src.config import TransformerConfig

KINDS = ("sinusoidal", "learned", "rotary", "none")
FULL = {
    "seeds": [0, 1, 2],
    "vocab_size": 16,
    "back": 3,
    "d_model": 48,
    "num_heads": 4,
    "d_ff": 96,
    "num_layers": 1,
    "trained_length": 24,
    "batch_size": 32,
    "steps": 300,
    "lr": 3e-3,
    "lengths": [8, 16, 24, 28, 32, 40, 48, 64, 80, 96],
    "test_sequences": 256,
}
TOY = FULL | {"seeds": [0], "steps": 2, "lengths": [8, 24, 30], "test_sequences": 4}


def beyond(targets: Tensor, length: int) -> Tensor:
    """Keep only the targets that stand at positions ``length`` and later."""
    return targets.masked_fill(torch.arange(targets.shape[1]) < length, IGNORED)


def build(kind: str, settings: dict) -> TokenClassifier:
    """One encoder of the package with this kind of positions.

    A learned table starts as small as the token vectors, as in BERT; the sinusoidal one, with
    entries up to 1, meets token vectors scaled by sqrt(d_model), as in the first Transformer.
    """
    vocab_size = settings["vocab_size"]
    config = TransformerConfig(
        vocab_size,
        vocab_size,
        d_model=settings["d_model"],
        num_heads=settings["num_heads"],
        d_ff=settings["d_ff"],
        num_encoder_layers=settings["num_layers"],
        dropout=0.0,
        max_len=max(settings["lengths"]),
        norm_first=True,
        positions=kind,
        scale_embeddings=kind != "learned",
    )
    return TokenClassifier(config, vocab_size)


def measure(kind: str, seed: int, settings: dict) -> dict:
    """Train one model; its accuracy on each length, and there on the positions never trained."""
    torch.manual_seed(seed)
    model = build(kind, settings)
    generator = torch.Generator().manual_seed(1000 + seed)

    def batch(size: int, length: int) -> tuple[Tensor, Tensor]:
        return look_back_batch(size, length, settings["vocab_size"], settings["back"], generator)

    trained = settings["trained_length"]
    losses = fit(
        model,
        lambda: batch(settings["batch_size"], trained),
        steps=settings["steps"],
        lr=settings["lr"],
    )
    everywhere, new = [], []
    for length in settings["lengths"]:
        ids, targets = batch(settings["test_sequences"], length)
        everywhere.append(accuracy(model, ids, targets))
        new.append(accuracy(model, ids, beyond(targets, trained)) if length > trained else None)
    return {"kind": kind, "seed": seed, "loss": losses[-1], "accuracy": everywhere, "beyond": new}


def run(settings: dict, progress: bool = False) -> dict:
    """Measure every kind with every seed.

    Returns:
        The settings and a list of runs, as `measure` gives them.
    """
    pairs = [(kind, seed) for kind in KINDS for seed in settings["seeds"]]
    runs = [measure(kind, seed, settings) for kind, seed in tqdm(pairs, disable=not progress)]
    return {"settings": settings, "runs": runs}


def tell(data: dict) -> None:
    """Print the accuracies of each run."""
    for entry in data["runs"]:
        print(entry["kind"], entry["seed"], [round(a, 3) for a in entry["accuracy"]])


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    _command.run(
        "positions",
        __doc__,
        lambda settings: run(settings, progress=True),
        tell,
        FULL,
        TOY,
        arguments,
    )


if __name__ == "__main__":
    main()
