"""Recurrent translators: a GRU encoder and decoder, with one fixed context or with attention.

Both models are one class but for the context. `Seq2Seq` gives every decoder step the same one, the
encoder's last state. `AttentionSeq2Seq` makes a new one at each step, a weighted sum of all encoder
states. Embedding and context enter the decoder's GRU together, and its state and a context make
the logits together.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from src.config import RecurrentConfig
from src.functional import masked_softmax
from src.masks import padding_mask
from src.scoring import AdditiveScore, BilinearScore, DotScore, ScaledDotScore
from src.token_ids import check_ids

__all__ = [
    "AttentionSeq2Seq",
    "DecoderState",
    "RecurrentEncoder",
    "RecurrentStepper",
    "Seq2Seq",
]


class RecurrentEncoder(nn.Module):
    """Source ids to one state for each token, and one for the whole sentence.

    Args:
        config: Widths, layers, directions, dropout.

    Source: Cho et al. 2014, §2.2 and 2.3 (the GRU); both directions: Bahdanau et al. 2015, §3.2.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.pad_id = config.pad_id
        self.directions = 2 if config.bidirectional else 1
        self.embedding = nn.Embedding(config.src_vocab_size, config.d_embed)
        self.dropout = nn.Dropout(config.dropout)
        self.rnn = _gru(
            config.d_embed,
            config.d_encoder // self.directions,
            config.num_encoder_layers,
            config.dropout,
            bidirectional=config.bidirectional,
        )

    def forward(
        self, src: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S E"], Float[Tensor, "B E"]]:
        """Read the source from left to right and, if bidirectional, from right to left as well.

        Returns:
            The top layer's state at each token, zero at padding; and its state after the last
            token that it reads: each row's last real one, or the first one from right to left.

        Raises:
            ValueError: If ``src`` is empty, a row is padding alone, or an id lies outside the
                vocabulary (the last is left to the device's own assertion on a GPU).
        """
        _check_ids("src", src, self.embedding)
        places = torch.arange(1, src.shape[1] + 1, device=src.device)
        lengths = torch.where(src == self.pad_id, 0, places).amax(dim=1).cpu()
        if int(lengths.min()) == 0:
            row = int(lengths.argmin())
            raise ValueError(
                f"src must hold a real token in each row, but row {row} has none"
            )
        # Packed, so that no state is made of padding: not the last, and from right to left none.
        packed = pack_padded_sequence(
            self.dropout(self.embedding(src)),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        states, hidden = self.rnn(packed)
        states, _ = pad_packed_sequence(
            states, batch_first=True, total_length=src.shape[1]
        )
        # (directions, B, units) -> (B, directions · units)
        return states, hidden[-self.directions :].transpose(0, 1).flatten(1)


class DecoderState(NamedTuple):
    """All that a decoder knows between two steps; the last four with attention only.

    Attributes:
        hidden: State (L, B, D) of each layer of the decoder's GRU.
        context: What enters the next step beside the embedding, (B, E).
        weights: The attention weights (B, 1, S) that made ``context``.
        memory: The encoder's states (B, S, E), the values.
        keys: What the scorer compares queries with, (B, S, ·): the states, projected once.
        mask: True at real source tokens, (B, 1, S).
    """

    hidden: Float[Tensor, "L B D"]
    context: Float[Tensor, "B E"]
    weights: Float[Tensor, "B 1 S"] | None = None
    memory: Float[Tensor, "B S E"] | None = None
    keys: Float[Tensor, "B S A"] | None = None
    mask: Bool[Tensor, "B 1 S"] | None = None

    def select(self, index: Int[Tensor, " M"]) -> "DecoderState":
        """Keep, reorder, drop or repeat rows."""
        rest = (None if x is None else x.index_select(0, index) for x in self[1:])
        return DecoderState(self.hidden.index_select(1, index), *rest)


class Seq2Seq(nn.Module):
    """Encoder and decoder joined by one fixed context: the encoder's state at the last token.

    The context starts the decoder, enters each of its steps joined to the embedding, and reaches
    the logits of each step.

    Args:
        config: Shape and arithmetic; the fields about attention are not used.

    Source: Cho et al. 2014, §2.2: eq. 3 feeds the context to every step. Sutskever et al. 2014
    feed it to the first only.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = RecurrentEncoder(config)
        self.embedding = nn.Embedding(config.tgt_vocab_size, config.d_embed)
        self.dropout = nn.Dropout(config.dropout)
        # Bridges encoder and decoder, whose widths and numbers of layers may differ.
        self.bridge = nn.Linear(
            config.d_encoder, config.num_decoder_layers * config.d_decoder
        )
        self.rnn = _gru(
            config.d_embed + config.d_encoder,
            config.d_decoder,
            config.num_decoder_layers,
            config.dropout,
        )
        self.output = nn.Linear(
            config.d_decoder + config.d_encoder, config.tgt_vocab_size
        )

    def forward(
        self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B2 T"]
    ) -> Float[Tensor, "B2 T V"]:
        """Logits of the next token after every prefix of ``tgt``: training's view.

        Args:
            src: Source ids, padded at the end with ``pad_id``.
            tgt: Target ids, starting with ``bos_id``: the sentence shifted right by one.

        Raises:
            ValueError: If a batch is empty, the rows differ in number, a source row is padding
                alone, or an id lies outside its vocabulary.
        """
        _check_rows(src, tgt)
        return self.advance(tgt, self.start(src))[0]

    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        """Encode ``src``, once for all decoder steps."""
        _, last = self.encoder(src)
        return DecoderState(self._first_hidden(last), last)

    def advance(
        self, tgt: Int[Tensor, "B T"], state: DecoderState
    ) -> tuple[Float[Tensor, "B T V"], DecoderState]:
        """Feed the next tokens: one, some or all. The state given is left as it is.

        Returns:
            Logits of the token after each, and the state after the last.

        Raises:
            ValueError: If ``tgt`` is empty or holds an id outside the vocabulary.
        """
        _check_ids("tgt", tgt, self.embedding)
        embedded = self.dropout(self.embedding(tgt))
        outputs, contexts, state = self._run(embedded, state)
        return self.output(self.dropout(torch.cat([outputs, contexts], dim=-1))), state

    def stepper(self, src: Int[Tensor, "B S"]) -> "RecurrentStepper":
        """A step function for `src.decoding` that has read ``src``."""
        return RecurrentStepper(self, src)

    def num_parameters(self) -> int:
        """Number of learned numbers."""
        return sum(p.numel() for p in self.parameters())

    def _first_hidden(self, last: Float[Tensor, "B E"]) -> Float[Tensor, "L B D"]:
        """Bahdanau et al. 2015, appendix A.2.2: tanh of a linear map."""
        hidden = torch.tanh(self.bridge(last))
        # (B, L·D) -> (B, L, D) -> (L, B, D)
        hidden = hidden.unflatten(1, (self.config.num_decoder_layers, -1))
        return hidden.transpose(0, 1).contiguous()

    def _run(
        self, embedded: Float[Tensor, "B T X"], state: DecoderState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T E"], DecoderState]:
        """Run the decoder's GRU: its outputs and, for each step, the context of its logits."""
        contexts = state.context.unsqueeze(1).expand(-1, embedded.shape[1], -1)
        outputs, hidden = self.rnn(
            torch.cat([embedded, contexts], dim=-1), state.hidden
        )
        return outputs, contexts, state._replace(hidden=hidden)


class AttentionSeq2Seq(Seq2Seq):
    """Encoder and decoder joined by attention: each step has a context of its own.

    Keys and values are the encoder's states, the query is the top state of the decoder. The
    context that the state of step t − 1 asks for is joined to the embedding that enters step t.
    With ``query_from="previous"`` that context makes the logits of step t, too; with
    ``"current"`` it is the one that the new state asks for.

    Args:
        config: Shape and arithmetic.

    Source: Bahdanau et al. 2015, §3.1, here without the maxout layer before the logits, and with
    a bidirectional encoder only if the configuration says so. ``"current"`` asks with
    the state that Luong et al. 2015, §3.1, ask with; the cell stays Bahdanau's (there is no
    attentional state, and none is fed to the next step).
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.scorer = _scorer(config)

    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        """Encode ``src``, project the keys, and ask for the first context."""
        memory, last = self.encoder(src)
        hidden = self._first_hidden(last)
        source = (
            memory,
            self.scorer.project_key(memory),
            padding_mask(src, self.config.pad_id),
        )
        context, weights = self._attend(hidden[-1].unsqueeze(1), *source)
        return DecoderState(hidden, context.squeeze(1), weights, *source)

    @torch.no_grad()
    def attention_maps(
        self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B2 T"]
    ) -> Float[Tensor, "B2 T S"]:
        """The weights of the context that makes each step's logits.

        Row t belongs to the token *after* ``tgt[:, t]``. Take them in ``eval()`` mode.

        Raises:
            ValueError: As `forward`.
        """
        _check_rows(src, tgt)
        _check_ids("tgt", tgt, self.embedding)
        states = [self.start(src)]
        for token in tgt.split(1, dim=1):
            states.append(self.advance(token, states[-1])[1])
        current = self.config.query_from == "current"
        used = states[1:] if current else states[:-1]
        return torch.cat([state.weights for state in used], dim=1)

    def _run(
        self, embedded: Float[Tensor, "B T X"], state: DecoderState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T E"], DecoderState]:
        """Step by step: the context of each step depends on the state before it."""
        hidden, first, weights, *source = state
        outputs, contexts = [], [first.unsqueeze(1)]
        for token in embedded.split(1, dim=1):
            output, hidden = self.rnn(torch.cat([token, contexts[-1]], dim=-1), hidden)
            context, weights = self._attend(output, *source)
            outputs.append(output)
            contexts.append(context)
        state = DecoderState(hidden, contexts[-1].squeeze(1), weights, *source)
        used = contexts[1:] if self.config.query_from == "current" else contexts[:-1]
        return torch.cat(outputs, dim=1), torch.cat(used, dim=1), state

    def _attend(
        self,
        query: Float[Tensor, "B 1 D"],
        memory: Float[Tensor, "B S E"],
        keys: Float[Tensor, "B S A"],
        mask: Bool[Tensor, "B 1 S"],
    ) -> tuple[Float[Tensor, "B 1 E"], Float[Tensor, "B 1 S"]]:
        weights = masked_softmax(self.scorer.score_projected(query, keys), mask)
        return weights @ memory, weights


class RecurrentStepper:
    """A step function over a recurrent model: feeds one token a row and remembers the rest.

    Args:
        model: The model, in ``eval()`` mode unless you want dropout.
        src: Source ids.
    """

    @torch.no_grad()
    def __init__(self, model: Seq2Seq, src: Tensor) -> None:
        self.model = model
        self.device = src.device
        self.state = model.start(src)

    @torch.no_grad()
    def __call__(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Feed the last token of each row; logits of the next."""
        logits, self.state = self.model.advance(tokens.unsqueeze(1), self.state)
        return logits.squeeze(1)

    def select(self, index: Int[Tensor, " M"]) -> None:
        """Keep, reorder, drop or repeat rows."""
        self.state = self.state.select(index)


def _gru(
    d_in: int, units: int, layers: int, dropout: float, bidirectional: bool = False
) -> nn.GRU:
    """A GRU, batch first; torch warns of a dropout that has no second layer to stand before."""
    return nn.GRU(
        d_in,
        units,
        layers,
        batch_first=True,
        bidirectional=bidirectional,
        dropout=dropout if layers > 1 else 0.0,
    )


def _scorer(config: RecurrentConfig) -> nn.Module:
    widths = (config.d_decoder, config.d_encoder)
    if config.scorer == "additive":
        return AdditiveScore(*widths, config.d_score)
    if config.scorer == "bilinear":
        return BilinearScore(*widths)
    return {"dot": DotScore, "scaled_dot": ScaledDotScore}[config.scorer]()


def _check_rows(src: Tensor, tgt: Tensor) -> None:
    if len(src) != len(tgt):
        raise ValueError(
            f"src and tgt must have as many rows, but have {len(src)} and {len(tgt)}"
        )


def _check_ids(name: str, ids: Tensor, embedding: nn.Embedding) -> None:
    if ids.numel() == 0:
        raise ValueError(
            f"{name} must hold at least one token, but has shape {tuple(ids.shape)}"
        )
    check_ids(f"{name} ids", ids, embedding.num_embeddings)
