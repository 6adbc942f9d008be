"""Every public function and class of the model beside its formula in `oracles.py`.

No axis is as long as another one, so that no two can be mixed up. A case says once what is
compared; it is then compared in float64, in each narrower type, with and without autocast, while
training, and its gradients with finite differences.
"""

import inspect
import itertools
import math
import random
from collections import Counter
from functools import cache, partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oracles
from src import (
    decoding,
    functional,
    layers,
    masks,
    multihead,
    pooling,
    positions,
    recording,
    recurrent,
    scoring,
    transformer,
)
from src.config import TransformerConfig
from src.data.batches import Batch, BucketedBatches
from src.training import optimization
from src.training.checkpoints import read_header
from src.training.config import TrainingConfig
from src.training.updater import Updater
from toy_training import copy_examples, tiny_model, trainer

MODULES = (
    masks,
    functional,
    pooling,
    scoring,
    multihead,
    positions,
    layers,
    transformer,
    recurrent,
    decoding,
    optimization,
)
BACKENDS = functional.BACKENDS
PAD, OFFSET, MAX_LEN = 0, 7, 31
NORM_EPS = 0.3  # as large as a variance, so that no norm can do without it
# An answer may be off by so many epsilons of its type, times its largest number (or 1). At most 11
# were seen, and 2 of a half, whose sums are wide: float32's roundings do not show in it.
ROUNDINGS = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 6, torch.float16: 6}


class Sizes(NamedTuple):
    """How long each axis is."""

    b: int  # batch
    h: int  # heads
    t: int  # queries, target
    s: int  # keys, source
    k: int  # width of a head
    v: int  # width of a value
    ff: int  # hidden width
    src: int  # vocabularies
    tgt: int
    encoder: int  # layers
    decoder: int


PRIMES = Sizes(2, 3, 5, 7, 11, 13, 17, 19, 23, 2, 3)
FEW = Sizes(1, 2, 2, 3, 1, 2, 2, 4, 5, 1, 1)  # gradients need two calls for each number


class Case(NamedTuple):
    """One comparison: ``ours`` of the ``inputs``, each with a batch axis; ``oracle`` of each row.

    With a ``module`` the oracle takes its parameters and the configuration first.
    """

    ours: object
    oracle: object
    inputs: list
    module: nn.Module | None = None
    config: object = None


TABLE, CASES, GRADIENTS = {}, [], []
EXCEPTIONS = {
    "functional.check_mask": "refuses arguments, computes nothing",
    "functional.check_dropout": "refuses arguments, computes nothing",
    "functional.wide_products": "switches autocast off; `attention` is compared under autocast",
    "pooling.KERNELS": "a table of functions that are here one by one",
    "scoring.Score": "what the scores share; it has no formula of its own",
    "scoring.DotProduct": "`attention` within `MultiHeadAttention`, where it is compared",
    "scoring.Scored": "`attend` within `MultiHeadAttention`, where it is compared",
    "multihead.CrossAttention": "`MultiHeadAttention` in `DecoderLayer`, where it is compared",
    "positions.check_span": "refuses arguments, computes nothing",
    "positions.fill_tables": "builds tables that are here by their classes",
    "recurrent.DecoderState": "a record",
    "decoding.BeamResult": "a record",
    "decoding.StepFunction": "a protocol",
}


def beside(name, oracle):
    """Enter a function and its oracle into the table; the test below it compares them."""

    def note(test):
        TABLE[name] = oracle
        return test

    return note


def case(name, oracle, /, gradients="", **variants):
    """Enter one case for each combination of ``variants``; the function below builds it.

    Gradients are compared of those with ``gradients`` in their label, of none if that is None.
    """

    def note(build):
        TABLE[name] = oracle
        for values in itertools.product(*variants.values()):
            options = dict(zip(variants, values, strict=True))
            label = "-".join([name, *(str(value) for value in values)])
            param = pytest.param(partial(build, **options), id=label)
            CASES.append(param)
            if gradients is not None and gradients in label:
                GRADIENTS.append(param)
        return build

    return note


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def some(*shape):
    """A mask in which the first query of the first row has no key."""
    mask = torch.rand(shape) > 0.4
    mask[0, ..., 0, :] = False
    return mask


def sentences(n, length, vocab):
    """Ids whose last row is padded after two tokens."""
    ids = torch.randint(3, vocab, (n.b, length))
    ids[-1, 2:] = PAD
    return ids


def scrambled(module):
    """In float64, with no bias at zero and no gain at one, which would hide much."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5)
    return module.double()


def transformer_config(n, **fields):
    if fields.get("positions") == "rotary":  # a head has pairs
        n = n._replace(k=n.k + 1)
    return TransformerConfig(
        **{
            "src_vocab_size": n.src,
            "tgt_vocab_size": n.tgt,
            "d_model": n.h * n.k,
            "num_heads": n.h,
            "d_ff": n.ff,
            "num_encoder_layers": n.encoder,
            "num_decoder_layers": n.decoder,
            "max_len": n.s + OFFSET,
            "norm_eps": NORM_EPS,
            "dropout": 0.125,
            "attention_dropout": 0.25,
            "ffn_dropout": 0.5,
        }
        | fields
    )


# ---------------------------------------------------------------- masks

TABLE |= {
    f"masks.{name}": getattr(oracles, name)
    for name in (
        "padding_mask",
        "valid_lens_mask",
        "causal_mask",
        "window_mask",
        "from_key_padding_mask",
        "to_additive",
        "from_additive",
    )
} | {"masks.length_mask": oracles.valid_lens_mask}
TABLE["pooling.leave_one_out_mask"] = oracles.leave_one_out_mask


@pytest.mark.parametrize("queries", [1, 5, 7])
def test_masks_are_the_loops(queries):
    ids, lens = torch.tensor([[3, 0, 4], [0, 0, 0]]), torch.tensor([0, 7, 3])
    each, some_keys = torch.randint(0, 8, (2, 5)), torch.rand(3, 7) > 0.5
    pairs = [
        (masks.padding_mask(ids, PAD), [oracles.padding_mask(row, PAD) for row in ids.tolist()]),
        (masks.length_mask(lens, 7), [oracles.valid_lens_mask(n, 7) for n in lens.tolist()]),
        (masks.valid_lens_mask(lens, 7), [oracles.valid_lens_mask(n, 7) for n in lens.tolist()]),
        (masks.valid_lens_mask(each, 7), [oracles.valid_lens_mask(n, 7) for n in each.tolist()]),
        (masks.causal_mask(queries, 7), [oracles.causal_mask(queries, 7)]),
        (masks.causal_mask(queries), [oracles.causal_mask(queries, queries)]),
        (
            masks.from_key_padding_mask(some_keys),
            [oracles.from_key_padding_mask(row) for row in some_keys.tolist()],
        ),
        (pooling.leave_one_out_mask(queries), oracles.leave_one_out_mask(queries)),
    ]
    for left, right in itertools.product((0, 3), (0, 1, 2)):
        found = masks.window_mask(queries, 7, left=left, right=right)
        pairs.append((found, [oracles.window_mask(queries, 7, left, right)]))
    for dtype in ROUNDINGS:
        additive = masks.to_additive(some_keys, dtype)
        rows = [oracles.to_additive(row) for row in some_keys.tolist()]
        assert additive.dtype == dtype and additive.tolist() == rows
        pairs.append((masks.from_additive(additive), [oracles.from_additive(row) for row in rows]))
    for found, expected in pairs:
        assert found.dtype == torch.bool and found.tolist() == expected


# ---------------------------------------------------------------- attention and scores


@case("functional.masked_softmax", oracles.softmax, masked=(True, False))
def _(n, masked):
    mask = some(n.b, n.t, n.s) if masked else torch.ones(n.b, n.t, n.s, dtype=torch.bool)
    return Case(
        lambda scores, m: functional.masked_softmax(scores, m if masked else None),
        lambda scores, m: [oracles.softmax(*row) for row in zip(scores, m, strict=True)],
        [4 * normal(n.b, n.t, n.s), mask],
    )


@case(
    "functional.attention",
    oracles.attention,
    backend=BACKENDS,
    kind=("mask", "causal", "both"),
    queries=(1, "t", "s"),
)
def _(n, backend, kind, queries):
    t, scale = {1: 1, "t": n.t, "s": n.s}[queries], 0.3 if kind == "both" else None
    mask = some(n.b, n.h, t, n.s) if kind != "causal" else torch.ones(n.b, n.h, t, n.s).bool()
    future = torch.tensor(oracles.causal_mask(t, n.s)).logical_not()
    allowed = mask if kind == "mask" else mask & ~future

    def ours(q, k, v, *_):
        given = {"mask": mask if kind != "causal" else None, "is_causal": kind != "mask"}
        run = partial(functional.attention, q, k, v, **given, scale=scale, backend=backend)
        return run(), *run(return_weights=True)

    def oracle(*row):
        heads = (oracles.attention(*head, scale) for head in zip(*row, strict=True))
        outputs, maps = zip(*heads, strict=True)
        return outputs, outputs, maps

    inputs = [normal(n.b, n.h, t, n.k), normal(n.b, n.h, n.s, n.k), normal(n.b, n.h, n.s, n.v)]
    return Case(ours, oracle, [*inputs, allowed])


SCORES = {
    "DotScore": oracles.dot,
    "ScaledDotScore": oracles.scaled_dot_score,
    "BilinearScore": oracles.bilinear_score,
    "AdditiveScore": oracles.additive_score,
}


def make_score(name, d_query, d_key, hidden):
    """The module, and how wide its keys are: for a dot product as wide as the queries."""
    kind = getattr(scoring, name)
    if name in ("DotScore", "ScaledDotScore"):
        return kind(), d_query
    widths = (d_query, d_key, hidden) if name == "AdditiveScore" else (d_query, d_key)
    return kind(*widths).double(), d_key


def bound(name, p):
    return partial(SCORES[name], **({"p": p} if p else {}))


def score_case(n, name, projected):
    score, d_key = make_score(name, n.k, n.v, n.ff)

    def ours(q, k):
        return score.score_projected(q, score.project_key(k)) if projected else score(q, k)

    return Case(
        ours,
        lambda p, c, queries, keys: [[bound(name, p)(q, k) for k in keys] for q in queries],
        [normal(n.b, n.t, n.k), normal(n.b, n.s, d_key)],
        score,
    )


for own, oracle in SCORES.items():
    case(f"scoring.{own}", oracle, projected=(False, True))(
        lambda n, projected, own=own: score_case(n, own, projected)
    )


@case("scoring.attend", oracles.attend, name=SCORES)
def _(n, name):
    score, d_key = make_score(name, n.k, n.v, n.ff)
    return Case(
        lambda q, k, v, m: scoring.attend(score, q, k, v, m, return_weights=True),
        lambda p, c, *row: oracles.attend(bound(name, p), *row),
        [
            normal(n.b, n.t, n.k),
            normal(n.b, n.s, d_key),
            normal(n.b, n.s, n.ff),
            some(n.b, n.t, n.s),
        ],
        score,
    )


@case(
    "multihead.MultiHeadAttention",
    oracles.multi_head,
    backend=BACKENDS,
    kind=("self", "cross", "apart", "rotary", "additive"),
)
def _(n, backend, kind):
    width = n.k + 1 if kind == "rotary" else n.k
    if kind == "additive":
        core = scoring.Scored(scoring.AdditiveScore(width, width, n.ff), 0.25)
    else:
        core = scoring.DotProduct(0.25, backend=backend)
    rotary = positions.RotaryPositions(width, MAX_LEN) if kind == "rotary" else None
    module = multihead.MultiHeadAttention(
        n.h * width, n.h, bias=kind != "apart", rotary=rotary, core=core
    )
    own = kind in ("self", "rotary")
    sizes = [n.t] if own else [n.t, n.s] if kind != "apart" else [n.t, n.s, n.s]

    def oracle(p, c, *row):
        *x, mask = row
        score = (
            bound("AdditiveScore", oracles.part(p, "core.score")) if kind == "additive" else None
        )
        turn = oracles.rotate if kind == "rotary" else None
        query, key, value = x[0], x[min(1, len(x) - 1)], x[-1]
        output, maps = oracles.multi_head(p, n.h, query, key, value, mask, c.dropout, turn, score)
        return output, maps

    def ours(*inputs):
        *x, mask = inputs
        with recording.recording(module) as maps:
            return module(*x, mask=mask), maps["attention"]

    mask = some(n.b, n.t, sizes[-1])
    return Case(
        ours,
        oracle,
        [*(normal(n.b, size, n.h * width) for size in sizes), mask],
        scrambled(module),
        SimpleNamespace(dropout=0.25),
    )


# ---------------------------------------------------------------- kernels


def elementwise(name):
    def build(n):
        points = normal(n.b, n.s)
        if n == PRIMES:  # its corners, where there is no derivative
            points[0] = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.75, 1.0, 1.5])
        kernel = getattr(oracles, name)
        return Case(getattr(pooling, name), lambda row: [kernel(u) for u in row], [points])

    return build


for own in pooling.KERNELS:
    case(f"pooling.{own}", getattr(oracles, own), gradients=None if own == "boxcar" else "")(
        elementwise(own)
    )


@case("pooling.nadaraya_watson", oracles.nadaraya_watson, kernel=pooling.KERNELS)
def _(n, kernel):
    return Case(
        lambda *x: pooling.nadaraya_watson(*x[:3], kernel, 0.75, mask=x[3], return_weights=True),
        lambda *x: oracles.nadaraya_watson(*x[:3], getattr(oracles, kernel), 0.75, x[3]),
        [normal(n.b, n.t), normal(n.b, n.s), normal(n.b, n.s), some(n.b, n.t, n.s)],
    )


@case(
    "pooling.KernelRegression",
    oracles.nadaraya_watson,
    alone=(False, True),
    kernel=("gaussian", "triangle", "epanechnikov"),
)
def _(n, alone, kernel):
    module = pooling.KernelRegression(0.75, kernel)

    def oracle(p, c, x, keys, values):
        mask = oracles.leave_one_out_mask(n.s) if alone else [[True] * n.s] * n.t
        width = math.exp(p["log_width"])
        return oracles.nadaraya_watson(x, keys, values, getattr(oracles, kernel), width, mask)

    return Case(
        lambda *x: module(*x, leave_one_out=alone, return_weights=True),
        oracle,
        [normal(n.b, n.s if alone else n.t), normal(n.b, n.s), normal(n.b, n.s)],
        module.double(),
    )


# ---------------------------------------------------------------- positions


@case("positions.sinusoidal_table", oracles.sinusoidal_table, gradients=None, width=(1, 11, 14))
def _(n, width):
    return Case(
        lambda x: positions.sinusoidal_table(MAX_LEN, width, x.dtype).unsqueeze(0),
        lambda _: oracles.sinusoidal_table(MAX_LEN, width),
        [normal(1)],
    )


def added(n, kind, offset):
    module = getattr(positions, kind)(n.k, MAX_LEN)

    def oracle(p, c, x):
        table = p.get("weight") or oracles.sinusoidal_table(MAX_LEN, n.k)
        return [oracles.add(row, table[t]) for t, row in enumerate(x, offset)]

    return Case(lambda x: module(x, offset), oracle, [normal(n.b, n.t, n.k)], module.double())


for own in ("SinusoidalPositions", "LearnedPositions"):
    case(f"positions.{own}", oracles.sinusoidal_table, offset=(0, OFFSET))(
        lambda n, offset, own=own: added(n, own, offset)
    )


@case("positions.RotaryPositions", oracles.rotate, offset=(0, OFFSET))
def _(n, offset):
    module = positions.RotaryPositions(n.k + 1, MAX_LEN)
    return Case(
        lambda x: module(x, offset),
        lambda p, c, heads: [
            [oracles.rotate(row, t) for t, row in enumerate(x, offset)] for x in heads
        ],
        [normal(n.b, n.h, n.t, n.k + 1)],
        module.double(),
    )


# ---------------------------------------------------------------- layers and Transformer

KINDS = {
    "post": {},
    "pre": {
        "positions": "learned",
        "norm_first": True,
        "activation": "gelu",
        "scale_embeddings": False,
        "tie_embeddings": "none",
    },
    "bert": {"positions": "none", "embedding_norm": True, "num_token_types": 2},
    "rotary": {"positions": "rotary", "norm_first": True},
}


@case("layers.Embeddings", oracles.embeddings, kind=KINDS, offset=(0, OFFSET))
def _(n, kind, offset):
    config = transformer_config(n, **KINDS[kind])
    module = layers.Embeddings(n.src, config, config.num_token_types)
    return Case(
        lambda ids: module(ids, offset),
        lambda p, c, ids: oracles.embeddings(p, c, ids, offset),
        [sentences(n, n.t, n.src)],
        scrambled(module),
        config,
    )


@case("layers.FeedForward", oracles.feed_forward, activation=("relu", "gelu"))
def _(n, activation):
    module = layers.FeedForward(n.k, n.ff, 0.5, activation)
    return Case(
        module,
        lambda p, c, x: [oracles.feed_forward(p, t, activation, c.dropout) for t in x],
        [normal(n.b, n.t, n.k)],
        scrambled(module),
        SimpleNamespace(dropout=0.5),
    )


@case("layers.AddNorm", oracles.add_norm, norm_first=(False, True))
def _(n, norm_first):
    config = transformer_config(n, norm_first=norm_first)
    module = layers.AddNorm(config)
    return Case(
        lambda x: module(x, torch.sin),
        lambda p, c, x: oracles.add_norm(p, c, x, lambda h: [[*map(math.sin, t)] for t in h]),
        [normal(n.b, n.t, n.h * n.k)],
        scrambled(module),
        config,
    )


@case(
    "layers.EncoderLayer",
    oracles.encoder_layer,
    gradients="pre",
    backend=BACKENDS,
    kind=("post", "pre"),
)
def _(n, backend, kind):
    config = transformer_config(n, backend=backend, **KINDS[kind])
    module = layers.EncoderLayer(config)
    return Case(
        module,
        lambda p, c, x, mask: oracles.encoder_layer(p, c, x, mask)[0],
        [normal(n.b, n.s, n.h * n.k), some(n.b, n.s, n.s)],
        scrambled(module),
        config,
    )


@case(
    "layers.DecoderLayer",
    oracles.decoder_layer,
    gradients="pre",
    backend=BACKENDS,
    kind=("post", "pre"),
)
def _(n, backend, kind):
    config = transformer_config(n, backend=backend, **KINDS[kind])
    module, d_model = layers.DecoderLayer(config), n.h * n.k
    return Case(
        lambda x, memory, m: module(x, module.cross_attention.remember(memory, m)),
        lambda p, c, x, memory, m: oracles.decoder_layer(p, c, x, memory, m * len(x))[0],
        [normal(n.b, n.t, d_model), normal(n.b, n.s, d_model), some(n.b, 1, n.s)],
        scrambled(module),
        config,
    )


@case("transformer.Encoder", oracles.encoder, gradients="sdpa", backend=BACKENDS, kind=("bert",))
def _(n, backend, kind):
    config = transformer_config(n, backend=backend, **KINDS[kind])
    module = transformer.Encoder(config)
    return Case(
        module,
        lambda p, c, ids, mask: oracles.encoder(p, c, ids, mask)[0],
        [sentences(n, n.s, n.src), some(n.b, n.s, n.s)],
        scrambled(module),
        config,
    )


@case("transformer.Decoder", oracles.decoder, gradients="sdpa", backend=BACKENDS, kind=("post",))
def _(n, backend, kind):
    config = transformer_config(n, backend=backend, **KINDS[kind])
    module = transformer.Decoder(config)
    return Case(
        lambda ids, memory, mask: module(ids, module.remember(memory, mask)),
        lambda p, c, ids, memory, m: oracles.decoder(p, c, ids, memory, m * len(ids))[0],
        [sentences(n, n.t, n.tgt), normal(n.b, n.s, config.d_model), some(n.b, 1, n.s)],
        scrambled(module),
        config,
    )


def transformer_case(n, backend, kind, way):
    config = transformer_config(n, backend=backend, **KINDS[kind])
    model = scrambled(transformer.Transformer(config))

    def ours(src, tgt):
        if way == "whole":
            return model(src, tgt)
        if way == "packed":  # the logits of real targets alone, put where they belong
            targets = F.pad(tgt[:, 1:], (0, 1), value=PAD)
            logits = model(src, tgt, targets)
            return logits.new_zeros(*tgt.shape, n.tgt).index_put((targets != PAD,), logits)
        if way == "maps":
            maps = model.attention_maps(src, tgt)
            return tuple(torch.stack(maps[name], 1) for name in ("encoder", "decoder", "cross"))
        if way == "chunks":
            with torch.no_grad():
                cache = model.new_cache(src)
                parts = tgt.split([2, 1, n.t - 3], 1)
                return torch.cat([model.decode_cached(part, cache) for part in parts], 1)
        step, order = model.stepper(src), torch.arange(n.b).flip(0)
        found = [step(tgt[:, 0])]
        step.select(order)  # the rows change places and change back
        found.append(step(tgt[order, 1])[order])
        step.select(order)
        return torch.stack([*found, *(step(tgt[:, t]) for t in range(2, n.t))], 1)

    def oracle(p, c, src, tgt):
        logits, *maps = oracles.transformer(p, c, src, tgt)
        if way == "maps":
            return tuple(maps)
        if way == "packed":
            pairs = zip(logits, [*tgt[1:], PAD], strict=True)
            return [row if target != PAD else [0.0] * n.tgt for row, target in pairs]
        return logits

    inputs = [sentences(n, n.s, n.src), sentences(n, n.t, n.tgt)]
    return Case(ours, oracle, inputs, model, config)


case(
    "transformer.Transformer",
    oracles.transformer,
    gradients="sdpa-pre",
    backend=BACKENDS,
    kind=KINDS,
    way=("whole",),
)(transformer_case)
case(
    "transformer.Transformer",
    oracles.transformer,
    gradients=None,
    backend=BACKENDS,
    kind=("rotary",),
    way=("packed", "maps", "chunks"),
)(transformer_case)
case(
    "transformer.TransformerStepper",
    oracles.transformer,
    gradients=None,
    backend=BACKENDS,
    kind=("pre",),
    way=("steps",),
)(transformer_case)


# ---------------------------------------------------------------- recurrent models

RECURRENT = {
    "one layer": {},
    "deep": {"num_encoder_layers": 2, "num_decoder_layers": 2, "bidirectional": True},
    "current": {"query_from": "current", "bidirectional": True},
    "bilinear": {"scorer": "bilinear", "query_from": "current"},
    "dot": {"scorer": "dot"},
    "scaled_dot": {"scorer": "scaled_dot", "num_decoder_layers": 2},
}
SCORERS = {
    "additive": "AdditiveScore",
    "bilinear": "BilinearScore",
    "dot": "DotScore",
    "scaled_dot": "ScaledDotScore",
}


def recurrent_model(n, name, kind):
    fields = {"d_encoder": 2 * n.k, "d_decoder": n.v} | RECURRENT[kind]
    if "dot" in kind:
        fields["d_decoder"] = fields["d_encoder"]
    config = recurrent.RecurrentConfig(
        n.src, n.tgt, d_embed=n.ff, d_score=n.t, dropout=0.125, **fields
    )
    model = getattr(recurrent, name)(config)
    for rnn in (module for module in model.modules() if isinstance(module, nn.GRU)):
        assert rnn.dropout == (0.125 if rnn.num_layers > 1 else 0)
        rnn.dropout = 0.0  # it acts out of sight
    return scrambled(model), config


def seq2seq_case(n, name, kind, way):
    model, config = recurrent_model(n, name, kind)
    attends = name == "AttentionSeq2Seq"

    def ours(src, tgt):
        if way == "maps":
            return model.attention_maps(src, tgt)
        if way == "whole":
            return model(src, tgt)
        step = model.stepper(src)
        return torch.stack([step(token) for token in tgt.unbind(1)], 1)

    def oracle(p, c, src, tgt):
        score = bound(SCORERS[c.scorer], oracles.part(p, "scorer")) if attends else None
        logits, maps = oracles.seq2seq(p, c, src, tgt, score)
        return maps if way == "maps" else logits

    inputs = [sentences(n, n.s, n.src), sentences(n, n.t, n.tgt)]
    return Case(ours, oracle, inputs, model, config)


@case("recurrent.RecurrentEncoder", oracles.recurrent_encoder, kind=("one layer", "deep"))
def _(n, kind):
    model, config = recurrent_model(n, "RecurrentEncoder", kind)
    return Case(model, oracles.recurrent_encoder, [sentences(n, n.s, n.src)], model, config)


case(
    "recurrent.Seq2Seq",
    oracles.seq2seq,
    name=("Seq2Seq",),
    kind=("one layer", "deep"),
    way=("whole",),
)(seq2seq_case)
case(
    "recurrent.AttentionSeq2Seq",
    oracles.seq2seq,
    gradients="current",
    name=("AttentionSeq2Seq",),
    kind=RECURRENT,
    way=("whole",),
)(seq2seq_case)
case(
    "recurrent.AttentionSeq2Seq",
    oracles.seq2seq,
    gradients=None,
    name=("AttentionSeq2Seq",),
    kind=("deep", "current"),
    way=("maps",),
)(seq2seq_case)
case(
    "recurrent.RecurrentStepper",
    oracles.seq2seq,
    gradients=None,
    kind=("deep", "current"),
    name=("Seq2Seq", "AttentionSeq2Seq"),
    way=("steps",),
)(seq2seq_case)


@case("training.optimization.token_loss", oracles.token_loss, smoothing=(0.0, 0.1, 0.7))
def _(n, smoothing):
    def ours(logits, targets):
        pairs = zip(logits, targets, strict=True)
        found = [optimization.token_loss(*pair, PAD, smoothing) for pair in pairs]
        return tuple(torch.stack(part).to(logits.dtype) for part in zip(*found, strict=True))

    def oracle(logits, targets):
        rows = zip(logits, targets, strict=True)
        found = [oracles.token_loss(*row, PAD, smoothing) for row in rows]
        return tuple(map(sum, zip(*found, strict=True)))

    targets = torch.randint(0, n.tgt, (n.b, n.h, n.t))
    return Case(ours, oracle, [normal(n.b, n.h, n.t, n.tgt), targets])


# ---------------------------------------------------------------- the comparisons


@pytest.fixture
def visible_dropout(monkeypatch):
    """Dropout of rate r multiplies by 1 + r, as in the oracles."""
    kernel = F.scaled_dot_product_attention

    def dropout(x, p=0.5, training=True, inplace=False):
        return x * (1 + p) if training else x

    def attention(*args, dropout_p=0.0, **options):
        return kernel(*args, **options) * (1 + dropout_p)

    monkeypatch.setattr(F, "dropout", dropout)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)


def expected(case, training=False):
    """What the oracle says of each row, as tensors."""
    lists = [(x.double() if x.is_floating_point() else x).tolist() for x in case.inputs]
    rows = zip(*lists, strict=True)
    if case.module is None:
        found = [case.oracle(*row) for row in rows]
    else:
        parameters = case.module.named_parameters(remove_duplicate=False)
        p = {name: value.double().tolist() for name, value in parameters}
        c = SimpleNamespace(**vars(case.config)) if case.config else None
        if c and not training:
            c.dropout = c.attention_dropout = c.ffn_dropout = 0.0
        found = [case.oracle(p, c, *row) for row in rows]
    parts = zip(*found, strict=True) if isinstance(found[0], tuple) else [found]
    return [torch.tensor(part, dtype=torch.float64) for part in map(list, parts)]


def compare(case, answer, dtype, autocast=False):
    """Run the case and compare each part of the answer."""
    with torch.autocast("cpu", dtype, enabled=autocast):
        found = case.ours(*case.inputs)
    found = found if isinstance(found, tuple) else (found,)
    for ours, theirs in zip(found, answer, strict=True):
        finite = theirs[theirs.isfinite()].abs()
        largest = finite.max().item() if finite.numel() else 0.0
        tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps * max(1.0, largest)
        assert ours.shape == theirs.shape and (autocast or ours.dtype == dtype)
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance)


def cast(case, dtype):
    """Round inputs and parameters; the module itself, since the case's functions hold it."""
    if case.module is not None:
        case.module.to(dtype).eval()
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in case.inputs]
    return case._replace(inputs=inputs)


@pytest.mark.parametrize("build", CASES)
def test_the_answer_is_the_formula(build, visible_dropout):
    """In evaluation, and in training with each dropout in its place."""
    case = build(PRIMES)
    for training in (False, True) if case.config else (False,):
        if case.module is not None:
            case.module.train(training)
        compare(case, expected(case, training), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("build", CASES)
def test_narrow_types_are_near_the_formula(build, dtype):
    """Of inputs and weights that are rounded already; those of float32 under autocast, too."""
    case = cast(build(PRIMES), dtype)
    answer = expected(case)
    compare(case, answer, dtype)
    for half in (torch.bfloat16, torch.float16) if dtype == torch.float32 else ():
        compare(case, answer, half, autocast=True)


@pytest.mark.parametrize("build", GRADIENTS)
def test_gradients_are_the_derivatives(build, unchecked):
    case = cast(build(FEW), torch.float64)
    wanted = [x.requires_grad_() for x in case.inputs if x.is_floating_point()]
    wanted += [] if case.module is None else case.module.parameters()

    # The differences are taken by changing these tensors in place.
    def differentiable(*_):  # recorded weights are cut from the graph
        found = case.ours(*case.inputs)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(x for x in found if x.requires_grad)

    assert torch.autograd.gradcheck(differentiable, wanted)


# ---------------------------------------------------------------- decoding

BOS, EOS, VOCAB = 1, 2, 7
IDS = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}


@cache
def probabilities(sentence, tokens):
    """The table: for each sentence, after each beginning, random probabilities of what follows."""
    draw = random.Random(f"{sentence} {tokens}")
    powers = [draw.random() ** 3 for _ in range(VOCAB)]
    return [power / sum(powers) for power in powers]


class Toy:
    """A step function that looks its answers up in the table."""

    def __init__(self, sentences):
        self.rows = [(sentence, ()) for sentence in sentences]

    def __call__(self, tokens):
        fed = zip(self.rows, tokens.tolist(), strict=True)
        self.rows = [(sentence, (*before, token)) for (sentence, before), token in fed]
        assert all(not {PAD, BOS, EOS} & set(tokens[1:]) for _, tokens in self.rows)
        found = [probabilities(sentence, tokens[1:]) for sentence, tokens in self.rows]
        # Logits, not log-probabilities: each row is off by a number of its own.
        return torch.tensor(found, dtype=torch.float64).log() + tokens[:, None] / 2

    def select(self, index):
        self.rows = [self.rows[i] for i in index.tolist()]


def padded(sentence, length):
    return [*sentence, *[PAD] * (length - len(sentence))]


@beside("decoding.greedy", oracles.greedy)
@pytest.mark.parametrize("banned", [set(), {3, 5}])
def test_greedy_is_the_loop(banned):
    limits = [1, 5, 3, 4, 5, 2, 5, 7, 7, 1, 6]
    tokens, scores = decoding.greedy(
        Toy(range(11)),
        11,
        max_len=torch.tensor(limits),
        forbidden_ids=[*banned],
        return_scores=True,
        **IDS,
    )
    for i, limit in enumerate(limits):
        found, score = oracles.greedy(partial(probabilities, i), limit, EOS, banned | {PAD, BOS})
        assert tokens[i].tolist() == padded(found, tokens.shape[1])
        assert scores[i].item() == pytest.approx(score, abs=1e-12)


@beside("decoding.beam_search", oracles.beam_search)
@pytest.mark.parametrize("alpha", [0, 0.6, 2.5])
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5, 500])
def test_beam_search_is_the_loop(beam_size, alpha):
    """As many hypotheses as the beam is wide; a beam of 500 holds all sentences there are."""
    limits, banned = [1, 4, 3, 5, 4, 2, 4], {PAD, BOS, 3}
    result = decoding.beam_search(
        Toy(range(7)),
        7,
        beam_size=beam_size,
        num_return=beam_size,
        length_penalty=alpha,
        max_len=torch.tensor(limits),
        forbidden_ids=[3],
        **IDS,
    )
    for i, limit in enumerate(limits):
        rules = (partial(probabilities, i), limit, EOS, banned, alpha)
        expected = oracles.beam_search(*rules, beam_size)[:beam_size]
        if beam_size == 500:
            every = oracles.exhaustive_search(*rules)
            assert [tokens for _, tokens in expected] == [tokens for _, tokens in every]
        missing = beam_size - len(expected)
        scores, found = zip(*expected, *[(-math.inf, ())] * missing, strict=True)
        assert result.tokens[i].tolist() == [padded(s, result.tokens.shape[2]) for s in found]
        assert result.scores[i].tolist() == pytest.approx(scores, abs=1e-12)


SAMPLING = [(1.0, None, None), (0.5, None, None), (2, 4, None), (1.0, None, 0.8), (1.5, 3, 0.7)]


@beside("decoding.sample", oracles.sampling_candidates)
@pytest.mark.parametrize("settings", SAMPLING)
def test_samples_are_as_frequent_as_they_are_probable(settings):
    """20,011 sentences of two words: each within 5 standard deviations of its probability."""
    draws = 20_011
    temperature, top_k, top_p = settings
    tokens, scores = decoding.sample(
        Toy([0] * draws),
        draws,
        max_len=2,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        generator=torch.Generator().manual_seed(3),
        return_scores=True,
        **IDS,
    )
    counts = Counter(map(tuple, tokens.tolist()))

    def chances(start):
        allowed = [p * (i not in (PAD, BOS)) for i, p in enumerate(probabilities(0, start))]
        words, left = oracles.sampling_candidates(allowed, *settings)
        return {w: p / sum(left) for w, p in zip(words, left, strict=True)}

    expected = {
        (first, second): p * q
        for first, p in chances(()).items()
        for second, q in ({PAD: 1.0} if first == EOS else chances((first,))).items()
    }
    assert set(counts) <= {pair for pair, p in expected.items() if p > 0}
    for pair, p in expected.items():
        assert abs(counts[pair] - draws * p) <= 5 * math.sqrt(draws * p * (1 - p))
    for row, score in zip(tokens[:7].tolist(), scores[:7].tolist(), strict=True):
        words = [token for token in row if token != PAD]
        total = oracles.log_probability(partial(probabilities, 0), tuple(words))
        assert score == pytest.approx(total, abs=1e-12)


@beside("decoding.sampling_candidates", oracles.sampling_candidates)
@pytest.mark.parametrize("settings", [*SAMPLING, (1.0, 99, 1.0), (0.7, 5, 0.01)])
def test_candidates_are_those_of_the_loop(settings):
    rows = [probabilities(i, ()) for i in range(11)]
    found = decoding.sampling_candidates(torch.tensor(rows, dtype=torch.float64).log(), *settings)
    for row, weights, tokens in zip(rows, *(part.tolist() for part in found), strict=True):
        words, left = oracles.sampling_candidates(row, *settings)
        pairs = sorted(zip(tokens, weights, strict=True), key=lambda pair: -pair[1])
        assert tokens == ([*range(VOCAB)] if settings[1:] == (None, None) else words)
        assert [word for word, p in pairs if p] == [
            w for w, p in zip(words, left, strict=False) if p
        ]
        assert [p for _, p in pairs] == pytest.approx(left, abs=1e-12)


@pytest.mark.parametrize(
    ("probs", "top_p", "kept"),
    [
        ([0.5, 0.25, 0.25], 0.5, 1),
        ([0.5, 0.5], 0.5, 1),
        ([0.25] * 4, 0.5, 2),
        ([0.25] * 4, 0.75, 3),
    ],
)
def test_what_top_p_reaches_exactly_is_enough(probs, top_p, kept):
    weights, _ = decoding.sampling_candidates(torch.tensor([probs]).log(), top_p=top_p)
    left = oracles.sampling_candidates(probs, 1.0, None, top_p)[1]
    assert (
        [w > 0 for w in weights[0]] == [p > 0 for p in left] == [i < kept for i in range(len(left))]
    )


@beside("decoding.length_norm", oracles.length_norm)
@pytest.mark.parametrize("alpha", [0, 0.5, 0.6, 1, 2.5])
def test_length_norm_is_the_formula(alpha):
    expected = [oracles.length_norm(length, alpha) for length in (1, 7, 13)]
    assert [decoding.length_norm(length, alpha) for length in (1, 7, 13)] == expected
    assert decoding.length_norm(torch.tensor([1, 7, 13]), alpha).tolist() == pytest.approx(expected)


# ---------------------------------------------------------------- optimization


@beside("training.optimization.warmup_rate", oracles.warmup_rate)
@beside("training.optimization.warmup_schedule", oracles.warmup_rate)
@pytest.mark.parametrize("after", optimization.SCHEDULES)
def test_each_update_has_the_rate_of_the_formula(after):
    d_model, warmup, peak = 11, 5, 0.3
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=7.0) for _ in range(2)]
    schedules = [
        optimization.warmup_schedule(optimizer, warmup, after=after, **given)
        for optimizer, given in zip(
            optimizers, ({"d_model": d_model}, {"peak_lr": peak}), strict=False
        )
    ]
    for step in range(1, 24):
        rate = oracles.warmup_rate(step, warmup, d_model)
        highest = oracles.warmup_rate(warmup, warmup, d_model)
        assert optimization.warmup_rate(step, warmup, d_model=d_model) == pytest.approx(rate)
        if after == "constant" and step > warmup:
            rate = highest
        found = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
        assert found == pytest.approx([rate, peak * rate / highest], rel=1e-12)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()


@beside("training.optimization.make_optimizer", oracles.adam)
@pytest.mark.parametrize(("name", "decay"), [("adam", 0.0), ("adamw", 0.3)])
def test_updates_are_adams_by_hand(name, decay):
    """With AdamW only the matrix decays."""
    model = scrambled(nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5)))
    start = [p.detach().flatten().tolist() for p in model.parameters()]
    optimizer = optimization.make_optimizer(model, name, lr=0.01, weight_decay=decay)
    gradients = [[normal(*p.shape) for p in model.parameters()] for _ in range(4)]
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for i, parameter in enumerate(model.parameters()):
        history = [step[i].flatten().tolist() for step in gradients]
        own = decay if parameter.dim() == 2 else 0.0
        expected = oracles.adam(start[i], history, [0.01] * 4, (0.9, 0.98), 1e-9, own)
        assert parameter.flatten().tolist() == pytest.approx(expected, abs=1e-12)


class Bigrams(nn.Module):
    """Logits that depend on the token before: one row of a table each."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)

    def forward(self, src, tgt):
        return self.table(tgt)


def test_an_update_is_loss_clipping_rate_and_adam_by_hand():
    model, start, limit = Bigrams().double(), None, 0.05
    start = model.table.weight.flatten().tolist()
    settings = TrainingConfig(steps=4, lr=0.1, warmup=2, clip=limit, label_smoothing=0.1)
    updater = Updater(model, settings, pad_id=PAD, device=torch.device("cpu"))
    gradients, rates, weights = [], [], start
    for step in range(1, 5):
        tgt = sentences(PRIMES, 1 + step, VOCAB)
        logits = torch.tensor(weights, dtype=torch.float64).view(VOCAB, VOCAB).requires_grad_()
        total, count = optimization.token_loss(logits[tgt[:, :-1]], tgt[:, 1:], PAD, 0.1)
        (gradient,) = torch.autograd.grad(total / count, logits)
        (clipped,), length = oracles.clip([gradient.flatten().tolist()], limit)
        assert length > 2 * limit
        gradients.append(clipped)
        rates.append(0.1 * oracles.warmup_rate(step, 2, 1) / oracles.warmup_rate(2, 2, 1))
        weights = oracles.adam(start, gradients, rates, (0.9, 0.98), 1e-9)
        assert updater.update([Batch(tgt, tgt)]) == count
        assert updater.grad_norm.item() == pytest.approx(length, rel=1e-6)
        # PyTorch adds 1e-6 to the length before it divides by it.
        assert model.table.weight.flatten().tolist() == pytest.approx(weights, abs=1e-6)


@pytest.mark.parametrize("values", [[1.0, 3.0, 3.0, 2.0, 3.0], [2.0, 2.0], [1.0, 2.0, 3.0]])
def test_an_equal_value_is_no_better(values, tmp_path):
    given, steps = iter(values), len(values)
    run = trainer(
        tiny_model(),
        BucketedBatches(copy_examples(), batch_size=5),
        steps=steps,
        eval_every=1,
        best_by="score",
        metric=lambda _: next(given),
        directory=tmp_path,
    )
    run.fit()
    place = oracles.best(values)
    assert read_header(tmp_path / "best.safetensors")["state"]["step"] == place + 1
    assert run.stale == steps - 1 - place


def public(module):
    """What `__all__` names, or else the functions and classes that are written there."""
    own = (
        name
        for name, value in vars(module).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
        and not name.startswith("_")
    )
    return set(getattr(module, "__all__", own))


def test_everything_public_has_an_oracle_or_a_reason():
    names = {f"{m.__name__.removeprefix('src.')}.{name}" for m in MODULES for name in public(m)}
    assert names == set(TABLE) | set(EXCEPTIONS)
    assert not set(TABLE) & set(EXCEPTIONS)
    ours = {value for name, value in vars(oracles).items() if inspect.isfunction(value)}
    assert all(oracle in ours for oracle in TABLE.values())
