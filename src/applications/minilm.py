"""Real weights in our own encoder: all-MiniLM-L6-v2, a small BERT for sentences.

Nothing of another library computes here. The weights come from `src.assets`, are copied tensor
by tensor into `src.transformer.Encoder`, and whatever has no place there is refused or named in
`UNUSED`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from src.assets import fetch
from src.config import TransformerConfig
from src.layers import EncoderLayer
from src.masks import length_mask
from src.recording import recording
from src.transformer import Encoder

# What the file holds and a sentence embedding does not need: the numbers 0 … 511, and BERT's
# pooler, a dense layer on [CLS] for another task than ours.
UNUSED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")

# Settings of a BERT that our equations assume.
_ASSUMED = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}


@dataclass(frozen=True)
class Reading:
    """What the encoder made of some sentences.

    Args:
        tokens: The word pieces of each sentence, without padding.
        ids: Their ids, padded.
        mask: True where a real token stands.
        states: The embeddings, then each layer's output.
        weights: Each layer's attention weights.
    """

    tokens: list[list[str]]
    ids: Int[Tensor, "B S"]
    mask: Bool[Tensor, "B 1 S"]
    states: list[Float[Tensor, "B S D"]]
    weights: list[Float[Tensor, "B H S S"]]


def load_minilm() -> tuple[Encoder, Tokenizer]:
    """Load all-MiniLM-L6-v2: six post-norm layers of width 384 with twelve heads.

    Returns:
        The encoder in ``eval()`` mode, float32 on the CPU, and its tokenizer, which pads a batch
        to its longest sentence and cuts nothing off: more than 512 word pieces are refused by
        the encoder.

    Raises:
        AssetError: If the files are neither in the cache nor to be had.

    Source: Wang et al. 2020 (MiniLM); Reimers and Gurevych 2019 (sentence embeddings).
    Differs from: the published pipeline cuts a text after 256 word pieces.
    """
    fields = json.loads(fetch("minilm-config").read_text(encoding="utf-8"))
    encoder = Encoder(bert_config(fields))
    copy_bert_weights(encoder, load_file(fetch("minilm-weights")))
    tokenizer = Tokenizer.from_file(str(fetch("minilm-tokenizer")))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    return encoder.eval(), tokenizer


def bert_config(fields: Mapping[str, Any]) -> TransformerConfig:
    """Translate a BERT's ``config.json`` into ours.

    The target side does not exist: its fields repeat the source's.

    Raises:
        ValueError: If the model is not a BERT with exact GELU and absolute positions.
    """
    for name, value in _ASSUMED.items():
        if fields.get(name) != value:
            raise ValueError(
                f"fields[{name!r}] must be {value!r}, but is {fields.get(name)!r}"
            )
    return TransformerConfig(
        src_vocab_size=fields["vocab_size"],
        tgt_vocab_size=fields["vocab_size"],
        d_model=fields["hidden_size"],
        num_heads=fields["num_attention_heads"],
        d_ff=fields["intermediate_size"],
        num_encoder_layers=fields["num_hidden_layers"],
        dropout=fields["hidden_dropout_prob"],
        attention_dropout=fields["attention_probs_dropout_prob"],
        max_len=fields["max_position_embeddings"],
        norm_first=False,
        norm_eps=fields["layer_norm_eps"],
        activation="gelu",
        positions="learned",
        scale_embeddings=False,
        embedding_norm=True,
        num_token_types=fields["type_vocab_size"],
        pad_id=fields["pad_token_id"],
    )


@torch.no_grad()
def copy_bert_weights(encoder: Encoder, tensors: Mapping[str, Tensor]) -> None:
    """Copy a BERT's tensors into ``encoder``, which is **changed in place**.

    Args:
        encoder: An encoder built from `bert_config`.
        tensors: Name to tensor, as BERT names them. Those in `UNUSED` may be there.

    Raises:
        ValueError: If a tensor is missing or left over, or has another shape than its place.
            Nothing is copied then.
    """
    places = _places(encoder)
    missing = sorted(set(places) - set(tensors))
    if missing:
        raise ValueError(
            f"tensors must hold {missing[0]!r}; {len(missing)} are missing"
        )
    left_over = sorted(set(tensors) - set(places) - set(UNUSED))
    if left_over:
        raise ValueError(
            f"tensors must not hold {left_over[0]!r}; {len(left_over)} have no place"
        )
    for name, place in places.items():
        if tensors[name].shape != place.shape:
            raise ValueError(
                f"tensors[{name!r}] must have shape {tuple(place.shape)}, "
                f"but has {tuple(tensors[name].shape)}"
            )
    for name, place in places.items():
        place.copy_(tensors[name])


def _places(encoder: Encoder) -> dict[str, Tensor]:
    """For each of BERT's names the parameter, or the rows of one, that takes its tensor."""
    embeddings = encoder.embeddings
    places = {
        "embeddings.word_embeddings.weight": embeddings.tokens.weight,
        "embeddings.position_embeddings.weight": embeddings.positions.weight,
        "embeddings.token_type_embeddings.weight": embeddings.types.weight,
        **_pair("embeddings.LayerNorm", embeddings.norm),
    }
    for index, layer in enumerate(encoder.layers):
        places |= _layer_places(f"encoder.layer.{index}", layer)
    return places


def _layer_places(prefix: str, layer: EncoderLayer) -> dict[str, Tensor]:
    attention, feed_forward = layer.self_attention, layer.feed_forward
    places = {
        **_pair(f"{prefix}.attention.output.dense", attention.out_proj),
        **_pair(f"{prefix}.attention.output.LayerNorm", layer.add_norms[0].norm),
        **_pair(f"{prefix}.intermediate.dense", feed_forward.inner),
        **_pair(f"{prefix}.output.dense", feed_forward.outer),
        **_pair(f"{prefix}.output.LayerNorm", layer.add_norms[1].norm),
    }
    # BERT keeps three matrices, we keep one: its thirds are views,
    # so copying fills the whole.
    thirds = zip(
        attention.in_proj.weight.chunk(3),
        attention.in_proj.bias.chunk(3),
        strict=True,
    )
    for name, (weight, bias) in zip(("query", "key", "value"), thirds, strict=True):
        places[f"{prefix}.attention.self.{name}.weight"] = weight
        places[f"{prefix}.attention.self.{name}.bias"] = bias
    return places


def _pair(name: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.weight": module.weight, f"{name}.bias": module.bias}


@torch.no_grad()
def read(encoder: Encoder, tokenizer: Tokenizer, sentences: Sequence[str]) -> Reading:
    """Run the encoder and keep every layer's vectors and attention weights.

    Args:
        encoder: As `load_minilm` returns it.
        tokenizer: Likewise.
        sentences: At least one text.

    Raises:
        TypeError: If ``sentences`` is a single string.
        ValueError: If it is empty, or a text is longer than the encoder's positions.
    """
    tokens, ids, mask = _tokenize(encoder, tokenizer, sentences)
    states: list[Tensor] = []
    parts = (encoder.embeddings, *encoder.layers)
    hooks = [
        part.register_forward_hook(lambda *call: states.append(call[-1]))
        for part in parts
    ]
    try:
        with recording(encoder) as maps:
            encoder(ids, mask)
    finally:
        for hook in hooks:
            hook.remove()
    return Reading(tokens, ids, mask, states, list(maps.values()))


@torch.no_grad()
def sentence_embedding(
    encoder: Encoder, tokenizer: Tokenizer, sentences: Sequence[str]
) -> Float[Tensor, "B D"]:
    """Embed each sentence: the mean of its tokens' last vectors, scaled to length 1.

    The dot product of two embeddings is the cosine of their angle. Padding counts nowhere;
    ``[CLS]`` and ``[SEP]`` do.

    Args:
        encoder: As `load_minilm` returns it.
        tokenizer: Likewise.
        sentences: At least one text.

    Raises:
        TypeError: If ``sentences`` is a single string.
        ValueError: If it is empty, or a text is longer than the encoder's positions.

    Source: Reimers and Gurevych 2019, §3 (mean pooling); the model card of all-MiniLM-L6-v2.
    """
    _, ids, mask = _tokenize(encoder, tokenizer, sentences)
    # (B, 1, S) @ (B, S, D): a sum over the real tokens, then their mean.
    real = mask.to(encoder.embeddings.tokens.weight.dtype)
    mean = (real @ encoder(ids, mask)).squeeze(1) / real.sum(dim=-1)
    return F.normalize(mean, dim=-1)


def reference() -> dict[str, Any]:
    """Values that the ``transformers`` library computed from the same weights.

    ``tools/minilm_reference.py`` made them and says what they are.
    """
    file = files("src") / "applications" / "minilm.json"
    return json.loads(file.read_text(encoding="utf-8"))


def _tokenize(
    encoder: Encoder, tokenizer: Tokenizer, sentences: Sequence[str]
) -> tuple[list[list[str]], Tensor, Tensor]:
    if isinstance(sentences, str):
        raise TypeError(
            f"sentences must be a sequence of texts, but is the text {sentences!r}"
        )
    if not sentences:
        raise ValueError("sentences must hold at least one text, but is empty")
    encodings = tokenizer.encode_batch(list(sentences))
    lengths = [sum(encoding.attention_mask) for encoding in encodings]
    tokens = [e.tokens[:length] for e, length in zip(encodings, lengths, strict=True)]
    device = encoder.embeddings.tokens.weight.device
    ids = torch.tensor([encoding.ids for encoding in encodings], device=device)
    # Lengths, not ids: a text may spell "[PAD]" itself.
    return tokens, ids, length_mask(torch.tensor(lengths, device=device), ids.shape[1])
