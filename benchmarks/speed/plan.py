"""What the paper's English-German training takes: work, memory and messages, counted.

Work comes from PyTorch's FLOP counter over a model without storage; nothing is timed.

    python -m benchmarks.speed.plan         seconds
    python -m benchmarks.speed.plan --toy   seconds; saves nothing
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import measure
from src.config import TransformerConfig
from src.optimization import token_loss
from src.transformer import Transformer

# Vaswani et al. 2017: § 5.1 (37,000 tokens shared, 25,000 source and target tokens a batch),
# § 5.2 (100,000 updates for base). A WMT14 sentence has about 28 tokens.
FULL = {
    "vocab_size": 37000, "length": 28, "tokens_per_update": 25000, "updates": 100_000,
    "devices": [1, 8, 64],
}  # fmt: skip
TOY = FULL | {"vocab_size": 100}


def compare(settings: dict) -> dict:
    """Count for the base model."""
    length, vocab_size = settings["length"], settings["vocab_size"]
    config = TransformerConfig.base(vocab_size, vocab_size, tie_embeddings="all")
    rows = 4
    with torch.device("meta"):
        model = Transformer(config)
        ids = torch.ones(rows, length, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            token_loss(model(ids, ids), ids, config.pad_id)[0].backward()
    parameters = model.num_parameters()
    flops = counter.get_total_flops() / (rows * length)
    total = flops * settings["tokens_per_update"] * settings["updates"]
    # Float32 weights, gradients and Adam's two moments: 16 bytes a weight, on every device (DDP).
    # A ring all-reduce sends 2 (N − 1) / N times the gradients from each device.
    found = {
        "parameters": parameters, "flops_per_token": flops, "flops": total,
        "state_bytes": 16 * parameters,
        "sent_bytes": {str(n): 8 * parameters * (n - 1) / n for n in settings["devices"]},
    }  # fmt: skip
    print(f"{parameters:,} weights, {flops / 1e6:.0f} MFLOP a token, {total:.2g} FLOP in all")
    return found


if __name__ == "__main__":
    measure.run("speed_plan", __doc__, compare, FULL, TOY)
