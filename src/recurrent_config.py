"""The configuration of a recurrent translator: one frozen dataclass, checked when it is made."""

from dataclasses import dataclass

from src.configuration import Configuration

SCORERS = ("additive", "bilinear", "dot", "scaled_dot")
QUERIES = ("previous", "current")


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
            "src_vocab_size", "tgt_vocab_size", "d_embed", "d_encoder", "d_decoder",
            "num_encoder_layers", "num_decoder_layers", "d_score",
        ):  # fmt: skip
            self._demand(name, getattr(self, name) >= 1, "at least 1")
        self._demand(
            "d_encoder", not self.bidirectional or self.d_encoder % 2 == 0,
            "even where the encoder is bidirectional",
        )  # fmt: skip
        self._demand("dropout", 0 <= self.dropout < 1, "at least 0 and below 1")
        self._demand("scorer", self.scorer in SCORERS, f"one of {', '.join(SCORERS)}")
        self._demand("query_from", self.query_from in QUERIES, f"one of {', '.join(QUERIES)}")
        self._demand(
            "scorer", self.d_encoder == self.d_decoder or self.scorer in ("additive", "bilinear"),
            f"additive or bilinear where d_encoder ({self.d_encoder}) and d_decoder "
            f"({self.d_decoder}) differ",
        )  # fmt: skip
        for name in ("pad_id", "bos_id", "eos_id"):
            self._demand(
                name, 0 <= getattr(self, name) < self.tgt_vocab_size,
                f"an id of the target vocabulary, 0 … {self.tgt_vocab_size - 1}",
            )  # fmt: skip
