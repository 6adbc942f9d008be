"""What does each part of a Transformer do? One part is taken away at a time.

The translation model of chapter 10.7 in small: the same model and the same easy sentences, fewer
and smaller updates. Each row lacks one part of it and is trained anew; then loss per token and
BLEU are measured on held-out sentences. So short a training is better off without dropout; one
row adds it. The parts are taken away here, from outside; the package has no switches for it.

    python -m benchmarks.ablations          about a quarter of an hour on one CPU thread
    python -m benchmarks.ablations --toy    seconds, on made-up sentences; saves nothing
"""

import math
from collections.abc import Callable
from statistics import mean

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from benchmarks import _command
from benchmarks.heads import real_splits
from benchmarks.seq2seq_attention import toy_splits
from src.config import TransformerConfig
from src.data.batches import BucketedBatches, encode_pairs
from src.data.splits import Splits
from src.data.tokenization import WordTokenizer
from src.layers import AddNorm
from src.scoring import DotProduct
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
    "cells": 700,
    "steps": 250,
    "lr": 3e-3,
    "warmup": 60,
    "max_len": 20,
    "dropout": 0.0,
}
TOY = FULL | {"seeds": [0], "cells": 200, "steps": 2, "warmup": 2, "max_len": 4}


class Skip(nn.Module):
    """In place of Add & Norm: what enters leaves, and the sublayer is never asked."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``x``."""
        return x


class NoResidual(AddNorm):
    """Pre-norm without the sum."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the sublayer's output alone."""
        return self.dropout(sublayer(self.norm(x)))


class NoNorm(AddNorm):
    """The sum without the norm."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``x`` plus the sublayer's output."""
        return x + self.dropout(sublayer(x))


class Unscaled(DotProduct):
    """Scores are not divided by the root of the heads' width: queries are multiplied by it."""

    def forward(self, query: Tensor, *rest: Tensor | None) -> Tensor:
        """Attend with larger queries; the division takes back the factor."""
        return super().forward(query * math.sqrt(query.shape[-1]), *rest)

    def weights(self, query: Tensor, *rest: Tensor | None) -> Tensor:
        """The weights of the larger queries."""
        return super().weights(query * math.sqrt(query.shape[-1]), *rest)


class SeesAhead(DotProduct):
    """In training, queries may attend to later keys as well."""

    @property
    def is_causal(self) -> bool:
        """Whether later keys are forbidden: in evaluation only."""
        return self.__dict__["is_causal"] and not self.training


def layers(model: Transformer) -> list[nn.Module]:
    """All layers of both stacks."""
    return [*model.encoder.layers, *model.decoder.layers]


def skip(stack: str, number: int, name: str) -> Callable[[Transformer], None]:
    """Take away a sublayer, its wrapper and its weights in every layer of a stack."""

    def change(model: Transformer) -> None:
        for layer in getattr(model, stack).layers:
            layer.add_norms[number] = Skip()
            if name != "cross_attention":  # whose keys and values are projected once for all
                setattr(layer, name, nn.Identity())

    return change


def without_feed_forward(model: Transformer) -> None:
    """Take away every feed-forward network."""
    skip("encoder", 1, "feed_forward")(model)
    skip("decoder", 2, "feed_forward")(model)


def wrap_by(kind: type[AddNorm]) -> Callable[[Transformer], None]:
    """Change what stands around the sublayers; without norms there is none at the end either."""

    def change(model: Transformer) -> None:
        for layer in layers(model):
            for wrapper in layer.add_norms:
                wrapper.__class__ = kind  # same weights, another forward
        if kind is NoNorm:
            for wrapper in (w for layer in layers(model) for w in layer.add_norms):
                wrapper.norm = nn.Identity()
            model.encoder.norm = model.decoder.norm = None

    return change


def attend_by(kind: type[DotProduct]) -> Callable[[Transformer], None]:
    """Change how attention works; the weights stay."""

    def change(model: Transformer) -> None:
        for module in model.modules():
            if isinstance(module, DotProduct):
                module.__class__ = kind

    return change


def unscaled_embeddings(model: Transformer) -> None:
    """Leave out the factor sqrt(D) on both sides; tables and initial values stay."""
    model.encoder.embeddings.scale = model.decoder.embeddings.scale = 1.0


# What is taken away: (fields of the model's configuration, fields of the training's, a change of
# the finished model). `warm_up` is ours: False starts at the highest learning rate.
PARTS: dict[str, tuple[dict, dict, Callable[[Transformer], None] | None]] = {
    "nothing": ({}, {}, None),
    "cross-attention": ({}, {}, skip("decoder", 1, "cross_attention")),
    "encoder self-attention": ({}, {}, skip("encoder", 0, "self_attention")),
    "decoder self-attention": ({}, {}, skip("decoder", 0, "self_attention")),
    "feed-forward": ({}, {}, without_feed_forward),
    "positions": ({"positions": "none"}, {}, None),
    "residual": ({}, {}, wrap_by(NoResidual)),
    "norms": ({}, {}, wrap_by(NoNorm)),
    "causal mask": ({}, {}, attend_by(SeesAhead)),
    "embedding scale": ({}, {}, unscaled_embeddings),
    "score scale": ({}, {}, attend_by(Unscaled)),
    "heads": ({"num_heads": 1}, {}, None),
    "nothing (dropout 0.2 added)": ({"dropout": 0.2}, {}, None),
    "label smoothing": ({}, {"label_smoothing": 0.0}, None),
    "warm-up": ({}, {"warm_up": False}, None),
}


def build(part: str, src_size: int, tgt_size: int, dropout: float = 0.0) -> Transformer:
    """The chapter's model without one part.

    Raises:
        ValueError: If there is no such part.
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, but is {part!r}")
    fields, _, change = PARTS[part]
    fields = {"norm_first": True, "dropout": dropout} | fields
    model = Transformer(TransformerConfig.tiny(src_size, tgt_size, **fields))
    if change is not None:
        change(model)
    return model


def start_at_the_peak(trainer: Trainer, warmup: int) -> None:
    """Leave the warm-up out and what follows it as it was."""
    trainer.updater.schedule = LambdaLR(
        trainer.updater.optimizer, lambda done: min(1.0, (warmup / (done + 1)) ** 0.5)
    )


def measure(part: str, seed: int, splits: Splits, settings: dict) -> dict:
    """Train without one part; what training and held-out sentences say."""
    src_tok = WordTokenizer.train([pair.source for pair in splits.train], 4000)
    tgt_tok = WordTokenizer.train([pair.target for pair in splits.train], 4000)
    train, held_out = (
        BucketedBatches(
            encode_pairs(pairs, src_tok, tgt_tok),
            max_tokens=settings["cells"],
            seed=seed,
            shuffle=pairs is splits.train,
        )
        for pairs in (splits.train, splits.test)
    )
    torch.manual_seed(seed)
    model = build(part, len(src_tok), len(tgt_tok), settings["dropout"])
    options = {"label_smoothing": 0.1, "warm_up": True} | PARTS[part][1]
    warm_up = options.pop("warm_up")
    config = TrainingConfig(
        steps=settings["steps"],
        lr=settings["lr"],
        warmup=settings["warmup"],
        seed=seed,
        log_every=min(25, settings["steps"]),
        **options,
    )
    trainer = Trainer(model, train, config, pad_id=0, device="cpu", progress=False)
    if not warm_up:
        start_at_the_peak(trainer, settings["warmup"])
    records = trainer.fit()
    hypotheses = translate(
        model, [p.source for p in splits.test], src_tok, tgt_tok, max_len=settings["max_len"]
    )
    bleu = corpus_bleu(hypotheses, [p.target for p in splits.test], lowercase=True).score
    return {
        "part": part,
        "seed": seed,
        "parameters": model.num_parameters(),
        "bleu": bleu,
        "loss": evaluate(model, held_out, pad_id=0),
        "training_loss": records[-1].loss,
    }


def run(settings: dict, splits: Splits, progress: bool = False) -> dict:
    """Measure every part with every seed.

    Returns:
        The settings, the number of held-out sentences and a list of runs, as `measure` gives
        them.
    """
    jobs = [(part, seed) for part in PARTS for seed in settings["seeds"]]
    runs = [measure(*job, splits, settings) for job in tqdm(jobs, disable=not progress)]
    return {"settings": settings, "sentences": len(splits.test), "runs": runs}


def tell(data: dict) -> None:
    """Print the means of each part."""
    for part in PARTS:
        found = [entry for entry in data["runs"] if entry["part"] == part]
        loss, bleu = (mean(entry[key] for entry in found) for key in ("loss", "bleu"))
        print(f"{part}: loss {loss:.2f}, BLEU {bleu:.1f}")


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    torch.set_flush_denormal(True)  # numbers near 0 are slow on a CPU

    def measure_all(settings: dict) -> dict:
        splits = toy_splits() if settings is TOY else real_splits(settings)
        return run(settings, splits, progress=True)

    _command.run("ablations", __doc__, measure_all, tell, FULL, TOY, arguments)


if __name__ == "__main__":
    main()
