"""The formulas as plain loops over Python's floats: the yardstick of the tests, not a fast path.

Neither PyTorch nor `src` takes part. Everything is about one row of a batch: a sentence is a list
of vectors, a vector a list of numbers, a matrix a list of its rows. Of a module, ``p`` holds the
parameters by name and ``c`` the configuration.

Where dropout of rate r would act, numbers are multiplied by 1 + r. A test that lets PyTorch's
dropout do the same sees that it acts in each of its places, and in each of them once.
"""

import math
from itertools import product
from operator import mul

NEVER = -math.inf


def part(p, name):
    """The parameters of the submodule ``name``."""
    start = f"{name}."
    return {key[len(start) :]: value for key, value in p.items() if key.startswith(start)}


def dot(a, b):
    assert len(a) == len(b)
    return sum(map(mul, a, b))


def add(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def times(factor, vector):
    return [factor * x for x in vector]


def linear(p, x, rows=slice(None)):
    """W·x + b, or some rows of it."""
    out = [dot(row, x) for row in p["weight"][rows]]
    return add(out, p["bias"][rows]) if "bias" in p else out


def weighted_sum(weights, vectors):
    return [dot(weights, column) for column in zip(*vectors, strict=True)]


# ---- masks


def padding_mask(ids, pad_id):
    return [[token != pad_id for token in ids]]


def valid_lens_mask(lens, num_keys):
    """One length for all queries, or one for each."""
    return [[s < n for s in range(num_keys)] for n in (lens if isinstance(lens, list) else [lens])]


def window_mask(num_queries, num_keys, left, right):
    """The last query stands at the last key."""
    places = range(num_keys - num_queries, num_keys)
    return [[at - left <= s <= at + right for s in range(num_keys)] for at in places]


def causal_mask(num_queries, num_keys):
    return window_mask(num_queries, num_keys, left=num_keys, right=0)


def from_key_padding_mask(ignored):
    return [[not one for one in ignored]]


def to_additive(mask):
    return [0.0 if allowed else NEVER for allowed in mask]


def from_additive(mask):
    return [number == 0 for number in mask]


# ---- attention


def softmax(scores, allowed):
    """exp(sᵢ) / Σ exp(sⱼ) over the allowed; zeros for the others, and if none is allowed."""
    exps = [math.exp(s) if ok else 0.0 for s, ok in zip(scores, allowed, strict=True)]
    total = sum(exps)
    return [e / total if total else 0.0 for e in exps]


def attend(score, query, key, value, mask, drop=0.0):
    """Output and weights: each query takes a mean of the values, weighted by its scores."""
    weights = [
        softmax([score(q, k) for k in key], allowed) for q, allowed in zip(query, mask, strict=True)
    ]
    return [times(1 + drop, weighted_sum(row, value)) for row in weights], weights


def attention(query, key, value, mask, scale=None):
    scale = 1 / math.sqrt(len(query[0])) if scale is None else scale
    return attend(lambda q, k: scale * dot(q, k), query, key, value, mask)


def multi_head(p, heads, query, key, value, mask, drop=0.0, turn=None, score=None):
    """Output and the weights of each head; ``turn`` is applied to queries and keys."""
    score = scaled_dot_score if score is None else score
    d_model, inward = len(query[0]), part(p, "in_proj")
    width = d_model // heads
    q, k, v = (
        [linear(inward, token, slice(i * d_model, (i + 1) * d_model)) for token in tokens]
        for i, tokens in enumerate((query, key, value))
    )
    outputs, maps = [[] for _ in query], []
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        q_h, k_h, v_h = ([token[own] for token in tokens] for tokens in (q, k, v))
        if turn is not None:
            q_h, k_h = ([turn(x, i) for i, x in enumerate(tokens)] for tokens in (q_h, k_h))
        found, weights = attend(score, q_h, k_h, v_h, mask, drop)
        outputs = [a + b for a, b in zip(outputs, found, strict=True)]
        maps.append(weights)
    return [linear(part(p, "out_proj"), token) for token in outputs], maps


# ---- kernels


def gaussian(u):
    return math.exp(-u * u / 2)


def boxcar(u):
    return 1.0 if abs(u) <= 1 else 0.0


def triangle(u):
    return max(0.0, 1 - abs(u))


def epanechnikov(u):
    return max(0.0, 1 - u * u)


def nadaraya_watson(query, keys, values, kernel, width, mask):
    """Predictions and weights; zeros where no key is in reach."""
    outputs, rows = [], []
    for x, allowed in zip(query, mask, strict=True):
        raw = [kernel((x - k) / width) * ok for k, ok in zip(keys, allowed, strict=True)]
        total = sum(raw)
        rows.append([weight / total if total else 0.0 for weight in raw])
        outputs.append(dot(rows[-1], values))
    return outputs, rows


def leave_one_out_mask(size):
    return [[t != s for s in range(size)] for t in range(size)]


# ---- scores


def scaled_dot_score(q, k):
    return dot(q, k) / math.sqrt(len(q))


def bilinear_score(q, k, p):
    return sum(
        a * w * b
        for a, row in zip(q, p["weight"], strict=False)
        for w, b in zip(row, k, strict=True)
    )


def additive_score(q, k, p):
    total = 0.0
    for w, to_query, to_key in zip(
        p["output.weight"][0], p["query_proj.weight"], p["key_proj.weight"], strict=True
    ):
        total += w * math.tanh(dot(to_query, q) + dot(to_key, k))
    return total


# ---- positions


def sinusoid(position, column, d_model):
    """Even columns are sines, odd ones cosines of the same angle."""
    angle = position / 10000 ** ((column - column % 2) / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


def sinusoidal_table(max_len, d_model):
    return [[sinusoid(i, c, d_model) for c in range(d_model)] for i in range(max_len)]


def rotate(vector, position):
    """Turn the planes (j, j + K/2) as complex numbers, by ``position / 10000^(2j/K)``."""
    half = len(vector) // 2
    turned = []
    for j in range(half):
        angle = position / 10000 ** (2 * j / len(vector))
        turned.append(
            complex(vector[j], vector[j + half]) * complex(math.cos(angle), math.sin(angle))
        )
    return [z.real for z in turned] + [z.imag for z in turned]


# ---- layers


def layer_norm(p, x, eps):
    """``(x − mean) / sqrt(variance + eps) · gain + bias``."""
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + eps)
    return [g * (v - mean) / spread + b for v, g, b in zip(x, p["weight"], p["bias"], strict=True)]


def relu(number):
    return max(number, 0.0)


def gelu(number):
    return number * (1 + math.erf(number / math.sqrt(2))) / 2


def feed_forward(p, x, activation, drop=0.0):
    """``W₂ · f(W₁ · x + b₁) + b₂`` of one vector."""
    bend = {"relu": relu, "gelu": gelu}[activation]
    hidden = [bend(h) for h in linear(part(p, "inner"), x)]
    return linear(part(p, "outer"), times(1 + drop, hidden))


def add_norm(p, c, x, sublayer):
    """Of a sentence: LayerNorm(x + drop(f(x))), or, pre-norm, x + drop(f(LayerNorm(x)))."""

    def norm(tokens):
        return [layer_norm(part(p, "norm"), token, c.norm_eps) for token in tokens]

    inner = sublayer(norm(x) if c.norm_first else x)
    total = [add(a, times(1 + c.dropout, b)) for a, b in zip(x, inner, strict=True)]
    return total if c.norm_first else norm(total)


def embeddings(p, c, ids, offset=0):
    rows = []
    for t, token in enumerate(ids, offset):
        row = p["tokens.weight"][token]
        if c.scale_embeddings:
            row = times(math.sqrt(c.d_model), row)
        if "types.weight" in p:
            row = add(row, p["types.weight"][0])
        if c.positions == "sinusoidal":
            row = add(row, [sinusoid(t, column, c.d_model) for column in range(c.d_model)])
        if c.positions == "learned":
            row = add(row, p["positions.weight"][t])
        if c.embedding_norm:
            row = layer_norm(part(p, "norm"), row, c.norm_eps)
        rows.append(times(1 + c.dropout, row))
    return rows


def _layer(p, c, x, blocks):
    """Each of ``blocks`` and then the network, all within Add & Norm; the blocks' weights."""
    maps = []

    def attend_by(name, key, mask):
        def sublayer(h):
            turn = rotate if c.positions == "rotary" and key is None else None
            kv = h if key is None else key
            out, weights = multi_head(
                part(p, name), c.num_heads, h, kv, kv, mask, c.attention_dropout, turn
            )
            maps.append(weights)
            return out

        return sublayer

    def network(h):
        return [
            feed_forward(part(p, "feed_forward"), token, c.activation, c.ffn_dropout) for token in h
        ]

    for i, sublayer in enumerate([*(attend_by(*block) for block in blocks), network]):
        x = add_norm(part(p, f"add_norms.{i}"), c, x, sublayer)
    return x, maps


def encoder_layer(p, c, x, mask):
    """The output, and the weights of self-attention in a list."""
    return _layer(p, c, x, [("self_attention", None, mask)])


def decoder_layer(p, c, x, memory, memory_mask):
    """The output, and the weights of self- and cross-attention; ``memory_mask`` is (T, S)."""
    own = ("self_attention", None, causal_mask(len(x), len(x)))
    return _layer(p, c, x, [own, ("cross_attention", memory, memory_mask)])


def _stack(p, c, ids, layers, layer, *rest):
    x, maps = embeddings(part(p, "embeddings"), c, ids), []
    for i in range(layers):
        x, weights = layer(part(p, f"layers.{i}"), c, x, *rest)
        maps.append(weights)
    if c.norm_first:
        x = [layer_norm(part(p, "norm"), token, c.norm_eps) for token in x]
    return x, maps


def encoder(p, c, ids, mask):
    return _stack(p, c, ids, c.num_encoder_layers, encoder_layer, mask)


def decoder(p, c, ids, memory, memory_mask):
    return _stack(p, c, ids, c.num_decoder_layers, decoder_layer, memory, memory_mask)


def transformer(p, c, src, tgt):
    """Logits, and the weights of encoder, decoder and cross-attention, layer by layer."""
    real = padding_mask(src, c.pad_id)
    memory, own = encoder(part(p, "encoder"), c, src, real * len(src))
    x, both = decoder(part(p, "decoder"), c, tgt, memory, real * len(tgt))
    logits = [linear(part(p, "output"), token) for token in x]
    return logits, [w for (w,) in own], [w for w, _ in both], [w for _, w in both]


# ---- recurrent models


def sigmoid(number):
    return 1 / (1 + math.exp(-number))


def gru_step(p, layer, x, h):
    """Reset, update and new gate, as PyTorch documents its GRU."""
    names = (("weight_ih", "bias_ih", x), ("weight_hh", "bias_hh", h))
    from_x, from_h = (
        linear({"weight": p[f"{weight}_{layer}"], "bias": p[f"{bias}_{layer}"]}, vector)
        for weight, bias, vector in names
    )
    n, state = len(h), []
    for i, old in enumerate(h):
        reset = sigmoid(from_x[i] + from_h[i])
        update = sigmoid(from_x[n + i] + from_h[n + i])
        new = math.tanh(from_x[2 * n + i] + reset * from_h[2 * n + i])
        state.append((1 - update) * new + update * old)
    return state


def _read(p, layer, inputs):
    h, states = [0.0] * len(p[f"weight_hh_{layer}"][0]), []
    for x in inputs:
        h = gru_step(p, layer, x, h)
        states.append(h)
    return states


def recurrent_encoder(p, c, src):
    """The top layer's states, zero at the padding at the end, and its last state."""
    last = max(i for i, token in enumerate(src) if token != c.pad_id)
    rnn = part(p, "rnn")
    states = [times(1 + c.dropout, p["embedding.weight"][token]) for token in src[: last + 1]]
    for layer in range(c.num_encoder_layers):
        forth = _read(rnn, f"l{layer}", states)
        state = forth[-1]
        if c.bidirectional:
            back = _read(rnn, f"l{layer}_reverse", states[::-1])[::-1]
            state = forth[-1] + back[0]
            forth = [a + b for a, b in zip(forth, back, strict=True)]
        states = forth
    padding = [[0.0] * c.d_encoder for _ in src[last + 1 :]]
    return states + padding, state


def seq2seq(p, c, src, tgt, score=None):
    """Logits, and the weights that made each step's context, if there is a ``score``."""
    states, last = recurrent_encoder(part(p, "encoder"), c, src)
    real = padding_mask(src, c.pad_id)
    first = [math.tanh(number) for number in linear(part(p, "bridge"), last)]
    n = c.d_decoder
    hidden = [first[i * n : (i + 1) * n] for i in range(c.num_decoder_layers)]

    def ask():
        if score is None:
            return last, None
        (context,), (weights,) = attend(score, [hidden[-1]], states, states, real)
        return context, weights

    logits, maps = [], []
    context, weights = ask()
    for token in tgt:
        x = times(1 + c.dropout, p["embedding.weight"][token]) + context
        for i in range(c.num_decoder_layers):
            hidden[i] = x = gru_step(part(p, "rnn"), f"l{i}", x, hidden[i])
        before, (context, weights) = (context, weights), ask()
        read, used = (context, weights) if c.query_from == "current" else before
        logits.append(linear(part(p, "output"), times(1 + c.dropout, x + read)))
        maps.append(used)
    return logits, maps


# ---- decoding: ``following`` maps the tokens so far to the probabilities of all next ones


def length_norm(length, alpha):
    return ((5 + length) / 6) ** alpha


def log_probability(following, tokens):
    return sum(math.log(following(tokens[:t])[token]) for t, token in enumerate(tokens))


def greedy(following, max_len, eos, banned):
    tokens = ()
    while len(tokens) < max_len and eos not in tokens:
        probs = following(tokens)
        tokens += (max(set(range(len(probs))) - banned, key=probs.__getitem__),)
    return tokens, log_probability(following, tokens)


def sampling_candidates(probs, temperature, top_k, top_p):
    """Tokens by falling probability and the probabilities that are left; 0 means: cut off."""
    powers = {i: p ** (1 / temperature) for i, p in enumerate(probs)}
    tokens = sorted(powers, key=lambda i: -powers[i])[:top_k]
    total = sum(powers[i] for i in tokens)
    left = [powers[i] / total for i in tokens]
    size = 1
    while top_p is not None and size < len(left) and sum(left[:size]) < top_p:
        size += 1
    size = len(left) if top_p is None else size
    return tokens, left[:size] + [0.0] * (len(left) - size)


def sentences(vocab, max_len, eos, banned):
    """Every one there is: it ends with ``eos`` or is ``max_len`` long."""
    words = [token for token in range(vocab) if token not in banned and token != eos]
    for length in range(1, max_len + 1):
        for start in product(words, repeat=length - 1):
            for last in [*words, eos] if length == max_len else [eos]:
                yield (*start, last)


def exhaustive_search(following, max_len, eos, banned, alpha):
    """All sentences with their scores, best first."""
    every = sentences(len(following(())), max_len, eos, banned)
    scored = ((log_probability(following, s) / length_norm(len(s), alpha), s) for s in every)
    return sorted(scored, reverse=True)


def beam_search(following, max_len, eos, banned, alpha, beam_size):
    """Hypotheses with their scores, best first; the search never stops early."""
    running, found = [((), 0.0)], []
    for length in range(1, max_len + 1):
        extended = [
            ((*tokens, token), total + math.log(p))
            for tokens, total in running
            for token, p in enumerate(following(tokens))
            if token not in banned
        ]
        best = sorted(extended, key=lambda pair: -pair[1])[:beam_size]
        ended = [(t, s) for t, s in best if t[-1] == eos or length == max_len]
        found += [(total / length_norm(length, alpha), tokens) for tokens, total in ended]
        running = [pair for pair in best if pair not in ended]
    return sorted(found, reverse=True)


# ---- optimization


def token_loss(logits, targets, pad_id, smoothing):
    """Summed cross-entropy with the mixed target (1 − ε)·[v = y] + ε/V, and the real tokens."""
    total, count = 0.0, 0
    for scores, target in zip(logits, targets, strict=True):
        if target != pad_id:
            log_norm = math.log(sum(math.exp(s) for s in scores))
            for v, score in enumerate(scores):
                share = (1 - smoothing) * (v == target) + smoothing / len(scores)
                total -= share * (score - log_norm)
            count += 1
    return total, count


def warmup_rate(step, warmup, d_model):
    """Equation 3 of the paper."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def clip(gradients, limit):
    """All gradients shortened by one factor, so that they are ``limit`` long, and their length."""
    length = math.sqrt(sum(g * g for gradient in gradients for g in gradient))
    return [times(min(1.0, limit / length), gradient) for gradient in gradients], length


def adam(weights, gradients, rates, betas, eps, decay=0.0):
    """Numbers after one update for each rate; ``decay`` is the decoupled one."""
    first, second = [0.0] * len(weights), [0.0] * len(weights)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        for i, g in enumerate(gradient):
            first[i] = betas[0] * first[i] + (1 - betas[0]) * g
            second[i] = betas[1] * second[i] + (1 - betas[1]) * g * g
            mean, square = first[i] / (1 - betas[0] ** t), second[i] / (1 - betas[1] ** t)
            weights = [*weights]
            weights[i] -= rate * (decay * weights[i] + mean / (math.sqrt(square) + eps))
    return weights


def best(values):
    """The place of the greatest, the first of equal ones."""
    return values.index(max(values))
