"""Embeddings and layers: how large they start, what they record, and every refusal."""

import pytest
import torch
from torch import nn

from src.config import LayerConfig, TransformerConfig
from src.layers import DecoderLayer, Embeddings, EncoderLayer, FeedForward
from src.recording import recording

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


def test_unknown_activation_is_refused():
    with pytest.raises(
        ValueError, match="activation must be one of relu, gelu, silu, but is 'tanh'"
    ):
        FeedForward(6, 13, activation="tanh")


def test_recording_names_every_attention_and_changes_nothing():
    layer, x = scrambled(DecoderLayer(config())), tokens(T)
    memory = layer.cross_attention.remember(tokens(S))
    with recording(layer) as maps:
        output = layer(x, memory)
    close(output, layer(x, memory))
    assert {name: tuple(w.shape) for name, w in maps.items()} == {
        "self_attention": (B, 3, T, T),
        "cross_attention": (B, 3, T, S),
    }
    assert bool((maps["self_attention"].triu(1) == 0).all())


def test_a_layer_needs_no_vocabulary():
    layer = EncoderLayer(LayerConfig(d_model=6, num_heads=3, d_ff=13)).double()
    assert layer(tokens(T)).shape == (B, T, 6)
