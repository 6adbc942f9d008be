"""From other libraries' modules to ours: the same weights under our names.

Each converter builds our module, copies every weight into it and refuses what it cannot express;
afterwards both give the same answer. Only PyTorch is imported here: modules of d2l and weights of
Hugging Face's Marian are taken as they come.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from src.config import LayerConfig, TransformerConfig
from src.layers import DecoderLayer, EncoderLayer
from src.multihead import MultiHeadAttention
from src.scoring import DotProduct
from src.transformer import Transformer

# torch.nn's names and ours; a norm is the second part of our Add & Norm.
_TORCH_NAMES = {
    "self_attn.in_proj_": "self_attention.in_proj.",
    "self_attn.out_proj.": "self_attention.out_proj.",
    "multihead_attn.in_proj_": "cross_attention.in_proj.",
    "multihead_attn.out_proj.": "cross_attention.out_proj.",
    "linear1.": "feed_forward.inner.",
    "linear2.": "feed_forward.outer.",
    "norm1.": "add_norms.0.norm.",
    "norm2.": "add_norms.1.norm.",
    "norm3.": "add_norms.2.norm.",
}
_MARIAN_NAMES = {
    "self_attn.": "self_attention.",
    "encoder_attn.": "cross_attention.",
    "fc1.": "feed_forward.inner.",
    "fc2.": "feed_forward.outer.",
    "self_attn_layer_norm.": "add_norms.0.norm.",
    "encoder_attn_layer_norm.": "add_norms.1.norm.",
}
_D2L_NAMES = {
    "attention.W_o.": "self_attention.out_proj.",
    "ffn.dense1.": "feed_forward.inner.",
    "ffn.dense2.": "feed_forward.outer.",
    "addnorm1.ln.": "add_norms.0.norm.",
    "addnorm2.ln.": "add_norms.1.norm.",
}


def from_torch_attention(
    module: nn.MultiheadAttention, backend: str = "sdpa"
) -> MultiHeadAttention:
    """Copy an ``nn.MultiheadAttention``.

    Ours is batch first whatever ``module.batch_first`` is, and a mask means the opposite:
    see `src.masks.from_key_padding_mask`.

    Args:
        module: Keys and values as wide as queries, no ``add_bias_kv``, no ``add_zero_attn``.
        backend: Backend of the copy.

    Raises:
        ValueError: If ``module`` has one of these.
    """
    _demand_plain_attention(module)
    ours = MultiHeadAttention(
        module.embed_dim,
        module.num_heads,
        bias=module.in_proj_bias is not None,
        core=DotProduct(module.dropout, backend=backend),
    )
    state = {
        k.replace("in_proj_", "in_proj."): v for k, v in module.state_dict().items()
    }
    return _filled(ours, state, module)


def from_torch_encoder_layer(
    module: nn.TransformerEncoderLayer, backend: str = "sdpa"
) -> EncoderLayer:
    """Copy an ``nn.TransformerEncoderLayer``.

    Raises:
        ValueError: If its activation is none of ReLU, the exact GELU and SiLU, a norm is not a
            LayerNorm, or its parts differ in what is one field of ours.
    """
    config = LayerConfig(**_torch_fields(module), backend=backend)
    return _filled(
        EncoderLayer(config), _renamed(module.state_dict(), _TORCH_NAMES), module
    )


def from_torch_decoder_layer(
    module: nn.TransformerDecoderLayer, backend: str = "sdpa"
) -> DecoderLayer:
    """Copy an ``nn.TransformerDecoderLayer``; ours is causal by itself.

    Raises:
        ValueError: If its activation is none of ReLU, the exact GELU and SiLU, a norm is not a
            LayerNorm, or its parts differ in what is one field of ours.
    """
    config = LayerConfig(**_torch_fields(module), backend=backend)
    return _filled(
        DecoderLayer(config), _renamed(module.state_dict(), _TORCH_NAMES), module
    )


def from_torch_transformer(
    module: nn.Transformer,
    src_tokens: nn.Embedding,
    tgt_tokens: nn.Embedding,
    output: nn.Linear,
    **fields: Any,
) -> Transformer:
    """Copy an ``nn.Transformer``, which has neither embeddings nor an output matrix of its own.

    Args:
        module: Encoder and decoder. Post-norm ones must have lost the LayerNorm that PyTorch
            puts at the end of both stacks: ``module.encoder.norm = module.decoder.norm = None``.
        src_tokens: Source embeddings.
        tgt_tokens: Target embeddings.
        output: Output matrix, without a bias.
        **fields: More fields of `TransformerConfig`: ``positions``, ``scale_embeddings``, ids …
            What ``module`` and the matrices say is no such field. Nothing is tied.

    Raises:
        ValueError: If a part is there that the other side lacks, layers differ from one another,
            a norm is no LayerNorm, or ``fields`` hold what is read off the modules.
    """
    encoder, decoder = module.encoder, module.decoder
    norm_first = encoder.layers[0].norm_first
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        if (stack.norm is not None) != norm_first:
            raise ValueError(
                f"module.{name}.norm must be {'a LayerNorm' if norm_first else 'None'} where "
                f"norm_first is {norm_first}, but is {stack.norm}"
            )
    found = _torch_fields(*encoder.layers, *decoder.layers) | {
        "src_vocab_size": src_tokens.num_embeddings,
        "tgt_vocab_size": tgt_tokens.num_embeddings,
        "num_encoder_layers": len(encoder.layers),
        "num_decoder_layers": len(decoder.layers),
        "tie_embeddings": "none",
    }
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        if stack.norm is not None and _norm_eps(stack.norm) != found["norm_eps"]:
            raise ValueError(
                f"module.{name}.norm must have the layers' eps, {found['norm_eps']}, but has "
                f"{stack.norm.eps}"
            )
    if taken := sorted(found.keys() & fields):
        raise ValueError(f"fields must not say what module says: {', '.join(taken)}")
    config = TransformerConfig.from_dict(found | fields)
    state = _renamed(module.state_dict(), _TORCH_NAMES)
    state["encoder.embeddings.tokens.weight"] = src_tokens.weight
    state["decoder.embeddings.tokens.weight"] = tgt_tokens.weight
    state |= {f"output.{name}": value for name, value in output.state_dict().items()}
    return _filled(Transformer(config), state, module)


def from_d2l_attention(module: nn.Module, backend: str = "sdpa") -> MultiHeadAttention:
    """Copy a ``d2l.torch.MultiHeadAttention``.

    Masks are made by `src.masks.valid_lens_mask`. A row of length 0 gets zeros here; d2l's fill
    of −1e6 gives it the mean of all values, padding included.

    Raises:
        ValueError: If queries, keys and values are not all ``num_hiddens`` wide.
    """
    state, width = module.state_dict(), module.W_o.out_features
    for name in ("W_q", "W_k", "W_v"):
        if state[f"{name}.weight"].shape != (width, width):
            raise ValueError(
                f"module.{name} must be {width} × {width}, but is "
                f"{' × '.join(map(str, state[f'{name}.weight'].shape))}"
            )
    ours = MultiHeadAttention(
        width,
        module.num_heads,
        bias=module.W_o.bias is not None,
        core=DotProduct(module.attention.dropout.p, backend=backend),
    )
    state = _joined(state, "W_q", "W_k", "W_v", into="in_proj")
    return _filled(ours, _renamed(state, {"W_o.": "out_proj."}), module)


def from_d2l_encoder_block(module: nn.Module, backend: str = "sdpa") -> EncoderLayer:
    """Copy a ``d2l.torch.EncoderBlock``; biases that it lacks are zeros in ours."""
    config = LayerConfig(
        d_model=module.ffn.dense2.out_features,
        num_heads=module.attention.num_heads,
        d_ff=module.ffn.dense1.out_features,
        dropout=module.addnorm1.dropout.p,
        attention_dropout=module.attention.attention.dropout.p,
        norm_eps=module.addnorm1.ln.eps,
        backend=backend,
    )
    parts = (f"attention.{name}" for name in ("W_q", "W_k", "W_v"))
    state = _joined(module.state_dict(), *parts, into="self_attention.in_proj")
    return _filled(EncoderLayer(config), _renamed(state, _D2L_NAMES), module)


def from_marian(state: Mapping[str, Tensor], fields: Mapping[str, Any]) -> Transformer:
    """Copy Hugging Face's ``MarianMTModel``, the paper's post-norm model as it translates today.

    Marian keeps the sines in the first half of each position's vector and the cosines in the
    second. The columns of a model may be permuted at will, so its table is copied instead of
    permuting all weights; it is not trained. ``<bos>`` is Marian's ``decoder_start_token_id``,
    which is its padding.

    Args:
        state: ``model.state_dict()``.
        fields: ``model.config.to_dict()``.

    Returns:
        Our model in ``eval()`` mode, ``positions="learned"``. Its output has a bias if Marian's
        ``final_logits_bias`` is not zero.

    Raises:
        ValueError: If encoder and decoder differ in heads or hidden width, or the activation is
            none of ours. SiLU may be called swish, as the published opus-mt models do.
    """
    tied = fields["tie_word_embeddings"]
    shared = fields["share_encoder_decoder_embeddings"]
    config = TransformerConfig(
        src_vocab_size=fields["vocab_size"],
        tgt_vocab_size=fields["decoder_vocab_size"] or fields["vocab_size"],
        d_model=fields["d_model"],
        num_heads=_same(fields, "encoder_attention_heads", "decoder_attention_heads"),
        d_ff=_same(fields, "encoder_ffn_dim", "decoder_ffn_dim"),
        num_encoder_layers=fields["encoder_layers"],
        num_decoder_layers=fields["decoder_layers"],
        dropout=fields["dropout"],
        attention_dropout=fields["attention_dropout"],
        ffn_dropout=fields["activation_dropout"],
        max_len=fields["max_position_embeddings"],
        activation=fields["activation_function"].replace("swish", "silu"),
        positions="learned",
        tie_embeddings=("all" if shared else "target") if tied else "none",
        scale_embeddings=fields["scale_embedding"],
        pad_id=fields["pad_token_id"],
        bos_id=fields["decoder_start_token_id"],
        eos_id=fields["eos_token_id"],
    )
    ours = Transformer(config)
    translated = _marian_state(state)
    bias = state["final_logits_bias"].flatten()
    if bias.any():
        ours.output.bias = nn.Parameter(torch.empty_like(bias))
        translated["output.bias"] = bias
    _load(ours, translated)
    for stack in (ours.encoder, ours.decoder):
        stack.embeddings.positions.weight.requires_grad_(False)
    return ours.eval()


def _marian_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Marian's weights under our names."""
    result = {}
    for name, value in state.items():
        name = name.removeprefix("model.")
        if name in ("shared.weight", "final_logits_bias"):
            continue  # the first stands again in both stacks, the second is dealt with apart
        result[
            name.replace("embed_tokens", "embeddings.tokens")
            .replace("embed_positions", "embeddings.positions")
            .replace("lm_head", "output")
        ] = value
    for name in [
        n.removesuffix(".q_proj.weight") for n in result if n.endswith("q_proj.weight")
    ]:
        parts = (f"{name}.{part}" for part in ("q_proj", "k_proj", "v_proj"))
        result = _joined(result, *parts, into=f"{name}.in_proj")
    result = _renamed(result, _MARIAN_NAMES)
    last = {"encoder": "add_norms.1.norm.", "decoder": "add_norms.2.norm."}
    return {
        name.replace("final_layer_norm.", last.get(name.split(".")[0], "")): value
        for name, value in result.items()
    }


def _torch_fields(*layers: nn.Module) -> dict[str, Any]:
    """What layers of torch.nn say about their configuration, which has one value for all."""
    fields: dict[str, Any] = {}
    for layer in layers:
        for name, value in _said(layer):
            if fields.setdefault(name, value) != value:
                raise ValueError(
                    f"module must have the same {name} everywhere, but has {fields[name]} and "
                    f"{value}"
                )
    return fields


def _said(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Each field of the configuration, as often as a part of the layer says something about it."""
    yield "d_ff", layer.linear1.out_features
    yield "norm_first", layer.norm_first
    yield "activation", _activation(layer.activation)
    yield "ffn_dropout", layer.dropout.p
    for name, part in layer.named_children():
        if name.startswith("norm"):
            yield "norm_eps", _norm_eps(part)
        elif name.startswith("dropout") and name != "dropout":
            yield "dropout", part.p
        elif isinstance(part, nn.MultiheadAttention):
            _demand_plain_attention(part)
            yield "d_model", part.embed_dim
            yield "num_heads", part.num_heads
            yield "attention_dropout", part.dropout


def _norm_eps(norm: nn.Module) -> float:
    if type(norm) is not nn.LayerNorm:
        raise ValueError(f"module must have a LayerNorm for each norm, but has {norm}")
    return norm.eps


def _activation(function: Any) -> str:
    if function is F.relu or isinstance(function, nn.ReLU):
        return "relu"
    if (
        function is F.gelu
        or isinstance(function, nn.GELU)
        and function.approximate == "none"
    ):
        return "gelu"
    if function is F.silu or isinstance(function, nn.SiLU):
        return "silu"
    raise ValueError(
        f"module.activation must be ReLU, the exact GELU or SiLU, but is {function}"
    )


def _demand_plain_attention(module: nn.MultiheadAttention) -> None:
    if not module._qkv_same_embed_dim:
        raise ValueError(
            f"module must have keys and values as wide as its queries, {module.embed_dim}, but "
            f"kdim is {module.kdim} and vdim is {module.vdim}"
        )
    for name, given in (
        ("add_bias_kv", module.bias_k is not None),
        ("add_zero_attn", module.add_zero_attn),
    ):
        if given:
            raise ValueError(f"module must not have {name}, which is no part of ours")


def _same(fields: Mapping[str, Any], first: str, second: str) -> Any:
    if fields[first] != fields[second]:
        raise ValueError(
            f"{first} and {second} must be equal, but are {fields[first]} and {fields[second]}"
        )
    return fields[first]


def _joined(state: Mapping[str, Tensor], *parts: str, into: str) -> dict[str, Tensor]:
    """Put the rows of three projections below one another: one matrix, one bias if there is."""
    parts = tuple(parts)
    result = {k: v for k, v in state.items() if k.rsplit(".", 1)[0] not in parts}
    for kind in ("weight", "bias"):
        if f"{parts[0]}.{kind}" in state:
            result[f"{into}.{kind}"] = torch.cat(
                [state[f"{part}.{kind}"] for part in parts]
            )
    return result


def _renamed(
    state: Mapping[str, Tensor], names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Replace parts of names, each where it begins the name or follows a dot."""
    result = {}
    for name, value in state.items():
        for theirs, ours in names.items():
            name = f".{name}".replace(f".{theirs}", f".{ours}")[1:]
        result[name] = value
    return result


def _filled(ours: nn.Module, state: Mapping[str, Tensor], module: nn.Module) -> Any:
    """Load ``state`` and take over ``module``'s mode."""
    _load(ours, state)
    return ours.train(module.training)


def _load(ours: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load all of ``state`` into all of ``ours``, in its dtype; biases that it lacks are zeros.

    Raises:
        ValueError: If a weight has no place on the other side.
    """
    example = next(iter(state.values()))
    ours.to(example)
    state = dict(state)
    for name, value in ours.state_dict().items():
        if name.endswith("bias") and name not in state:
            state[name] = torch.zeros_like(value)
    unknown, missing = (
        state.keys() - ours.state_dict().keys(),
        ours.state_dict().keys() - state,
    )
    if unknown or missing:
        raise ValueError(
            f"module has no place in ours for {sorted(unknown) or 'nothing'}, and nothing for "
            f"our {sorted(missing) or 'weights'}"
        )
    ours.load_state_dict(state)
