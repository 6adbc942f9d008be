"""Recurrent models: plain loops, d2l's layers, padding, steps, gradients, refusals."""

import json

import pytest
import torch
from torch import nn

from src.decoding import greedy
from src.recurrent import (
    AttentionSeq2Seq,
    DecoderState,
    RecurrentConfig,
    RecurrentEncoder,
    Seq2Seq,
)

# All sizes differ and are prime where they can be.
SIZES = {"src_vocab_size": 17, "tgt_vocab_size": 19, "d_embed": 5, "d_score": 13, "dropout": 0.0}
VARIANTS = [
    (Seq2Seq, {}),
    (Seq2Seq, {"num_encoder_layers": 2, "num_decoder_layers": 3, "bidirectional": True}),
    (AttentionSeq2Seq, {}),
    (AttentionSeq2Seq, {"query_from": "current", "num_encoder_layers": 3}),
    (AttentionSeq2Seq, {"bidirectional": True, "num_decoder_layers": 2}),
    (AttentionSeq2Seq, {"scorer": "bilinear", "query_from": "current", "bidirectional": True}),
    (AttentionSeq2Seq, {"scorer": "dot", "d_decoder": 14}),
    (AttentionSeq2Seq, {"scorer": "scaled_dot", "d_decoder": 14, "query_from": "current"}),
]
IDS = [f"{kind.__name__}-{'-'.join(map(str, over.values()))}" for kind, over in VARIANTS]
variants = pytest.mark.parametrize(("kind", "over"), VARIANTS, ids=IDS)


def make(kind, over, **more):
    fields = {"d_encoder": 14, "d_decoder": 11, **SIZES, **over, **more}
    return kind(RecurrentConfig.from_dict(fields)).double().eval()


def batch():
    """Three source rows of 7, 4 and 1 real tokens; target rows that start with <bos>."""
    src = torch.randint(3, 17, (3, 7))
    src[1, 4:] = 0
    src[2, 1:] = 0
    tgt = torch.randint(3, 19, (3, 5))
    tgt[:, 0] = 1
    return src, tgt


# The formulas, written out for one sentence at a time


def gru_step(rnn, suffix, x, h):
    """One step of a GRU layer as torch documents it: reset, update and new gate."""
    w_x, w_h = getattr(rnn, f"weight_ih_{suffix}"), getattr(rnn, f"weight_hh_{suffix}")
    b_x, b_h = getattr(rnn, f"bias_ih_{suffix}"), getattr(rnn, f"bias_hh_{suffix}")
    n = len(h)
    xs, hs = w_x @ x + b_x, w_h @ h + b_h
    reset = torch.sigmoid(xs[:n] + hs[:n])
    update = torch.sigmoid(xs[n : 2 * n] + hs[n : 2 * n])
    new = torch.tanh(xs[2 * n :] + reset * hs[2 * n :])
    return (1 - update) * new + update * h


def read_layer(rnn, suffix, inputs):
    h, states = inputs[0].new_zeros(rnn.hidden_size), []
    for x in inputs:
        h = gru_step(rnn, suffix, x, h)
        states.append(h)
    return states


def encode(model, ids):
    """States of the top layer, and the last state."""
    rnn, states = model.encoder.rnn, [model.encoder.embedding.weight[i] for i in ids]
    for layer in range(rnn.num_layers):
        forth = read_layer(rnn, f"l{layer}", states)
        last = forth[-1]
        if rnn.bidirectional:
            back = read_layer(rnn, f"l{layer}_reverse", states[::-1])[::-1]
            last = torch.cat([forth[-1], back[0]])
            forth = [torch.cat(both) for both in zip(forth, back, strict=True)]
        states = forth
    return states, last


def score(scorer, query, key):
    name = type(scorer).__name__
    if name == "AdditiveScore":
        hidden = torch.tanh(scorer.query_proj.weight @ query + scorer.key_proj.weight @ key)
        return (scorer.output.weight @ hidden)[0]
    if name == "BilinearScore":
        return query @ scorer.weight @ key
    return query @ key / (len(query) ** 0.5 if name == "ScaledDotScore" else 1)


def reference(model, ids, tgt):
    """Logits (T, V) and weights (T, S) of one sentence, token by token, from the formulas."""
    config = model.config
    states, last = encode(model, ids)
    first = torch.tanh(model.bridge.weight @ last + model.bridge.bias)
    hidden = list(first.view(config.num_decoder_layers, config.d_decoder))

    def ask():
        if not hasattr(model, "scorer"):
            return last, None
        exps = torch.stack([score(model.scorer, hidden[-1], state) for state in states]).exp()
        weights = exps / exps.sum()
        return sum(w * state for w, state in zip(weights, states, strict=True)), weights

    logits, maps = [], []
    context, weights = ask()
    for token in tgt:
        x = torch.cat([model.embedding.weight[token], context])
        for layer in range(config.num_decoder_layers):
            hidden[layer] = x = gru_step(model.rnn, f"l{layer}", x, hidden[layer])
        new_context, new_weights = ask()
        use_new = config.query_from == "current"
        read = torch.cat([hidden[-1], new_context if use_new else context])
        logits.append(model.output.weight @ read + model.output.bias)
        maps.append(new_weights if use_new else weights)
        context, weights = new_context, new_weights
    return torch.stack(logits), None if weights is None else torch.stack(maps)


@variants
def test_forward_is_the_formula(kind, over):
    model = make(kind, over)
    src, tgt = batch()
    logits = model(src, tgt)
    assert logits.shape == (3, 5, 19)
    for row, length in enumerate((7, 4, 1)):
        expected, _ = reference(model, src[row, :length], tgt[row])
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-12)


@variants
def test_gradients_are_those_of_the_formula(kind, over):
    model = make(kind, over)
    src, tgt = batch()
    factor = torch.randn(3, 5, 19, dtype=torch.float64)
    names, parameters = zip(*model.named_parameters(), strict=True)
    got = torch.autograd.grad((model(src, tgt) * factor).sum(), parameters)
    total = sum(
        (reference(model, src[row, :length], tgt[row])[0] * factor[row]).sum()
        for row, length in enumerate((7, 4, 1))
    )
    expected = torch.autograd.grad(total, parameters)
    for name, g, e in zip(names, got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-11, msg=name)
        assert g.abs().sum() > 0, name  # every parameter learns


def test_the_last_state_is_the_one_at_the_true_last_token():
    encoder = RecurrentEncoder(RecurrentConfig(17, 19, d_encoder=14, dropout=0.0)).double()
    src, _ = batch()
    states, last = encoder(src)
    for row, length in enumerate((7, 4, 1)):
        assert torch.equal(last[row], states[row, length - 1])
        assert not states[row, length:].any()  # nothing is made of padding
    # A pad id inside a sentence ends nothing: the last real token counts.
    src[1, 2] = 0
    assert torch.equal(*(x[1] for x in (encoder(src)[1], encoder(src)[0][:, 3])))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_encoder_equals_d2l(num_layers):
    d2l = pytest.importorskip("d2l.torch", reason="d2l is not installed")
    ours = RecurrentEncoder(
        RecurrentConfig(17, 19, d_embed=5, d_encoder=11, num_encoder_layers=num_layers, dropout=0.0)
    )
    theirs = d2l.Seq2SeqEncoder(17, 5, 11, num_layers)
    theirs.embedding.load_state_dict(ours.embedding.state_dict())
    theirs.rnn.load_state_dict(ours.rnn.state_dict())
    src = torch.randint(3, 17, (3, 7))
    states, last = ours(src)
    their_states, their_hidden = theirs(src)
    # Time comes first there, and the state of every layer is handed on.
    torch.testing.assert_close(states, their_states.transpose(0, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(last, their_hidden[-1], rtol=0, atol=1e-6)


def test_decoder_equals_one_made_of_d2l_layers():
    """The book's decoder: context before embedding, logits from the state alone."""
    d2l = pytest.importorskip("d2l.torch", reason="d2l is not installed")
    units, layers, lens = 11, 2, torch.tensor([7, 4, 1])
    model = make(AttentionSeq2Seq, {"d_encoder": units, "num_decoder_layers": layers}).float()
    attention = d2l.AdditiveAttention(units, units, 13, 0.0)
    attention.W_q.weight, attention.W_k.weight, attention.w_v.weight = (
        model.scorer.query_proj.weight, model.scorer.key_proj.weight, model.scorer.output.weight,
    )  # fmt: skip
    rnn = nn.GRU(5 + units, units, layers)
    weights = model.rnn.state_dict()
    first = weights["weight_ih_l0"]
    weights["weight_ih_l0"] = torch.cat([first[:, 5:], first[:, :5]], dim=1)
    rnn.load_state_dict(weights)
    nn.init.zeros_(model.output.weight[:, units:].detach())  # nothing from the context itself
    src, tgt = batch()
    memory, _ = model.encoder(src)
    hidden = torch.randn(layers, 3, units)

    keys = model.scorer.project_key(memory)
    mask = (src != 0).unsqueeze(1)
    context, maps = model._attend(hidden[-1].unsqueeze(1), memory, keys, mask)
    logits, _ = model.advance(
        tgt, DecoderState(hidden, context.squeeze(1), maps, memory, keys, mask)
    )
    for t in range(5):
        found = attention(hidden[-1].unsqueeze(1), memory, memory, lens)
        x = torch.cat([found, model.embedding(tgt[:, t : t + 1])], dim=-1)
        out, hidden = rnn(x.transpose(0, 1), hidden)
        expected = out[0] @ model.output.weight[:, :units].T + model.output.bias
        torch.testing.assert_close(logits[:, t], expected, rtol=0, atol=1e-5)


# Attention


@variants
def test_attention_maps_are_the_weights_of_the_formula(kind, over):
    if kind is Seq2Seq:
        assert not hasattr(make(kind, over), "attention_maps")
        return
    model = make(kind, over)
    src, tgt = batch()
    maps = model.attention_maps(src, tgt)
    assert maps.shape == (3, 5, 7) and not maps.requires_grad
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 5).double(), rtol=0, atol=1e-12)
    for row, length in enumerate((7, 4, 1)):
        assert not maps[row, :, length:].any()  # exactly nothing on padding
        _, expected = reference(model, src[row, :length], tgt[row])
        torch.testing.assert_close(maps[row, :, :length], expected, rtol=0, atol=1e-12)


def test_both_queries_run_one_recurrence():
    """The context that step t's state asks for enters step t + 1 either way."""
    previous = make(AttentionSeq2Seq, {})
    current = make(AttentionSeq2Seq, {"query_from": "current"})
    current.load_state_dict(previous.state_dict())
    src, tgt = batch()
    assert torch.equal(
        current.attention_maps(src, tgt)[:, :-1], previous.attention_maps(src, tgt)[:, 1:]
    )
    assert not torch.allclose(current(src, tgt), previous(src, tgt))


def test_keys_are_projected_once():
    model = make(AttentionSeq2Seq, {})
    calls = []
    model.scorer.key_proj.register_forward_hook(lambda *_: calls.append(1))
    src, tgt = batch()
    model(src, tgt)
    assert len(calls) == 1
    step = model.stepper(src)
    for t in range(5):
        step(tgt[:, t])
    assert len(calls) == 2


@pytest.mark.parametrize("scorer", ["additive", "bilinear", "dot", "scaled_dot"])
def test_projected_keys_score_alike(scorer):
    module = make(AttentionSeq2Seq, {"scorer": scorer, "d_decoder": 14}).scorer
    query, key = torch.randn(2, 3, 14).double(), torch.randn(2, 5, 14).double()
    projected = module.score_projected(query, module.project_key(key))
    assert torch.equal(projected, module(query, key))


@variants
def test_every_source_token_reaches_every_step(kind, over):
    """With attention by a short path; without it through the last state alone."""
    model = make(kind, over)
    src, tgt = batch()
    model.encoder.embedding.weight.requires_grad_(False)
    embedded = []
    model.encoder.dropout.register_forward_hook(
        lambda *parts: embedded.append(parts[2].requires_grad_()) or embedded[-1]
    )
    logits = model(src, tgt)
    for t in range(5):
        (grad,) = torch.autograd.grad(logits[0, t].square().sum(), embedded[0], retain_graph=True)
        assert (grad[0].abs().sum(-1) > 0).all() and not grad[1:].any()


# Configuration and refusals


def test_widths_and_layers_of_both_sides_are_free():
    model = make(AttentionSeq2Seq, {"num_encoder_layers": 3, "num_decoder_layers": 2})
    assert model.encoder.rnn.hidden_size == 14 and model.rnn.hidden_size == 11
    assert model.start(batch()[0]).hidden.shape == (2, 3, 11)
    extra = sum(p.numel() for p in model.scorer.parameters())
    plain = Seq2Seq(model.config)
    assert model.num_parameters() == plain.num_parameters() + extra
    assert extra == 13 * (14 + 11 + 1)


def test_config_survives_json():
    config = RecurrentConfig(17, 19, scorer="bilinear", query_from="current", bidirectional=True)
    assert RecurrentConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_dropout_acts_in_training_only(recwarn):
    model = AttentionSeq2Seq(RecurrentConfig(17, 19, d_encoder=14, dropout=0.5))
    src, tgt = batch()
    assert not torch.equal(model(src, tgt), model(src, tgt))
    model.eval()
    assert torch.equal(model(src, tgt), model(src, tgt))
    assert not [w for w in recwarn if "dropout" in str(w.message)]


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("src_vocab_size", 0, "at least 1"),
        ("tgt_vocab_size", 0, "at least 1"),
        ("d_embed", 0, "at least 1"),
        ("d_encoder", 0, "at least 1"),
        ("d_decoder", -1, "at least 1"),
        ("num_encoder_layers", 0, "at least 1"),
        ("num_decoder_layers", 0, "at least 1"),
        ("d_score", 0, "at least 1"),
        ("dropout", 1.0, "at least 0 and below 1"),
        ("dropout", -0.1, "at least 0 and below 1"),
        ("scorer", "cosine", "one of additive, bilinear, dot, scaled_dot"),
        ("query_from", "next", "one of previous, current"),
        ("pad_id", 19, "an id of the target vocabulary"),
        ("bos_id", -1, "an id of the target vocabulary"),
        ("eos_id", 99, "an id of the target vocabulary"),
    ],
)
def test_config_refuses(field, value, rule):
    fields = {"src_vocab_size": 17, "tgt_vocab_size": 19, field: value}
    with pytest.raises(ValueError, match=f"{field} must be {rule}.*{value!r}"):
        RecurrentConfig(**fields)


def test_config_refuses_what_does_not_fit_together():
    with pytest.raises(ValueError, match="scorer must be additive or bilinear where d_encoder"):
        RecurrentConfig(17, 19, d_encoder=8, d_decoder=16, scorer="dot")
    with pytest.raises(ValueError, match="d_encoder must be even where the encoder is bidirec"):
        RecurrentConfig(17, 19, d_encoder=7, bidirectional=True)
    with pytest.raises(ValueError, match="unknown field of RecurrentConfig: depth, width"):
        RecurrentConfig.from_dict({"width": 1, "depth": 2})


@pytest.mark.parametrize("kind", [Seq2Seq, AttentionSeq2Seq])
def test_models_refuse_bad_ids(kind):
    model = make(kind, {})
    src, tgt = batch()
    with pytest.raises(ValueError, match=r"src ids must lie in 0 … 16, but span 0 … 17"):
        model(src.index_fill(1, torch.tensor([0]), 17), tgt)
    with pytest.raises(ValueError, match=r"tgt ids must lie in 0 … 18, but span -1 …"):
        model(src, tgt.index_fill(1, torch.tensor([0]), -1))
    with pytest.raises(ValueError, match="src must hold a real token in each row, but row 1"):
        model(src.index_fill(0, torch.tensor([1]), 0), tgt)
    with pytest.raises(ValueError, match="src and tgt must have as many rows, but have 3 and 2"):
        model(src, tgt[:2])
    with pytest.raises(ValueError, match="src must hold at least one token"):
        model(src[:, :0], tgt)
    with pytest.raises(ValueError, match="tgt must hold at least one token"):
        model(src, tgt[:, :0])


def test_attention_maps_refuse_bad_ids():
    model = make(AttentionSeq2Seq, {})
    src, tgt = batch()
    with pytest.raises(ValueError, match="src and tgt must have as many rows, but have 3 and 2"):
        model.attention_maps(src, tgt[:2])
    with pytest.raises(ValueError, match="tgt must hold at least one token"):
        model.attention_maps(src, tgt[:, :0])


@pytest.mark.gpu
@variants
def test_gpu_gives_what_the_cpu_gives(kind, over):
    model = make(kind, over)
    src, tgt = batch()
    expected = model(src, tgt)
    model.cuda()
    found = model(src.cuda(), tgt.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-9)
    tokens = greedy(model.stepper(src.cuda()), 3, bos_id=1, eos_id=2, pad_id=0, max_len=5)
    assert tokens.device.type == "cuda"
