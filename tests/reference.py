"""The formulas as plain loops over single numbers: the yardstick of the tests, not a fast path.

Everything here works on nested lists of 0-dimensional tensors, so that no broadcasting, no
transposition and no matrix product of PyTorch takes part, and autograd still gives gradients.
Nothing here imports `src`.
"""

import math

import torch
from torch import Tensor


def nested(tensor: Tensor) -> list:
    """A tensor as nested lists of its numbers; gradients flow back."""
    return tensor if tensor.dim() == 0 else [nested(part) for part in tensor.unbind()]


def joined(lists: list) -> Tensor:
    """The inverse of `nested`."""
    return lists if isinstance(lists, Tensor) else torch.stack([joined(part) for part in lists])


def dot(a: list, b: list) -> Tensor:
    """Σᵢ aᵢ · bᵢ."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(x: list, weight: list, bias: list | None) -> list:
    """One vector through a dense layer."""
    out = [dot(row, x) for row in weight]
    return out if bias is None else [o + b for o, b in zip(out, bias, strict=True)]


def softmax(scores: list, allowed: list[bool]) -> list:
    """exp(sᵢ) / Σ exp(sⱼ) over the allowed; zeros for the others, and if none is allowed."""
    if not any(allowed):
        return [s * 0 for s in scores]
    exps = [s.exp() if ok else s * 0 for s, ok in zip(scores, allowed, strict=True)]
    total = sum(exps)
    return [e / total for e in exps]


def attention(query, key, value, mask, scale=None):
    """One sequence, one head: lists (T, K), (S, K), (S, Kv), mask (T, S) -> output, weights."""
    scale = 1 / math.sqrt(len(query[0])) if scale is None else scale
    outputs, all_weights = [], []
    for q, allowed in zip(query, mask, strict=True):
        weights = softmax([dot(q, k) * scale for k in key], allowed)
        columns = range(len(value[0]))
        outputs.append([dot(weights, [v[c] for v in value]) for c in columns])
        all_weights.append(weights)
    return outputs, all_weights


def multi_head(module, query, key, value, mask):
    """A batch through `MultiHeadAttention`'s parameters; tensors in, output and weights out."""
    weight, bias = nested(module.in_proj.weight), module.in_proj.bias
    bias = [torch.zeros(())] * len(weight) if bias is None else nested(bias)
    out_bias = None if module.out_proj.bias is None else nested(module.out_proj.bias)
    d_model, heads = len(weight[0]), module.num_heads
    width = d_model // heads
    outputs, all_weights = [], []
    for b in range(len(query)):
        allowed = mask[b].tolist()
        parts = []
        for part, x in enumerate((query[b], key[b], value[b])):
            rows = slice(part * d_model, (part + 1) * d_model)
            parts.append([linear(token, weight[rows], bias[rows]) for token in nested(x)])
        heads_out, heads_weights = [], []
        for h in range(heads):
            cols = slice(h * width, (h + 1) * width)
            out, w = attention(*([token[cols] for token in part] for part in parts), allowed)
            heads_out.append(out)
            heads_weights.append(w)
        concat = [sum((heads_out[h][t] for h in range(heads)), []) for t in range(len(query[b]))]
        outputs.append([linear(row, nested(module.out_proj.weight), out_bias) for row in concat])
        all_weights.append(heads_weights)
    return joined(outputs), joined(all_weights)


def layer_norm(norm, x):
    """``(x − mean) / sqrt(variance + eps) · gain + bias`` over the last axis of (B, T, D)."""
    gain, bias = nested(norm.weight), nested(norm.bias)

    def one(vector):
        mean = sum(vector) / len(vector)
        variance = sum((v - mean) ** 2 for v in vector) / len(vector)
        spread = (variance + norm.eps).sqrt()
        return [(v - mean) / spread * g + c for v, g, c in zip(vector, gain, bias, strict=True)]

    return joined([[one(token) for token in row] for row in nested(x)])


def feed_forward(module, x, activation="relu"):
    """``W₂ · f(W₁ · x + b₁) + b₂`` on each vector of (B, T, D)."""

    def bend(number):
        if activation == "relu":
            return number if number > 0 else number * 0
        return number * 0.5 * (1 + torch.erf(number / math.sqrt(2)))

    def one(vector):
        hidden = linear(vector, nested(module.inner.weight), nested(module.inner.bias))
        return linear(
            [bend(h) for h in hidden], nested(module.outer.weight), nested(module.outer.bias)
        )

    return joined([[one(token) for token in row] for row in nested(x)])


def encoder_layer(layer, x, mask, norm_first, activation="relu"):
    """Self-attention and feed-forward network, each with residual and LayerNorm."""
    norms = [add_norm.norm for add_norm in layer.add_norms]

    def attend(h):
        return multi_head(layer.self_attention, h, h, h, mask)[0]

    def feed(h):
        return feed_forward(layer.feed_forward, h, activation)

    for norm, sublayer in zip(norms, (attend, feed), strict=True):
        x = _residual(x, norm, sublayer, norm_first)
    return x


def decoder_layer(layer, x, memory, causal, memory_mask, norm_first, activation="relu"):
    """Causal self-attention, attention over ``memory`` and feed-forward network."""
    norms = [add_norm.norm for add_norm in layer.add_norms]

    def attend(h):
        return multi_head(layer.self_attention, h, h, h, causal)[0]

    def look(h):
        return multi_head(layer.cross_attention, h, memory, memory, memory_mask)[0]

    def feed(h):
        return feed_forward(layer.feed_forward, h, activation)

    for norm, sublayer in zip(norms, (attend, look, feed), strict=True):
        x = _residual(x, norm, sublayer, norm_first)
    return x


def _residual(x, norm, sublayer, norm_first):
    if norm_first:
        return x + sublayer(layer_norm(norm, x))
    return layer_norm(norm, x + sublayer(x))


def sinusoid(position: int, column: int, d_model: int) -> float:
    """Entry of the sinusoidal table; even columns are sines."""
    angle = position / 10000 ** ((column - column % 2) / d_model)
    return math.sin(angle) if column % 2 == 0 else math.cos(angle)


def rotate(vector: list[float], position: int) -> list[float]:
    """Turn the planes (j, j + K/2) as complex numbers, by ``position / 10000^(2j/K)``."""
    half = len(vector) // 2
    turned = [
        complex(vector[j], vector[j + half])
        * complex(math.cos(a := position / 10000 ** (2 * j / len(vector))), math.sin(a))
        for j in range(half)
    ]
    return [z.real for z in turned] + [z.imag for z in turned]


def causal(num_queries: int, num_keys: int) -> Tensor:
    """The last query sees all keys, the one before all but the last, and so on."""
    return torch.tensor(
        [[s <= t + num_keys - num_queries for s in range(num_keys)] for t in range(num_queries)]
    )
