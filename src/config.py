"""What models and layers are built from: frozen dataclasses, checked when they are made."""

import dataclasses
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args, get_origin

from src.functional import BACKENDS

POSITIONS = ("sinusoidal", "learned", "rotary", "none")
ACTIVATIONS = ("relu", "gelu", "silu")
TYINGS = ("none", "target", "all")
SCORERS = ("additive", "bilinear", "dot", "scaled_dot")
QUERIES = ("previous", "current")
_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a sequence",
    NoneType: "None",
}
_ACCEPTED = {float: (float, int), tuple: (tuple, list)}


def check_types(fields: Any) -> None:
    """Refuse a dataclass that holds a value of another type than its field is declared with.

    An integer may stand where a number is asked for; true and false are no integers.

    Raises:
        TypeError: The message names the field, the value and what is asked for.
    """
    for field in dataclasses.fields(fields):
        value, declared = getattr(fields, field.name), field.type
        kinds = (
            (tuple,)
            if get_origin(declared) is tuple
            else get_args(declared) or (declared,)
        )
        accepted = tuple({kind for own in kinds for kind in _ACCEPTED.get(own, (own,))})
        if not isinstance(value, accepted) or (
            isinstance(value, bool) and bool not in kinds
        ):
            rule = " or ".join(_NAMES[kind] for kind in kinds)
            raise TypeError(f"{field.name} must be {rule}, but is {value!r}")


class Configuration:
    """Base of the frozen dataclasses that decide a model's shape and arithmetic."""

    def __post_init__(self) -> None:
        """Check the fields' types; a configuration's own checks come after these."""
        check_types(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Configuration":
        """Build from names and values; what is left out takes its default.

        Raises:
            ValueError: If a name is not a field, or a value is out of its range.
            TypeError: If a value is of another type than its field.
        """
        unknown = sorted(
            set(fields) - {field.name for field in dataclasses.fields(cls)}
        )
        if unknown:
            raise ValueError(f"unknown field of {cls.__name__}: {', '.join(unknown)}")
        return cls(**fields)

    def _demand(self, name: str, fits: bool, rule: str) -> None:
        if not fits:
            raise ValueError(f"{name} must be {rule}, but is {getattr(self, name)!r}")

    def _demand_one_of(self, name: str, choices: tuple[str, ...]) -> None:
        self._demand(
            name, getattr(self, name) in choices, f"one of {', '.join(choices)}"
        )

    def _demand_id(self, name: str, side: str, size: int) -> None:
        rule = f"an id of the {side} vocabulary, 0 … {size - 1}"
        self._demand(name, 0 <= getattr(self, name) < size, rule)


@dataclass(frozen=True, kw_only=True)
class LayerConfig(Configuration):
    """What an encoder or decoder layer is built from; it knows no vocabulary.

    Args:
        d_model: Width of a token.
        num_heads: Heads of each attention; divides ``d_model``.
        d_ff: Hidden width of the feed-forward network.
        dropout: On each sublayer's output and on the embeddings, as in the paper.
        attention_dropout: On the attention weights; the paper has none.
        ffn_dropout: Inside the feed-forward network; the paper has none.
        norm_first: False: ``LayerNorm(x + Sublayer(x))``, the paper's post-norm. True: pre-norm,
            ``x + Sublayer(LayerNorm(x))``, with one more norm at the end of each stack.
        norm_eps: Added to the variance in every LayerNorm.
        activation: ``"relu"``, ``"gelu"`` (the exact one) or ``"silu"``.
        backend: Backend of `src.functional.attention`.

    Raises:
        ValueError: If a field is out of its range; the message names it.
        TypeError: If a field is of another type, such as 16.0 for a width.

    Source: Vaswani et al. 2017, §3 and table 3.
    """

    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    norm_first: bool = False
    norm_eps: float = 1e-5
    activation: str = "relu"
    backend: str = "sdpa"

    def __post_init__(self) -> None:
        """Refuse what no layer could be built from."""
        super().__post_init__()
        for name in ("d_model", "num_heads", "d_ff"):
            self._demand(name, getattr(self, name) >= 1, "at least 1")
        for name in ("dropout", "attention_dropout", "ffn_dropout"):
            self._demand(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        self._demand("norm_eps", self.norm_eps > 0, "above 0")
        self._demand_one_of("activation", ACTIVATIONS)
        self._demand_one_of("backend", BACKENDS)
        self._demand(
            "num_heads",
            self.d_model % self.num_heads == 0,
            f"a divisor of d_model {self.d_model}",
        )

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.d_model // self.num_heads


@dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """What a Transformer is built from: its layers' fields, and those of the whole.

    Args:
        src_vocab_size: Number of source ids.
        tgt_vocab_size: Number of target ids.
        num_encoder_layers: Layers of the encoder, ≥ 1.
        num_decoder_layers: Layers of the decoder, ≥ 1; need not equal the encoder's.
        max_len: Longest sequence, in tokens.
        positions: ``"sinusoidal"``, ``"learned"``, ``"rotary"`` or ``"none"``.
        tie_embeddings: ``"none"``; ``"target"``: the decoder's embedding is the output matrix;
            ``"all"``: the encoder's, too, which needs one vocabulary for both sides.
        scale_embeddings: Multiply embeddings by ``sqrt(d_model)``.
        embedding_norm: LayerNorm on the embeddings, as in BERT.
        num_token_types: Token types added to the source embeddings, as in BERT; 0 for none.
        pad_id: Id of padding, on both sides.
        bos_id: Id that starts a target.
        eos_id: Id that ends a target.
        **fields: Those of `LayerConfig`.

    Raises:
        ValueError: If a field is out of its range; the message names it.
        TypeError: If a field is of another type, such as 16.0 for a width.

    Source: Vaswani et al. 2017, §3 and table 3.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    max_len: int = 1024
    positions: str = "sinusoidal"
    tie_embeddings: str = "target"
    scale_embeddings: bool = True
    embedding_norm: bool = False
    num_token_types: int = 0
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        """Refuse what no model could be built from."""
        super().__post_init__()
        for name in (
            "src_vocab_size",
            "tgt_vocab_size",
            "num_encoder_layers",
            "num_decoder_layers",
            "max_len",
        ):
            self._demand(name, getattr(self, name) >= 1, "at least 1")
        self._demand("num_token_types", self.num_token_types >= 0, "at least 0")
        self._demand_one_of("positions", POSITIONS)
        self._demand_one_of("tie_embeddings", TYINGS)
        self._demand(
            "positions",
            self.positions != "rotary" or self.head_dim % 2 == 0,
            f"other than rotary where the width of a head, {self.head_dim}, is odd",
        )
        self._demand_id("pad_id", "target", self.tgt_vocab_size)
        self._demand_id("bos_id", "target", self.tgt_vocab_size)
        self._demand_id("eos_id", "target", self.tgt_vocab_size)
        self._demand_id("pad_id", "source", self.src_vocab_size)
        self._demand(
            "tie_embeddings",
            self.tie_embeddings != "all" or self.src_vocab_size == self.tgt_vocab_size,
            "other than all where the vocabularies differ in size",
        )

    @classmethod
    def tiny(
        cls, src_vocab_size: int, tgt_vocab_size: int, **fields: Any
    ) -> "TransformerConfig":
        """Two layers of width 128: learns simple sentences in a CPU minute."""
        preset = {
            "d_model": 128,
            "num_heads": 4,
            "d_ff": 512,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "dropout": 0.2,
            "max_len": 128,
        }
        return cls.from_dict(_sizes(src_vocab_size, tgt_vocab_size) | preset | fields)

    @classmethod
    def base(
        cls, src_vocab_size: int, tgt_vocab_size: int, **fields: Any
    ) -> "TransformerConfig":
        """The paper's base model: six layers of width 512 (table 3, first row)."""
        return cls.from_dict(_sizes(src_vocab_size, tgt_vocab_size) | fields)

    @classmethod
    def big(
        cls, src_vocab_size: int, tgt_vocab_size: int, **fields: Any
    ) -> "TransformerConfig":
        """The paper's big model: six layers of width 1024 (table 3, last row)."""
        preset = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}
        return cls.from_dict(_sizes(src_vocab_size, tgt_vocab_size) | preset | fields)


def _sizes(src_vocab_size: int, tgt_vocab_size: int) -> dict[str, Any]:
    return {"src_vocab_size": src_vocab_size, "tgt_vocab_size": tgt_vocab_size}


@dataclass(frozen=True)
class RecurrentConfig(Configuration):
    """Everything that decides a recurrent model's shape and arithmetic.

    Args:
        src_vocab_size: Number of source ids.
        tgt_vocab_size: Number of target ids.
        d_embed: Width of an embedding, on both sides.
        d_encoder: Width of an encoder state, that is, of a key, a value and a context.
        d_decoder: Units of the decoder's GRU, the width of a query; need not be the encoder's.
        bidirectional: Read the source in both directions; each makes half of ``d_encoder``.
        num_encoder_layers: Layers of the encoder, ≥ 1.
        num_decoder_layers: Layers of the decoder, ≥ 1.
        dropout: On embeddings, between layers and before the logits.
        scorer: With attention: ``"additive"`` (Bahdanau's), ``"bilinear"``, or, where
            ``d_encoder`` and ``d_decoder`` are equal, ``"dot"`` or ``"scaled_dot"``.
        d_score: Hidden width of the additive scorer.
        query_from: With attention: the decoder state whose context makes the logits of step t,
            that of step t − 1 (``"previous"``) or that of step t (``"current"``).
        pad_id: Id of padding, on both sides.
        bos_id: Id that starts a target.
        eos_id: Id that ends a target.

    Raises:
        ValueError: If a field is out of its range; the message names it.
        TypeError: If a field is of another type, such as 16.0 for a width.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_embed: int = 128
    d_encoder: int = 256
    d_decoder: int = 256
    bidirectional: bool = False
    num_encoder_layers: int = 1
    num_decoder_layers: int = 1
    dropout: float = 0.1
    scorer: str = "additive"
    d_score: int = 128
    query_from: str = "previous"
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        """Refuse what no model could be built from."""
        super().__post_init__()
        for name in (
            "src_vocab_size",
            "tgt_vocab_size",
            "d_embed",
            "d_encoder",
            "d_decoder",
            "num_encoder_layers",
            "num_decoder_layers",
            "d_score",
        ):
            self._demand(name, getattr(self, name) >= 1, "at least 1")
        self._demand(
            "d_encoder",
            not self.bidirectional or self.d_encoder % 2 == 0,
            "even where the encoder is bidirectional",
        )
        self._demand("dropout", 0 <= self.dropout < 1, "at least 0 and below 1")
        self._demand_one_of("scorer", SCORERS)
        self._demand_one_of("query_from", QUERIES)
        self._demand(
            "scorer",
            self.d_encoder == self.d_decoder or self.scorer in ("additive", "bilinear"),
            f"additive or bilinear where d_encoder ({self.d_encoder}) and d_decoder "
            f"({self.d_decoder}) differ",
        )
        for name in ("pad_id", "bos_id", "eos_id"):
            self._demand_id(name, "target", self.tgt_vocab_size)
