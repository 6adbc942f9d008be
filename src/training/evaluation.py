"""How good a model is: loss per token, translations, BLEU."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

import regex as re  # which knows scripts by their names
import torch
from sacrebleu.metrics import BLEU
from torch import nn

from src import decoding
from src.data.batches import encode_source, pad
from src.data.tokenization import Tokenizer, check_several
from src.training.distributed import sum_over_ranks
from src.training.optimization import token_loss


@contextmanager
def switched(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the model into train or eval mode for the block, then each part back into its own.

    `model.train()` afterwards would not do: it wakes parts that were frozen in eval mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters lie."""
    return next(model.parameters()).device


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable,
    pad_id: int,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Mean loss per real target token, without dropout and without label smoothing.

    Its exponential is the perplexity. In a distributed run each process gives its own batches,
    and all get the mean over all.

    Args:
        model: Maps ``(src, tgt_in)`` to logits; comes back in the mode in which it was.
        batches: `src.data.batches.Batch` or anything with ``src``, ``tgt_in``, ``tgt_out``, ``to``.
        pad_id: Padding of the targets.
        autocast: Makes the context in which the model runs.

    Raises:
        ValueError: If there is no real token at all.
    """
    device = device_of(model)
    losses, counts = [], []
    with switched(model, training=False):
        for batch in batches:
            batch = batch.to(device)
            with autocast():
                logits = model(batch.src, batch.tgt_in)
            loss, tokens = token_loss(logits, batch.tgt_out, pad_id)
            losses.append(loss)
            counts.append(tokens)
    # Read at the end: whoever reads a number waits until the device has come to it.
    total, count = (
        sum(number.item() for number in numbers) for numbers in (losses, counts)
    )
    total, count = sum_over_ranks(total, count)
    if count == 0:
        raise ValueError("batches must hold at least one real target token")
    return total / count


@dataclass(frozen=True)
class Translation:
    """One hypothesis."""

    text: str
    ids: list[int]  # without the special tokens
    score: float  # log-probability, over the length norm if a beam found it


def translate(
    model: nn.Module,
    sentences: Sequence[str],
    src_tok: Tokenizer,
    tgt_tok: Tokenizer,
    **options,
) -> list[str]:
    """The best translation of each sentence, in order; options as in `translate_nbest`."""
    found = translate_nbest(model, sentences, src_tok, tgt_tok, **options)
    return [hypotheses[0].text for hypotheses in found]


def translate_nbest(
    model: nn.Module,
    sentences: Sequence[str],
    src_tok: Tokenizer,
    tgt_tok: Tokenizer,
    *,
    beam_size: int = 1,
    num_return: int = 1,
    length_penalty: float = 0.6,
    batch_size: int = 64,
    max_tokens: int = 8192,
    max_len: int | None = None,
    forbidden_ids: Sequence[int] = (),
) -> list[list[Translation]]:
    """The best translations of each sentence, best first, in the order of the sentences.

    Sentences of about the same length are translated together. One without any token is not
    given to the model: its translation is empty.

    Args:
        model: Has ``stepper(src)``; is run in eval mode and comes back in its own.
        sentences: Plain text.
        src_tok: Tokenizer of the source.
        tgt_tok: Tokenizer of the target.
        beam_size: Beginnings kept for each sentence; 1 is greedy.
        num_return: Translations for each sentence, at most ``beam_size``.
        length_penalty: As in `src.decoding.beam_search`.
        batch_size: Most sentences at once.
        max_tokens: Most cells at once: sentences × beam × longest source.
        max_len: Most tokens of a translation; by default twice the source's and 10 more. The
            model's own limit holds, too.
        forbidden_ids: Target ids never produced, such as the unknown word.

    Raises:
        TypeError: If ``sentences`` is a single string.
        ValueError: If a number is out of range, or a sentence is longer than the model takes.
    """
    check_several("sentences", sentences)
    numbers = {"batch_size": batch_size, "max_tokens": max_tokens, "max_len": max_len}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 1 <= num_return <= beam_size:
        raise ValueError(
            f"num_return must be in [1, beam_size = {beam_size}], got {num_return}"
        )
    limit = getattr(getattr(model, "config", None), "max_len", None)
    sources = [encode_source(sentence, src_tok) for sentence in sentences]
    for i, source in enumerate(sources):
        if limit is not None and len(source) > limit:
            raise ValueError(
                f"sentences[{i}] must have at most max_len = {limit} tokens as the model takes, "
                f"got {len(source)} with the end token"
            )
    found = [[Translation("", [], 0.0)] * num_return for _ in sources]
    real = [i for i, source in enumerate(sources) if len(source) > 1]
    beam = {
        "beam_size": beam_size,
        "num_return": num_return,
        "length_penalty": length_penalty,
    }
    with switched(model, training=False):
        for group in _groups(real, sources, batch_size, max_tokens // beam_size):
            src = pad([sources[i] for i in group], src_tok.pad_id)
            lengths = (src != src_tok.pad_id).sum(dim=1)
            limits = (
                2 * lengths + 10
                if max_len is None
                else torch.full_like(lengths, max_len)
            )
            limits = limits if limit is None else limits.clamp(max=limit)
            src = src.to(device_of(model))
            tokens, scores = _decode(model, src, limits, tgt_tok, beam, forbidden_ids)
            for i, rows, values in zip(
                group, tokens.tolist(), scores.tolist(), strict=True
            ):
                found[i] = [
                    _translation(*pair, tgt_tok)
                    for pair in zip(rows, values, strict=True)
                ]
    return found


def align(
    model: nn.Module,
    sentence: str,
    target_ids: Sequence[int],
    src_tok: Tokenizer,
    tgt_tok: Tokenizer,
    layer: int = -1,
) -> list[tuple[int, int]]:
    """Pairs (source token, target token): where each target token looks most.

    The weights of cross-attention are averaged over the heads of one layer. The step that
    produces a token is aligned, so row t belongs to the t-th token after ``<bos>``.

    Args:
        model: Has ``attention_maps``.
        sentence: The source.
        target_ids: Its translation, without special tokens.
        src_tok: Tokenizer of the source.
        tgt_tok: Tokenizer of the target.
        layer: Which decoder layer.
    """
    source = encode_source(sentence, src_tok)
    if len(source) == 1 or not target_ids:
        return []
    device = device_of(model)
    tgt = torch.tensor([[tgt_tok.bos_id, *target_ids[:-1]]], device=device)
    with switched(model, training=False):
        maps = model.attention_maps(torch.tensor([source], device=device), tgt)
    weights = maps["cross"][layer][0].mean(dim=0)  # (H, T, S) -> (T, S)
    best = weights[:, : len(source) - 1].argmax(dim=1)
    return [(s, t) for t, s in enumerate(best.tolist())]


def align_words(
    model: nn.Module,
    sentence: str,
    target_ids: Sequence[int],
    src_tok: Tokenizer,
    tgt_tok: Tokenizer,
    layer: int = -1,
) -> list[tuple[int, int]]:
    """Pairs (source word, target word) of `align`, as Moses counts them.

    Words are what white space sets apart in ``sentence`` and in the decoded translation. One that
    consists of several tokens may have several partners; each pair comes once, in the order of
    the target. Arguments as in `align`.
    """
    source = [
        n for n, word in enumerate(sentence.split()) for _ in src_tok.encode(word)
    ]
    count = len(tgt_tok.decode(target_ids).split())
    # Where one more letter would go is the word that a token belongs to.
    target = [
        len((tgt_tok.decode(target_ids[: t + 1]) + "x").split()) - 1
        for t in range(len(target_ids))
    ]
    pairs = align(model, sentence, target_ids, src_tok, tgt_tok, layer)
    # Normalising can join words, « so », which then have fewer tokens than one by one, or more.
    words = [(source[min(s, len(source) - 1)], target[t]) for s, t in pairs]
    return list(dict.fromkeys(pair for pair in words if pair[1] < count))


@dataclass(frozen=True)
class BLEUScore:
    """A BLEU score and how it was computed."""

    score: float
    signature: str


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], **options
) -> BLEUScore:
    """BLEU of a whole corpus by sacrebleu, one reference for each hypothesis.

    Empty and very short outputs count as what they are: bad ones. Only where no reference has
    four tokens, so that nobody could have a 4-gram right, shorter n-grams alone decide
    (``effective_order``).

    Args:
        hypotheses: Plain, detokenized text.
        references: The same number.
        **options: Of `sacrebleu.metrics.BLEU`, such as ``lowercase`` or ``tokenize``; that is
            `bleu_tokenizer` of the references if it is not given.

    Returns:
        An object with ``score``, 0 … 100, and ``signature``: how it was computed, to be quoted
        beside every BLEU.

    Raises:
        TypeError: If ``hypotheses`` or ``references`` is a single string.
        ValueError: If the numbers differ or there is nothing to score.

    Source: Papineni et al. 2002; Post 2018 (sacrebleu).
    """
    check_several("hypotheses", hypotheses)
    check_several("references", references)
    if len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be as many: {len(hypotheses)} and {len(references)}"
        )
    if not hypotheses:
        raise ValueError("hypotheses must hold at least one sentence")
    options = {"tokenize": bleu_tokenizer(references)} | options
    metric = BLEU(**options)
    if "effective_order" not in options:
        longest = max(len(metric.tokenizer(text).split()) for text in references)
        metric.effective_order = longest < metric.max_ngram_order
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return BLEUScore(float(result.score), str(metric.get_signature()))


# A script's letters, and how sacrebleu cuts text into words where it has no spaces.
_UNSPACED = (
    (re.compile(r"[\p{Hiragana}\p{Katakana}]"), "ja-mecab", "MeCab"),
    (re.compile(r"\p{Han}"), "zh", None),
    (re.compile(r"[\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}]"), "char", None),
)


def bleu_tokenizer(texts: Sequence[str]) -> str:
    """Name sacrebleu's tokenizer for texts, by their script.

    Sentences without spaces would be one token for ``13a``: a perfect translation would get 0.

    Returns:
        ``"zh"`` for Chinese; for Japanese ``"ja-mecab"``, or ``"char"`` where the package of that
        name (``pip install "sacrebleu[ja]"``) is absent; ``"char"`` for Thai, Lao, Burmese and
        Khmer; ``"13a"`` for all others.
    """
    text = "".join(texts)
    letters = max(1, sum(map(str.isalpha, text)))
    for script, tokenizer, module in _UNSPACED:
        if len(script.findall(text)) > 0.2 * letters:
            return tokenizer if module is None or find_spec(module) else "char"
    return "13a"


def _groups(
    indices: Sequence[int],
    sources: Sequence[Sequence[int]],
    batch_size: int,
    max_tokens: int,
) -> Iterator[list[int]]:
    """Indices of sentences to translate together, the longest first: what fails, fails early."""
    group: list[int] = []
    for i in sorted(indices, key=lambda i: -len(sources[i])):
        if group and (
            len(group) == batch_size
            or (len(group) + 1) * len(sources[group[0]]) > max_tokens
        ):
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _decode(model, src, limits, tgt_tok, beam, forbidden_ids):
    """Tokens (B, R, L) and scores (B, R) of the best hypotheses."""
    longest = int(limits.max())
    room = "max_len" in inspect.signature(model.stepper).parameters
    step = model.stepper(src, max_len=longest) if room else model.stepper(src)
    options = {
        "bos_id": tgt_tok.bos_id,
        "eos_id": tgt_tok.eos_id,
        "pad_id": tgt_tok.pad_id,
        "max_len": limits,
        "forbidden_ids": forbidden_ids,
        "device": src.device,
    }
    if beam["beam_size"] > 1:
        return decoding.beam_search(step, len(src), **beam, **options)
    tokens, scores = decoding.greedy(step, len(src), return_scores=True, **options)
    return tokens[:, None], scores[:, None]


def _translation(
    tokens: Sequence[int], score: float, tgt_tok: Tokenizer
) -> Translation:
    specials = {tgt_tok.pad_id, tgt_tok.bos_id, tgt_tok.eos_id}
    ids = [token for token in tokens if token not in specials]
    return Translation(tgt_tok.decode(ids), ids, score)
