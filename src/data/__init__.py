"""Sentence pairs: corpora, splits without leaks, tokenizers, padded batches, files from outside."""

from src.data.batches import (
    Batch,
    BucketedBatches,
    Example,
    encode_pairs,
    encode_source,
    encode_target,
    pad,
)
from src.data.dates import alignment_agreement, load_dates
from src.data.readers import CorpusError, Pair, read_moses, read_tsv
from src.data.splits import Splits, easy_subset, split_pairs
from src.data.tatoeba import load_pairs
from src.data.tokenization import SubwordTokenizer, Tokenizer, WordTokenizer

__all__ = [
    "Batch",
    "BucketedBatches",
    "CorpusError",
    "Example",
    "Pair",
    "Splits",
    "SubwordTokenizer",
    "Tokenizer",
    "WordTokenizer",
    "alignment_agreement",
    "easy_subset",
    "encode_pairs",
    "encode_source",
    "encode_target",
    "load_dates",
    "load_pairs",
    "pad",
    "read_moses",
    "read_tsv",
    "split_pairs",
]
