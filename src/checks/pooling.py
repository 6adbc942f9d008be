"""Checkers of chapters 10.1 to 10.4: from weights of one query to a decoder's step."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from src.checks.engine import FLOAT64, LOWEST, Case, Wrong, run
from src.functional import attention, masked_softmax
from src.pooling import leave_one_out_mask, nadaraya_watson
from src.scoring import AdditiveScore, DotScore, attend


def check_attention_pooling(function: Callable) -> None:
    """Check attention that is written with `exp` and sums alone (chapter 10.1).

    The function's signature is ``pool(query, keys, values)``: queries ``(T, D)``, keys ``(S, D)``
    and values ``(S, C)`` give outputs ``(T, C)``, the values weighted by the softmax over the keys
    of ``query · key``, without any factor.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return attention(query, keys, values, scale=1.0, backend="explicit")

    def cases() -> list[Case]:
        q, k, v = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2)
        # Row 0 scores far above, row 1 far below what exp can hold.
        far = torch.tensor([[900.0, 0.0, 0.0], [-900.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        near = torch.cat([torch.rand(7, 1) + 1, k[:, 1:]], dim=1)
        wide = tuple(x.double() for x in (q, k, v))
        scores = "normalise `query @ keys.T` over the keys, dim=1, with no factor"
        return [
            Case("5 queries, 7 keys", (q, k, v), scores),
            Case(
                "one query",
                (q[:1], k, v),
                "keep the axis of the queries, also if it is 1",
            ),
            Case(
                "one key",
                (q, k[:1], v[:1]),
                "a single key has weight 1, whatever its score",
            ),
            Case("scores beyond ±900", (far, near, v), LARGE),
            Case("float64", wide, FLOAT64),
            Case(
                "gradients",
                (q, k, v),
                "use tensor operations from arguments to result",
                gradients=("query", "keys", "values"),
            ),
        ]

    run("check_attention_pooling", function, reference, cases)


LARGE = (
    "exp(900) is infinite and exp(-900) is 0: subtract from each row of scores its own largest "
    "one first, which leaves the weights as they are"
)


def check_leave_one_out(function: Callable) -> None:
    """Check kernel regression that predicts each point from all others (chapter 10.2).

    The function's signature is ``predict(keys, values, width)``: keys ``(S,)``, values ``(S,)``
    and a width without axes, a tensor above 0, give predictions ``(S,)``. Prediction i is the mean
    of all values but the i-th, with the Gaussian weights ``exp(-((x_i - x_j) / width)**2 / 2)``.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(keys: Tensor, values: Tensor, width: Tensor) -> Tensor:
        return nadaraya_watson(
            keys, keys, values, width=width, mask=leave_one_out_mask(len(keys))
        )

    def cases() -> list[Case]:
        keys, values, width = 2 * torch.randn(11), torch.randn(11), torch.tensor(0.7)
        twice = torch.cat([keys[:5], keys[:5], keys[10:]])
        lonely = torch.cat([keys[:10], torch.tensor([60.0])])
        wide = tuple(x.double() for x in (keys, values, width))
        by_number = (
            "leave out the point itself, by its number, and not every key at distance 0"
        )
        return [
            Case("11 points", (keys, values, width), OTHERS),
            Case(
                "two points",
                (keys[:2], values[:2], width),
                "each must predict the other",
            ),
            Case("two points at the same place", (twice, values, width), by_number),
            Case(
                "a point far from all others",
                (lonely, values, width),
                "exp of a large negative number is 0, and 0 / 0 is NaN: apply a softmax to "
                "-((x - y) / width)**2 / 2",
            ),
            Case("float64", wide, FLOAT64),
            Case(
                "gradients",
                (keys, values, width),
                "keep the width a tensor: no `float(width)`",
                gradients=("keys", "values", "width"),
            ),
        ]

    run("check_leave_one_out", function, reference, cases)


OTHERS = (
    "point i must not use value i, and the others' weights must sum to 1: give the diagonal the "
    "score -inf before the softmax; mind the square and the 2"
)


def check_masked_softmax(function: Callable) -> None:
    """Check a softmax over the allowed keys (chapter 10.3).

    The function's signature is ``softmax(scores, mask)``: scores ``(B, T, S)`` and a boolean mask,
    true where a key is allowed, of shape ``(B, T, S)`` or ``(B, 1, S)``, give weights of the shape
    and dtype of the scores. Forbidden keys get 0. A row sums to 1, or to 0 if no key is allowed.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(scores: Tensor, mask: Tensor) -> Tensor:
        return masked_softmax(scores, mask)

    def cases() -> list[Case]:
        scores, mask = torch.randn(3, 5, 7), torch.rand(3, 5, 7) > 0.4
        mask[..., 2] = True
        empty = mask.clone()
        empty[1] = empty[0, 3] = False
        low = torch.tensor([[[-3e6, -3e6 + 1, 5.0, 6.0]]])
        few = torch.tensor([[[True, True, False, False]]])
        return [
            Case(
                "a mask for each query",
                (scores, mask),
                "zeros for forbidden keys, dim=-1",
            ),
            Case(
                "one mask for all queries",
                (scores, mask[:, :1]),
                "the mask (B, 1, S) must broadcast: `masked_fill` and `where` do it",
            ),
            Case("a row whose keys are all masked", (scores, empty), EMPTY),
            Case("allowed scores of -3 million", (low, few), LOWEST),
            Case("scores of several hundreds", (400 * scores, mask), LARGE),
            Case(
                "float16",
                (scores.half(), mask),
                "weights in the dtype of the scores; a fill of -1e9 does not fit into float16",
            ),
            Case(
                "gradients with an all-masked row",
                (scores, empty),
                "0 / 0 leaves NaN in the gradient even where the result is mended: fill such a "
                "row with zeros before the softmax",
                gradients=("scores",),
            ),
        ]

    run("check_masked_softmax", function, reference, cases)


EMPTY = (
    "a row without a key gets zeros, not NaN and not equal weights: divide only by a positive "
    "sum, or mend the row outside of the softmax"
)


class _Watched(nn.Module):
    """A score that keeps the number of queries of each call."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score
        self.calls: list[int] = []

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        self.calls.append(query.shape[-2])
        return self.score(query, key)


def check_attend_in_pieces(function: Callable) -> None:
    """Check attention that never scores more than some queries at a time (chapter 10.3).

    The function's signature is ``attend_in_pieces(score, query, key, value, size)``: a score such
    as `src.scoring.AdditiveScore`, queries ``(..., T, Dq)``, keys ``(..., S, Dk)``, values
    ``(..., S, Dv)`` and a number of queries give outputs ``(..., T, Dv)``, those of
    ``src.scoring.attend(score, query, key, value)``. It calls ``score`` with at most ``size``
    queries, and once for each query.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(
        score: nn.Module, query: Tensor, key: Tensor, value: Tensor, size: int
    ) -> Tensor:
        pieces = query.split(size, dim=-2)
        return torch.cat([attend(score, piece, key, value) for piece in pieces], dim=-2)

    def held(result: Tensor, arguments: tuple) -> Tensor:
        score, query, *_, size = arguments
        if score.calls and max(score.calls) > size:
            raise Wrong(
                f"expected at most {size} queries at a time, your function scored "
                f"{max(score.calls)} at once"
            )
        if sum(score.calls) != query.shape[-2]:
            raise Wrong(
                f"expected each of the {query.shape[-2]} queries to be scored once, your function "
                f"scored {sum(score.calls)} in all"
            )
        return result

    def cases() -> list[Case]:
        additive = _Watched(AdditiveScore(5, 3, 11))
        q, k, v = torch.randn(37, 5), torch.randn(7, 3), torch.randn(7, 2)
        batch = tuple(torch.randn(2, 3, n, 5) for n in (13, 7, 7))
        return [
            Case("37 queries, 16 at a time", (additive, q, k, v, 16), PIECES),
            Case(
                "another size: 5 at a time",
                (additive, q, k, v, 5),
                "use `size`, not 16",
            ),
            Case("fewer queries than fit", (additive, q[:11], k, v, 16), PIECES),
            Case(
                "leading axes (2, 3)",
                (_Watched(DotScore()), *batch, 4),
                "the queries are the axis before the last: split and join at dim=-2",
            ),
            Case(
                "gradients",
                (additive, q, k, v, 16),
                "join with `torch.cat`, don't detach",
                gradients=("query", "key", "value"),
            ),
        ]

    run("check_attend_in_pieces", function, reference, cases, held)


PIECES = (
    "cut the queries alone, keep the order, and don't forget the shorter last piece"
)


def check_additive_step(function: Callable) -> None:
    """Check how a recurrent decoder asks for its next context (chapter 10.4).

    The function's signature is ``step(state, memory, mask, w_q, w_k, w)``: decoder states
    ``(B, D)``, encoder states ``(B, S, E)``, a boolean mask ``(B, S)``, true for real tokens, and
    the weights ``(h, D)``, ``(h, E)`` and ``(h,)`` of the score ``w · tanh(w_q s + w_k m)`` give
    ``(context, weights)``, ``(B, E)`` and ``(B, S)``. Each row has a real token.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(
        state: Tensor, memory: Tensor, mask: Tensor, w_q: Tensor, w_k: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor]:
        score = AdditiveScore(w_q.shape[1], w_k.shape[1], len(w))
        parameters = {
            "query_proj.weight": w_q,
            "key_proj.weight": w_k,
            "output.weight": w[None],
        }
        scores = functional_call(score, parameters, (state[:, None], memory))
        weights = masked_softmax(scores, mask[:, None])
        return (weights @ memory)[:, 0], weights[:, 0]

    def cases() -> list[Case]:
        state, memory = torch.randn(3, 5), torch.randn(3, 7, 11)
        w_q, w_k, w = torch.randn(2, 5), torch.randn(2, 11), torch.randn(2)
        full = torch.ones(3, 7, dtype=torch.bool)
        padded = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
        first = torch.arange(7).expand(3, 7) < 1
        low = (10 * w_q.abs(), w_k, -1e10 * w.abs())  # tanh is 1 here
        floats = (state, memory, w_q, w_k, w)
        wide = [x.double() for x in floats]
        tanh = "tanh of the sum of both projections; then w; softmax over the tokens; then memory"
        mask = "give padding the score -inf, so that the real tokens' weights sum to 1"
        return [
            Case("no padding", (state, memory, full, w_q, w_k, w), tanh),
            Case("padding", (state, memory, padded, w_q, w_k, w), mask),
            Case(
                "as many sentences as tokens",
                (state, memory[:, :3], padded[:, :3], w_q, w_k, w),
                "the mask has one row a sentence: axes that happen to be equal hide a mix-up",
            ),
            Case(
                "one token",
                (state, memory[:, :1], full[:, :1], w_q, w_k, w),
                "weight 1, (B, 1)",
            ),
            Case(
                "scores of several hundreds",
                (state, memory, padded, w_q, w_k, 400 * w),
                LARGE,
            ),
            Case(
                "allowed scores of -10 billion",
                (state.abs(), memory, first, *low),
                LOWEST,
            ),
            Case("float64", (*wide[:2], padded, *wide[2:]), FLOAT64),
            Case(
                "gradients",
                (state, memory, padded, w_q, w_k, w),
                "all weights learn from it",
                gradients=("state", "memory", "w_q", "w_k", "w"),
            ),
        ]

    run("check_additive_step", function, reference, cases)
