"""The configuration of a Transformer: one frozen dataclass, checked when it is made."""

from dataclasses import dataclass
from typing import Any

from src.configuration import Configuration
from src.functional import BACKENDS

POSITIONS = ("sinusoidal", "learned", "rotary", "none")
ACTIVATIONS = ("relu", "gelu", "silu")
TYINGS = ("none", "target", "all")


@dataclass(frozen=True)
class TransformerConfig(Configuration):
    """Everything that decides a Transformer's shape and arithmetic.

    Args:
        src_vocab_size: Number of source ids.
        tgt_vocab_size: Number of target ids.
        d_model: Width of a token.
        num_heads: Heads of each attention; divides ``d_model``.
        d_ff: Hidden width of the feed-forward network.
        num_encoder_layers: Layers of the encoder, ≥ 1.
        num_decoder_layers: Layers of the decoder, ≥ 1; need not equal the encoder's.
        dropout: On each sublayer's output and on the embeddings, as in the paper.
        attention_dropout: On the attention weights; the paper has none.
        ffn_dropout: Inside the feed-forward network; the paper has none.
        max_len: Longest sequence, in tokens.
        norm_first: False: ``LayerNorm(x + Sublayer(x))``, the paper's post-norm. True: pre-norm,
            ``x + Sublayer(LayerNorm(x))``, with one more norm at the end of each stack.
        norm_eps: Added to the variance in every LayerNorm.
        activation: ``"relu"``, ``"gelu"`` (the exact one) or ``"silu"``.
        positions: ``"sinusoidal"``, ``"learned"``, ``"rotary"`` or ``"none"``.
        tie_embeddings: ``"none"``; ``"target"``: the decoder's embedding is the output matrix;
            ``"all"``: the encoder's, too, which needs one vocabulary for both sides.
        scale_embeddings: Multiply embeddings by ``sqrt(d_model)``.
        embedding_norm: LayerNorm on the embeddings, as in BERT.
        num_token_types: Token types added to the source embeddings, as in BERT; 0 for none.
        pad_id: Id of padding, on both sides.
        bos_id: Id that starts a target.
        eos_id: Id that ends a target.
        backend: Backend of `src.functional.attention`.

    Raises:
        ValueError: If a field is out of its range; the message names it.
        TypeError: If a field is of another type, such as 16.0 for a width.

    Source: Vaswani et al. 2017, §3 and table 3.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dropout: float = 0.1
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    max_len: int = 1024
    norm_first: bool = False
    norm_eps: float = 1e-5
    activation: str = "relu"
    positions: str = "sinusoidal"
    tie_embeddings: str = "target"
    scale_embeddings: bool = True
    embedding_norm: bool = False
    num_token_types: int = 0
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    backend: str = "sdpa"

    def __post_init__(self) -> None:
        """Refuse what no model could be built from."""
        super().__post_init__()
        for name in (
            "src_vocab_size", "tgt_vocab_size", "d_model", "num_heads", "d_ff",
            "num_encoder_layers", "num_decoder_layers", "max_len",
        ):
            self._demand(name, getattr(self, name) >= 1, "at least 1")
        self._demand("num_token_types", self.num_token_types >= 0, "at least 0")
        for name in ("dropout", "attention_dropout", "ffn_dropout"):
            self._demand(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        self._demand("norm_eps", self.norm_eps > 0, "above 0")
        for name, choices in (
            ("activation", ACTIVATIONS), ("positions", POSITIONS),
            ("tie_embeddings", TYINGS), ("backend", BACKENDS),
        ):
            self._demand(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        self._demand(
            "num_heads", self.d_model % self.num_heads == 0, f"a divisor of d_model {self.d_model}"
        )
        head_dim = self.d_model // self.num_heads
        self._demand(
            "positions", self.positions != "rotary" or head_dim % 2 == 0,
            f"other than rotary where the width of a head, {head_dim}, is odd",
        )
        for name in ("pad_id", "bos_id", "eos_id"):
            self._demand(
                name, 0 <= getattr(self, name) < self.tgt_vocab_size,
                f"an id of the target vocabulary, 0 … {self.tgt_vocab_size - 1}",
            )
        self._demand(
            "pad_id", self.pad_id < self.src_vocab_size,
            f"an id of the source vocabulary, 0 … {self.src_vocab_size - 1}",
        )
        self._demand(
            "tie_embeddings",
            self.tie_embeddings != "all" or self.src_vocab_size == self.tgt_vocab_size,
            "other than all where the vocabularies differ in size",
        )

    @classmethod
    def tiny(cls, src_vocab_size: int, tgt_vocab_size: int, **fields: Any) -> "TransformerConfig":
        """Two layers of width 128: learns simple sentences in a CPU minute."""
        preset = {
            "d_model": 128, "num_heads": 4, "d_ff": 512, "num_encoder_layers": 2,
            "num_decoder_layers": 2, "dropout": 0.2, "max_len": 128,
        }
        return cls.from_dict(_sizes(src_vocab_size, tgt_vocab_size) | preset | fields)

    @classmethod
    def base(cls, src_vocab_size: int, tgt_vocab_size: int, **fields: Any) -> "TransformerConfig":
        """The paper's base model: six layers of width 512 (table 3, first row)."""
        return cls.from_dict(_sizes(src_vocab_size, tgt_vocab_size) | fields)

    @classmethod
    def big(cls, src_vocab_size: int, tgt_vocab_size: int, **fields: Any) -> "TransformerConfig":
        """The paper's big model: six layers of width 1024 (table 3, last row)."""
        preset = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}
        return cls.from_dict(_sizes(src_vocab_size, tgt_vocab_size) | preset | fields)


def _sizes(src_vocab_size: int, tgt_vocab_size: int) -> dict[str, Any]:
    return {"src_vocab_size": src_vocab_size, "tgt_vocab_size": tgt_vocab_size}
