"""Do the heads of a trained Transformer differ, and which of them can go?

Claim 10.5-5. The translation model of chapter 10.7 is trained, for longer than on its page. Then,
for every head of every attention block and over the sentence pairs that training never saw:

* how far it looks on average, and the entropy of its weights, trained and untrained;
* how much loss and BLEU change when this head alone is removed, which is when its columns of
  W_o are zero;
* for a whole block, what is left if only its best head stays, or none.

    python -m benchmarks.heads                  about ten minutes
    python -m benchmarks.heads --processes 2    half of that on two cores
    python -m benchmarks.heads --toy            seconds, on made-up sentences; saves nothing
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.seq2seq_attention import toy_splits
from src import results
from src.config import TransformerConfig
from src.data.batches import BucketedBatches, encode_pairs
from src.data.splits import Splits, easy_subset, split_pairs
from src.data.tatoeba import load_pairs
from src.data.tokenization import WordTokenizer
from src.masks import causal_mask, padding_mask
from src.multihead import MultiHeadAttention
from src.training.config import TrainingConfig
from src.training.evaluation import corpus_bleu, evaluate, translate
from src.training.trainer import Trainer
from src.transformer import Transformer

FULL = {
    "seeds": [0, 1],
    "num_words": 800,
    "max_tokens": 8,
    "num_target_words": 1200,
    "max_target_tokens": 10,
    "cells": 1000,
    "steps": 600,
    "lr": 3e-3,
    "warmup": 150,
}
TOY = FULL | {"seeds": [0], "cells": 400, "steps": 3, "warmup": 2}
KINDS = ("encoder", "decoder", "cross")


def real_splits(settings: dict) -> Splits:
    """The short sentences of common words of chapter 10.7."""
    return easy_subset(
        split_pairs(load_pairs("fra")),
        settings["num_words"],
        settings["max_tokens"],
        num_target_words=settings["num_target_words"],
        max_target_tokens=settings["max_target_tokens"],
    )


def blocks(model: Transformer) -> list[tuple[str, int, MultiHeadAttention]]:
    """Every attention block, with its kind and its layer."""
    encoder, decoder = model.encoder.layers, model.decoder.layers
    return [
        *(("encoder", i, layer.self_attention) for i, layer in enumerate(encoder)),
        *(("decoder", i, layer.self_attention) for i, layer in enumerate(decoder)),
        *(("cross", i, layer.cross_attention) for i, layer in enumerate(decoder)),
    ]


@contextmanager
def without(block: MultiHeadAttention, heads: Sequence[int]) -> Iterator[None]:
    """Remove heads for a while: W_o gets zeros where their outputs enter.

    Args:
        block: Comes back as it was, whatever happens inside.
        heads: Numbers of heads, from 0.

    Raises:
        ValueError: If there is no such head.
    """
    for head in heads:
        if not 0 <= head < block.num_heads:
            raise ValueError(f"heads must lie in 0 … {block.num_heads - 1}, but one is {head}")
    weight, width = block.out_proj.weight, block.head_dim
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            for head in heads:
                weight[:, head * width : (head + 1) * width] = 0
        yield
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def look(weights: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, int]:
    """Sum up how far the heads look and how spread their weights are.

    Args:
        weights: ``(B, H, T, S)``.
        queries: Bool ``(B, T)``, True where a query is a real token.

    Returns:
        Sums over real queries of the mean distance ``|i - j|`` and of the entropy in nats, one of
        each a head, and the number of real queries.
    """
    rows, columns = weights.shape[-2:]
    apart = (torch.arange(rows)[:, None] - torch.arange(columns)).abs()
    distance = (weights * apart).sum(-1)
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    real = queries[:, None]
    return (
        (distance * real).sum((0, 2)),
        (entropy * real).sum((0, 2)),
        int(queries.sum()),
    )


@torch.no_grad()
def looks(model: Transformer, batches: BucketedBatches) -> dict[str, list[list[dict]]]:
    """Mean distance and entropy of every head: kind → layer → head."""
    model.eval()
    totals: dict[tuple[str, int], list] = {}
    for batch in batches:
        # In a padded row of tgt_in stands an <eos> that has no answer: tgt_out knows the real ones.
        answers = batch.tgt_out != batch.pad_id
        real = {"encoder": batch.src != batch.pad_id, "decoder": answers, "cross": answers}
        for kind, layers in model.attention_maps(batch.src, batch.tgt_in).items():
            for layer, weights in enumerate(layers):
                found = look(weights, real[kind])
                before = totals.get((kind, layer), (0, 0, 0))
                totals[kind, layer] = [a + b for a, b in zip(before, found, strict=True)]
    report: dict[str, list[list[dict]]] = {kind: [] for kind in KINDS}
    for (kind, _), (distance, entropy, count) in totals.items():
        report[kind].append(
            [
                {"distance": d / count, "entropy": e / count}
                for d, e in zip(distance.tolist(), entropy.tolist(), strict=True)
            ]
        )
    return report


def evenly(batches: BucketedBatches) -> dict[str, dict]:
    """What a head would show that spreads its weights evenly over all it may look at."""
    totals = {kind: torch.zeros(3, dtype=torch.double) for kind in KINDS}
    for batch in batches:
        source = padding_mask(batch.src, batch.pad_id)
        lengths = batch.tgt_in.shape[1]
        allowed = {
            "encoder": (source.expand(-1, batch.src.shape[1], -1), batch.src != batch.pad_id),
            "decoder": (causal_mask(lengths).expand(len(batch.src), -1, -1), None),
            "cross": (source.expand(-1, lengths, -1), None),
        }
        for kind, (mask, queries) in allowed.items():
            weights = (mask / mask.sum(-1, keepdim=True)).unsqueeze(1)
            queries = batch.tgt_out != batch.pad_id if queries is None else queries
            totals[kind] += torch.tensor([float(x) for x in look(weights, queries)])
    return {
        kind: {"distance": float(d / n), "entropy": float(e / n)}
        for kind, (d, e, n) in totals.items()
    }


def measure(seed: int, splits: Splits, settings: dict, progress: bool = False) -> dict:
    """Train one model and take its heads away, one by one."""
    src_tok = WordTokenizer.train([pair.source for pair in splits.train], 4000)
    tgt_tok = WordTokenizer.train([pair.target for pair in splits.train], 4000)
    unseen = [*splits.valid, *splits.test]  # training looks at neither
    train, held_out = (
        BucketedBatches(
            encode_pairs(pairs, src_tok, tgt_tok),
            max_tokens=settings["cells"],
            seed=seed,
            shuffle=pairs is splits.train,
        )
        for pairs in (splits.train, unseen)
    )
    torch.manual_seed(seed)
    config = TransformerConfig.tiny(len(src_tok), len(tgt_tok), norm_first=True)
    model = Transformer(config)
    untrained = looks(model, held_out)
    training = TrainingConfig(
        steps=settings["steps"],
        lr=settings["lr"],
        warmup=settings["warmup"],
        label_smoothing=0.1,
        seed=seed,
        log_every=25,
    )
    Trainer(model, train, training, pad_id=0, device="cpu", progress=progress).fit()

    def bleu() -> float:
        hypotheses = translate(model, [p.source for p in unseen], src_tok, tgt_tok)
        return corpus_bleu(hypotheses, [p.target for p in unseen], lowercase=True).score

    whole = {"bleu": bleu(), "loss": evaluate(model, held_out, pad_id=0)}
    heads, parts = [], []
    trained = looks(model, held_out)
    for kind, layer, block in tqdm(blocks(model), disable=not progress):
        everyone = range(block.num_heads)
        for head in everyone:
            with without(block, [head]):
                lost = {"bleu": bleu(), "loss": evaluate(model, held_out, pad_id=0)}
            heads.append(
                {"kind": kind, "layer": layer, "head": head}
                | trained[kind][layer][head]
                | {f"{name}_without": value for name, value in lost.items()}
            )
        alone = []
        for head in everyone:
            with without(block, [h for h in everyone if h != head]):
                alone.append(evaluate(model, held_out, pad_id=0))
        best = alone.index(min(alone))
        with without(block, [h for h in everyone if h != best]):
            one = bleu()
        with without(block, everyone):
            none = bleu()
        parts.append(
            {
                "kind": kind,
                "layer": layer,
                "best": best,
                "bleu_of_best_alone": one,
                "bleu_of_none": none,
            }
        )
    return {
        "seed": seed,
        **whole,
        "heads": heads,
        "blocks": parts,
        "untrained": untrained,
        "evenly": evenly(held_out),
    }


def run(settings: dict, splits: Splits, progress: bool = False, processes: int = 1) -> dict:
    """Measure with every seed, in as many processes of one thread each as asked for.

    Returns:
        The settings, the number of unseen sentences and a list of runs, as `measure` gives them.
    """
    jobs = [(seed, splits, settings, progress) for seed in settings["seeds"]]
    if processes == 1:
        runs = [measure(*job) for job in jobs]
    else:
        with multiprocessing.get_context("spawn").Pool(
            processes, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            runs = pool.starmap(measure, jobs, chunksize=1)
    return {
        "settings": settings,
        "sentences": len(splits.valid) + len(splits.test),
        "runs": runs,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="tiny sizes; nothing is saved")
    parser.add_argument("--processes", type=int, default=1, help="seeds at the same time")
    options = parser.parse_args(arguments)
    toy = options.toy
    torch.set_num_threads(1)
    start = time.perf_counter()
    settings = TOY if toy else FULL
    splits = toy_splits() if toy else real_splits(settings)
    data = run(settings, splits, progress=True, processes=options.processes)
    for entry in data["runs"]:
        worst = min(entry["heads"], key=lambda head: head["bleu_without"])
        print(
            f"seed {entry['seed']}: BLEU {entry['bleu']:.1f}, {worst['bleu_without']:.1f} "
            f"without head {worst['head']} of {worst['kind']} layer {worst['layer']}"
        )
    if not toy:
        print("saved", results.save("heads", data, seconds=time.perf_counter() - start).name)


if __name__ == "__main__":
    main()
