"""Twelve encoder layers with and without the residual connection and the norm (claim 10.7-7).

Each stack learns to put a sequence of six symbols in reverse order, with a warm-up of the learning
rate; post-norm also without one. Each is trained with three seeds.

    python -m benchmarks.deep_stacks          about five minutes on one CPU thread
    python -m benchmarks.deep_stacks --toy    seconds; saves nothing
"""

import math
from collections.abc import Callable
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks import _command
from src.config import TransformerConfig
from src.transformer import Encoder

FULL = {
    "seeds": [0, 1, 2],
    "layers": 12,
    "d_model": 32,
    "symbols": 14,
    "length": 6,
    "batch_size": 32,
    "steps": 160,
    "lr": 3e-3,
    "warmup": 60,
    "mean_of": 10,
}
TOY = FULL | {"seeds": [0], "layers": 3, "steps": 4, "warmup": 2, "mean_of": 2}
# Whether the sublayer's input is added, and normalised; pre-norm or post-norm; warm-up or none.
STACKS = {
    "pre-norm": {"norm_first": True},
    "post-norm": {},
    "post-norm, no warm-up": {"warm_up": False},
    "norm only": {"add": False},
    "residual only": {"norm": False},
    "neither": {"add": False, "norm": False},
}
FIRST = 3  # ids 0, 1, 2 are marks


class Parts(nn.Module):
    """What is left of post-norm's Add & Norm when one part or both are taken away."""

    def __init__(self, d_model: int, add: bool, norm: bool) -> None:
        super().__init__()
        self.add = add
        self.norm = nn.LayerNorm(d_model) if norm else nn.Identity()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply what is left."""
        return self.norm(x + sublayer(x) if self.add else sublayer(x))


def build(
    settings: dict, seed: int, *, add: bool = True, norm: bool = True, norm_first: bool = False
) -> nn.Sequential:
    """A stack and the matrix that reads its answers."""
    torch.manual_seed(seed)
    d_model, symbols = settings["d_model"], FIRST + settings["symbols"]
    config = TransformerConfig.tiny(
        symbols,
        symbols,
        d_model=d_model,
        num_heads=2,
        d_ff=2 * d_model,
        dropout=0.0,
        num_encoder_layers=settings["layers"],
        norm_first=norm_first,
    )
    encoder = Encoder(config)
    if not (add and norm):
        for layer in encoder.layers:
            layer.add_norms = nn.ModuleList(Parts(d_model, add, norm) for _ in range(2))
    return nn.Sequential(encoder, nn.Linear(d_model, symbols))


def measure(name: str, seed: int, settings: dict) -> dict:
    """Train one stack; its gradients before the first update, layer by layer, and its losses.

    Returns:
        Norms of the gradient of each layer's first feed-forward matrix, and the training loss,
        each the mean over as many updates as the settings say.
    """
    options = dict(STACKS[name])
    warmup = settings["warmup"] if options.pop("warm_up", True) else 1
    model = build(settings, seed, **options)
    generator = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.Adam(model.parameters(), settings["lr"])
    shape, last = (settings["batch_size"], settings["length"]), FIRST + settings["symbols"]
    losses, gradients = [], []
    for step in range(1, settings["steps"] + 1):
        optimizer.param_groups[0]["lr"] = settings["lr"] * min(1, step / warmup)
        ids = torch.randint(FIRST, last, shape, generator=generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        if not gradients:
            weights = [layer.feed_forward.inner.weight for layer in model[0].layers]
            gradients = [weight.grad.norm().item() for weight in weights]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    size = settings["mean_of"]
    return {
        "stack": name,
        "seed": seed,
        "gradients": gradients,
        "losses": [mean(losses[i : i + size]) for i in range(0, len(losses), size)],
    }


def run(settings: dict) -> dict:
    """Measure every stack with every seed.

    Returns:
        The settings, the loss of guessing, and a list of runs, as `measure` gives them.
    """
    jobs = [(name, seed) for name in STACKS for seed in settings["seeds"]]
    runs = [measure(*job, settings) for job in tqdm(jobs)]
    return {"settings": settings, "guess": math.log(settings["symbols"]), "runs": runs}


def tell(data: dict) -> None:
    """Print mean and spread of each stack's last loss."""
    for name in STACKS:
        last = [entry["losses"][-1] for entry in data["runs"] if entry["stack"] == name]
        spread = stdev(last) if len(last) > 1 else 0.0
        print(f"{name}: loss {mean(last):.2f} ± {spread:.2f}, guessing {data['guess']:.2f}")


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    torch.set_flush_denormal(True)  # numbers near 0 are slow on a CPU
    _command.run("deep_stacks", __doc__, run, tell, FULL, TOY, arguments)


if __name__ == "__main__":
    main()
