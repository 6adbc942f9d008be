"""Mistakes that people make with attention and Transformers, and what must notice each.

A fault takes a function or method of the package, by its place, and gives a wrong one. Where
``seen_by`` is a chapter, an assertion in one of its cells must fail; else the test of that id. A
test of all mistakes that a tool can think of is `make mutants`; these are from the field.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch


class Fault(NamedTuple):
    """One mistake: ``wrong`` makes the wrong function of the right one."""

    name: str
    place: str
    wrong: Callable[[Callable], Callable]
    seen_by: str


ORACLES = "test_oracles.py::test_"
FORMULA = f"{ORACLES}the_answer_is_the_formula"

SOFTMAX, ATTENTION = "functional.masked_softmax", "functional.attention"
SPLIT = "multihead.MultiHeadAttention.split"


def over_queries(right):
    return lambda s, mask=None: right(s.mT, None if mask is None else mask.expand(s.shape).mT).mT


def masked_afterwards(right):
    return lambda s, mask=None: right(s) if mask is None else right(s) * mask


def turned_round(right):
    return lambda s, mask=None: right(s, None if mask is None else ~mask)


def not_normalised(right):
    return lambda s, mask=None: s.exp() if mask is None else s.exp() * mask


def by_the_whole_width(right):
    def attention(query, *rest, scale=None, **options):
        heads = query.shape[1] if query.dim() == 4 else 2
        scale = 1 / math.sqrt(query.shape[-1] * heads) if scale is None else scale
        return right(query, *rest, scale=scale, **options)

    return attention


def without_scale(right):
    return lambda *inputs, scale=1.0, **options: right(*inputs, scale=scale, **options)


def cut_without_transposing(right):
    def split(self, x, parts, packing=None):
        x = x if packing is None else packing.unpack(x)
        shape = (x.shape[0], self.num_heads, x.shape[1], self.head_dim)
        return tuple(part.reshape(shape) for part in x.chunk(parts, -1))

    return split


def heads_in_columns(right):
    def split(self, x, parts, packing=None):
        x = x if packing is None else packing.unpack(x)
        x = x.unflatten(-1, (parts, self.head_dim, self.num_heads))
        return x.permute(2, 0, 4, 1, 3).unbind(0)

    return split


def with_future(right):
    return lambda self, *inputs, is_causal=False, **options: right(self, *inputs, **options)


def without_residual(right):
    return lambda self, x, sublayer: self.norm(sublayer(x))


def without_itself(right):
    def mask(num_queries, num_keys=None, **options):
        found = right(num_queries, num_keys, **options)
        return found & ~torch.eye(*found.shape[-2:], dtype=torch.bool)

    return mask


def at_the_top_left(right):
    def mask(num_queries, num_keys=None, **options):
        return torch.ones(1, num_queries, num_keys or num_queries, dtype=torch.bool).tril()

    return mask


def sines_only(right):
    def table(*sizes, **options):
        found = right(*sizes, **options).clone()
        found[:, 1::2] = found[:, ::2]
        return found

    return table


def reads_padding(right):
    return lambda self, src: right(self, src.masked_fill(src == 0, 3))


def interleaved(right):
    def forward(self, x, offset=0):
        half = x.shape[-1] // 2
        order = torch.arange(2 * half).view(half, 2).mT.flatten()
        return right(self, x[..., order], offset)[..., order.argsort()]

    return forward


def dead_rows_are_nan(right):
    return lambda s, mask=None: (
        s if mask is None else s.masked_fill(~mask, float("-inf"))
    ).softmax(-1)


def leaking(right):
    def split(pairs, *rest, **options):
        found = right(pairs, *rest, **options)
        return type(found)(found.train + found.test, found.valid, found.test)

    return split


FAULTS = [
    # at least two a chapter
    Fault("softmax over the queries", SOFTMAX, over_queries, "10.1"),
    Fault("a sum instead of a mean", SOFTMAX, not_normalised, "10.1"),
    Fault(
        "width taken twice", "pooling._kernel_weights",
        lambda right: lambda kernel, u, mask: right(kernel, u * u.abs(), mask), "10.2",
    ),
    Fault(
        "no example left out", "pooling.leave_one_out_mask",
        lambda right: lambda size, device=None: torch.ones(size, size, dtype=torch.bool), "10.2",
    ),
    Fault("scale forgotten", ATTENTION, without_scale, "10.3"),
    Fault("torch.nn's mask taken as it is", SOFTMAX, turned_round, "10.3"),
    Fault("the encoder reads padding", "recurrent.RecurrentEncoder.forward", reads_padding, "10.4"),
    Fault("alignment with a softmax over the target", SOFTMAX, over_queries, "10.4"),
    Fault("heads cut without transposing", SPLIT, cut_without_transposing, "10.5"),
    Fault("scaled by the whole width", ATTENTION, by_the_whole_width, "10.5"),
    Fault(
        "a window of one side", "masks.window_mask",
        lambda right: lambda *sizes, **options: right(*sizes, **options).tril(), "10.6",
    ),
    Fault("self-attention with a softmax over the queries", SOFTMAX, over_queries, "10.6"),
    Fault("the decoder sees the future", "multihead.MultiHeadAttention.forward", with_future, "10.7"),
    Fault("residual connection forgotten", "layers.AddNorm.forward", without_residual, "10.7"),
    Fault("heads of interleaved columns", SPLIT, heads_in_columns, "15.2"),
    Fault("padding weighted, then left out", SOFTMAX, masked_afterwards, "15.2"),
    # what no chapter shows, or not at once
    Fault(
        "padding mask the wrong way round", "masks.padding_mask",
        lambda right: lambda ids, pad_id: ~right(ids, pad_id), f"{ORACLES}masks_are_the_loops",
    ),
    Fault(
        "causal mask aligned at the top left", "masks.causal_mask", at_the_top_left,
        f"{ORACLES}masks_are_the_loops",
    ),
    Fault(
        "the causal mask hides the token itself", "masks.causal_mask", without_itself,
        f"{ORACLES}masks_are_the_loops",
    ),
    Fault(
        "sines in all columns", "positions.sinusoidal_table", sines_only,
        f"{FORMULA}[positions.SinusoidalPositions-7]",
    ),
    Fault(
        "rows without keys are NaN", SOFTMAX, dead_rows_are_nan,
        "test_functional.py::test_a_query_without_keys_gets_zeros_and_finite_gradients",
    ),
    Fault(
        "rotary planes interleaved", "positions.RotaryPositions.forward", interleaved,
        f"{FORMULA}[positions.RotaryPositions-7]",
    ),
    Fault(
        "positions begin anew behind a cache", "positions.SinusoidalPositions.forward",
        lambda right: lambda self, x, offset=0: right(self, x),
        f"{FORMULA}[positions.SinusoidalPositions-7]",
    ),
    Fault(
        "beams without their own cache", "cache.DecoderCache.select",
        lambda right: lambda self, index: None,
        "test_properties.py::test_decoding_with_a_state_is_decoding_without",
    ),
    Fault(
        "length penalty on the wrong side", "decoding.length_norm",
        lambda right: lambda length, alpha: right(length, -alpha),
        f"{ORACLES}length_norm_is_the_formula",
    ),
    Fault(
        "temperature multiplies", "decoding.sampling_candidates",
        lambda right: lambda logits, temperature=1.0, **limits: right(
            logits, 1 / temperature, **limits
        ),
        f"{ORACLES}candidates_are_those_of_the_loop",
    ),
    Fault(
        "padding counts in the loss", "optimization.token_loss",
        lambda right: lambda logits, targets, pad_id, *rest, **options: right(
            logits, targets, -1, *rest, **options
        ),
        "test_training.py::test_more_padding_changes_neither_loss_nor_count",
    ),
    Fault(
        "warm-up one step late", "optimization.warmup_rate",
        lambda right: lambda step, *rest, **options: right(max(step - 1, 1), *rest, **options),
        f"{ORACLES}each_update_has_the_rate_of_the_formula",
    ),
    Fault(
        "targets not shifted", "batches.Batch.tgt_out",
        lambda right: property(lambda self: self.tgt[:, :-1]),
        "test_batches.py::test_batch_shift_and_count",
    ),
    Fault(
        "test sentences among those trained on", "splits.split_pairs", leaking,
        "test_properties.py::test_no_sentence_is_on_two_sides_of_a_split",
    ),
    Fault(
        "patches column by column", "vision.PatchTransformer.patches",
        lambda right: lambda self, images: right(self, images.mT),
        "test_vision.py::test_patches_are_the_squares_row_by_row",
    ),
    Fault(
        "tied embeddings copied", "transformer.Transformer._tie",
        lambda right: lambda self: None,
        "test_transformer.py::test_a_model_made_without_storage_is_the_same_model",
    ),
]  # fmt: skip
