"""Training on a corpus of mixed lengths, each model fed as its user would feed it.

Ours takes buckets of a fixed token budget; the peers take batches of a fixed number of shuffled
sentences, padded to the longest, as their documentation shows. All have as many tokens to learn
in all: real target tokens a second.

    python -m benchmarks.speed.mixed_lengths         a few minutes
    python -m benchmarks.speed.mixed_lengths --toy   seconds; saves nothing
"""

import dataclasses

import torch

from benchmarks.speed import measure, peers
from src.data.batches import Batch, BucketedBatches, Example, encode_pairs, pad
from src.data.tatoeba import load_pairs
from src.data.tokenization import WordTokenizer

FULL = {"rounds": 5, "pairs": 256, "batch_size": 64, "max_tokens": 1024, "size": {}}
TOY = {
    "rounds": 1,
    "pairs": 12,
    "batch_size": 4,
    "max_tokens": 64,
    "size": {"vocab_size": 200, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
}


def corpus(count: int, vocab_size: int) -> list[Example]:
    """Real English-French pairs, drawn without looking at their length."""
    pairs = load_pairs("fra")
    chosen = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))[:count]
    pairs = [pairs[i] for i in chosen.tolist()]
    src_tok = WordTokenizer.train([pair.source for pair in pairs], vocab_size)
    tgt_tok = WordTokenizer.train([pair.target for pair in pairs], vocab_size)
    return encode_pairs(pairs, src_tok, tgt_tok)


def plain_batches(examples: list[Example], batch_size: int) -> list[Batch]:
    """Batches as a `DataLoader` with shuffling and padding makes them."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(1)).tolist()
    groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [
        Batch(
            pad([examples[i].src for i in group], peers.PAD),
            pad([examples[i].tgt for i in group], peers.PAD),
            peers.PAD,
        )
        for group in groups
    ]


def compare(settings: dict) -> dict:
    """Time one pass over the corpus for every model."""
    size = peers.Size(**settings["size"])
    examples = corpus(settings["pairs"], size.vocab_size)
    longest = max(max(len(e.src), len(e.tgt)) for e in examples)
    size = dataclasses.replace(size, max_len=max(size.max_len, longest))
    plain = plain_batches(examples, settings["batch_size"])
    buckets = list(BucketedBatches(examples, max_tokens=settings["max_tokens"], seed=0))
    models = peers.build(size)
    steps = {
        name: peers.trainer(model, buckets if name == "ours" else plain)
        for name, model in models.items()
    }
    tokens = sum(batch.num_tokens for batch in plain)
    if tokens != sum(batch.num_tokens for batch in buckets):
        raise RuntimeError("both ways of batching must hold the same tokens")
    seconds = measure.interleave(steps, settings["rounds"])
    measure.report(seconds, "ours", tokens, "tokens/s")
    return {
        "size": dataclasses.asdict(size),
        "tokens": tokens,
        "batches": {"ours": len(buckets), "peers": len(plain)},
        "seconds": seconds,
        "rates": measure.rates(seconds, tokens),
        "ratios": measure.ratios(seconds, "ours"),
    }


if __name__ == "__main__":
    measure.run("speed_mixed_lengths", __doc__, compare, FULL, TOY)
