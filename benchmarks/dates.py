"""Dates in words to Chinese dates: how soon it is learned, where it looks, and what length does.

Claims 10.4-9 and 10.4-10. Chapter 10.4 trains these models with one seed; here each is trained
with three, on the same dates. Measured on dates that no model has seen: the share that comes out
right to the last character, in all and by the length of the source, and how well the attention
agrees with the true alignment.

    python -m benchmarks.dates          about five minutes on one CPU thread
    python -m benchmarks.dates --toy    seconds; saves nothing
"""

from collections import Counter
from statistics import mean, stdev

import torch
from tqdm import tqdm

from benchmarks import _command
from src.config import RecurrentConfig
from src.data.batches import BucketedBatches, encode_pairs, pad
from src.data.dates import DatePair, alignment_agreement, load_dates
from src.data.tokenization import WordTokenizer
from src.recurrent import AttentionSeq2Seq, Seq2Seq
from src.training.config import TrainingConfig
from src.training.evaluation import translate
from src.training.trainer import Trainer

FULL = {
    "seeds": [0, 1, 2],
    "train_dates": 4000,
    "test_dates": 300,
    "d_embed": 32,
    "d_state": 64,
    "d_score": 32,
    "dropout": 0.1,
    "batch_size": 64,
    "steps": 250,
    "lr": 1e-2,
    "warmup": 50,
}
TOY = FULL | {"seeds": [0], "train_dates": 80, "test_dates": 20, "steps": 2, "d_state": 8}
# Kind, how many times the updates of the settings, and fields of the configuration. Where nearly
# all dates are right no length can lag, so attention is also measured while it is learning.
MODELS: dict[str, tuple[type[Seq2Seq], float, dict]] = {
    "fixed": (Seq2Seq, 1, {}),
    "fixed, 2 times": (Seq2Seq, 2, {}),
    "fixed, 4 times": (Seq2Seq, 4, {}),
    "attention, 0.6 times": (AttentionSeq2Seq, 0.6, {}),
    "attention": (AttentionSeq2Seq, 1, {}),
    "attention, query t": (AttentionSeq2Seq, 1, {"query_from": "current"}),
    "attention, two directions": (AttentionSeq2Seq, 1, {"bidirectional": True}),
}


def length(pair: DatePair) -> int:
    """Tokens of the source."""
    return len(pair.source.split())


def measure(
    name: str, seed: int, train: list[DatePair], test: list[DatePair], settings: dict
) -> dict:
    """Train one model with one seed; what it does with the dates of ``test``."""
    src_tok = WordTokenizer.train([pair.source for pair in train], 100)
    tgt_tok = WordTokenizer.train([pair.target for pair in train], 100)
    examples, held_out = (
        encode_pairs([(pair.source, pair.target) for pair in side], src_tok, tgt_tok)
        for side in (train, test)
    )
    kind, times, fields = MODELS[name]
    state = settings["d_state"]
    torch.manual_seed(seed)
    model = kind(
        RecurrentConfig(
            len(src_tok),
            len(tgt_tok),
            d_embed=settings["d_embed"],
            d_encoder=state,
            d_decoder=state,
            d_score=settings["d_score"],
            dropout=settings["dropout"],
            **fields,
        )
    )
    config = TrainingConfig(
        steps=round(times * settings["steps"]),
        lr=settings["lr"],
        warmup=settings["warmup"],
        seed=seed,
        label_smoothing=0.0,
    )
    batches = BucketedBatches(examples, batch_size=settings["batch_size"], seed=seed)
    Trainer(model, batches, config, pad_id=0, device="cpu", progress=False).fit()
    model.eval()
    found = translate(model, [pair.source for pair in test], src_tok, tgt_tok, max_len=30)
    right = [
        text.replace(" ", "") == pair.target.replace(" ", "")
        for text, pair in zip(found, test, strict=True)
    ]
    correct = Counter(length(pair) for pair, ok in zip(test, right, strict=True) if ok)
    agreement = None
    if kind is AttentionSeq2Seq:
        src, tgt = (pad([getattr(e, side) for e in held_out], 0) for side in ("src", "tgt"))
        with torch.no_grad():
            weights = model.attention_maps(src, tgt[:, :-1])
        agreement = alignment_agreement(weights, test)._asdict()
    return {
        "model": name,
        "seed": seed,
        "exact": sum(right) / len(test),
        "right_by_length": {str(n): correct[n] for n in lengths(test)},
        "agreement": agreement,
    }


def lengths(pairs: list[DatePair]) -> list[int]:
    """The lengths that occur, rising."""
    return sorted({length(pair) for pair in pairs})


def run(settings: dict) -> dict:
    """Measure every model with every seed.

    Returns:
        The settings, the number of held-out dates of each length of the source, and a list of
        runs, as `measure` gives them.
    """
    train, test = load_dates(settings["train_dates"], settings["test_dates"])
    count = Counter(map(length, test))
    jobs = [(name, seed) for name in MODELS for seed in settings["seeds"]]
    return {
        "settings": settings,
        "dates_by_length": {str(n): count[n] for n in lengths(test)},
        "runs": [measure(*job, train, test, settings) for job in tqdm(jobs)],
    }


def tell(data: dict) -> None:
    """Print mean and spread of each model."""
    for name in MODELS:
        exact = [entry["exact"] for entry in data["runs"] if entry["model"] == name]
        spread = stdev(exact) if len(exact) > 1 else 0.0
        print(f"{name}: exact on {mean(exact):.1%} ± {spread:.1%}")


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    _command.run("dates", __doc__, run, tell, FULL, TOY, arguments)


if __name__ == "__main__":
    main()
