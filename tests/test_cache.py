"""The cache: what goes in comes out, rows move together, and nothing broadcasts or overflows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from src.cache import DecoderCache, KVCache

B, H, N, K = 3, 2, 11, 5


def pair(length, rows=B):
    return torch.randn(rows, H, length, K), torch.randn(rows, H, length, K)


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda n: sum(n) <= N))
def test_chunks_come_back_whole(lengths):
    cache, chunks = KVCache(B, H, N, K), []
    for length in lengths:
        chunks.append(pair(length))
        keys, values = cache.append(*chunks[-1])
        assert cache.length == sum(len(k[0, 0]) for k, _ in chunks)
        assert torch.equal(keys, torch.cat([k for k, _ in chunks], 2))
        assert torch.equal(values, torch.cat([v for _, v in chunks], 2))
    assert cache.max_len == N


def test_buffers_are_allocated_once():
    cache = KVCache(B, H, N, K)
    before = cache.keys.data_ptr(), cache.values.data_ptr()
    for _ in range(N):
        keys, values = cache.append(*pair(1))
        assert (keys.data_ptr(), values.data_ptr()) == before


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=4))
def test_select_keeps_reorders_drops_and_repeats(picks):
    """Any chain of selections and steps equals indexing and concatenating plain tensors."""
    cache = KVCache(B, H, N, K)
    keys, values = pair(2)
    cache.append(keys, values)
    for pick in picks:
        index = torch.tensor([i % len(keys) for i in pick] or [0])
        cache.select(index)
        more = pair(1, len(index))
        keys, values = (
            torch.cat([x[index], m], 2) for x, m in zip((keys, values), more, strict=True)
        )
        stored = cache.append(*more)
        assert torch.equal(stored[0], keys) and torch.equal(stored[1], values)


def test_decoder_cache_moves_layers_memory_and_mask_together():
    layers = [KVCache(B, H, N, K) for _ in range(2)]
    chunks = [layer.append(*pair(2)) for layer in layers]
    chunks = [(k.clone(), v.clone()) for k, v in chunks]
    memory = [pair(7), pair(7)]
    mask = torch.rand(B, 1, 7) > 0.5
    cache = DecoderCache(layers, memory, mask)
    assert cache.length == 2
    index = torch.tensor([2, 2, 0, 1, 2])
    cache.select(index)
    for layer, (keys, values) in zip(cache.layers, chunks, strict=True):
        assert torch.equal(layer.keys[:, :, :2], keys[index])
        assert torch.equal(layer.values[:, :, :2], values[index])
    for (key, value), (old_key, old_value) in zip(cache.memory, memory, strict=True):
        assert torch.equal(key, old_key[index]) and torch.equal(value, old_value[index])
    assert torch.equal(cache.memory_mask, mask[index])


def test_a_cache_without_a_mask_stays_without():
    cache = DecoderCache([KVCache(B, H, N, K)], [pair(7)], None)
    cache.select(torch.tensor([1]))
    assert cache.memory_mask is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype(dtype):
    cache = KVCache(B, H, N, K, dtype=dtype)
    assert cache.keys.dtype == cache.values.dtype == dtype


@pytest.mark.parametrize("sizes", [(0, H, N, K), (B, 0, N, K), (B, H, 0, K), (B, H, N, -1)])
def test_sizes_below_one_are_refused(sizes):
    message = "must be at least 1, but are " + ", ".join(map(str, sizes))
    with pytest.raises(ValueError, match=message):
        KVCache(*sizes)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_wrong_number_of_rows_is_refused(rows):
    """A single row would broadcast into all of them without a word."""
    cache = KVCache(B, H, N, K)
    with pytest.raises(ValueError, match=r"must have shape \(3, 2, 1, 5\) to fit the cache"):
        cache.append(*pair(1, rows))
    assert cache.length == 0


def test_a_value_of_another_shape_is_refused(unchecked):
    with pytest.raises(ValueError, match=r"\(3, 2, 2, 5\) and \(3, 2, 1, 5\)"):
        KVCache(B, H, N, K).append(pair(2)[0], pair(1)[1])


def test_overflow_is_refused_and_changes_nothing():
    cache = KVCache(B, H, N, K)
    keys, _ = cache.append(*pair(N - 1))
    before = keys.clone()
    with pytest.raises(ValueError, match="max_len of the cache is 11, but position 11 is to be"):
        cache.append(*pair(2))
    assert cache.length == N - 1 and torch.equal(keys, before)
    cache.append(*pair(1))
    with pytest.raises(ValueError, match="max_len of the cache is 11"):
        cache.append(*pair(1))


def test_a_dtype_that_is_not_the_caches_is_refused():
    """Storing would cast without a word, and the fused kernel would fail far from the cause."""
    cache = KVCache(B, H, N, K, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="must have dtype torch.bfloat16.*torch.float32"):
        cache.append(*pair(1))


def test_beams_of_a_sentence_share_its_memory():
    memory, mask = [pair(7)], torch.rand(B, 1, 7) > 0.5
    cache = DecoderCache([KVCache(B, H, N, K)], memory, mask)
    cache.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert cache.memory[0][0] is memory[0][0] and cache.memory_mask is mask
    cache.select(torch.tensor([1, 0, 5, 4]))  # the second sentence leaves
    assert torch.equal(cache.memory[0][1], memory[0][1][[0, 2]])
    assert torch.equal(cache.memory_mask, mask[[0, 2]])
    cache.select(torch.tensor([2, 0, 3]))  # no longer side by side: a copy each
    assert torch.equal(cache.memory[0][0], memory[0][0][[2, 0, 2]])
    assert torch.equal(cache.memory_mask, mask[[2, 0, 2]])


def test_sentences_with_unequally_many_beams_get_copies():
    memory = [pair(7)]
    cache = DecoderCache([KVCache(B, H, N, K)], memory, None)
    cache.select(torch.tensor([0, 0, 1]))
    assert torch.equal(cache.memory[0][0], memory[0][0][[0, 0, 1]])


def test_sentences_that_change_places_take_their_memory_along():
    memory, mask = [pair(7)], torch.rand(B, 1, 7) > 0.5
    cache = DecoderCache([KVCache(B, H, N, K)], memory, mask)
    index = torch.tensor([2, 0, 1])
    cache.select(index)
    assert torch.equal(cache.memory[0][0], memory[0][0][index])
    assert torch.equal(cache.memory[0][1], memory[0][1][index])
    assert torch.equal(cache.memory_mask, mask[index])
