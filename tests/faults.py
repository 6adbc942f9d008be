"""Mistakes that people make with attention and Transformers, and what must notice each.

A fault takes a function or method of the package, by its place, and gives a wrong one. Where
``seen_by`` is a claim, an assertion in its cell must fail; else the test of that id. A test of all
mistakes that a tool can think of is `make mutants`; these are from the field.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Fault(NamedTuple):
    """One mistake: ``wrong`` makes the wrong function of the right one."""

    name: str
    place: str
    wrong: Callable[[Callable], Callable]
    seen_by: str


ORACLES = "test_oracles.py::test_"
SOFTMAX, ATTENTION = "functional.masked_softmax", "functional.attention"
SPLIT = "multihead.MultiHeadAttention.split"


def over_queries(right):
    return lambda s, mask=None: right(s.mT, None if mask is None else mask.expand(s.shape).mT).mT


def with_dropout(right):  # whose default is that of training
    return lambda s, mask=None: F.dropout(right(s, mask), 0.1)


def filled(with_number):
    def wrong(right):
        return lambda s, mask=None: (
            s if mask is None else s.masked_fill(~mask, with_number(s.dtype))
        ).softmax(-1)

    return wrong


def by_the_whole_width(right):
    def attention(query, *rest, scale=None, **options):
        heads = query.shape[1] if query.dim() == 4 else 2
        scale = 1 / math.sqrt(query.shape[-1] * heads) if scale is None else scale
        return right(query, *rest, scale=scale, **options)

    return attention


def without_scale(right):
    return lambda *inputs, scale=1.0, **options: right(*inputs, scale=scale, **options)


def turned_round(right):
    return lambda query, key, value, mask=None, **options: right(
        query, key, value, None if mask is None else ~mask, **options
    )


def cut_without_transposing(right):
    def split(self, x, padding=None):
        x = x if padding is None else padding.unpack(x)
        parts = x.shape[-1] // self.d_model
        shape = (x.shape[0], self.num_heads, x.shape[1], self.head_dim)
        return tuple(part.reshape(shape) for part in x.chunk(parts, -1))

    return split


def heads_in_columns(right):
    def split(self, x, padding=None):
        x = x if padding is None else padding.unpack(x)
        parts = x.shape[-1] // self.d_model
        x = x.unflatten(-1, (parts, self.head_dim, self.num_heads))
        return x.permute(2, 0, 4, 1, 3).unbind(0)

    return split


def of_the_next_state(right):
    return lambda self, config: right(self, dataclasses.replace(config, query_from="current"))


def with_biases(right):
    def __init__(self, d_query, d_key, d_hidden):
        right(self, d_query, d_key, d_hidden)
        self.query_proj = torch.nn.Linear(d_query, d_hidden)
        self.key_proj = torch.nn.Linear(d_key, d_hidden)

    return __init__


def without_activation(right):
    return lambda self, query, projected: self.output(
        self.query_proj(query).unsqueeze(-2) + projected.unsqueeze(-3)
    ).squeeze(-1)


def with_future(right):
    return lambda self, *inputs, is_causal=False, **options: right(self, *inputs, **options)


def without_residual(right):
    return lambda self, x, sublayer: self.norm(sublayer(x))


def over_its_own_tokens(right):
    return lambda self, x, memory, *rest, **options: right(
        self, x, self.cross_attention.remember(x), *rest, **options
    )


def tied_by_a_copy(right):
    def __init__(self, config):
        right(self, config)
        self.output.weight = torch.nn.Parameter(self.output.weight.detach().clone())

    return __init__


def at_the_top_left(right):
    def mask(num_queries, num_keys=None, **options):
        return torch.ones(1, num_queries, num_keys or num_queries, dtype=torch.bool).tril()

    return mask


def reads_padding(right):
    return lambda self, src: right(self, src.masked_fill(src == 0, 3))


def interleaved(right):
    def forward(self, x, offset=0):
        half = x.shape[-1] // 2
        order = torch.arange(2 * half).view(half, 2).mT.flatten()
        return right(self, x[..., order], offset)[..., order.argsort()]

    return forward


def leaking(right):
    def split(pairs, *rest, **options):
        found = right(pairs, *rest, **options)
        return type(found)(found.train + found.test, found.valid, found.test)

    return split


def words_of_all_sides(right):
    def subset(splits, *rest, **options):
        everything = splits.train + splits.valid + splits.test
        found = right(dataclasses.replace(splits, train=everything), *rest, **options)
        easy = [pair for pair in found.train if pair in splits.train]
        return dataclasses.replace(found, train=easy)

    return subset


def smoothed_over_padding(right):
    def loss(logits, targets, pad_id, smoothing=0.0):
        total, count = right(logits, targets, pad_id)
        return total.lerp(-logits.log_softmax(-1).mean(-1).sum(), smoothing), count

    return loss


def as_if_long_under_way(right):  # where the correction of Adam's moments is 1
    def make(model, *rest, **options):
        optimizer = right(model, *rest, **options)
        for parameter in model.parameters():
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(1e6), **moments}
        return optimizer

    return make


def of_the_models_words(right):
    def bleu(*texts, **options):
        from src.data.tokenization import split_words

        words = ([" ".join(split_words(text)) for text in side] for side in texts)
        return right(*words, tokenize="none", **options)

    return bleu


def column_by_column(right):
    def patches(self, images):
        rows = self.image_size[0] // self.patch_size
        return right(self, images).unflatten(1, (rows, -1)).transpose(1, 2).flatten(1, 2)

    return patches


FAULTS = [
    # at least two a chapter
    Fault("softmax over the queries", SOFTMAX, over_queries, "10.1-2"),
    Fault("dropout in evaluation", SOFTMAX, with_dropout, "10.1-3"),
    Fault(
        "width squared twice",
        "pooling.nadaraya_watson",
        lambda right: (
            lambda query, keys, values, kernel="gaussian", width=1.0, **options: right(
                query, keys, values, kernel, width**2, **options
            )
        ),
        "10.2-5",
    ),
    Fault(
        "no example left out",
        "pooling.leave_one_out_mask",
        lambda right: lambda size, device=None: torch.ones(size, size, dtype=torch.bool),
        "10.2-4",
    ),
    Fault(
        "additive score without tanh",
        "scoring.AdditiveScore.score_projected",
        without_activation,
        "10.3-4",
    ),
    Fault("additive score with biases", "scoring.AdditiveScore.__init__", with_biases, "10.3-7"),
    Fault(
        "state not handed on",
        "recurrent.Seq2Seq.advance",
        lambda right: lambda self, tgt, state: (right(self, tgt, state)[0], state),
        "10.4-4",
    ),
    Fault(
        "query of the state after",
        "recurrent.AttentionSeq2Seq.__init__",
        of_the_next_state,
        "10.4-5",
    ),
    Fault("heads cut without transposing", SPLIT, cut_without_transposing, "10.5-1"),
    Fault("scale forgotten", ATTENTION, without_scale, "10.5-1"),
    Fault("torch.nn's mask taken as it is", ATTENTION, turned_round, "10.5-1"),
    Fault(
        "positions of the batch's rows",
        "positions.SinusoidalPositions.forward",
        lambda right: lambda self, x, offset=0: x + self.table[: len(x), None],
        "10.6-2",
    ),
    Fault(
        "positions begin at 1",
        "positions.sinusoidal_table",
        lambda right: lambda length, *rest: right(length + 1, *rest)[1:],
        "10.6-8",
    ),
    Fault("residual connection forgotten", "layers.AddNorm.forward", without_residual, "10.7-1"),
    Fault(
        "cross-attention over the decoder's tokens",
        "layers.DecoderLayer.forward",
        over_its_own_tokens,
        "10.7-1",
    ),
    Fault(
        "the decoder sees the future",
        "scoring.DotProduct.__init__",
        with_future,
        "10.7-8",
    ),
    Fault(
        "positions begin anew behind a cache",
        "layers.Embeddings.forward",
        lambda right: lambda self, ids, offset=0: right(self, ids),
        "10.7-11",
    ),
    Fault("tied embeddings copied", "transformer.Transformer.__init__", tied_by_a_copy, "10.7-12"),
    Fault("scaled by the whole width", ATTENTION, by_the_whole_width, "15.2-5"),
    Fault("heads of interleaved columns", SPLIT, heads_in_columns, "15.2-7"),
    Fault("rows without keys are NaN", SOFTMAX, filled(lambda dtype: -math.inf), "15.2-9"),
    Fault(
        "rows without keys are uniform",
        SOFTMAX,
        filled(lambda dtype: torch.finfo(dtype).min),
        "15.2-9",
    ),
    # what no claim shows, or not at once
    Fault(
        "causal mask aligned at the top left",
        "masks.causal_mask",
        at_the_top_left,
        f"{ORACLES}masks_are_the_loops",
    ),
    Fault(
        "rotary planes interleaved",
        "positions.RotaryPositions.forward",
        interleaved,
        f"{ORACLES}the_answer_is_the_formula[positions.RotaryPositions-7]",
    ),
    Fault(
        "padding attended to",
        "padding.Padding.mask",
        lambda right: property(lambda self: torch.ones_like(right.fget(self))),
        "test_properties.py::test_padding_leaves_the_logits_of_real_tokens",
    ),
    Fault(
        "the encoder reads padding",
        "recurrent.RecurrentEncoder.forward",
        reads_padding,
        "test_recurrent.py::test_the_last_state_is_the_one_at_the_true_last_token",
    ),
    Fault(
        "cache not reordered for the beams",
        "cache.DecoderCache.select",
        lambda right: lambda self, index: right(self, index.sort().values),
        "test_properties.py::test_decoding_with_a_state_is_decoding_without",
    ),
    Fault(
        "length penalty on the wrong side",
        "decoding.length_norm",
        lambda right: lambda length, alpha: right(length, -alpha),
        f"{ORACLES}length_norm_is_the_formula",
    ),
    Fault(
        "loss averaged over padding",
        "training.optimization.token_loss",
        lambda right: (
            lambda logits, targets, *rest, **options: (
                right(logits, targets, *rest, **options)[0],
                torch.tensor(targets.numel()),
            )
        ),
        "test_training.py::test_more_padding_changes_neither_loss_nor_count",
    ),
    Fault(
        "labels smoothed over padding",
        "training.optimization.token_loss",
        smoothed_over_padding,
        "test_training.py::test_token_loss_is_the_formula",
    ),
    Fault(
        "warm-up one step late",
        "training.optimization.warmup_rate",
        lambda right: lambda step, *rest, **options: right(max(step - 1, 1), *rest, **options),
        f"{ORACLES}each_update_has_the_rate_of_the_formula",
    ),
    Fault(
        "Adam without its correction",
        "training.optimization.make_optimizer",
        as_if_long_under_way,
        f"{ORACLES}updates_are_adams_by_hand",
    ),
    Fault(
        "targets not shifted",
        "data.batches.Batch.tgt_out",
        lambda right: property(lambda self: self.tgt[:, :-1]),
        "test_batches.py::test_batch_shift_and_count",
    ),
    Fault(
        "test sentences among those trained on",
        "data.splits.split_pairs",
        leaking,
        "test_properties.py::test_no_sentence_is_on_two_sides_of_a_split",
    ),
    Fault(
        "words chosen by the test sentences",
        "data.splits.easy_subset",
        words_of_all_sides,
        "test_data.py::test_easy_subset_takes_its_words_from_the_training_side_alone",
    ),
    Fault(
        "BLEU over the model's own tokens",
        "training.evaluation.corpus_bleu",
        of_the_models_words,
        "test_evaluation.py::test_bleu_is_sacrebleus_with_its_signature",
    ),
    Fault(
        "patches column by column",
        "applications.vision.PatchTransformer.patches",
        column_by_column,
        "test_vision.py::test_patches_are_the_squares_row_by_row",
    ),
]
