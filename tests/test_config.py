"""The configuration: the paper's sizes, round trips, and a refusal for every bad field."""

import dataclasses
import json

import pytest
import torch

from src.config import TransformerConfig
from src.transformer import Transformer

GOOD = {"src_vocab_size": 17, "tgt_vocab_size": 19}


def count(config):
    """Parameters of the model, which is made without storage."""
    with torch.device("meta"):
        return Transformer(config).num_parameters()


def by_hand(vocab, d_model, d_ff, layers):
    """Weights and biases of the paper's model, one shared embedding matrix."""
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return vocab * d_model + layers * (encoder + decoder)


def test_base_is_the_papers_base_model():
    """Vaswani et al. 2017, table 3, first row: about 65 million with 37,000 shared tokens."""
    config = TransformerConfig.base(37_000, 37_000, tie_embeddings="all")
    sizes = (config.num_encoder_layers, config.num_decoder_layers, config.d_model, config.d_ff)
    assert sizes == (6, 6, 512, 2048)
    assert (config.num_heads, config.d_model // config.num_heads, config.dropout) == (8, 64, 0.1)
    assert not config.norm_first and config.activation == "relu"
    assert config.positions == "sinusoidal" and config.scale_embeddings
    assert count(config) == by_hand(37_000, 512, 2048, 6) == 63_082_496


def test_big_is_the_papers_big_model():
    """Table 3, last row: 213 million."""
    config = TransformerConfig.big(37_000, 37_000, tie_embeddings="all")
    assert (config.d_model, config.d_ff, config.num_heads, config.dropout) == (1024, 4096, 16, 0.3)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    assert count(config) == by_hand(37_000, 1024, 4096, 6) == 214_245_376


def test_tiny_and_its_overrides():
    config = TransformerConfig.tiny(17, 19, d_model=32, norm_first=True)
    assert (config.src_vocab_size, config.tgt_vocab_size) == (17, 19)
    assert (config.d_model, config.num_heads, config.norm_first) == (32, 4, True)
    assert config.num_encoder_layers == config.num_decoder_layers == 2


@pytest.mark.parametrize(("tie", "matrices"), [("none", 17 + 19 + 19), ("target", 17 + 19)])
def test_tying_saves_a_matrix(tie, matrices):
    config = TransformerConfig.tiny(17, 19, tie_embeddings=tie)
    assert count(config) == by_hand(matrices, 128, 512, 2)


def test_round_trip_through_json():
    config = TransformerConfig.tiny(17, 19, positions="rotary", norm_eps=1e-12)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TransformerConfig.from_dict(GOOD) == TransformerConfig(**GOOD)


def test_the_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError, match="d_model"):
        TransformerConfig(**GOOD).d_model = 3


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *(
            (name, 0, f"{name} must be at least 1, but is 0")
            for name in (
                "src_vocab_size",
                "tgt_vocab_size",
                "d_model",
                "num_heads",
                "d_ff",
                "num_encoder_layers",
                "num_decoder_layers",
                "max_len",
            )
        ),
        ("num_token_types", -1, "num_token_types must be at least 0, but is -1"),
        *(
            (name, value, f"{name} must be at least 0 and below 1, but is {value}")
            for name in ("dropout", "attention_dropout", "ffn_dropout")
            for value in (-0.1, 1.0)
        ),
        ("norm_eps", 0.0, "norm_eps must be above 0, but is 0.0"),
        ("activation", "tanh", "activation must be one of relu, gelu, silu, but is 'tanh'"),
        ("positions", "alibi", "positions must be one of sinusoidal, .*, but is 'alibi'"),
        ("tie_embeddings", "yes", "tie_embeddings must be one of none, .*, but is 'yes'"),
        ("backend", "flex", "backend must be one of sdpa, explicit, but is 'flex'"),
        ("num_heads", 7, "num_heads must be a divisor of d_model 512, but is 7"),
        *(
            (name, value, f"{name} must be an id of the target vocabulary, 0 … 18, but is {value}")
            for name in ("pad_id", "bos_id", "eos_id")
            for value in (-1, 19)
        ),
        ("tie_embeddings", "all", "tie_embeddings must be other than all where the vocab"),
        ("pad_id", 18, "pad_id must be an id of the source vocabulary, 0 … 16, but is 18"),
    ],
)
def test_bad_fields_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**(GOOD | {field: value}))


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("d_model", 16.0, "an integer"),
        ("num_heads", True, "an integer"),
        ("dropout", "0.1", "a number"),
        ("norm_first", 1, "true or false"),
        ("activation", None, "a text"),
    ],
)
def test_fields_of_another_type_are_refused(unchecked, field, value, rule):
    with pytest.raises(TypeError, match=f"{field} must be {rule}, but is {value!r}"):
        TransformerConfig.tiny(17, 19, **{field: value})
    assert TransformerConfig.tiny(17, 19, dropout=0).dropout == 0  # an integer is a number


def test_rotary_positions_want_even_heads():
    with pytest.raises(ValueError, match="positions must be other than rotary .* of a head, 11"):
        TransformerConfig(**GOOD, d_model=22, num_heads=2, positions="rotary")


def test_unknown_fields_are_refused():
    with pytest.raises(ValueError, match="unknown field of TransformerConfig: heads, width"):
        TransformerConfig.from_dict(GOOD | {"width": 3, "heads": 2})
    with pytest.raises(ValueError, match="unknown field of TransformerConfig: n_layers"):
        TransformerConfig.tiny(17, 19, n_layers=3)
