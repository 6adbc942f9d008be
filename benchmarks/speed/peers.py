"""Ours and three peers behind one face: the same width, depth, vocabulary and weight tying.

Each peer is used as its documentation shows: `torch.nn.Transformer` as in PyTorch's translation
tutorial, `transformers`' MarianMT through ``labels`` and ``generate``, `x-transformers` through
its own ``XTransformer``.
"""

import dataclasses
import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from src.config import TransformerConfig
from src.data.batches import Batch
from src.decoding import beam_search, greedy
from src.positions import sinusoidal_table
from src.training.optimization import token_loss
from src.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Size:
    """Shape of all models alike."""

    vocab_size: int = 8000
    d_model: int = 256
    num_heads: int = 8
    d_ff: int = 1024
    num_layers: int = 3
    dropout: float = 0.1
    max_len: int = 128


class Peer(Protocol):
    """A model that can be trained on a batch and translates."""

    module: nn.Module
    searches: bool  # whether it has a beam search over a source

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the real target tokens."""

    def generate(self, src: Tensor, length: int, beam_size: int) -> Tensor:
        """Exactly ``length`` new tokens a row, ``(B, length)``; the end is forbidden."""


class Ours:
    """The Transformer of this project."""

    searches = True

    def __init__(self, size: Size) -> None:
        self.module = Transformer(
            TransformerConfig(
                size.vocab_size,
                size.vocab_size,
                d_model=size.d_model,
                num_heads=size.num_heads,
                d_ff=size.d_ff,
                num_encoder_layers=size.num_layers,
                num_decoder_layers=size.num_layers,
                dropout=size.dropout,
                max_len=size.max_len,
            )
        )

    def loss(self, batch: Batch) -> Tensor:
        targets = batch.tgt_out
        logits = self.module(batch.src, batch.tgt_in, targets)
        total, count = token_loss(logits, targets[targets != PAD], PAD)
        return total / count

    def generate(self, src: Tensor, length: int, beam_size: int = 1) -> Tensor:
        options = {
            "bos_id": BOS,
            "eos_id": EOS,
            "pad_id": PAD,
            "max_len": length,
            "forbidden_ids": [EOS],
        }
        step = self.module.stepper(src, length)
        if beam_size == 1:
            return greedy(step, len(src), **options)
        return beam_search(step, len(src), beam_size=beam_size, **options).tokens[:, 0]


class TorchModel(nn.Module):
    """`torch.nn.Transformer` with embeddings, positions and an output matrix around it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.src_embedding = nn.Embedding(size.vocab_size, size.d_model)
        self.tgt_embedding = nn.Embedding(size.vocab_size, size.d_model)
        table = sinusoidal_table(size.max_len, size.d_model)
        self.register_buffer("positions", table, persistent=False)
        self.dropout = nn.Dropout(size.dropout)
        self.transformer = nn.Transformer(
            size.d_model,
            size.num_heads,
            size.num_layers,
            size.num_layers,
            size.d_ff,
            size.dropout,
            batch_first=True,
        )
        self.output = nn.Linear(size.d_model, size.vocab_size, bias=False)
        self.output.weight = self.tgt_embedding.weight
        for embedding in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(embedding.weight, std=size.d_model**-0.5)

    def embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        x = embedding(ids) * math.sqrt(embedding.embedding_dim)
        return self.dropout(x + self.positions[: ids.shape[1]])

    def encode(self, src: Tensor) -> Tensor:
        return self.transformer.encoder(
            self.embed(self.src_embedding, src), src_key_padding_mask=src == PAD
        )

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        return self.transformer.decoder(
            self.embed(self.tgt_embedding, tgt),
            memory,
            tgt_mask=causal,
            tgt_is_causal=True,
            memory_key_padding_mask=src == PAD,
        )


class Torch:
    """`torch.nn.Transformer`; it keeps no cache, so decoding runs over the whole prefix."""

    searches = False

    def __init__(self, size: Size) -> None:
        self.module = TorchModel(size)

    def loss(self, batch: Batch) -> Tensor:
        memory = self.module.encode(batch.src)
        x = self.module.decode(batch.tgt_in, memory, batch.src)
        logits = self.module.output(x)
        return F.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD)

    @torch.no_grad()
    def generate(self, src: Tensor, length: int, beam_size: int = 1) -> Tensor:
        if beam_size != 1:
            raise ValueError(f"beam_size must be 1: nn.Transformer has no search, got {beam_size}")
        memory = self.module.encode(src)
        tokens = src.new_full((len(src), 1), BOS)
        for _ in range(length):
            logits = self.module.output(self.module.decode(tokens, memory, src)[:, -1])
            logits[:, [PAD, BOS, EOS]] = -math.inf
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
        return tokens[:, 1:]


class Marian:
    """`transformers`' MarianMT."""

    searches = True

    def __init__(self, size: Size) -> None:
        from transformers import MarianConfig, MarianMTModel

        self.module = MarianMTModel(
            MarianConfig(
                vocab_size=size.vocab_size,
                decoder_vocab_size=size.vocab_size,
                share_encoder_decoder_embeddings=False,
                d_model=size.d_model,
                encoder_layers=size.num_layers,
                decoder_layers=size.num_layers,
                encoder_attention_heads=size.num_heads,
                decoder_attention_heads=size.num_heads,
                encoder_ffn_dim=size.d_ff,
                decoder_ffn_dim=size.d_ff,
                dropout=size.dropout,
                activation_function="relu",
                scale_embedding=True,
                max_position_embeddings=size.max_len,
                pad_token_id=PAD,
                bos_token_id=BOS,
                eos_token_id=EOS,
                forced_eos_token_id=None,
                decoder_start_token_id=BOS,
            )
        )

    def loss(self, batch: Batch) -> Tensor:
        return self.module(
            input_ids=batch.src,
            attention_mask=(batch.src != PAD).long(),
            decoder_input_ids=batch.tgt_in,
            labels=batch.tgt_out.masked_fill(batch.tgt_out == PAD, -100),
        ).loss

    def generate(self, src: Tensor, length: int, beam_size: int = 1) -> Tensor:
        output = self.module.generate(
            input_ids=src,
            attention_mask=(src != PAD).long(),
            num_beams=beam_size,
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
            suppress_tokens=[PAD, BOS, EOS],
        )
        return output[:, 1:]


class XTransformers:
    """`x-transformers`, with its fused attention switched on."""

    searches = False

    def __init__(self, size: Size) -> None:
        from x_transformers import XTransformer

        sides = {
            "num_tokens": size.vocab_size,
            "max_seq_len": size.max_len,
            "depth": size.num_layers,
            "heads": size.num_heads,
            "attn_dim_head": size.d_model // size.num_heads,
            "ff_mult": size.d_ff / size.d_model,
            "ff_dropout": size.dropout,
            "attn_flash": True,
        }
        named = {f"{side}_{k}": value for side in ("enc", "dec") for k, value in sides.items()}
        self.module = XTransformer(dim=size.d_model, pad_value=PAD, ignore_index=PAD, **named)
        decoder = self.module.decoder.net
        decoder.to_logits.weight = decoder.token_emb.emb.weight

    def loss(self, batch: Batch) -> Tensor:
        # Its wrapper shifts the target itself.
        return self.module(batch.src, batch.tgt, mask=batch.src != PAD)

    def generate(self, src: Tensor, length: int, beam_size: int = 1) -> Tensor:
        if beam_size != 1:
            raise ValueError(f"beam_size must be 1: its search takes no source, got {beam_size}")
        start = src.new_full((len(src), 1), BOS)
        return self.module.generate(src, start, length, temperature=0.0, mask=src != PAD)


PEERS: dict[str, type] = {
    "ours": Ours,
    "nn.Transformer": Torch,
    "MarianMT": Marian,
    "x-transformers": XTransformers,
}


def build(size: Size, names: tuple[str, ...] = tuple(PEERS), seed: int = 0) -> dict[str, Peer]:
    """The models by name, each from the same seed."""
    models = {}
    for name in names:
        torch.manual_seed(seed)
        models[name] = PEERS[name](size)
    return models


def random_pairs(
    count: int, size: Size, shortest: int, longest: int, generator: torch.Generator
) -> Batch:
    """A padded batch of random pairs, each side ``shortest`` to ``longest`` tokens long."""

    def side(begin: list[int]) -> Tensor:
        lengths = torch.randint(shortest, longest + 1, (count,), generator=generator)
        rows = torch.full((count, longest + 2), PAD)
        for row, length in zip(rows, lengths.tolist(), strict=False):
            words = torch.randint(4, size.vocab_size, (length,), generator=generator)
            ids = [*begin, *words.tolist(), EOS]
            row[: len(ids)] = torch.tensor(ids)
        return rows[:, : int((rows != PAD).sum(1).max())]

    return Batch(side([]), side([BOS]), PAD)


def trainer(peer: Peer, batches: list[Batch], dtype: torch.dtype | None = None):
    """A function that makes one update for each batch, with the same optimizer for all models."""
    parameters = [p for p in peer.module.parameters() if p.requires_grad]
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
    optimizer = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.98), fused=fused)
    device = parameters[0].device.type

    def step() -> float:
        peer.module.train()
        total = 0.0
        for batch in batches:
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                loss = peer.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += float(loss.detach())
        return total / len(batches)

    return step
