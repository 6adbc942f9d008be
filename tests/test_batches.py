"""`src.data.batches`: each example once an epoch, within the budget, on any number of ranks."""

import dataclasses

import pytest
import torch

from src.data.batches import (
    Batch,
    BucketedBatches,
    Example,
    encode_pairs,
    encode_source,
    encode_target,
    pad,
)
from src.data.tokenization import WordTokenizer

BOS, EOS = 1, 2


def example(src_len, tgt_len, word=7):
    return Example([word] * (src_len - 1) + [EOS], [BOS] + [word] * (tgt_len - 2) + [EOS])


EXAMPLES = [example(1 + i % 11, 2 + i % 7, word=5 + i) for i in range(97)]


def test_encoding_adds_the_special_tokens():
    words = WordTokenizer(["hello", "you"])
    assert encode_source("Hello you", words) == [4, 5, EOS]
    assert encode_target("Hello you", words) == [BOS, 4, 5, EOS]
    assert encode_source("", words) == [EOS]
    other = WordTokenizer(["toi", "salut"])
    assert encode_pairs([("you", "salut toi"), ("hello", "!")], words, other) == [
        Example([5, EOS], [BOS, 5, 4, EOS]),
        Example([4, EOS], [BOS, 3, EOS]),
    ]


def test_pad():
    padded = pad([[5, 6, 7], [8]], 9)
    assert padded.dtype == torch.int64
    assert padded.tolist() == [[5, 6, 7], [8, 9, 9]]
    with pytest.raises(ValueError, match="sequences must hold at least one"):
        pad([], 0)


def test_batch_shift_and_count():
    batch = Batch(torch.tensor([[7, 2], [2, 0]]), torch.tensor([[1, 8, 9, 2], [1, 2, 0, 0]]))
    assert batch.tgt_in.tolist() == [[1, 8, 9], [1, 2, 0]]
    assert batch.tgt_out.tolist() == [[8, 9, 2], [2, 0, 0]]
    assert batch.num_tokens == 4 and len(batch) == 2
    moved = batch.to("meta")
    assert moved.src.device.type == moved.tgt.device.type == "meta"
    assert moved.num_tokens == 4 and moved.pad_id == batch.pad_id
    assert batch.src.device.type == "cpu"


@pytest.mark.gpu
def test_batch_on_the_gpu():
    batch = Batch(torch.tensor([[7, 2]]), torch.tensor([[1, 8, 2]]), index=torch.tensor([5]))
    moved = batch.pin_memory().to("cuda", non_blocking=True)
    assert moved.tgt.cpu().tolist() == batch.tgt.tolist() and moved.src.is_cuda
    assert moved.index.device.type == "cpu"


def test_batch_refuses_unequal_rows():
    with pytest.raises(ValueError, match=r"equal B, but have \(3, 5\) and \(2, 7\)"):
        Batch(torch.ones(3, 5, dtype=torch.long), torch.ones(2, 7, dtype=torch.long))


def rows(batches):
    return [i for batch in batches for i in batch.index.tolist()]


def test_order_follows_seed_and_epoch_alone():
    def order(seed=0, epoch=0, visits=1):
        batches = BucketedBatches(EXAMPLES, max_tokens=53, seed=seed)
        batches.set_epoch(epoch)
        return [rows(batches) for _ in range(visits)][-1]

    assert order() == order(visits=3)
    assert order(epoch=1) != order() != order(seed=1)
    assert order(epoch=1) != order(seed=1)
    batches = BucketedBatches(EXAMPLES, max_tokens=53)
    assert {len(list(batches)) for _ in map(batches.set_epoch, range(17))} == {len(batches)}


def test_shuffling_gives_equal_lengths_new_company():
    company = set()
    batches = BucketedBatches([example(3, 5)] * 13, batch_size=5)
    for epoch in range(7):
        batches.set_epoch(epoch)
        company |= {frozenset(batch.index.tolist()) for batch in batches}
    assert len(company) > 7


def test_without_shuffling_sorted_by_length():
    batches = BucketedBatches(EXAMPLES, batch_size=13, shuffle=False)
    widths = [max(batch.src.shape[1], batch.tgt.shape[1]) for batch in batches]
    assert widths == sorted(widths)
    assert rows(batches) == rows(batches)


def test_bucketing_saves_padding():
    def cells(groups):
        return sum(len(g) * max(max(len(e.src), len(e.tgt)) for e in g) for g in groups)

    batches = BucketedBatches(EXAMPLES, batch_size=13)
    bucketed = cells([[EXAMPLES[i] for i in batch.index] for batch in batches])
    as_they_come = cells([EXAMPLES[i : i + 13] for i in range(0, len(EXAMPLES), 13)])
    assert bucketed < 0.8 * as_they_come


@pytest.mark.parametrize(
    ("examples", "options", "message"),
    [
        (EXAMPLES, {}, "give either max_tokens or batch_size, but they are None and None"),
        (EXAMPLES, {"max_tokens": 53, "batch_size": 3}, "but they are 53 and 3"),
        (EXAMPLES, {"max_tokens": 0}, "max_tokens must be at least 1, but is 0"),
        (EXAMPLES, {"batch_size": -1}, "batch_size must be at least 1, but is -1"),
        (EXAMPLES, {"batch_size": 3, "rank": 2, "world_size": 2}, "rank must be in .* 1, but is 2"),
        (EXAMPLES, {"batch_size": 3, "rank": -1}, "rank must be in .* 0, but is -1"),
        ([], {"batch_size": 3}, "examples must hold at least one example"),
        ([example(2, 3), Example([], [1, 2])], {"batch_size": 3}, r"examples\[1\] must hold"),
        ([Example([2], [1])], {"batch_size": 3}, r"examples\[0\] must hold a source token, <bos>"),
        (
            [example(3, 5), example(13, 7)],
            {"max_tokens": 12},
            r"examples\[1\] has 13 source and 7 target tokens, above max_tokens = 12",
        ),
    ],
)
def test_bad_arguments(examples, options, message):
    with pytest.raises(ValueError, match=message):
        BucketedBatches(examples, **options)


def test_batches_cannot_be_changed_by_accident():
    batch = next(iter(BucketedBatches(EXAMPLES, batch_size=3)))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'src'"):
        batch.src = batch.tgt
