"""How much attention helps a recurrent translator, by length of the sentence (chapter 10.4).

Three models translate English to French: one fixed context, attention with the decoder state of
step t − 1 as its query, and with that of step t. All see the same sentences for the same number
of updates, with three seeds each, and translate the same held-out sentences.

    python -m benchmarks.seq2seq_attention          the experiment of the book
    python -m benchmarks.seq2seq_attention --toy    the same path in seconds, on made-up sentences
"""

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from src import results
from src.config import RecurrentConfig
from src.data.batches import BucketedBatches, encode_pairs
from src.data.readers import Pair
from src.data.splits import Splits, easy_subset, split_pairs
from src.data.tatoeba import load_pairs
from src.data.tokenization import WordTokenizer, split_words
from src.recurrent import AttentionSeq2Seq, Seq2Seq
from src.training.config import TrainingConfig
from src.training.evaluation import corpus_bleu, translate
from src.training.trainer import Trainer

NAME = "seq2seq_attention"
MODELS = {
    "fixed": (Seq2Seq, "previous"),
    "previous": (AttentionSeq2Seq, "previous"),
    "current": (AttentionSeq2Seq, "current"),
}


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2)
    num_words: int = 1000  # English words of the chosen sentences
    max_words: int = 16  # tokens of the longest English sentence
    tgt_vocab_size: int = 1500
    steps: int = 600
    max_tokens: int = 768
    lr: float = 4e-3
    warmup: int = 100
    d_embed: int = 96
    d_state: int = 128
    d_score: int = 64
    dropout: float = 0.2
    # First lengths of the buckets, in English words and punctuation marks.
    buckets: tuple[int, ...] = (2, 6, 8, 10, 12)


TOY = Settings(
    seeds=(0, 1), steps=3, max_tokens=256, d_embed=8, d_state=8, d_score=4, buckets=(2, 5, 7)
)


def toy_splits(seed: int = 0) -> Splits:
    """Made-up sentences, so that the toy size needs no download."""
    words = [f"w{i}" for i in range(30)]
    chooser = random.Random(seed)
    sentences = [[chooser.choice(words) for _ in range(2 + i % 7)] for i in range(260)]
    pairs = [Pair(" ".join(s), " ".join(reversed(s))) for s in sentences]
    return Splits(pairs[:200], [], pairs[200:])


def bucket_names(starts: Sequence[int], longest: int) -> list[str]:
    """Name the buckets: 2–5, 6–7, … up to the longest sentence.

    Raises:
        ValueError: If the starts do not rise, or the last is beyond the longest sentence.
    """
    if list(starts) != sorted(set(starts)) or not starts or starts[-1] > longest:
        raise ValueError(f"buckets must rise up to at most {longest}, got {list(starts)}")
    ends = [start - 1 for start in starts[1:]] + [longest]
    return [f"{start}–{end}" for start, end in zip(starts, ends, strict=False)]


def run(settings: Settings, splits: Splits) -> dict[str, Any]:
    """Train and measure every model with every seed; return what the page reads."""
    src_tok = WordTokenizer.train((pair.source for pair in splits.train), settings.num_words + 4)
    tgt_tok = WordTokenizer.train((p.target for p in splits.train), settings.tgt_vocab_size)
    lengths = [len(split_words(pair.source)) for pair in splits.test]
    names = bucket_names(settings.buckets, max(lengths))
    members = [_bucket(length, settings.buckets) for length in lengths]
    shown = [members.index(bucket) for bucket in range(len(names))]  # the first of each length
    runs = []
    for seed in settings.seeds:
        for model_name in MODELS:
            model, trained = _train(model_name, settings, splits, src_tok, tgt_tok, seed)
            found = translate(
                model,
                [pair.source for pair in splits.test],
                src_tok,
                tgt_tok,
                forbidden_ids=[tgt_tok.unk_id],
            )
            scores = _score(found, splits.test, members, len(names))
            runs.append(
                {
                    "model": model_name,
                    "seed": seed,
                    **trained,
                    **scores,
                    "samples": [found[i] for i in shown],
                }
            )
            print(
                model_name, "seed", seed, scores, f"in {trained['cpu_seconds']:.0f} s", flush=True
            )
    return {
        "settings": asdict(settings),
        "sizes": {
            "train_pairs": len(splits.train),
            "test_pairs": len(splits.test),
            "src_vocab": len(src_tok),
            "tgt_vocab": len(tgt_tok),
        },
        "buckets": names,
        "bucket_sizes": [members.count(i) for i in range(len(names))],
        "samples": [[splits.test[i].source, splits.test[i].target] for i in shown],
        "signature": corpus_bleu(["a b c d"], ["a b c d"], lowercase=True).signature,
        "runs": runs,
        "summary": {name: summarise(name, runs) for name in MODELS},
    }


def summarise(model_name: str, runs: Sequence[dict]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of one model, in all and by length."""
    own = [entry for entry in runs if entry["model"] == model_name]
    by_length = list(zip(*(entry["bleu_by_length"] for entry in own), strict=False))
    return {
        "bleu": _mean_spread([entry["bleu"] for entry in own]),
        "bleu_by_length": [_mean_spread(values) for values in by_length],
        "cpu_seconds": _mean_spread([entry["cpu_seconds"] for entry in own]),
        "parameters": own[0]["parameters"],
    }


def _train(name, settings, splits, src_tok, tgt_tok, seed) -> tuple[Seq2Seq, dict[str, Any]]:
    kind, query_from = MODELS[name]
    torch.manual_seed(seed)
    model = kind(
        RecurrentConfig(
            len(src_tok),
            len(tgt_tok),
            d_embed=settings.d_embed,
            d_encoder=settings.d_state,
            d_decoder=settings.d_state,
            d_score=settings.d_score,
            dropout=settings.dropout,
            bidirectional=True,
            query_from=query_from,
        )
    )
    examples = encode_pairs(splits.train, src_tok, tgt_tok)
    # Seeded alike: with one seed all three models see the same batches in the same order.
    batches = BucketedBatches(examples, max_tokens=settings.max_tokens, seed=seed)
    config = TrainingConfig(
        steps=settings.steps, lr=settings.lr, warmup=settings.warmup, seed=seed, log_every=50
    )
    trainer = Trainer(model, batches, config, pad_id=tgt_tok.pad_id, device="cpu", progress=False)
    start = time.process_time()  # of one thread: a busy machine doesn't lengthen it
    trainer.fit()
    return model, {
        "parameters": model.num_parameters(),
        "cpu_seconds": round(time.process_time() - start, 1),
        "loss": [round(record.loss, 3) for record in trainer.history],
    }


def _score(found, pairs, members, num_buckets) -> dict[str, Any]:
    """BLEU of greedy translations, over all held-out sentences and over each bucket."""
    references = [pair.target for pair in pairs]

    def bleu(rows: Sequence[int]) -> float:
        pick = [found[i] for i in rows], [references[i] for i in rows]
        return round(corpus_bleu(*pick, lowercase=True).score, 2)

    return {
        "bleu": bleu(range(len(pairs))),
        "bleu_by_length": [
            bleu([i for i, member in enumerate(members) if member == bucket])
            for bucket in range(num_buckets)
        ],
    }


def _bucket(length: int, starts: Sequence[int]) -> int:
    return max((i for i, start in enumerate(starts) if length >= start), default=0)


def _mean_spread(values: Sequence[float]) -> list[float]:
    return [round(mean(values), 2), round(stdev(values), 2) if len(values) > 1 else 0.0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--toy", action="store_true", help="tiny sizes, made-up sentences; saved only with --out"
    )
    parser.add_argument("--steps", type=int, help="updates of each model")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds, one run of each model each")
    parser.add_argument("--out", type=Path, help="folder for the result; default: the package's")
    args = parser.parse_args(arguments)
    settings = TOY if args.toy else Settings()
    if args.steps is not None:
        settings = replace(settings, steps=args.steps)
    if args.seeds is not None:
        settings = replace(settings, seeds=tuple(args.seeds))
    torch.set_num_threads(1)
    start = time.perf_counter()
    if args.toy:
        splits = toy_splits()
    else:
        splits = split_pairs(load_pairs("fra"), valid=0.0, test=0.12)
        splits = easy_subset(splits, settings.num_words, settings.max_words)
    data = run(settings, splits)
    if args.toy and args.out is None:
        return  # a toy result must not replace the book's
    path = results.save(NAME, data, seconds=time.perf_counter() - start, folder=args.out)
    print("saved", path.name)


if __name__ == "__main__":
    main()
