"""The exercises' checkers: they pass right functions and catch wrong ones, in the right case."""

import copy
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import src.checks as checks
from src.checks.engine import UNCHANGED, Case, run
from src.functional import attention, masked_softmax
from src.pooling import KernelRegression
from src.positions import sinusoidal_table
from src.scoring import DotScore, attend
from src.training.optimization import token_loss

INF = float("inf")


# --- right functions: those of the exercises' solutions, then others


def pool(query, keys, values):
    scores = query @ keys.T
    raw = (scores - scores.amax(dim=1, keepdim=True)).exp()
    return (raw / raw.sum(dim=1, keepdim=True)) @ values


def predict(keys, values, width):
    scores = -(((keys[:, None] - keys) / width) ** 2) / 2
    scores = scores.masked_fill(torch.eye(len(keys), dtype=torch.bool), -INF)
    return scores.softmax(dim=1) @ values


def softmax(scores, mask):
    empty = ~mask.any(dim=-1, keepdim=True)
    filled = scores.masked_fill(~mask, -INF).masked_fill(empty, 0.0)
    return filled.softmax(dim=-1).masked_fill(empty, 0.0)


def in_pieces(score, query, key, value, size):
    pieces = query.split(size, dim=-2)
    return torch.cat([attend(score, q, key, value) for q in pieces], dim=-2)


def step(state, memory, mask, w_q, w_k, w):
    hidden = torch.tanh((state @ w_q.T)[:, None] + memory @ w_k.T)
    weights = (hidden @ w).masked_fill(~mask, -INF).softmax(dim=1)
    return (weights[:, None] @ memory)[:, 0], weights


def split_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def renumber(layer, order, rows=True, biases=True, columns=True, parts=(0, 1, 2), new=None):
    """The solution; the other arguments leave parts of it out."""
    heads, width = layer.num_heads, layer.head_dim
    new = copy.deepcopy(layer) if new is None else new
    with torch.no_grad():
        for name, parameter in layer.in_proj.named_parameters():
            if rows and (biases or name == "weight"):
                old = parameter.unflatten(0, (3, heads, width)).clone()
                for part in parts:
                    old[part] = old[part][order]
                getattr(new.in_proj, name).copy_(old.flatten(0, 2))
        if columns:
            old = layer.out_proj.weight.unflatten(1, (heads, width))
            new.out_proj.weight.copy_(old[:, order].flatten(1))
    return new


def global_window(n, reach, token):
    i = torch.arange(n)
    near = (i[:, None] - i).abs() <= reach
    return (near | (i == token) | (i == token)[:, None])[None]


def grid_positions(rows, columns, d_model):
    patch = torch.arange(rows * columns)
    of_row = sinusoidal_table(rows, d_model // 2)[patch // columns]
    of_column = sinusoidal_table(columns, d_model // 2)[patch % columns]
    return torch.cat([of_row, of_column], dim=1)


def layer_norm(x, gain, bias, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / (variance + eps).sqrt() * gain + bias


def loss(logits, targets, pad_id, smoothing):
    surprise = -logits.log_softmax(dim=-1)
    right = surprise.gather(-1, targets[..., None])[..., 0]
    each = (1 - smoothing) * right + smoothing * surprise.mean(dim=-1)
    return each[targets != pad_id].mean()


def layer(x, w_q, w_k, w_v, w_o, num_heads, mask):
    q, k, v = (split_heads(x @ w, num_heads) for w in (w_q, w_k, w_v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~mask[:, None], -INF).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2) @ w_o


def effective_number(weights):
    return (-torch.xlogy(weights, weights).sum(dim=-1)).exp()


RIGHT = [
    (checks.check_attention_pooling, pool),
    (checks.check_attention_pooling, lambda q, k, v: attend(DotScore(), q, k, v)),
    (checks.check_attention_pooling, lambda q, k, v: (q @ k.T).softmax(1) @ v),
    (checks.check_leave_one_out, predict),
    (
        checks.check_leave_one_out,
        lambda k, v, width: torch.stack(
            [
                (-((k[i] - k[r]) ** 2) / (2 * width**2)).softmax(0) @ v[r]
                for i in range(len(k))
                for r in [torch.arange(len(k)) != i]
            ]
        ),
    ),
    (checks.check_masked_softmax, softmax),
    (checks.check_masked_softmax, masked_softmax),
    (
        checks.check_masked_softmax,  # a fill that is no number but the dtype's lowest will do, too
        lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(-1) * m,
    ),
    (checks.check_attend_in_pieces, in_pieces),
    (checks.check_additive_step, step),
    (checks.check_split_heads, split_heads),
    (checks.check_split_heads, lambda x, h: torch.stack(x.chunk(h, dim=-1), dim=1)),
    (checks.check_renumber_heads, renumber),
    (checks.check_global_window, global_window),
    (checks.check_grid_positions, grid_positions),
    (checks.check_layer_norm, layer_norm),
    (checks.check_layer_norm, lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, eps)),
    (checks.check_token_loss, loss),
    (
        checks.check_token_loss,
        lambda logits, targets, pad_id, smoothing: F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=pad_id, label_smoothing=smoothing
        ),
    ),
    (checks.check_multi_head_attention, layer),
    (checks.check_effective_number, effective_number),
]


def identify(value):
    return value.__name__ if callable(value) else ""


@pytest.mark.parametrize(("check", "function"), RIGHT, ids=identify)
def test_a_right_function_passes_in_one_line(check, function, capsys):
    check(function)
    said = capsys.readouterr().out
    assert said.startswith(f"{check.__name__}: all ") and said.endswith(" cases pass\n")
    assert said.count("\n") == 1


def test_every_checker_has_a_right_function_and_three_wrong_ones():
    names = [n for n in checks.__all__ if n.startswith("check_")]
    assert {check.__name__ for check, _ in RIGHT} == set(names)
    wrong = [check.__name__ for check, *_ in WRONG]
    assert {name: wrong.count(name) for name in names if wrong.count(name) < 3} == {}


# --- wrong functions; with "…" other cases fail, too


def shared(build):
    """Wrong ways of `pool`, by a softmax of their own."""
    return lambda query, keys, values: build(query @ keys.T) @ values


def raw_softmax(scores, dim=1):
    return scores.exp() / scores.exp().sum(dim=dim, keepdim=True)


def global_shift(scores):
    return raw_softmax(scores - scores.max())


def predict_by_distance(keys, values, width):
    u = (keys[:, None] - keys) / width
    return (-u.square() / 2).masked_fill(u == 0, -INF).softmax(1) @ values


def predict_with(scores_of, after=lambda weights, diagonal: weights):
    def predict(keys, values, width):
        diagonal = torch.eye(len(keys), dtype=torch.bool)
        scores = scores_of((keys[:, None] - keys) / width, diagonal)
        return after(scores, diagonal) @ values

    return predict


def kernel_sums(u, diagonal):
    raw = (-u.square() / 2).exp().masked_fill(diagonal, 0)
    return raw / raw.sum(1, keepdim=True)


def fill(value):
    return lambda scores, mask: scores.masked_fill(~mask, value).softmax(-1)


def softmax_in_place(scores, mask):
    mask |= ~mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask, -INF).softmax(-1)


def softmax_mended(scores, mask):
    added = torch.zeros_like(scores).masked_fill(~mask, -INF)
    return (scores + added).softmax(-1).nan_to_num()


def softmax_by_division(scores, mask):
    raw = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    return raw / raw.sum(-1, keepdim=True).clamp(min=1e-6)


def pieces_of_16(score, query, key, value, size):
    return in_pieces(score, query, key, value, 16)


def pieces_of_first_axis(score, query, key, value, size):
    return torch.cat([attend(score, q, key, value) for q in query.split(size)])


def pieces_without_rest(score, query, key, value, size):
    starts = range(0, query.shape[-2] + 1, size)
    pieces = [query[..., a:b, :] for a, b in pairwise(starts)]
    return torch.cat([attend(score, q, key, value) for q in pieces], dim=-2)


def pieces_twice(score, query, key, value, size):
    in_pieces(score, query, key, value, size)
    return in_pieces(score, query, key, value, size)


def pieces_of_keys(score, query, key, value, size):
    pairs = zip(key.split(size, -2), value.split(size, -2), strict=True)
    return sum(in_pieces(score, query, k, v, size) for k, v in pairs)


def other_step(
    scores_of=None, mask_weights=False, masked=True, pool_projected=False, filled_with=-INF
):
    def step(state, memory, mask, w_q, w_k, w):
        q, k = (state @ w_q.T)[:, None], memory @ w_k.T
        scores = (torch.tanh(q + k) if scores_of is None else scores_of(q, k)) @ w
        if masked and not mask_weights:
            scores = scores.masked_fill(~mask, filled_with)
        weights = scores.softmax(1)
        weights = weights * mask if mask_weights else weights
        return torch.einsum("bs,bse->be", weights, k if pool_projected else memory), weights

    return step


def step_mask_across(state, memory, mask, w_q, w_k, w):
    """Takes the mask's axes for (S, B) where it can."""
    square = mask.shape[0] == mask.shape[1]
    return step(state, memory, mask.T if square else mask, w_q, w_k, w)


def layer_of(
    heads=split_heads,
    join=lambda x: x.transpose(1, 2).flatten(2),
    root=None,
    masked=lambda scores, mask: scores.masked_fill(~mask[:, None], -INF),
    matrix=lambda w: w,
    dim=-1,
):
    """Wrong ways of `layer`: one part exchanged."""

    def other(x, w_q, w_k, w_v, w_o, num_heads, mask):
        q, k, v = (heads(x @ matrix(w), num_heads) for w in (w_q, w_k, w_v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(root or q.shape[-1])
        return join(masked(scores, mask).softmax(dim) @ v) @ w_o

    return other


def mask_first_axis(scores, mask):
    """A mask without an axis for the heads: (B, 1, T) is taken for (H, 1, T) if B = H or fails."""
    return scores.masked_fill(~mask, -INF)


def view_heads(x, num_heads):
    return x.reshape(x.shape[0], num_heads, x.shape[1], -1)


def interleaved_heads(x, num_heads):
    return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


def norm_of(mean=None, variance=None, outside=False):
    """Wrong ways of `layer_norm`."""

    def norm(x, gain, bias, eps):
        m = (mean or (lambda x: x.mean(-1, keepdim=True)))(x)
        v = (variance or (lambda x: x.var(-1, keepdim=True, unbiased=False)))(x)
        root = v.sqrt() + eps if outside else (v + eps).sqrt()
        return (x - m) / root * gain + bias

    return norm


def loss_of(
    log_probs=lambda logits: logits.log_softmax(-1),
    even=lambda lp: -lp.mean(-1),
    reduce=lambda each, real: each[real].mean(),
    padding=None,
):
    """Wrong ways of `loss`."""

    def other(logits, targets, pad_id, smoothing):
        lp = log_probs(logits)
        right = -lp.gather(-1, targets[..., None])[..., 0]
        each = (1 - smoothing) * right + (smoothing * even(lp) if smoothing else 0)
        return reduce(each, targets != (pad_id if padding is None else padding))

    return other


def mean_of_rows(each, real):
    return ((each * real).sum(1) / real.sum(1)).mean()


def mask_with(row=True, column=True, near=lambda distance, reach: distance.abs() <= reach):
    def other(n, reach, token):
        i = torch.arange(n)
        mask = near(i[:, None] - i, reach)[None].clone()
        mask[:, token, :] |= row
        mask[:, :, token] |= column
        return mask

    return other


def grid_with(row, column, width=lambda d_model: d_model // 2):
    def other(rows, columns, d_model):
        patch, half = torch.arange(rows * columns), d_model // 2
        table = sinusoidal_table(rows * columns, width(d_model))[:, :half]
        of = (row(patch, rows, columns), column(patch, rows, columns))
        return torch.cat([table[index] for index in of], dim=1)

    return other


def in_place(function, position=0):
    """Make a right function write to one of its arguments before it returns."""

    def other(*arguments):
        result = function(*arguments)
        with torch.no_grad():
            arguments[position].zero_()
        return result

    return other


def detached(function):
    def other(*arguments):
        result = function(*arguments)
        return result.detach()

    return other


WRONG = [
    (checks.check_attention_pooling, shared(raw_softmax), {"scores beyond ±900"}),
    (checks.check_attention_pooling, shared(global_shift), {"scores beyond ±900"}),
    (checks.check_attention_pooling, attention, {"5 queries, 7 keys", "float64", "…"}),
    (checks.check_attention_pooling, shared(lambda s: s.softmax(0)), {"5 queries, 7 keys", "…"}),
    (
        checks.check_attention_pooling,
        lambda q, k, v: pool(q, k, v).squeeze(0),
        {"one query"},
    ),
    (checks.check_attention_pooling, detached(pool), {"gradients"}),
    (checks.check_attention_pooling, in_place(pool), {UNCHANGED, "…"}),
    (
        checks.check_attention_pooling,
        lambda q, k, v: pool(q.float(), k.float(), v.float()),
        {"float64"},
    ),
    (checks.check_leave_one_out, predict_by_distance, {"two points at the same place"}),
    (checks.check_leave_one_out, predict_with(kernel_sums), {"a point far from all others"}),
    (
        checks.check_leave_one_out,  # no leaving out
        lambda k, v, w: KernelRegression(w.item())(k, k, v).detach(),
        {"11 points", "two points", "gradients", "…"},
    ),
    (
        checks.check_leave_one_out,
        predict_with(lambda u, d: (-u.square() / 2).masked_fill(d, 0).softmax(1)),
        {"11 points", "two points", "…"},
    ),
    (
        checks.check_leave_one_out,
        predict_with(lambda u, d: (-u.square() / 2).softmax(1).masked_fill(d, 0)),
        {"11 points", "two points", "…"},
    ),
    (
        checks.check_leave_one_out,
        predict_with(lambda u, d: (-u.square()).masked_fill(d, -INF).softmax(1)),
        {"11 points", "…"},
    ),
    (checks.check_leave_one_out, lambda k, v, w: predict(k, v, w.detach()), {"gradients"}),
    (checks.check_leave_one_out, in_place(predict, 1), {UNCHANGED, "…"}),
    (
        checks.check_masked_softmax,
        fill(-1e4),
        {
            "a row whose keys are all masked",
            "allowed scores of -3 million",
            "gradients with an all-masked row",
        },
    ),
    (
        checks.check_masked_softmax,
        fill(-INF),
        {"a row whose keys are all masked", "gradients with an all-masked row"},
    ),
    (checks.check_masked_softmax, softmax_mended, {"gradients with an all-masked row"}),
    (checks.check_masked_softmax, softmax_in_place, {UNCHANGED, "…"}),
    (
        checks.check_masked_softmax,
        lambda s, m: softmax(s.float(), m),
        {"float16"},
    ),
    (
        checks.check_masked_softmax,
        softmax_by_division,
        {"scores of several hundreds", "allowed scores of -3 million"},
    ),
    (
        checks.check_masked_softmax,
        lambda s, m: torch.where(m.expand(s.shape), s.softmax(-1), 0),
        {"a mask for each query", "…"},
    ),
    (
        checks.check_masked_softmax,
        lambda s, m: softmax(s, m.reshape(s.shape)),
        {"one mask for all queries"},
    ),
    (checks.check_masked_softmax, lambda s, m: softmax(s, ~m), {"a mask for each query", "…"}),
    (
        checks.check_attend_in_pieces,
        lambda score, q, k, v, size: attend(score, q, k, v),
        {
            "37 queries, 16 at a time",
            "another size: 5 at a time",
            "leading axes (2, 3)",
            "gradients",
        },
    ),
    (
        checks.check_attend_in_pieces,
        pieces_of_16,
        {"another size: 5 at a time", "leading axes (2, 3)"},
    ),
    (checks.check_attend_in_pieces, pieces_of_first_axis, {"leading axes (2, 3)"}),
    (checks.check_attend_in_pieces, pieces_without_rest, {"fewer queries than fit", "…"}),
    (checks.check_attend_in_pieces, pieces_twice, {"37 queries, 16 at a time", "…"}),
    (checks.check_attend_in_pieces, pieces_of_keys, {"another size: 5 at a time", "…"}),
    (checks.check_attend_in_pieces, detached(in_pieces), {"gradients"}),
    (checks.check_additive_step, other_step(masked=False), {"padding", "…"}),
    (checks.check_additive_step, other_step(mask_weights=True), {"padding", "…"}),
    (
        checks.check_additive_step,
        other_step(lambda q, k: torch.tanh(q) + torch.tanh(k)),
        {"no padding", "…"},
    ),
    (
        checks.check_additive_step,
        other_step(lambda q, k: torch.tanh(q) * torch.tanh(k)),
        {"no padding", "…"},
    ),
    (checks.check_additive_step, other_step(pool_projected=True), {"no padding", "one token", "…"}),
    (
        checks.check_additive_step,
        other_step(filled_with=-15.0),
        {"allowed scores of -10 billion"},
    ),
    (
        checks.check_additive_step,
        other_step(filled_with=-1e9),
        {"allowed scores of -10 billion"},
    ),
    (checks.check_additive_step, step_mask_across, {"as many sentences as tokens"}),
    (checks.check_additive_step, lambda *a: step(*a)[::-1], {"no padding", "…"}),
    (checks.check_additive_step, lambda *a: step(*a)[0], {"no padding", "…"}),
    (
        checks.check_additive_step,
        lambda s, m, mask, q, k, w: step(s, m.detach(), mask, q, k, w),
        {"gradients"},
    ),
    (checks.check_split_heads, view_heads, {"3 heads of width 7", "as many heads as tokens", "…"}),
    (checks.check_split_heads, interleaved_heads, {"3 heads of width 7", "…"}),
    (
        checks.check_split_heads,
        lambda x, h: x.unflatten(-1, (h, -1)),
        {"3 heads of width 7", "one token", "as many heads as tokens", "…"},
    ),
    (
        checks.check_split_heads,
        lambda x, h: split_heads(x, h).squeeze(2),
        {"one token"},
    ),
    (checks.check_split_heads, lambda x, h: split_heads(x, h).squeeze(1), {"one head"}),
    (
        checks.check_split_heads,
        lambda x, h: torch.tensor(split_heads(x, h).tolist()),
        {"gradients"},
    ),
    (
        checks.check_renumber_heads,
        lambda l, o: renumber(l, o.argsort()),
        {"5 heads in a circle, no bias", "5 heads of width 1"},
    ),
    (
        checks.check_renumber_heads,
        lambda l, o: renumber(l, o, biases=False),
        {"2 of 3 heads swapped", "5 heads of width 1"},
    ),
    (
        checks.check_renumber_heads,
        lambda l, o: renumber(l, o, columns=False),
        {"5 heads in a circle, no bias", "2 of 3 heads swapped", "5 heads of width 1"},
    ),
    (
        checks.check_renumber_heads,
        lambda l, o: renumber(l, o, parts=(0, 1)),
        {"5 heads in a circle, no bias", "2 of 3 heads swapped", "5 heads of width 1"},
    ),
    (
        checks.check_renumber_heads,
        lambda l, o: renumber(copy.deepcopy(l), o, new=l),
        {UNCHANGED, "the old order", "…"},
    ),
    (checks.check_renumber_heads, lambda l, o: l, {"the old order", "…"}),
    (checks.check_renumber_heads, lambda l, o: l.state_dict(), {"the old order", "…"}),
    (checks.check_renumber_heads, lambda l, o: renumber(l, o).half(), {"the old order", "…"}),
    (checks.check_global_window, mask_with(row=False), {"the first token", "reach 0", "…"}),
    (checks.check_global_window, mask_with(column=False), {"the first token", "reach 0", "…"}),
    (
        checks.check_global_window,
        mask_with(near=lambda d, reach: d.abs() < reach),
        {"13 tokens, reach 2, token 6", "the first token", "the last token", "reach 0"},
    ),
    (
        checks.check_global_window,
        mask_with(near=lambda d, reach: (d <= reach) & (d >= 0)),
        {
            "13 tokens, reach 2, token 6",
            "the first token",
            "the last token",
            "reach beyond the sentence",
        },
    ),
    (checks.check_global_window, lambda *a: ~global_window(*a), {"one token", "…"}),
    (checks.check_global_window, lambda *a: global_window(*a)[0], {"one token", "…"}),
    (checks.check_global_window, lambda *a: global_window(*a).float(), {"one token", "…"}),
    (
        checks.check_global_window,  # one position of its own: -1 is the last
        lambda n, reach, token: mask_with()(n, reach, token - 1),
        {"13 tokens, reach 2, token 6", "the first token", "the last token", "reach 0"},
    ),
    (
        checks.check_grid_positions,
        grid_with(lambda p, r, c: p // r, lambda p, r, c: p % r),
        {"more columns than rows", "more rows than columns", "one row", "one column"},
    ),
    (
        checks.check_grid_positions,
        grid_with(lambda p, r, c: p % c, lambda p, r, c: p // c),
        {"4 by 4 patches", "…"},
    ),
    (
        checks.check_grid_positions,
        grid_with(lambda p, r, c: p // c, lambda p, r, c: p % c, width=lambda d: d),
        {"4 by 4 patches", "…"},
    ),
    (
        checks.check_grid_positions,
        lambda r, c, d: sinusoidal_table(r * c, d),
        {"4 by 4 patches", "…"},
    ),
    (
        checks.check_grid_positions,
        lambda r, c, d: grid_positions(r, c, d).double(),
        {"4 by 4 patches", "…"},
    ),
    (
        checks.check_grid_positions,
        lambda r, c, d: grid_positions(r, c, d).view(r, c, d),
        {"4 by 4 patches", "…"},
    ),
    (
        checks.check_layer_norm,
        norm_of(variance=lambda x: x.var(-1, keepdim=True)),
        {"tokens of width 7", "…"},
    ),
    (
        checks.check_layer_norm,
        norm_of(variance=lambda x: (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2),
        {"numbers near 1,000"},
    ),
    (
        checks.check_layer_norm,
        norm_of(outside=True),
        {"numbers as small as eps", "…"},
    ),
    (
        checks.check_layer_norm,
        lambda x, g, b, eps: layer_norm(x.transpose(1, 2), 1, 0, eps).transpose(1, 2) * g + b,
        {"as many tokens as columns", "…"},
    ),
    (
        checks.check_layer_norm,
        norm_of(
            lambda x: x.mean((1, 2), keepdim=True),
            lambda x: x.var((1, 2), keepdim=True, unbiased=False),
        ),
        {"tokens of width 7", "…"},
    ),
    (
        checks.check_layer_norm,
        lambda x, g, b, eps: layer_norm(x, g, b, 0),
        {"a token of equal numbers", "numbers as small as eps", "…"},
    ),
    (checks.check_layer_norm, lambda x, g, b, eps: layer_norm(x, 1, b, eps), {"float64", "…"}),
    (
        checks.check_layer_norm,
        norm_of(variance=lambda x: x.var(-1, keepdim=True, unbiased=False).detach()),
        {"gradients"},
    ),
    (checks.check_layer_norm, in_place(layer_norm, 2), {UNCHANGED, "…"}),
    (
        checks.check_token_loss,
        loss_of(reduce=lambda each, real: (each * real).mean()),
        {"padding", "padding with id 3", "padding and smoothing", "…"},
    ),
    (checks.check_token_loss, loss_of(reduce=mean_of_rows), {"padding", "padding with id 3", "…"}),
    (
        checks.check_token_loss,
        loss_of(reduce=lambda each, real: each.mean()),
        {"padding", "padding with id 3", "…"},
    ),
    (checks.check_token_loss, loss_of(padding=0), {"padding with id 3"}),
    (
        checks.check_token_loss,
        loss_of(even=lambda lp: -lp[..., 1:].mean(-1)),
        {"smoothing", "padding and smoothing", "…"},
    ),
    (
        checks.check_token_loss,
        loss_of(even=lambda lp: -lp.sum(-1) / (lp.shape[-1] - 1)),
        {"smoothing", "padding and smoothing", "…"},
    ),
    (
        checks.check_token_loss,
        loss_of(lambda logits: logits.softmax(-1).log()),
        {"logits of several hundreds"},
    ),
    (checks.check_token_loss, lambda *a: token_loss(*a)[0], {"no padding, no smoothing", "…"}),
    (checks.check_token_loss, lambda *a: loss(*a).item(), {"no padding, no smoothing", "…"}),
    (checks.check_token_loss, detached(loss), {"gradients"}),
    (
        checks.check_multi_head_attention,
        layer_of(root=21),
        {"3 heads", "padding", "as many tokens as heads", "float64", "gradients"},
    ),
    (checks.check_multi_head_attention, layer_of(view_heads), {"3 heads", "float64", "…"}),
    (checks.check_multi_head_attention, layer_of(interleaved_heads), {"3 heads", "…"}),
    (
        checks.check_multi_head_attention,
        layer_of(join=lambda x: x.reshape(x.shape[0], x.shape[2], -1)),
        {"3 heads", "as many tokens as heads", "…"},
    ),
    (checks.check_multi_head_attention, layer_of(matrix=lambda w: w.T), {"one head", "…"}),
    (checks.check_multi_head_attention, layer_of(dim=1), {"3 heads", "…"}),
    (checks.check_multi_head_attention, layer_of(dim=2), {"one head", "3 heads", "…"}),
    (
        checks.check_multi_head_attention,
        layer_of(masked=lambda scores, mask: scores),
        {
            "padding",
            "as many tokens as heads",
            "allowed scores of -10 billion",
            "float64",
            "gradients",
        },
    ),
    (
        checks.check_multi_head_attention,
        layer_of(masked=lambda scores, mask: scores.masked_fill(~mask[:, None], -15.0)),
        {"allowed scores of -10 billion"},
    ),
    (
        checks.check_multi_head_attention,
        layer_of(masked=lambda scores, mask: scores.masked_fill(~mask[:, None], -1e9)),
        {"allowed scores of -10 billion"},
    ),
    (
        checks.check_multi_head_attention,
        layer_of(masked=mask_first_axis),
        {"padding", "as many tokens as heads", "…"},
    ),
    (
        checks.check_multi_head_attention,
        lambda x, q, k, v, o, h, m: layer(x, q, k.detach(), v, o, h, m),
        {"gradients"},
    ),
    (
        checks.check_effective_number,
        lambda w: (-(w * w.log()).sum(-1)).exp(),
        {"weights of 0", "all weight on one key"},
    ),
    (
        checks.check_effective_number,
        lambda w: (-(w * (w + 1e-3).log()).sum(-1)).exp(),
        {"one query", "equal weights", "axes (2, 3, 7)", "float64", "…"},
    ),
    (
        checks.check_effective_number,
        lambda w: 2 ** (-torch.xlogy(w, w).sum(-1)),
        {"one query", "equal weights", "…"},
    ),
    (
        checks.check_effective_number,
        lambda w: (-torch.xlogy(w, w).sum()).exp(),
        {"equal weights", "axes (2, 3, 7)", "…"},
    ),
    (checks.check_effective_number, lambda w: 1 / (w * w).sum(-1), {"one query", "…"}),
    (checks.check_effective_number, lambda w: effective_number(w).tolist(), {"one query", "…"}),
]


@pytest.mark.parametrize(("check", "function", "cases"), WRONG, ids=identify)
def test_a_wrong_function_is_caught_by_the_right_case(check, function, cases):
    with pytest.raises(checks.CheckFailed) as caught:
        check(function)
    found = set(caught.value.failures)
    assert cases - {"…"} <= found
    assert "…" in cases or found == cases


# --- the engine: whatever a reader's function does, it says what


def report(function, case=None, reference=lambda x: 2 * x):
    """What the engine says of a function that should double its argument."""
    case = Case("doubling", (torch.tensor([1.0, 2.0, 3.0]),), "times 2") if case is None else case
    with pytest.raises(checks.CheckFailed) as caught:
        run("check_double", function, reference, lambda: [case])
    return str(caught.value)


def no_such_key(x):
    return {}["double"]


def recurse(x):
    return recurse(x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: 2 * x + float("nan"), "expected 2 at [0], your function gave NaN; 3 of 3"),
        (lambda x: 2 * x / (x - 2).relu(), "expected 2 at [0], your function gave inf; 2 of 3"),
        (lambda x: 3 * x - 1, "expected 4 at [1], your function gave 5; 2 of 3 differ"),
        (lambda x: None, "expected a tensor, your function gave None (is a `return` missing?)"),
        (lambda x: [2.0, 4.0, 6.0], "expected a tensor, your function gave a list"),
        (lambda x: (2 * x).numpy(), "expected a tensor, your function gave a ndarray"),
        (lambda x: (2 * x, x), "expected one tensor, your function gave a tuple of 2"),
        (lambda x: 2 * x[:2], "expected shape (3,), your function gave (2,)"),
        (lambda x: (2 * x).int(), "expected dtype torch.float32, your function gave torch.int32"),
        (lambda x: (2 * x).to("meta"), "expected device cpu, your function gave meta"),
        (lambda x: (2 * x).to_sparse(), "expected layout torch.strided, your function gave"),
        (no_such_key, "your function raised KeyError in `return {}[\"double\"]`: 'double'"),
        (recurse, "your function raised RecursionError in `return recurse(x)`"),
        (lambda: 2, "your function raised TypeError: <lambda>() takes 0 positional arguments"),
        (nn.Linear(5, 3), "your function raised RuntimeError"),
    ],
)
def test_the_report_says_what_was_expected_and_what_came(function, said):
    text = report(function)
    assert text.startswith("check_double: 1 of 2 cases fails\n  case 1, doubling: ")
    assert said in text and text.endswith(" – times 2")


def test_the_report_of_the_masked_row_reads_as_it_should():
    with pytest.raises(AssertionError, match="0 at .0, 3, 0., your function gave NaN; .* – a ro"):
        checks.check_masked_softmax(fill(-INF))


def test_results_in_a_tuple_are_told_apart():
    case = Case("twice", (torch.ones(2),), "both")
    text = report(lambda x: (2 * x, x), case, lambda x: (2 * x, 3 * x))
    assert "expected 3 at [0] for result 2, your function gave 1" in text
    text = report(lambda x: 2 * x, case, lambda x: (2 * x, 3 * x))
    assert "expected a tuple of 2 tensors, your function gave a Tensor" in text


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: 2 * x.detach(), "expected a result with gradients, your function gave one with"),
        (lambda x: x + x.detach(), "expected 1.0806 at [0] for the gradient in `x` (of a wei"),
        (lambda x: 2 * x.sqrt().square(), "in `x` (of a weighted sum), your function gave NaN"),
        (lambda x: (2 * x.exp().log_()).exp().log(), "backward through your function raised Runti"),
    ],
)
def test_gradients_are_compared_where_a_case_asks_for_them(function, said):
    case = Case("slope", (torch.tensor([0.0, 1.0, 2.0]),), "the slope is 2", gradients=("x",))
    text = report(function, case)
    assert said in text and text.endswith(" – the slope is 2")


def test_an_argument_without_influence_has_the_gradient_zero(capsys):
    case = Case("slope", (torch.ones(3), torch.ones(3)), "none", gradients=("x", "y"))
    run("check_double", lambda x, y: 2 * x, lambda x, y: 2 * x + 0 * y, lambda: [case])
    assert capsys.readouterr().out == "check_double: all 2 cases pass\n"


def test_the_same_fault_is_told_once():
    cases = [Case(name, (torch.ones(2),), name) for name in ("first", "second", "third")]
    with pytest.raises(checks.CheckFailed) as caught:
        run("check_double", lambda x: None, lambda x: 2 * x, lambda: cases)
    assert str(caught.value).splitlines()[2:] == [
        "  case 2, second: as in case 1",
        "  case 3, third: as in case 1",
    ]
    assert caught.value.num_cases == 4


@pytest.mark.parametrize(
    "spoil", [lambda x: x.mul_(2), lambda x: x.resize_(5), lambda x: x.fill_(float("nan"))]
)
def test_a_changed_argument_is_a_case_of_its_own(spoil):
    def function(x):
        result = 2 * x
        spoil(x)
        return result

    text = report(function)
    assert "1 of 2 cases fails" in text
    assert f"case 2, {UNCHANGED}: your function changed `x` (in case 1)" in text


def test_a_changed_argument_is_noticed_although_the_function_raises():
    assert "changed `x` (in case 1)" in report(lambda x: x.mul_(2) and x)


@pytest.mark.parametrize("thing", [None, 3, torch.ones(2)])
def test_what_is_no_function_is_refused(thing, unchecked):
    with pytest.raises(TypeError, match="function must be callable, but is .*: pass the function"):
        checks.check_masked_softmax(thing)


def test_a_layer_that_breaks_when_it_is_used_is_reported():
    def broken(layer, order):
        new = copy.deepcopy(layer)
        new.out_proj = None
        return new

    with pytest.raises(checks.CheckFailed, match="what your function returned raised TypeError"):
        checks.check_renumber_heads(broken)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_readers_modes_and_random_numbers_do_not_matter(mode):
    before = torch.get_rng_state()
    with mode():
        checks.check_layer_norm(layer_norm)
        checks.check_renumber_heads(renumber)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_function_that_switches_gradients_off_does_so_for_itself_alone():
    def switch(query, keys, values):
        torch.set_grad_enabled(False)
        return pool(query, keys, values)

    with pytest.raises(checks.CheckFailed):
        checks.check_attention_pooling(switch)
    assert torch.is_grad_enabled()


def test_a_notebook_shows_the_report_and_no_traceback():
    with pytest.raises(checks.CheckFailed) as caught:
        checks.check_effective_number(lambda weights: None)
    shown = caught.value._render_traceback_()
    assert shown == str(caught.value).splitlines() and len(shown) == 7
