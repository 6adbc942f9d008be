"""Training on identical padded batches: real target tokens a second, ours beside three peers.

python -m benchmarks.speed.training         a few minutes
python -m benchmarks.speed.training --dropout 0 --out FOLDER   without dropout in any model
python -m benchmarks.speed.training --toy   seconds; saves nothing
"""

import dataclasses

import torch

from benchmarks.speed import measure, peers

FULL = {"rounds": 9, "batches": 2, "pairs": 64, "shortest": 4, "longest": 32, "size": {}}
TOY = {
    "rounds": 1,
    "batches": 1,
    "pairs": 3,
    "shortest": 2,
    "longest": 5,
    "size": {"vocab_size": 31, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
}


def compare(settings: dict) -> dict:
    """Time one update a batch for every model."""
    size = peers.Size(**settings["size"])
    generator = torch.Generator().manual_seed(0)
    batches = [
        peers.random_pairs(
            settings["pairs"], size, settings["shortest"], settings["longest"], generator
        )
        for _ in range(settings["batches"])
    ]
    models = peers.build(size)
    steps = {name: peers.trainer(model, batches) for name, model in models.items()}
    tokens = sum(batch.num_tokens for batch in batches)
    seconds = measure.interleave(steps, settings["rounds"])
    measure.report(seconds, "ours", tokens, "tokens/s")
    parameters = {
        name: sum(p.numel() for p in model.module.parameters()) for name, model in models.items()
    }
    return {
        "size": dataclasses.asdict(size),
        "parameters": parameters,
        "tokens": tokens,
        "seconds": seconds,
        "rates": measure.rates(seconds, tokens),
        "ratios": measure.ratios(seconds, "ours"),
    }


if __name__ == "__main__":
    measure.run("speed_training", __doc__, compare, FULL, TOY, of_size=("dropout",))
