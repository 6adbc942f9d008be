"""What the paper's English-German training takes: work, memory and messages, counted.

Work comes from PyTorch's FLOP counter over a model without storage; the bytes that forward keeps
for backward are counted by hooks on a few sentences. Nothing is timed. The rate of a device is that
which `benchmarks.speed.gpu` measured for this model; before there is such a result, two rates are
assumed. Run it again after that one.

    python -m benchmarks.speed.plan         seconds
    python -m benchmarks.speed.plan --toy   seconds; saves nothing
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import measure
from src import results
from src.config import TransformerConfig
from src.training.optimization import token_loss
from src.transformer import Transformer

# Vaswani et al. 2017: § 5.1 (37,000 tokens shared, 25,000 source and target tokens a batch),
# § 5.2 (100,000 updates for base). A WMT14 sentence has about 28 tokens. Rates (FLOP/s) and links
# (bytes a second that a device sends: between machines, within one) are assumptions.
FULL = {
    "vocab_size": 37000,
    "length": 28,
    "tokens_per_update": 25000,
    "updates": 100_000,
    "devices": [1, 8, 64],
    "rates": [100e12, 400e12],
    "links": [25e9, 300e9],
}
TOY = FULL | {"vocab_size": 100}
ROWS = 4
BACKWARD = 2 / 3  # of an update's work: two products for each one forwards


def compare(settings: dict) -> dict:
    """Count for the base model, then divide among the devices."""
    length, vocab_size = settings["length"], settings["vocab_size"]
    config = TransformerConfig.base(vocab_size, vocab_size, tie_embeddings="all")
    tokens = ROWS * length
    with torch.device("meta"):
        model = Transformer(config)
        ids = torch.ones(ROWS, length, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            token_loss(model(ids, ids), ids, config.pad_id)[0].backward()
    parameters = model.num_parameters()
    flops = counter.get_total_flops() / tokens
    rates, measured = device_rates(settings["rates"])
    counted = {
        "parameters": parameters,
        "flops_per_token": flops,
        "flops": flops * settings["tokens_per_update"] * settings["updates"],
        "activation_bytes_per_token": kept_bytes(config, length) / tokens,
        # Logits, their log-softmax and the gradient of the logits, float32.
        "logit_bytes_per_token": 12 * vocab_size,
        # The shared embedding is also the output matrix: the part of the gradients that is
        # complete only when backward ends.
        "last_share": vocab_size * config.d_model / parameters,
        "rates": rates,
        "measured": measured,
    }
    print(
        f"{parameters:,} weights, {flops / 1e6:.0f} MFLOP a token, {counted['flops']:.2g} FLOP in "
        f"all, {counted['activation_bytes_per_token'] / 1e3:.0f} kB of activations a token"
    )
    rows = {}
    for n in settings["devices"]:
        rows[str(n)] = row = divide(settings, counted, n)
        print(f"{n:3} devices: {row['hours'][0]:.2g} … {row['hours'][1]:.2g} hours")
    return counted | {"devices": rows}


def device_rates(assumed: list[float]) -> tuple[list[float], bool]:
    """Lowest and highest FLOP/s of a device training `base`, and whether they were measured."""
    try:
        found = results.load("speed_gpu")["data"]
    except FileNotFoundError:
        return assumed, False
    share = found["training"]["base"]["share_spread"]
    return [share["low"] * found["limit"], share["high"] * found["limit"]], True


def kept_bytes(config: TransformerConfig, length: int) -> int:
    """Bytes that forward keeps for backward, in float32, without weights and without logits."""
    model = Transformer(config)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    own |= {b.untyped_storage().data_ptr() for b in model.buffers()}
    kept = {}  # storages stay alive here, so that none takes the place of another

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return x

    ids = torch.ones(ROWS, length, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        memory = model.decoder.remember(model.encoder(ids))
        model.output(model.decoder(ids, memory))
    return sum(storage.nbytes() for storage in kept.values())


def divide(settings: dict, counted: dict, n: int) -> dict:
    """Memory, messages and time of one of ``n`` devices; ranges are pairs, lowest first."""
    tokens = settings["tokens_per_update"] / n
    parameters = counted["parameters"]
    # A ring all-reduce sends 2 (N − 1) / N times the float32 gradients. Sharded, each device
    # sends its part of the weights twice, forwards and backwards, and the gradients once.
    sent = 4 * parameters * (n - 1) / n
    found = {
        "tokens": tokens,
        # Float32 weights, gradients and Adam's two moments.
        "state_bytes": 16 * parameters,
        "sharded_state_bytes": 16 * parameters / n,
        "activation_bytes": counted["activation_bytes_per_token"] * tokens,
        "logit_bytes": counted["logit_bytes_per_token"] * tokens,
        "sent_bytes": 2 * sent,
        "sharded_sent_bytes": 3 * sent,
        "seconds_sent": sorted(2 * sent / link for link in settings["links"]),
    }
    compute, hours, efficiency = [], [], []
    for rate in counted["rates"]:
        seconds = counted["flops_per_token"] * tokens / rate
        compute.append(seconds)
        for sending in found["seconds_sent"]:
            # Hidden: what is sent while backward still runs, at most all but the last part.
            hidden = min(BACKWARD * seconds, (1 - counted["last_share"]) * sending)
            whole = seconds + sending - hidden
            hours.append(whole * settings["updates"] / 3600)
            efficiency.append(seconds / whole)
    return found | {
        "seconds_computed": [min(compute), max(compute)],
        "hours": [min(hours), max(hours)],
        "efficiency": [min(efficiency), max(efficiency)],
    }


if __name__ == "__main__":
    measure.run("speed_plan", __doc__, compare, FULL, TOY)
