"""From tokenized sentence pairs to padded batches of about equal length.

A batch is as wide as its longest sentence, and what stands beyond the end of the shorter ones is
computed for nothing. So sentences of about the same length go together, and a batch is filled up
to a number of cells (``max_tokens``, padding counted) rather than of sentences.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from src.data.tokenization import Tokenizer, check_several


class Example(NamedTuple):
    """A sentence pair as ids: the source ends with ``<eos>``, the target has both ends."""

    src: list[int]
    tgt: list[int]


def encode_source(sentence: str, tokenizer: Tokenizer) -> list[int]:
    """Return a source sentence as a model gets it: its ids and ``<eos>``, never empty."""
    return [*tokenizer.encode(sentence), tokenizer.eos_id]


def encode_target(sentence: str, tokenizer: Tokenizer) -> list[int]:
    """Return a target sentence as a model learns it: ``<bos>``, its ids, ``<eos>``."""
    return [tokenizer.bos_id, *tokenizer.encode(sentence), tokenizer.eos_id]


def encode_pairs(
    pairs: Iterable[tuple[str, str]], src_tok: Tokenizer, tgt_tok: Tokenizer
) -> list[Example]:
    """Tokenize sentence pairs and add the special tokens, in the order of ``pairs``.

    Raises:
        TypeError: If ``pairs`` is a single string.
    """
    check_several("pairs", pairs)
    return [
        Example(encode_source(source, src_tok), encode_target(target, tgt_tok))
        for source, target in pairs
    ]


def pad(sequences: Sequence[Sequence[int]], pad_id: int) -> Int[Tensor, "B L"]:
    """Fill sequences up to the longest one's length with ``pad_id``, at their ends.

    Raises:
        ValueError: If there is no sequence.
    """
    if not sequences:
        raise ValueError("sequences must hold at least one sequence, but is empty")
    padded = torch.full((len(sequences), max(map(len, sequences))), pad_id)
    for row, sequence in zip(padded, sequences, strict=False):
        row[: len(sequence)] = torch.tensor(sequence, dtype=torch.long)
    return padded


@dataclass(frozen=True)
class Batch:
    """Padded ids of some sentence pairs.

    Attributes:
        src: Source ids ``(B, S)``, int64: sentence, ``<eos>``, padding.
        tgt: Target ids ``(B, T)``, int64: ``<bos>``, sentence, ``<eos>``, padding.
        pad_id: What both are padded with.
        index: Each row's place ``(B,)`` in the list of examples; -1 in a filler (see
            `BucketedBatches`). None if the batch was not made from a list.
        num_tokens: Number of real tokens in ``tgt_out``: the weight of the batch's mean loss.
            Counted if not given.
    """

    src: Int[Tensor, "..."]
    tgt: Int[Tensor, "..."]
    pad_id: int = 0
    index: Int[Tensor, " B"] | None = None
    num_tokens: int = -1

    def __post_init__(self) -> None:
        if self.src.dim() != 2 or self.tgt.dim() != 2 or len(self.src) != len(self.tgt):
            raise ValueError(
                "src and tgt must have shapes (B, S) and (B, T) with equal B, but have "
                f"{tuple(self.src.shape)} and {tuple(self.tgt.shape)}"
            )
        if self.num_tokens < 0:
            # Counted once, on the CPU where batches are made: later it would wait for the GPU.
            object.__setattr__(
                self, "num_tokens", int((self.tgt_out != self.pad_id).sum())
            )

    @property
    def tgt_in(self) -> Int[Tensor, "B T_less_1"]:
        """What the decoder reads: the target without its last position."""
        return self.tgt[:, :-1]

    @property
    def tgt_out(self) -> Int[Tensor, "B T_less_1"]:
        """What the decoder shall say: the target without ``<bos>``, one place ahead."""
        return self.tgt[:, 1:]

    def __len__(self) -> int:
        """Return the number B of sentence pairs."""
        return len(self.src)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Return the batch with its ids on another device; ``index`` stays on the CPU."""
        return replace(
            self,
            src=self.src.to(device, non_blocking=non_blocking),
            tgt=self.tgt.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory, from which copies to a GPU don't wait."""
        return replace(self, src=self.src.pin_memory(), tgt=self.tgt.pin_memory())


class BucketedBatches:
    """Batches of sentence pairs of about equal length; iterating gives one epoch.

    Every epoch holds each example exactly once. The order depends on ``seed`` and on the epoch
    set by `set_epoch` alone, not on how often one iterated before: training can be resumed.

    With several processes each builds the same list of batches and takes every
    ``world_size``-th. All get the same number, so that none waits for another for ever: where the
    last round runs short, the others get a *filler*, a batch of one row without a target token
    (``num_tokens == 0``, ``index == [-1]``). Whoever sums losses and divides by the number of
    tokens over all processes counts nothing twice.

    Args:
        examples: What `encode_pairs` returns.
        max_tokens: Largest number of cells of a batch, padding counted: rows times the longest
            source or target (special tokens included), whichever is longer.
        batch_size: Largest number of rows, instead of ``max_tokens``.
        shuffle: Whether to visit batches in random order, and examples of the same lengths in
            random company. If not, they come sorted by length.
        seed: Seed of that order.
        pad_id: Id to pad with.
        rank: This process's number, 0 … ``world_size - 1``.
        world_size: Number of processes.

    Raises:
        ValueError: If there are no examples or one is empty, if not exactly one of ``max_tokens``
            and ``batch_size`` is given or it is below 1, if ``rank`` is out of range, or if an
            example alone exceeds ``max_tokens``.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        max_tokens: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        pad_id: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if (max_tokens is None) == (batch_size is None):
            raise ValueError(
                f"give either max_tokens or batch_size, but they are {max_tokens} and {batch_size}"
            )
        for name, value in (("max_tokens", max_tokens), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, but is {value}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0 … {world_size - 1}, but is {rank}")
        if not examples:
            raise ValueError("examples must hold at least one example, but is empty")
        self.examples = examples
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.pad_id = pad_id
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self._src_len = np.array([len(src) for src, _ in examples])
        self._tgt_len = np.array([len(tgt) for _, tgt in examples])
        self._cells = np.maximum(self._src_len, self._tgt_len)
        self._check_lengths()
        # Shuffling permutes equal lengths only: the cuts are the same in every epoch.
        self._num_batches = len(self._cut(self._sorted(np.arange(len(examples)))))

    def _check_lengths(self) -> None:
        empty = np.flatnonzero((self._src_len < 1) | (self._tgt_len < 2))
        if len(empty):
            raise ValueError(
                f"examples[{empty[0]}] must hold a source token, <bos> and <eos> at least, "
                f"but is {self.examples[empty[0]]}"
            )
        if self.max_tokens is not None and self._cells.max() > self.max_tokens:
            longest = int(self._cells.argmax())
            raise ValueError(
                f"examples[{longest}] has {self._src_len[longest]} source and "
                f"{self._tgt_len[longest]} target tokens, above max_tokens = {self.max_tokens}: "
                "leave it out or raise max_tokens"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order, of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches that one epoch gives to this process."""
        return -(-self._num_batches // self.world_size)

    def __iter__(self) -> Iterator[Batch]:
        order = np.arange(len(self.examples))
        if self.shuffle:
            random = np.random.default_rng((self.seed, self.epoch))
            order = random.permutation(order)
        batches = self._cut(self._sorted(order))
        if self.shuffle:
            batches = [batches[i] for i in random.permutation(len(batches))]
        for i in range(len(self)):
            place = i * self.world_size + self.rank
            yield (
                self._collate(batches[place])
                if place < len(batches)
                else self._filler()
            )

    def _sorted(self, order: np.ndarray) -> np.ndarray:
        """Sort by length, stably: examples of the same two lengths keep their order."""
        keys = (self._src_len[order], self._tgt_len[order], self._cells[order])
        return order[np.lexsort(keys)]

    def _cut(self, order: np.ndarray) -> list[list[int]]:
        """Cut a sorted order into batches, each as full as it may be."""
        batches: list[list[int]] = [[]]
        longest = 0
        for i in order.tolist():
            longest = max(longest, int(self._cells[i]))
            if batches[-1] and not self._fits(len(batches[-1]) + 1, longest):
                batches.append([])
                longest = int(self._cells[i])
            batches[-1].append(i)
        return batches

    def _fits(self, rows: int, longest: int) -> bool:
        if self.batch_size is not None:
            return rows <= self.batch_size
        return rows * longest <= self.max_tokens

    def _collate(self, indices: list[int]) -> Batch:
        chosen = [self.examples[i] for i in indices]
        return Batch(
            src=pad([src for src, _ in chosen], self.pad_id),
            tgt=pad([tgt for _, tgt in chosen], self.pad_id),
            pad_id=self.pad_id,
            index=torch.tensor(indices),
        )

    def _filler(self) -> Batch:
        """Make a batch that any model can compute and that counts for nothing."""
        src, tgt = self.examples[int(self._cells.argmin())]
        return Batch(
            src=pad([src], self.pad_id),
            tgt=torch.tensor([[tgt[0], self.pad_id]]),
            pad_id=self.pad_id,
            index=torch.tensor([-1]),
            num_tokens=0,
        )
