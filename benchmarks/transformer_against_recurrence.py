"""Does a Transformer translate better than a recurrent model after the same time of training?

Claim 10.7-13. Both models get the same sentence pairs, the same batches, optimizer, schedule and
label smoothing, one CPU thread and equal time; about as many parameters, too. Time is the
processor's, so that whatever else runs on the machine does not count. Every few updates the clock
stops, and loss per token and BLEU are measured on held-out sentences.

    python -m benchmarks.transformer_against_recurrence         about twenty minutes on one thread
    python -m benchmarks.transformer_against_recurrence --toy   seconds; saves nothing
"""

import argparse
import time

import torch

from src import results
from src.config import RecurrentConfig, TransformerConfig
from src.data.batches import BucketedBatches, encode_pairs
from src.data.splits import easy_subset, split_pairs
from src.data.tatoeba import load_pairs
from src.data.tokenization import WordTokenizer
from src.recurrent import AttentionSeq2Seq
from src.training.config import Record, TrainingConfig
from src.training.evaluation import corpus_bleu, evaluate, translate
from src.training.trainer import Trainer
from src.transformer import Transformer

FULL = {
    "seeds": [0, 1, 2],
    "seconds": 144.0,
    "looks": 9,
    "num_words": 800,
    "max_tokens": 8,
    "num_target_words": 1200,
    "max_target_tokens": 10,
    "cells": 1000,
    "lr": 3e-3,
    "warmup": 150,
}
TOY = FULL | {"seeds": [0], "seconds": 0.1, "looks": 1, "num_words": 100}


def build(name: str, src_size: int, tgt_size: int) -> torch.nn.Module:
    """One of the two models, of about equal size."""
    if name == "transformer":
        return Transformer(TransformerConfig.tiny(src_size, tgt_size, norm_first=True))
    return AttentionSeq2Seq(
        RecurrentConfig(src_size, tgt_size, d_embed=128, d_encoder=160, d_decoder=160, dropout=0.2)
    )


def measure(name: str, seed: int, splits, settings: dict) -> dict:
    """Train one model for the given seconds; what held-out data said, and when."""
    src_tok = WordTokenizer.train([pair.source for pair in splits.train], 4000)
    tgt_tok = WordTokenizer.train([pair.target for pair in splits.train], 4000)
    batches = [
        BucketedBatches(
            encode_pairs(side, src_tok, tgt_tok),
            max_tokens=settings["cells"],
            seed=seed,
            shuffle=side is splits.train,
        )
        for side in (splits.train, splits.valid)
    ]
    torch.manual_seed(seed)
    model = build(name, len(src_tok), len(tgt_tok))
    sources = [pair.source for pair in splits.test]
    references = [pair.target for pair in splits.test]

    points: list[dict] = []
    paused, start = 0.0, time.process_time()

    def look(trainer: Trainer, record: Record) -> None:
        """Stop the clock, and measure, whenever another share of the time has passed."""
        nonlocal paused
        now = time.process_time()
        seconds = now - start - paused
        if seconds < settings["seconds"] * (len(points) + 1) / settings["looks"]:
            return
        translations = translate(model, sources, src_tok, tgt_tok)
        points.append(
            {
                "seconds": seconds,
                "step": record.step,
                "loss": evaluate(model, batches[1], pad_id=0),
                "bleu": corpus_bleu(translations, references, lowercase=True).score,
            }
        )
        if len(points) == settings["looks"]:
            trainer.stop()
        paused += time.process_time() - now

    config = TrainingConfig(
        steps=100_000,
        lr=settings["lr"],
        warmup=settings["warmup"],
        seed=seed,
        log_every=5,
        eval_every=100_000,
    )
    Trainer(
        model, batches[0], config, pad_id=0, device="cpu", progress=False, callbacks=[look]
    ).fit()
    return {"parameters": model.num_parameters(), "points": points}


def main() -> None:
    """Measure both models on all seeds and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="seconds only; saves nothing")
    parser.add_argument("--out", help="folder of the result, instead of the package's own")
    args = parser.parse_args()
    settings = TOY if args.toy else FULL
    torch.set_num_threads(1)
    start = time.perf_counter()
    splits = easy_subset(
        split_pairs(load_pairs("fra")),
        settings["num_words"],
        settings["max_tokens"],
        num_target_words=settings["num_target_words"],
        max_target_tokens=settings["max_target_tokens"],
    )
    runs = {"transformer": [], "recurrent": []}
    for seed in settings["seeds"]:  # interleaved: whatever slows the machine slows both
        for name, found in runs.items():
            found.append(measure(name, seed, splits, settings))
            last = found[-1]["points"][-1]
            print(f"{name} seed {seed}: loss {last['loss']:.2f}, BLEU {last['bleu']:.1f}")
    data = {"settings": settings, "runs": runs, "sentences": len(splits.test)}
    if not args.toy or args.out:
        path = results.save(
            "transformer_against_recurrence",
            data,
            seconds=time.perf_counter() - start,
            folder=args.out,
        )
        print(path)


if __name__ == "__main__":
    main()
