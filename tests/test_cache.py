"""The cache: what goes in comes out, rows move together, and nothing broadcasts or overflows."""

import pytest
import torch

from src.cache import DecoderCache, KVCache, Memory

B, H, N, K = 3, 2, 11, 5


def pair(length, rows=B):
    return torch.randn(rows, H, length, K), torch.randn(rows, H, length, K)


def test_buffers_are_allocated_once():
    cache = KVCache(B, H, N, K)
    before = cache.keys.data_ptr(), cache.values.data_ptr()
    for _ in range(N):
        keys, values = cache.append(*pair(1))
        assert (keys.data_ptr(), values.data_ptr()) == before


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
    memory = Memory(*pair(7), torch.rand(B, 1, 7) > 0.5)
    cache = DecoderCache([KVCache(B, H, N, K)], [memory])
    cache.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert cache.memory[0].key is memory.key and cache.memory[0].mask is memory.mask
    cache.select(torch.tensor([1, 0, 5, 4]))  # the second sentence leaves
    assert torch.equal(cache.memory[0].value, memory.value[[0, 2]])
    assert torch.equal(cache.memory[0].mask, memory.mask[[0, 2]])
    cache.select(torch.tensor([2, 0, 3]))  # no longer side by side: a copy each
    assert torch.equal(cache.memory[0].key, memory.key[[2, 0, 2]])
    assert torch.equal(cache.memory[0].mask, memory.mask[[2, 0, 2]])


def test_sentences_with_unequally_many_beams_get_copies():
    memory = Memory(*pair(7))
    cache = DecoderCache([KVCache(B, H, N, K)], [memory])
    cache.select(torch.tensor([0, 0, 1]))
    assert torch.equal(cache.memory[0].key, memory.key[[0, 0, 1]])
    assert cache.memory[0].mask is None
