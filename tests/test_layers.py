"""Embeddings, feed-forward network, Add & Norm, encoder and decoder layer, against loops."""

import math

import pytest
import torch
from torch import nn

import reference
from src.config import TransformerConfig
from src.layers import AddNorm, DecoderLayer, Embeddings, EncoderLayer, FeedForward

B, T, S = 2, 5, 7


def config(**fields):
    sizes = {"d_model": 6, "num_heads": 3, "d_ff": 13, "dropout": 0.0, "max_len": 11}
    return TransformerConfig(**({"src_vocab_size": 17, "tgt_vocab_size": 19} | sizes | fields))


def scrambled(module):
    """The module in float64 with no bias at zero and no gain at one, which would hide much."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5)
    return module.double()


def tokens(length, width=6, rows=B):
    return torch.randn(rows, length, width, dtype=torch.float64, requires_grad=True)


def close(ours, theirs, tolerance=1e-12):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def close_with_grads(ours, theirs, wanted):
    close(ours, theirs)
    factor = torch.randn_like(ours)
    pairs = (torch.autograd.grad((out * factor).sum(), wanted) for out in (ours, theirs))
    for a, b in zip(*pairs, strict=True):
        close(a, b)


@pytest.mark.parametrize("scaled", [True, False])
def test_embeddings_are_scaled_and_placed(scaled):
    layer = Embeddings(17, config(scale_embeddings=scaled)).double()
    ids = torch.tensor([[3, 16, 0], [5, 5, 1]])
    factor = math.sqrt(6) if scaled else 1.0
    expected = [
        [
            [
                layer.tokens.weight[ids[b, t], c] * factor + reference.sinusoid(4 + t, c, 6)
                for c in range(6)
            ]
            for t in range(3)
        ]
        for b in range(2)
    ]
    close_with_grads(
        layer(ids, offset=4), reference.joined(expected), list(layer.parameters())
    )


@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_embeddings_without_added_positions(positions):
    layer = Embeddings(17, config(positions=positions, d_model=12))
    ids = torch.tensor([[3, 3, 3]])
    assert torch.equal(layer(ids), layer(ids, offset=5))
    assert torch.equal(layer(ids)[:, 0], layer(ids)[:, 2])


def test_embeddings_as_in_bert():
    """Token, learned position and type are added, then normalised."""
    fields = {"positions": "learned", "embedding_norm": True, "scale_embeddings": False}
    layer = scrambled(Embeddings(17, config(**fields), num_token_types=2))
    ids = torch.tensor([[3, 16, 0], [5, 5, 1]])
    total = layer.tokens.weight[ids] + layer.positions.weight[:3] + layer.types.weight[0]
    close(layer(ids), reference.layer_norm(layer.norm, total))


def test_embeddings_start_as_large_as_their_positions():
    """With the factor sqrt(d_model), entries of variance 1; without it, BERT's 0.02."""
    for scaled, std in ((True, 1.0), (False, 0.02)):
        layer = Embeddings(499, config(d_model=96, positions="none", scale_embeddings=scaled))
        output = layer(torch.arange(10).unsqueeze(0))
        assert output.std().item() == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize(
    ("ids", "offset", "message"),
    [
        (torch.zeros(0, 3, dtype=torch.long), 0, r"at least one token, .* shape \(0, 3\)"),
        (torch.zeros(2, 0, dtype=torch.long), 0, r"at least one token, .* shape \(2, 0\)"),
        (torch.zeros(1, 12, dtype=torch.long), 0, "max_len is 11, .* reaches position 11"),
        (torch.zeros(1, 2, dtype=torch.long), 10, "max_len is 11, .* reaches position 11"),
        (torch.tensor([[3, 17]]), 0, "ids must lie in 0 … 16, but span 3 … 17"),
        (torch.tensor([[3, -1]]), 0, "ids must lie in 0 … 16, but span -1 … 3"),
    ],
)
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
def test_bad_ids_are_refused(ids, offset, message, positions):
    layer = Embeddings(17, config(d_model=12, positions=positions))
    with pytest.raises(ValueError, match=message):
        layer(ids, offset)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward_equals_the_loops(activation):
    layer, x = scrambled(FeedForward(6, 13, activation=activation)), tokens(T)
    expected = reference.feed_forward(layer, x, activation)
    close_with_grads(layer(x), expected, [x, *layer.parameters()])


def test_feed_forward_looks_at_one_position_only():
    layer, x = FeedForward(6, 13).double(), tokens(T).detach()
    changed = x.clone()
    changed[:, 3] += 1
    same = (layer(changed) == layer(x)).all(-1).all(0)
    assert same.tolist() == [True, True, True, False, True]


def test_feed_forward_drops_hidden_values_while_training_only():
    layer, x = FeedForward(6, 13, dropout=0.5), torch.randn(B, T, 6)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation must be one of relu, gelu, silu, but is 'tanh'"):
        FeedForward(6, 13, activation="tanh")


@pytest.mark.parametrize("norm_first", [True, False])
def test_add_and_norm(norm_first):
    layer, x = scrambled(AddNorm(config(norm_first=norm_first))), tokens(T)
    if norm_first:
        expected = x + torch.sin(reference.layer_norm(layer.norm, x))
    else:
        expected = reference.layer_norm(layer.norm, x + torch.sin(x))
    close_with_grads(layer(x, torch.sin), expected, [x, *layer.parameters()])


@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_falls_on_the_sublayers_output_alone(norm_first):
    """Where the sublayer is dropped, the residual comes through untouched and unscaled."""
    layer = AddNorm(config(norm_first=norm_first, dropout=0.5))
    x, ones = torch.zeros(B, T, 6) + 3, torch.ones(B, T, 6)
    layer.norm = nn.Identity()
    assert {round(v, 4) for v in layer(x, lambda _: ones).flatten().tolist()} == {3.0, 5.0}
    layer.eval()
    assert set(layer(x, lambda _: ones).flatten().tolist()) == {4.0}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_encoder_layer_equals_the_loops(norm_first, backend):
    layer = scrambled(EncoderLayer(config(norm_first=norm_first, backend=backend)))
    x, mask = tokens(S), torch.rand(B, S, S) > 0.4
    mask[1, 3] = False
    expected = reference.encoder_layer(layer, x, mask, norm_first)
    close_with_grads(layer(x, mask), expected, [x, *layer.parameters()])


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_decoder_layer_equals_the_loops(norm_first, backend):
    layer = scrambled(
        DecoderLayer(config(norm_first=norm_first, backend=backend, activation="gelu"))
    )
    x, memory = tokens(T), tokens(S)
    causal = reference.causal(T, T).expand(B, -1, -1)
    memory_mask = torch.rand(B, 1, S) > 0.4
    memory_mask[1] = False
    expected = reference.decoder_layer(
        layer, x, memory, causal, memory_mask.expand(-1, T, -1), norm_first, "gelu"
    )
    ours = layer(x, layer.cross_attention.project_key_value(memory), memory_mask)
    close_with_grads(ours, expected, [x, memory, *layer.parameters()])


def test_records_hold_weights_cut_from_the_graph():
    layer, x, memory = scrambled(DecoderLayer(config())), tokens(T), tokens(S)
    heads = layer.cross_attention.project_key_value(memory)
    own, cross = [], []
    output = layer(x, heads, self_record=own, cross_record=cross)
    close(output, layer(x, heads))
    assert [tuple(w.shape) for w in own + cross] == [(B, 3, T, T), (B, 3, T, S)]
    assert not own[0].requires_grad and not cross[0].requires_grad
    assert bool((own[0].triu(1) == 0).all())
    record = []
    EncoderLayer(config()).double()(x, record=record)
    assert record[0].shape == (B, 3, T, T)


def test_every_dropout_of_the_configuration_is_in_its_place():
    fields = {"dropout": 0.1, "attention_dropout": 0.2, "ffn_dropout": 0.3}
    layer = DecoderLayer(config(**fields, norm_eps=1e-3))
    assert [add_norm.dropout.p for add_norm in layer.add_norms] == [0.1] * 3
    assert layer.self_attention.dropout == layer.cross_attention.dropout == 0.2
    assert layer.feed_forward.dropout.p == 0.3
    assert {add_norm.norm.eps for add_norm in layer.add_norms} == {1e-3}
    assert Embeddings(17, config(**fields)).dropout.p == 0.1
