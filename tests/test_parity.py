"""The same weights give the same answers and gradients as torch.nn, d2l and Hugging Face.

No axis is as long as another one. Weights are taken over by `src.applications.interop`, and gradients are
compared name by name after the same translation.
"""

import math

import pytest
import torch
from d2l import torch as d2l
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, MarianConfig, MarianMTModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from src.applications import interop
from src.decoding import beam_search, greedy
from src.masks import causal_mask, from_key_padding_mask, padding_mask, valid_lens_mask
from src.positions import RotaryPositions, sinusoidal_table
from src.recording import recording

B, T, S, H, K, FF = 3, 5, 7, 2, 11, 13
D = H * K
PRECISE = [(torch.float64, 1e-10), (torch.float32, 1e-5)]
BACKENDS = ["explicit", "sdpa"]
precisions = pytest.mark.parametrize(("dtype", "tolerance"), PRECISE)
backends = pytest.mark.parametrize("backend", BACKENDS)
orders = pytest.mark.parametrize("norm_first", [False, True])


def scrambled(module, dtype):
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    return module.to(dtype)


def tokens(length, dtype, width=D):
    return torch.randn(B, length, width, dtype=dtype, requires_grad=True)


def close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def compare(ours, theirs, inputs, modules, translate, tolerance):
    """Compare outputs, the inputs' gradients and every parameter's, under our names."""
    close(ours, theirs, tolerance)
    factor = torch.randn_like(theirs) / theirs.numel() ** 0.5
    results = []
    for output, module in zip((ours, theirs), modules, strict=True):
        module.zero_grad()
        names, parameters = zip(*module.named_parameters(), strict=True)
        grads = torch.autograd.grad((output * factor).sum(), [*inputs, *parameters])
        results.append((grads[: len(inputs)], dict(zip(names, grads[len(inputs) :], strict=True))))
    (our_inputs, ours), (their_inputs, theirs) = results
    for a, b in zip(our_inputs, their_inputs, strict=True):
        close(a, b, tolerance)
    theirs = translate(theirs)
    assert ours.keys() >= theirs.keys() and theirs
    for name, grad in theirs.items():
        close(ours[name], grad, tolerance)


def torch_names(grads):
    return interop._renamed(grads, interop._TORCH_NAMES)


# ---- torch.nn


@precisions
@backends
@pytest.mark.parametrize("kind", ["self", "cross", "apart"])
def test_multi_head_attention(kind, backend, dtype, tolerance):
    theirs = scrambled(nn.MultiheadAttention(D, H, batch_first=True), dtype)
    ours = interop.from_torch_attention(theirs, backend)
    x = [tokens(n, dtype) for n in {"self": [T], "cross": [T, S], "apart": [T, S, S]}[kind]]
    query, key, value = x[0], x[min(1, len(x) - 1)], x[-1]
    ignored = torch.zeros(B, key.shape[1], dtype=torch.bool)
    ignored[1, 3:], ignored[2, 1:] = True, True
    allowed = torch.rand(T, key.shape[1]) > 0.3
    allowed[:, 0] = True
    mask = from_key_padding_mask(ignored) & allowed
    expected, weights = theirs(
        query, key, value, key_padding_mask=ignored, attn_mask=~allowed, average_attn_weights=False
    )
    with recording(ours) as maps:
        output = ours(*x, mask=mask)
    compare(
        output,
        expected,
        x,
        (ours, theirs),
        lambda grads: {n.replace("in_proj_", "in_proj."): g for n, g in grads.items()},
        tolerance,
    )
    close(maps["attention"], weights.detach(), tolerance)
    unweighted, _ = theirs(
        query, key, value, key_padding_mask=ignored, attn_mask=~allowed, need_weights=False
    )
    close(ours(*x, mask=mask), unweighted, tolerance)


@precisions
@backends
@orders
@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu])
def test_encoder_layer(norm_first, activation, backend, dtype, tolerance):
    theirs = scrambled(
        nn.TransformerEncoderLayer(
            D, H, FF, 0.0, activation, norm_first=norm_first, batch_first=True
        ),
        dtype,
    )
    ours, x = interop.from_torch_encoder_layer(theirs, backend), tokens(S, dtype)
    ignored = torch.zeros(B, S, dtype=torch.bool)
    ignored[1, 3:] = True
    expected = theirs(x, src_key_padding_mask=ignored)
    compare(
        ours(x, from_key_padding_mask(ignored)),
        expected,
        [x],
        (ours, theirs),
        torch_names,
        tolerance,
    )


@precisions
@backends
@orders
def test_decoder_layer(norm_first, backend, dtype, tolerance):
    theirs = scrambled(
        nn.TransformerDecoderLayer(D, H, FF, 0.0, norm_first=norm_first, batch_first=True), dtype
    )
    ours = interop.from_torch_decoder_layer(theirs, backend)
    x, memory = tokens(T, dtype), tokens(S, dtype)
    ignored = torch.zeros(B, S, dtype=torch.bool)
    ignored[1, 3:] = True
    expected = theirs(x, memory, tgt_mask=~causal_mask(T)[0], memory_key_padding_mask=ignored)
    kept = ours.cross_attention.remember(memory, from_key_padding_mask(ignored))
    compare(
        ours(x, kept),
        expected,
        [x, memory],
        (ours, theirs),
        torch_names,
        tolerance,
    )


def torch_transformer(norm_first, dtype):
    """PyTorch's Transformer with our embeddings, and post-norm without its final LayerNorms."""
    core = nn.Transformer(D, H, 2, 3, FF, 0.0, norm_first=norm_first, batch_first=True)
    if not norm_first:
        core.encoder.norm = core.decoder.norm = None
    parts = nn.ModuleDict(
        {
            "core": core,
            "src": nn.Embedding(17, D),
            "tgt": nn.Embedding(19, D),
            "output": nn.Linear(D, 19, bias=False),
        }
    )
    return scrambled(parts, dtype)


def torch_forward(parts, src, tgt):
    def embed(table, ids):
        x = table(ids) * math.sqrt(D)
        return x + sinusoidal_table(ids.shape[1], D, x.dtype)

    ignored = src == 0
    hidden = parts["core"](
        embed(parts["src"], src),
        embed(parts["tgt"], tgt),
        tgt_mask=~causal_mask(tgt.shape[1])[0],
        src_key_padding_mask=ignored,
        memory_key_padding_mask=ignored,
    )
    return parts["output"](hidden)


def batch():
    src, tgt = torch.randint(3, 17, (B, S)), torch.randint(3, 19, (B, T))
    src[1, 4:], src[2, 2:], tgt[:, 0] = 0, 0, 1
    return src, tgt


def converted(parts, backend):
    return interop.from_torch_transformer(
        parts["core"], parts["src"], parts["tgt"], parts["output"], max_len=29, backend=backend
    )


@precisions
@backends
@orders
def test_transformer(norm_first, backend, dtype, tolerance):
    theirs, (src, tgt) = torch_transformer(norm_first, dtype), batch()
    ours = converted(theirs, backend)

    def translate(grads):
        grads = torch_names({name.removeprefix("core."): g for name, g in grads.items()})
        for side, stack in (("src", "encoder"), ("tgt", "decoder")):
            grads[f"{stack}.embeddings.tokens.weight"] = grads.pop(f"{side}.weight")
        return grads

    compare(
        ours(src, tgt), torch_forward(theirs, src, tgt), [], (ours, theirs), translate, tolerance
    )


@orders
@torch.no_grad()
def test_transformer_on_pytorchs_fast_path(norm_first):
    """In evaluation PyTorch's post-norm encoder takes another path, which zeroes the padding."""
    theirs, (src, tgt) = torch_transformer(norm_first, torch.float64).eval(), batch()
    ours = converted(theirs, "sdpa")
    assert not ours.training
    close(ours(src, tgt), torch_forward(theirs, src, tgt), 1e-10)


# ---- d2l


def d2l_names(grads, prefix=""):
    projections = [f"{prefix}W_{part}" for part in "qkv"]
    into = "self_attention.in_proj" if prefix else "in_proj"
    grads = interop._joined(grads, *projections, into=into)
    return interop._renamed(grads, interop._D2L_NAMES if prefix else {"W_o.": "out_proj."})


@precisions
@pytest.mark.parametrize("per_query", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_d2l_multi_head_attention(bias, per_query, dtype, tolerance):
    theirs = scrambled(d2l.MultiHeadAttention(D, D, D, D, H, 0.0, bias), dtype)
    ours = interop.from_d2l_attention(theirs)
    query, key, value = (tokens(n, dtype) for n in (T, S, S))
    lens = torch.randint(1, S + 1, (B, T) if per_query else (B,))
    expected = theirs(query.clone(), key.clone(), value.clone(), lens.clone())
    with recording(ours) as maps:
        output = ours(query, key, value, valid_lens_mask(lens, S))
    compare(
        output,
        expected,
        [query, key, value],
        (ours, theirs),
        d2l_names,
        tolerance,
    )
    weights = theirs.attention.attention_weights.detach()
    close(maps["attention"].flatten(0, 1), weights, tolerance)


@precisions
@pytest.mark.parametrize("bias", [False, True])
def test_d2l_encoder_block(bias, dtype, tolerance):
    theirs = scrambled(d2l.EncoderBlock(D, D, D, D, [D], D, FF, H, 0.0, bias), dtype)
    ours, x = interop.from_d2l_encoder_block(theirs), tokens(S, dtype)
    lens = torch.tensor([7, 3, 1])
    compare(
        ours(x, valid_lens_mask(lens, S)),
        theirs(x.clone(), lens.clone()),
        [x],
        (ours, theirs),
        lambda grads: d2l_names(grads, "attention."),
        tolerance,
    )


# ---- Hugging Face


def test_rotary_positions_of_llama():
    config = LlamaConfig(hidden_size=28, num_attention_heads=2, max_position_embeddings=64)
    query, key = torch.randn(B, 2, T, 14), torch.randn(B, 2, T, 14)
    at = torch.arange(31, 31 + T).expand(B, -1)
    theirs = apply_rotary_pos_emb(query, key, *LlamaRotaryEmbedding(config)(query, at))
    rotary = RotaryPositions(14, 64)
    for ours, expected in zip((rotary(query, 31), rotary(key, 31)), theirs, strict=True):
        close(ours, expected, 1e-5)


def marian(dtype=torch.float64, seed=0, **fields):
    """A small Marian of random weights, large enough for every answer to be decided."""
    sizes = {
        "vocab_size": 19,
        "decoder_vocab_size": 19,
        "d_model": D,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": H,
        "decoder_attention_heads": H,
        "encoder_ffn_dim": FF,
        "decoder_ffn_dim": FF,
        "max_position_embeddings": 29,
        "pad_token_id": 18,
        "decoder_start_token_id": 18,
        "eos_token_id": 0,
        "init_std": 0.4,
        "forced_eos_token_id": None,
        "scale_embedding": True,
        "activation_function": "relu",
        "dropout": 0.0,
    }
    torch.manual_seed(seed)
    config = MarianConfig(**(sizes | fields))
    config._attn_implementation = "eager"
    theirs = MarianMTModel(config).to(dtype).eval()
    theirs.generation_config.forced_eos_token_id = None
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.dim() == 1 and name.endswith(("weight", "bias")):
                parameter += 0.1 * torch.randn_like(parameter)
    return theirs, interop.from_marian(theirs.state_dict(), config.to_dict())


def marian_batch():
    src, tgt = torch.randint(1, 18, (B, S)), torch.randint(1, 18, (B, T))
    src[:, -1] = 0
    src[1, 3:], src[1, 3], src[2, 1:], src[2, 1] = 18, 0, 18, 0
    tgt[:, 0] = 18
    return src, tgt, (src != 18).long()


MARIANS = {
    "relu": {},
    "gelu, unscaled": {"activation_function": "gelu", "scale_embedding": False},
    "swish": {"activation_function": "swish"},
    "apart": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 23,
        "tie_word_embeddings": False,
    },
}


@precisions
@pytest.mark.parametrize("kind", MARIANS)
def test_marian(kind, dtype, tolerance):
    theirs, ours = marian(dtype, init_std=0.2, **MARIANS[kind])
    tied = MARIANS[kind].get("tie_word_embeddings", True)
    src, tgt, real = marian_batch()
    expected = theirs(input_ids=src, attention_mask=real, decoder_input_ids=tgt).logits
    scale = max(1.0, expected.abs().max().item())
    close(ours(src, tgt), expected, tolerance * scale)
    results = []
    for logits, model in ((ours(src, tgt), ours), (expected, theirs)):
        model.zero_grad()
        logits.log_softmax(-1)[..., 3].mean().backward()
        grads = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}
        results.append({n: grad for n, grad in grads.items() if grad is not None})
    grads = interop._marian_state(results[1])
    assert results[0].keys() == grads.keys()
    for name, grad in results[0].items():
        # Marian's embedding of <pad>, which starts its targets, too, is never trained.
        looked_up = name.endswith("tokens.weight") or tied and name == "output.weight"
        rows = torch.arange(len(grad)) != 18 if looked_up else slice(None)
        scale = max(1.0, grad.abs().max().item())
        close(grad[rows], grads[name][rows], tolerance * scale)


def test_marian_positions_are_ours_in_another_order():
    theirs, _ = marian()
    table = theirs.model.encoder.embed_positions.weight
    halves = sinusoidal_table(29, D)
    close(table.float(), torch.cat([halves[:, 0::2], halves[:, 1::2]], 1), 1e-6)


@torch.no_grad()
def test_marian_with_a_bias_on_its_logits():
    theirs, _ = marian()
    theirs.final_logits_bias.normal_()
    ours = interop.from_marian(theirs.state_dict(), theirs.config.to_dict())
    src, tgt, real = marian_batch()
    expected = theirs(input_ids=src, attention_mask=real, decoder_input_ids=tgt).logits
    close(ours(src, tgt), expected, 1e-9)


@torch.no_grad()
def test_marian_attention_maps():
    theirs, ours = marian()
    src, tgt, real = marian_batch()
    out = theirs(input_ids=src, attention_mask=real, decoder_input_ids=tgt, output_attentions=True)
    maps = ours.attention_maps(src, tgt)
    for name, expected in (
        ("encoder", out.encoder_attentions),
        ("decoder", out.decoder_attentions),
        ("cross", out.cross_attentions),
    ):
        for a, b in zip(maps[name], expected, strict=True):
            close(a, b, 1e-10)


IDS = {"bos_id": 18, "eos_id": 0, "pad_id": 18}
ENDINGS = {"never": -1e4, "seldom": 0.0, "often": 3.0}
seeds = pytest.mark.parametrize("seed", range(5))


def talkative(seed, ending):
    """A Marian that does not say one word for ever: the last token counts, and so does <eos>."""
    theirs, _ = marian(seed=seed, tie_word_embeddings=False)
    with torch.no_grad():
        theirs.model.decoder.embed_tokens.weight *= 2
        for layer in theirs.model.decoder.layers:
            layer.encoder_attn.out_proj.weight *= 0.3
            layer.self_attn.out_proj.weight *= 0.5
            layer.fc2.weight *= 0.3
        theirs.final_logits_bias[0, 0] = ENDINGS[ending]
    return theirs, interop.from_marian(theirs.state_dict(), theirs.config.to_dict())


def generate(theirs, src, real, **options):
    return theirs.generate(
        input_ids=src,
        attention_mask=real,
        max_new_tokens=11,
        do_sample=False,
        bad_words_ids=[[18]],
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def same_tokens(ours, theirs):
    """Equal up to the width of the padding."""
    width = max(ours.shape[1], theirs.shape[1])
    ours, theirs = (nn.functional.pad(x, (0, width - x.shape[1]), value=18) for x in (ours, theirs))
    return torch.equal(ours, theirs)


@seeds
@pytest.mark.parametrize("ending", ENDINGS)
@torch.no_grad()
def test_marian_greedy(seed, ending):
    """Token by token, their cache against ours; finished sentences leave ours."""
    theirs, ours = talkative(seed, ending)
    src, _, real = marian_batch()
    expected = generate(theirs, src, real, num_beams=1).sequences[:, 1:]
    assert same_tokens(greedy(ours.stepper(src), B, **IDS, max_len=11), expected)


@seeds
@pytest.mark.parametrize("ending", ENDINGS)
@torch.no_grad()
def test_marian_beams(seed, ending):
    """The best of three beams; without a length penalty both searches look for the same thing."""
    theirs, ours = talkative(seed, ending)
    src, _, real = marian_batch()
    expected = generate(theirs, src, real, num_beams=3, length_penalty=0.0)
    found = beam_search(ours.stepper(src), B, beam_size=3, length_penalty=0.0, **IDS, max_len=11)
    assert same_tokens(found.tokens[:, 0], expected.sequences[:, 1:])
    close(found.scores[:, 0].float(), expected.sequences_scores.float(), 1e-5)


@seeds
@torch.no_grad()
def test_all_marian_beams_of_equal_length(seed):
    """Where nothing ends, the whole beam is the same by definition."""
    theirs, ours = talkative(seed, "never")
    src, _, real = marian_batch()
    expected = generate(theirs, src, real, num_beams=3, num_return_sequences=3, length_penalty=0.0)
    found = beam_search(
        ours.stepper(src), B, beam_size=3, num_return=3, length_penalty=0.0, **IDS, max_len=11
    )
    assert torch.equal(found.tokens.flatten(0, 1), expected.sequences[:, 1:])
    close(found.scores.flatten().float(), expected.sequences_scores.float(), 1e-5)


@torch.no_grad()
def test_the_decoded_sentences_are_no_trivial_ones():
    """What the comparisons above stand on: several words, several lengths."""
    words, lengths = set(), set()
    for seed in range(5):
        _, ours = talkative(seed, "often")
        found = greedy(ours.stepper(marian_batch()[0]), B, **IDS, max_len=11)
        words |= set(found.flatten().tolist()) - {18}
        lengths |= set((found != 18).sum(1).tolist())
    assert len(words) >= 5 and len(lengths) >= 3


def test_ours_pads_a_source_like_marian():
    src, _, real = marian_batch()
    assert torch.equal(padding_mask(src, 18).squeeze(1), real.bool())
