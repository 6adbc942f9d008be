"""Few images or many: when does a patch Transformer reach a convolutional network?

Both have about as many weights, see the same images for the same number of updates and are tested
on the same 397 digits. The number of *different* training images grows from 25 to all 1,400.

    python -m benchmarks.cnn_against_attention           18 minutes on one busy CPU thread
    python -m benchmarks.cnn_against_attention --toy     seconds; saves nothing
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks import _command
from src import results
from src.applications.classification import accuracy, fit, minibatches
from src.applications.vision import ConvNet, PatchTransformer

MODELS = {
    "convolution": lambda: ConvNet(10),
    "attention": lambda: PatchTransformer((8, 8), 2, 10),
}
FULL = {
    "seeds": [0, 1, 2],
    "sizes": [25, 100, 400, 1400],
    "batch_size": 32,
    "steps": 1000,
    "lr": 2e-3,
    "weight_decay": 0.01,
    "test_images": 397,
}
TOY = FULL | {"seeds": [0], "sizes": [20, 40], "steps": 2}


def digits(test_images: int, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """scikit-learn's 1,797 digits of 8 × 8: training pair ``(images, labels)`` and test pair.

    The test images are the same for every seed; the seed shuffles the training images alone.

    Raises:
        ValueError: If ``test_images`` is not 1 … 1,796.
    """
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target)
    if not 0 < test_images < len(images):
        raise ValueError(f"test_images must lie in 1 … {len(images) - 1}, but is {test_images}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:test_images], order[test_images:]
    train = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))]
    return (images[train], labels[train]), (images[test], labels[test])


def measure(name: str, size: int, seed: int, settings: dict) -> dict:
    """Train one model on the first ``size`` training images of this seed."""
    (images, labels), test = digits(settings["test_images"], seed)
    if not 0 < size <= len(images):
        raise ValueError(f"size must lie in 1 … {len(images)}, but is {size}")
    torch.manual_seed(seed)
    model: nn.Module = MODELS[name]()
    generator = torch.Generator().manual_seed(1000 + seed)
    sample = minibatches(images[:size], labels[:size], settings["batch_size"], generator)
    losses = fit(
        model,
        sample,
        steps=settings["steps"],
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
    )
    return {
        "model": name,
        "size": size,
        "seed": seed,
        "loss": losses[-1],
        "train_accuracy": accuracy(model, images[:size], labels[:size]),
        "accuracy": accuracy(model, *test),
    }


def run(settings: dict, progress: bool = False) -> dict:
    """Measure both models at every size with every seed.

    Returns:
        The settings, each model's number of weights and a list of runs, as `measure` gives them.
    """
    weights = {name: sum(p.numel() for p in build().parameters()) for name, build in MODELS.items()}
    cases = [
        (name, size, seed)
        for size in settings["sizes"]
        for name in MODELS
        for seed in settings["seeds"]
    ]
    runs = [measure(*case, settings) for case in tqdm(cases, disable=not progress)]
    return {"settings": settings, "weights": weights, "runs": runs}


def tell(data: dict) -> None:
    """Print the accuracy of each run."""
    for entry in data["runs"]:
        print(entry["model"], entry["size"], entry["seed"], round(entry["accuracy"], 3))


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    _command.run(
        "cnn_against_attention",
        __doc__,
        lambda settings: run(settings, progress=True),
        tell,
        FULL,
        TOY,
        arguments,
        packages=(*results.PACKAGES, "scikit-learn"),
    )


if __name__ == "__main__":
    main()
