"""Recurrent models: steps, chunks and rows, the last state, d2l's decoder, refusals."""

import json

import pytest
import torch
from torch import nn

from src.config import RecurrentConfig
from src.decoding import greedy
from src.recurrent import AttentionSeq2Seq, DecoderState, RecurrentEncoder, Seq2Seq

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


def test_decoder_equals_one_made_of_d2l_layers():
    """The book's decoder: context before embedding, logits from the state alone."""
    d2l = pytest.importorskip("d2l.torch", reason="d2l is not installed")
    units, layers, lens = 11, 2, torch.tensor([7, 4, 1])
    model = make(AttentionSeq2Seq, {"d_encoder": units, "num_decoder_layers": layers}).float()
    attention = d2l.AdditiveAttention(units, units, 13, 0.0)
    attention.W_q.weight, attention.W_k.weight, attention.w_v.weight = (
        model.scorer.query_proj.weight,
        model.scorer.key_proj.weight,
        model.scorer.output.weight,
    )
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


# Decoding


# Configuration and refusals


def test_widths_and_layers_of_both_sides_are_free():
    model = make(AttentionSeq2Seq, {"num_encoder_layers": 3, "num_decoder_layers": 2})
    assert model.encoder.rnn.hidden_size == 14 and model.rnn.hidden_size == 11
    assert model.start(batch()[0]).hidden.shape == (2, 3, 11)
    extra = sum(p.numel() for p in model.scorer.parameters())
    plain = Seq2Seq(model.config)
    assert model.num_parameters() == plain.num_parameters() + extra
    assert extra == 13 * (14 + 11 + 1)


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


def test_config_survives_json():
    config = RecurrentConfig(17, 19, scorer="bilinear", query_from="current", bidirectional=True)
    assert RecurrentConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
