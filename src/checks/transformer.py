"""Checkers of chapters 10.7 and 15.2: layer normalisation, loss, and the whole attention layer."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from src.checks.engine import FLOAT64, LOWEST, Case, run
from src.multihead import MultiHeadAttention
from src.scoring import DotProduct
from src.training.optimization import token_loss


def check_layer_norm(function: Callable) -> None:
    """Check layer normalisation (chapter 10.7).

    The function's signature is ``layer_norm(x, gain, bias, eps)``: tokens ``(B, T, D)``, gain and
    bias ``(D,)`` and a small number give ``(x - mean) / sqrt(variance + eps) · gain + bias``, with
    mean and variance (over D, not D - 1, numbers) of each token.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, gain.shape, gain, bias, eps)

    def cases() -> list[Case]:
        x, gain, bias = 2 * torch.randn(3, 5, 7) + 1, torch.randn(7), torch.randn(7)
        wide = tuple(t.double() for t in (x, gain, bias))
        axis = "mean and variance over dim=-1 with keepdim=True, `unbiased=False`"
        return [
            Case("tokens of width 7", (x, gain, bias, 1e-5), axis),
            Case(
                "as many tokens as columns",
                (x[:, :5, :5], gain[:5], bias[:5], 1e-5),
                axis,
            ),
            Case(
                "a token of equal numbers",
                (0 * x + 3, gain, bias, 1e-5),
                "eps prevents 0 / 0",
            ),
            Case(
                "numbers as small as eps",
                (0.01 * x, gain, bias, 1e-3),
                "eps is in the root",
            ),
            Case(
                "numbers near 1,000",
                (x + 1000, gain, bias, 1e-5),
                "E[x²] - E[x]² loses all digits here: average the squares of x - mean",
                tolerance=2e-3,
            ),
            Case("float64", (*wide, 1e-5), FLOAT64),
            Case(
                "gradients",
                (x, gain, bias, 1e-5),
                "mean and variance depend on x, too",
                gradients=("x", "gain", "bias"),
            ),
        ]

    run("check_layer_norm", function, reference, cases)


def check_token_loss(function: Callable) -> None:
    """Check the loss that a translator is trained with (chapter 10.7).

    The function's signature is ``loss(logits, targets, pad_id, smoothing)``: logits ``(B, T, V)``,
    int64 targets ``(B, T)``, the id of padding and a share ε give a tensor without axes: the mean,
    over all real tokens of the batch, of the cross-entropy with ``1 - ε`` on the target plus
    ``ε / V`` on each word of the vocabulary, target and padding included.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(
        logits: Tensor, targets: Tensor, pad_id: int, smoothing: float
    ) -> Tensor:
        total, count = token_loss(logits, targets, pad_id, smoothing)
        return total / count

    def cases() -> list[Case]:
        logits = torch.randn(3, 5, 11)
        full = torch.randint(4, 11, (3, 5))
        real = torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
        padded, other = full.where(real, 0), full.where(real, 3)
        mean = (
            "sum over the real tokens of the whole batch, divide once by their number"
        )
        even = "(1 - ε) · (-log p[target]) + ε · (mean over all V words of -log p)"
        return [
            Case(
                "no padding, no smoothing",
                (logits, full, 0, 0.0),
                "log_softmax over dim=-1",
            ),
            Case("padding", (logits, padded, 0, 0.0), mean),
            Case("padding with id 3", (logits, other, 3, 0.0), "use `pad_id`"),
            Case("smoothing", (logits, full, 0, 0.2), even),
            Case("padding and smoothing", (logits, padded, 0, 0.2), f"{even}; {mean}"),
            Case(
                "logits of several hundreds",
                (400 * logits, padded, 0, 0.1),
                "log(softmax) is -inf where the softmax is 0: use log_softmax",
            ),
            Case(
                "gradients",
                (logits, padded, 0, 0.2),
                "padding gets none",
                gradients=("logits",),
            ),
        ]

    run("check_token_loss", function, reference, cases)


def check_multi_head_attention(function: Callable) -> None:
    """Check the whole layer, from matrices to output (chapter 15.2).

    The function's signature is ``layer(x, w_q, w_k, w_v, w_o, num_heads, mask)``: tokens
    ``(B, T, D)``, four matrices ``(D, D)`` with ``q = x @ w_q``, a number H of heads, head 0 in
    the first D / H columns, and a boolean mask ``(B, 1, T)``, true for keys that may be attended
    to, at least one in a row, give ``(B, T, D)``: the heads side by side, times ``w_o``.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(
        x: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        w_v: Tensor,
        w_o: Tensor,
        num_heads: int,
        mask: Tensor,
    ) -> Tensor:
        module = MultiHeadAttention(
            x.shape[-1], num_heads, bias=False, core=DotProduct(backend="explicit")
        )
        rows = torch.cat([w_q, w_k, w_v], dim=1).T
        parameters = {"in_proj.weight": rows, "out_proj.weight": w_o.T}
        return functional_call(module, parameters, (x,), {"mask": mask})

    def cases() -> list[Case]:
        x, matrices = torch.randn(2, 5, 21), tuple(torch.randn(4, 21, 21) / 21**0.5)
        full = torch.ones(2, 1, 5, dtype=torch.bool)
        padded = torch.arange(5) < torch.tensor([5, 2])[:, None, None]
        first = torch.arange(5).expand(2, 1, 5) < 1
        low = (1e10 * matrices[0], *matrices[1:])
        wide = tuple(m.double() for m in matrices)
        heads = (
            "(B, T, D) to (B, H, T, K) and back; scale 1/sqrt(K); softmax over the keys"
        )
        mask = "the mask (B, 1, T) needs an axis for the heads; -inf before the softmax"
        return [
            Case(
                "one head",
                (x, *matrices, 1, full),
                "softmax(x w_q (x w_k)ᵀ / sqrt(K)) x w_v",
            ),
            Case("3 heads", (x, *matrices, 3, full), heads),
            Case("padding", (x, *matrices, 3, padded), mask),
            Case(
                "as many tokens as heads",
                (x[:, :3], *matrices, 3, padded[..., :3]),
                mask,
            ),
            Case("allowed scores of -10 billion", (x, *low, 3, first), LOWEST),
            Case("float64", (x.double(), *wide, 7, padded), FLOAT64),
            Case(
                "gradients",
                (x, *matrices, 3, padded),
                "all four matrices learn",
                gradients=("x", "w_q", "w_k", "w_v", "w_o"),
            ),
        ]

    run("check_multi_head_attention", function, reference, cases)


def check_effective_number(function: Callable) -> None:
    """Check how many keys a query really looks at (chapter 15.2).

    The function's signature is ``effective_number(weights)``: weights ``(..., S)`` whose rows sum
    to 1, some of them possibly 0, give numbers ``(...)`` between 1 and S: exp of the entropy,
    ``exp(-Σ w ln w)``, where a weight of 0 adds nothing.

    Raises:
        CheckFailed: If it is wrong in any case.
        TypeError: If ``function`` can't be called.
    """

    def reference(weights: Tensor) -> Tensor:
        return torch.special.entr(weights).sum(-1).exp()

    def cases() -> list[Case]:
        scores = torch.randn(2, 3, 7)
        zero = scores.masked_fill(torch.arange(7) > 3, float("-inf")).softmax(-1)
        each = "sum over the last axis alone; natural logarithm"
        limit = "0 · ln 0 is NaN for a computer and 0 in the limit: `torch.special.entr`, `xlogy`"
        return [
            Case(
                "one query",
                (torch.tensor([0.1, 0.1, 0.3, 0.5]),),
                "exp(-Σ w ln w), a tensor",
            ),
            Case(
                "equal weights",
                (torch.full((5, 7), 1 / 7),),
                "it is the number of keys, 7",
            ),
            Case("axes (2, 3, 7)", (scores.softmax(-1),), each),
            Case("weights of 0", (zero,), limit),
            Case("all weight on one key", (torch.eye(5),), f"it is 1; {limit}"),
            Case("float64", (scores.double().softmax(-1),), FLOAT64),
        ]

    run("check_effective_number", function, reference, cases)
