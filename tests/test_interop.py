"""Converters from torch.nn: nothing lost, nothing shared, and what does not fit is refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from src.applications.interop import (
    _marian_state,
    from_d2l_attention,
    from_marian,
    from_torch_attention,
    from_torch_decoder_layer,
    from_torch_encoder_layer,
    from_torch_transformer,
)
from src.transformer import Transformer

D, H, FF = 22, 2, 13


def scrambled(module):
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5)
    return module


def transformer(norm_first=False, **options):
    module = nn.Transformer(
        D, H, 2, 3, FF, dropout=0.1, norm_first=norm_first, batch_first=True, **options
    )
    if not norm_first:
        module.encoder.norm = module.decoder.norm = None
    return module


def ends():
    return nn.Embedding(17, D), nn.Embedding(19, D), nn.Linear(D, 19, bias=False)


def layer(kind, **options):
    make = {"encoder": nn.TransformerEncoderLayer, "decoder": nn.TransformerDecoderLayer}[kind]
    return make(D, H, FF, batch_first=True, **options)


CONVERT = {"encoder": from_torch_encoder_layer, "decoder": from_torch_decoder_layer}


@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_copied_not_shared(bias):
    theirs = scrambled(nn.MultiheadAttention(D, H, dropout=0.2, bias=bias)).double().eval()
    ours = from_torch_attention(theirs, backend="explicit")
    assert (ours.num_heads, ours.core.dropout, ours.core.backend) == (H, 0.2, "explicit")
    assert not ours.training and ours.in_proj.weight.dtype == torch.float64
    assert torch.equal(ours.in_proj.weight, theirs.in_proj_weight)
    assert torch.equal(ours.out_proj.weight, theirs.out_proj.weight)
    assert (ours.in_proj.bias is None) == (not bias)
    if bias:
        assert torch.equal(ours.in_proj.bias, theirs.in_proj_bias)
        assert torch.equal(ours.out_proj.bias, theirs.out_proj.bias)
    before = copy.deepcopy(theirs.state_dict())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())


@pytest.mark.parametrize("kind", CONVERT)
@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, nn.ReLU(), nn.GELU(), nn.SiLU()])
def test_layers_keep_their_settings(kind, activation):
    theirs = layer(kind, dropout=0.3, activation=activation, norm_first=True, layer_norm_eps=1e-3)
    ours = CONVERT[kind](theirs, backend="explicit")
    assert ours.training and ours.self_attention.core.backend == "explicit"
    assert ours.self_attention.core.dropout == ours.feed_forward.dropout.p == 0.3
    for add_norm in ours.add_norms:
        assert (add_norm.dropout.p, add_norm.norm.eps, add_norm.norm_first) == (0.3, 1e-3, True)
    x = torch.linspace(-3, 3, 5)
    wanted = next(f(x) for f in (F.relu, F.gelu, F.silu) if f.__name__ in str(activation).lower())
    assert torch.equal(ours.feed_forward.activation(x), wanted)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_gives_the_same_answer(norm_first):
    theirs = scrambled(layer("encoder", dropout=0.0, norm_first=norm_first)).double()
    x = torch.randn(3, 7, D, dtype=torch.float64)
    ours = from_torch_encoder_layer(theirs)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)


def test_marians_projections_keep_their_order():
    names = [f"model.encoder.layers.0.self_attn.{part}_proj" for part in "qkv"]
    state = {f"{n}.weight": torch.full((2, 2), float(i)) for i, n in enumerate(names)}
    state |= {f"{n}.bias": torch.full((2,), float(i)) for i, n in enumerate(names)}
    ours = _marian_state(state)
    assert ours["encoder.layers.0.self_attention.in_proj.bias"].tolist() == [0, 0, 1, 1, 2, 2]
    weight = ours["encoder.layers.0.self_attention.in_proj.weight"]
    assert weight[:, 0].tolist() == [0, 0, 1, 1, 2, 2] and len(ours) == 2


@pytest.mark.parametrize("kind", CONVERT)
def test_a_layer_without_biases_gets_zeros(kind):
    theirs = layer(kind, bias=False, dropout=0.0)
    ours = CONVERT[kind](theirs)
    biases = [p for name, p in ours.named_parameters() if name.endswith("bias")]
    assert len(biases) == {"encoder": 6, "decoder": 9}[kind]
    assert not any(bool(bias.any()) for bias in biases)


@pytest.mark.parametrize("norm_first", [True, False])
def test_every_weight_of_a_transformer_arrives(norm_first):
    theirs, parts = scrambled(transformer(norm_first)), ends()
    ours = from_torch_transformer(theirs, *parts, positions="none", pad_id=3, max_len=29)
    assert isinstance(ours, Transformer)
    config = ours.config
    assert (config.num_encoder_layers, config.num_decoder_layers) == (2, 3)
    assert (config.src_vocab_size, config.tgt_vocab_size, config.pad_id) == (17, 19, 3)
    assert (config.norm_first, config.d_ff, config.max_len) == (norm_first, FF, 29)
    assert config.dropout == config.attention_dropout == config.ffn_dropout == 0.1

    def total(*modules):
        return sum(p.double().sum().item() for m in modules for p in m.parameters())

    count = sum(p.numel() for m in (theirs, *parts) for p in m.parameters())
    assert ours.num_parameters() == count
    assert total(ours) == pytest.approx(total(theirs, *parts), abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kdim": 11}, "as wide as its queries, 22, but kdim is 11 and vdim is 22"),
        ({"vdim": 11}, "kdim is 22 and vdim is 11"),
        ({"add_bias_kv": True}, "module must not have add_bias_kv"),
        ({"add_zero_attn": True}, "module must not have add_zero_attn"),
    ],
)
def test_odd_attentions_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        from_torch_attention(nn.MultiheadAttention(D, H, **options))


@pytest.mark.parametrize("kind", CONVERT)
@pytest.mark.parametrize("activation", [torch.tanh, nn.GELU("tanh")])
def test_other_activations_are_refused(kind, activation):
    with pytest.raises(ValueError, match="activation must be ReLU, the exact GELU or SiLU, but is"):
        CONVERT[kind](layer(kind, activation=activation))


def replace(path, value):
    """A change to a module: ``value`` for what ``path`` leads to."""

    def change(module):
        *way, last = path.split(".")
        for name in way:
            module = getattr(module, name)
        setattr(module, last, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("norm2", nn.RMSNorm(D)), "a LayerNorm for each norm, but has RMSNorm"),
        (replace("norm2.eps", 0.1), "the same norm_eps everywhere, but has 1e-05 and 0.1"),
        (replace("dropout2.p", 0.5), "the same dropout everywhere, but has 0.1 and 0.5"),
    ],
)
@pytest.mark.parametrize("kind", CONVERT)
def test_parts_of_a_layer_that_differ_are_refused(kind, change, message):
    theirs = layer(kind)
    change(theirs)
    with pytest.raises(ValueError, match=message):
        CONVERT[kind](theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("multihead_attn", nn.MultiheadAttention(D, 11)), "same num_heads .* 2 and 11"),
        (replace("multihead_attn.dropout", 0.5), "same attention_dropout .* 0.1 and 0.5"),
        (replace("multihead_attn.add_zero_attn", True), "must not have add_zero_attn"),
        (replace("norm3.eps", 0.1), "same norm_eps everywhere, but has 1e-05 and 0.1"),
    ],
)
def test_cross_attention_is_looked_at(change, message):
    theirs = layer("decoder")
    change(theirs)
    with pytest.raises(ValueError, match=message):
        from_torch_decoder_layer(theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("encoder.layers.1.self_attn.num_heads", 11), "same num_heads .* 2 and 11"),
        (replace("decoder.layers.2.activation", F.gelu), "same activation .* relu and gelu"),
        (replace("decoder.layers.0.norm_first", False), "same norm_first .* True and False"),
        (replace("decoder.layers.1.norm3", nn.RMSNorm(D)), "LayerNorm for each norm, but has RMS"),
        (replace("encoder.layers.1.norm1.eps", 0.1), "same norm_eps .* 1e-05 and 0.1"),
        (replace("encoder.norm.eps", 0.1), "module.encoder.norm must have the layers' eps"),
        (replace("decoder.norm", nn.RMSNorm(D)), "LayerNorm for each norm, but has RMSNorm"),
    ],
)
def test_layers_that_differ_are_refused(change, message):
    theirs = transformer(norm_first=True)
    change(theirs)
    with pytest.raises(ValueError, match=message):
        from_torch_transformer(theirs, *ends())


@pytest.mark.parametrize("fields", [{"tie_embeddings": "target"}, {"num_heads": 11}])
def test_fields_that_the_modules_decide_are_refused(fields):
    message = f"fields must not say what module says: {next(iter(fields))}"
    with pytest.raises(ValueError, match=message):
        from_torch_transformer(transformer(), *ends(), **fields)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_the_norm_that_pytorch_appends_to_post_norm_is_refused(stack):
    theirs = transformer()
    getattr(theirs, stack).norm = nn.LayerNorm(D)
    with pytest.raises(ValueError, match=rf"module.{stack}.norm must be None where norm_first"):
        from_torch_transformer(theirs, *ends())
    theirs = transformer(norm_first=True)
    getattr(theirs, stack).norm = None
    with pytest.raises(ValueError, match=rf"module.{stack}.norm must be a LayerNorm where"):
        from_torch_transformer(theirs, *ends())


def test_a_weight_without_a_place_is_refused():
    src, tgt, _ = ends()
    with pytest.raises(ValueError, match=r"no place in ours for \['output.bias'\]"):
        from_torch_transformer(transformer(), src, tgt, nn.Linear(D, 19))
    with pytest.raises(ValueError, match=r"nothing for our \['.*positions.weight', '.*positions"):
        from_torch_transformer(transformer(), *ends(), positions="learned")


def test_unknown_fields_are_refused():
    with pytest.raises(ValueError, match="unknown field of TransformerConfig: position"):
        from_torch_transformer(transformer(), *ends(), position="none")


def test_d2l_attention_of_other_widths_is_refused():
    theirs = nn.Module()
    for name, width in (("W_q", D), ("W_k", 11), ("W_v", D), ("W_o", D)):
        setattr(theirs, name, nn.Linear(width, D, bias=False))
    with pytest.raises(ValueError, match="module.W_k must be 22 × 22, but is 22 × 11"):
        from_d2l_attention(theirs)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ],
)
def test_a_marian_of_two_sizes_is_refused(first, second):
    fields = {
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "vocab_size": 19,
        "decoder_vocab_size": None,
        "d_model": D,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 13,
        "decoder_ffn_dim": 13,
    }
    with pytest.raises(ValueError, match=f"{first} and {second} must be equal, but are 2 and 11"):
        from_marian({}, fields | {first: 2, second: 11})
