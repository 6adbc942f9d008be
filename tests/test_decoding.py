"""Decoding over tables of probabilities: known cases, early stops, and every refusal.

The models here are tables, so that every sentence's probability is known: `Markov` looks at the
last token only, `Table` at everything before. Both are strict: they fail if they are fed words
after the end of a sentence or a token that may not be produced.
"""

import math

import pytest
import torch
from torch import Tensor

from src.decoding import StepFunction, beam_search, greedy, sample, sampling_candidates

PAD, BOS, EOS = 0, 1, 2
IDS = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
NEVER = float("-inf")


class Table:
    """A model with full memory: each sentence and each beginning has its own random logits."""

    def __init__(self, sentences: list[int], vocab: int, seed: int = 0, spread: float = 2.0):
        self.rows = [(sentence, ()) for sentence in sentences]
        self.vocab, self.seed, self.spread = vocab, seed, spread
        self.fed = 0  # rows run through the model, all steps together
        self.selected: list[int] = []  # number of rows after each select

    def logits(self, sentence: int, history: tuple[int, ...]) -> Tensor:
        number = hash((self.seed, sentence, history)) % 2**31
        generator = torch.Generator().manual_seed(number)
        return self.spread * torch.randn(self.vocab, generator=generator, dtype=torch.float64)

    def __call__(self, tokens: Tensor) -> Tensor:
        assert tokens.dtype == torch.int64 and tokens.shape == (len(self.rows),)
        self.rows = [
            (sentence, (*history, token))
            for (sentence, history), token in zip(self.rows, tokens.tolist(), strict=True)
        ]
        for _, history in self.rows:
            assert history[0] == BOS
            assert not {PAD, BOS, EOS} & set(history[1:])
        self.fed += len(self.rows)
        return torch.stack([self.logits(*row) for row in self.rows])

    def select(self, index: Tensor) -> None:
        assert index.dtype == torch.int64 and index.ndim == 1 and len(index)
        self.rows = [self.rows[i] for i in index.tolist()]
        self.selected.append(len(self.rows))


class Markov:
    """A model that looks at the last token of each row only; `rows` holds each row's table."""

    def __init__(self, tables: Tensor):
        self.tables = tables

    def __call__(self, tokens: Tensor) -> Tensor:
        assert len(tokens) == len(self.tables)
        return self.tables[torch.arange(len(tokens)), tokens]

    def select(self, index: Tensor) -> None:
        self.tables = self.tables[index]


def markov(*rows: dict[int, dict[int, float]], vocab: int) -> Markov:
    """One table a sentence, from probabilities {last token: {next token: probability}}."""
    tables = torch.full((len(rows), vocab, vocab), 1e-9, dtype=torch.float64)
    for table, row in zip(tables, rows, strict=True):
        for last, following in row.items():
            for token, probability in following.items():
                table[last, token] = probability
    return Markov(tables.log())


# ------------------------------------------------------------------------------------- greedy


def test_finished_sentences_leave_the_batch():
    """Lengths 2, 5 and 3: 3 + 3 + 2 + 1 + 1 rows are run, and no select to nothing is made."""

    class Lengths(Table):
        def logits(self, sentence, history):
            word = EOS if len(history) == (2, 5, 3)[sentence] else 3
            return torch.nn.functional.one_hot(torch.tensor(word), 7) * 5.0

    step = Lengths([0, 1, 2], 7)
    tokens = greedy(step, 3, max_len=11, **IDS)
    assert tokens.tolist() == [[3, 2, 0, 0, 0], [3, 3, 3, 3, 2], [3, 3, 2, 0, 0]]
    assert step.fed == 3 + 3 + 2 + 1 + 1
    assert step.selected == [2, 1]


def test_one_token_may_be_both_start_and_end():
    """Some vocabularies have one token for <bos> and <eos>: it can still be produced."""
    step = markov({2: {3: 1.0}, 3: {2: 1.0}}, vocab=5)
    assert greedy(step, 1, bos_id=2, eos_id=2, pad_id=0, max_len=7).tolist() == [[3, 2]]


def test_half_precision_logits_give_float32_scores():
    class Half(Table):
        def __call__(self, tokens):
            return super().__call__(tokens).to(torch.bfloat16)

    tokens, scores = greedy(Half([0, 1], 7), 2, max_len=5, return_scores=True, **IDS)
    result = beam_search(Half([0, 1], 7), 2, beam_size=1, max_len=5, length_penalty=0, **IDS)
    assert scores.dtype == result.scores.dtype == torch.float32
    assert torch.equal(result.tokens[:, 0], tokens)
    torch.testing.assert_close(result.scores[:, 0], scores)


def test_tokens_live_where_the_step_function_says():
    seen = []

    class Elsewhere(Table):
        device = "meta"

        def __call__(self, tokens):
            seen.append(tokens.device.type)
            return super().__call__(tokens.cpu())

    tokens = greedy(Elsewhere([0], 7), 1, max_len=3, device="cpu", **IDS)
    assert {tokens.device.type, *seen} == {"cpu"}  # the argument wins over the attribute
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        greedy(Elsewhere([0], 7), 1, max_len=3, **IDS)
    assert seen[-1] == "meta"


@pytest.mark.gpu
def test_decoding_on_the_gpu_is_decoding_on_the_cpu():
    tables = torch.randn(5, 13, 13, dtype=torch.float64)
    for decode, more in [(greedy, {}), (beam_search, {"beam_size": 3, "num_return": 2})]:
        here = decode(Markov(tables), 5, max_len=7, **IDS, **more)
        there = decode(Markov(tables.cuda()), 5, max_len=7, device="cuda", **IDS, **more)
        here, there = (x.tokens if decode is beam_search else x for x in (here, there))
        assert there.is_cuda and torch.equal(there.cpu(), here)


def test_decoding_builds_no_graph():
    tables = torch.randn(2, 7, 7, requires_grad=True)
    _, scores = greedy(Markov(tables), 2, max_len=3, return_scores=True, **IDS)
    result = beam_search(Markov(tables), 2, beam_size=3, max_len=3, **IDS)
    assert not scores.requires_grad and not result.scores.requires_grad


def test_the_contract_is_an_isinstance_check():
    assert isinstance(Table([0], 7), StepFunction)
    assert not isinstance(lambda tokens: tokens, StepFunction)


# ----------------------------------------------------------------------------------- sampling


def test_top_k_1_is_greedy():
    expected = greedy(Table(range(5), 11), 5, max_len=7, **IDS)
    assert torch.equal(sample(Table(range(5), 11), 5, max_len=7, top_k=1, **IDS), expected)
    tiny = sample(Table(range(5), 11), 5, max_len=7, top_p=1e-9, **IDS)
    assert torch.equal(tiny, expected)
    cold = sample(Table(range(5), 11), 5, max_len=7, temperature=1e-300, **IDS)
    assert torch.equal(cold, expected)


def test_a_generator_makes_sampling_reproducible():
    def run(seed, **more):
        generator = torch.Generator().manual_seed(seed)
        return sample(Table(range(5), 31), 5, max_len=11, generator=generator, **IDS, **more)

    state = torch.get_rng_state()
    assert torch.equal(run(7), run(7))
    assert torch.equal(run(7, top_p=0.9), run(7, top_p=0.9))
    assert not torch.equal(run(7), run(8))
    assert torch.equal(torch.get_rng_state(), state)  # the global source was not touched


def test_without_a_generator_the_global_seed_counts():
    torch.manual_seed(5)
    first = sample(Table(range(5), 31), 5, max_len=11, **IDS)
    torch.manual_seed(5)
    assert torch.equal(sample(Table(range(5), 31), 5, max_len=11, **IDS), first)


# -------------------------------------------------------------------------------- beam search


def test_a_beam_finds_what_greedy_misses():
    """3 is likelier than 4 at first, but every way on from it is poor."""
    step = markov({BOS: {3: 0.6, 4: 0.4}, 3: {5: 0.5, 6: 0.5}, 4: {EOS: 1.0}}, vocab=7)
    assert greedy(step, 1, max_len=2, **IDS)[0, 0] == 3
    result = beam_search(step, 1, beam_size=2, max_len=2, length_penalty=0, **IDS)
    assert result.tokens.tolist() == [[[4, EOS]]]
    assert result.scores.item() == pytest.approx(math.log(0.4), abs=1e-6)


def test_what_is_finished_moves_with_its_hypothesis():
    """The finished sentence stands in slot 0, then the slots swap: it must stay finished.

    After one step the beam holds <eos> (.6) and 3 (.4). A search that loses track of which slot
    is finished extends the sentence that ended, or takes 3 for an ended one.
    """
    step = markov({BOS: {EOS: 0.6, 3: 0.4}, 3: {4: 0.9, EOS: 0.1}, 4: {EOS: 1.0}}, vocab=7)
    result = beam_search(step, 1, beam_size=2, num_return=2, max_len=5, length_penalty=0, **IDS)
    assert result.tokens.tolist() == [[[EOS, PAD, PAD], [3, 4, EOS]]]
    assert result.scores[0].exp().tolist() == pytest.approx([0.6, 0.36], abs=1e-6)


def test_a_long_hypothesis_may_overtake_a_finished_one():
    """The trap of stopping at the first end: ½ in one token loses to 0.4 in six, per token."""
    chain = {BOS: {EOS: 0.5, 3: 0.4, 8: 0.1}, 7: {EOS: 1.0}}
    chain |= {word: {word + 1: 1.0} for word in (3, 4, 5, 6)}

    def search(alpha):
        step = markov(chain, vocab=11)
        return beam_search(step, 1, beam_size=2, max_len=7, length_penalty=alpha, **IDS)

    plain, fair = search(0), search(1.0)
    assert plain.tokens.tolist() == [[[EOS]]]
    assert fair.tokens.tolist() == [[[3, 4, 5, 6, 7, EOS]]]
    assert fair.scores.item() == pytest.approx(math.log(0.4) / (11 / 6), abs=1e-6)


def test_a_sentence_that_cannot_improve_leaves_early():
    """<eos> with probability .99: nothing can overtake it, though max_len is 101."""

    class Sure(Table):
        def logits(self, sentence, history):
            sure = torch.tensor([0.002] * 5, dtype=torch.float64)
            if sentence == 1 and len(history) < 4:
                sure[3] = 0.99
            else:
                sure[EOS] = 0.99
            return sure.log()

    step = Sure([0, 1], 5)
    result = beam_search(step, 2, beam_size=3, max_len=101, length_penalty=0.6, **IDS)
    assert result.tokens.tolist() == [[[EOS, 0, 0, 0]], [[3, 3, 3, EOS]]]
    assert step.fed <= 2 + 3 * 4  # one row each, then at most three for the longer one
    assert step.selected[0] == 3 and len(step.selected) <= 4


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, but is 0"),
        ({"max_len": 0}, "max_len must be at least 1, but is 0"),
        ({"max_len": torch.tensor([3, -1])}, "max_len must be at least 1, but is -1"),
        ({"max_len": torch.tensor([3, 3, 3])}, r"max_len must be one int .* shape \(3,\)"),
        ({"bos_id": -1}, "bos_id must not be negative, but is -1"),
        ({"eos_id": -2}, "eos_id must not be negative, but is -2"),
        ({"pad_id": -3}, "pad_id must not be negative, but is -3"),
        ({"eos_id": 7}, "below the number of logits V = 7, but the largest is 7"),
        ({"forbidden_ids": [3, -5]}, r"forbidden_ids\[1\] must not be negative, but is -5"),
        ({"forbidden_ids": [11]}, "below the number of logits V = 7, but the largest is 11"),
    ],
)
def test_arguments_out_of_range_are_refused(decode, wrong, message):
    more = {"beam_size": 2} if decode is beam_search else {}
    arguments = {"batch_size": 2, "max_len": 3, **IDS, **more} | wrong
    with pytest.raises(ValueError, match=message):
        decode(Table([0, 1], 7), **arguments)


@pytest.mark.parametrize("limit", [torch.tensor([2.0, 3.0]), torch.tensor(True)])
def test_max_len_must_be_whole(limit):
    with pytest.raises(TypeError, match="max_len must be an int or hold integers, but is torch"):
        greedy(Table([0, 1], 7), 2, max_len=limit, **IDS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam_size": 0}, "beam_size must be at least 1, but is 0"),
        ({"num_return": 0}, r"num_return must be in \[1, beam_size=2\], but is 0"),
        ({"num_return": 3}, r"num_return must be in \[1, beam_size=2\], but is 3"),
        ({"length_penalty": -0.1}, r"length_penalty must be in \[0, 10\], but is -0.1"),
        ({"length_penalty": 10.1}, r"length_penalty must be in \[0, 10\], but is 10.1"),
        ({"length_penalty": math.inf}, r"length_penalty must be in \[0, 10\], but is inf"),
        ({"length_penalty": math.nan}, r"length_penalty must be in \[0, 10\], but is nan"),
    ],
)
def test_beam_arguments_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        beam_search(Table([0], 7), 1, **{"beam_size": 2, "max_len": 3, **IDS} | wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.0}, "temperature must be finite and above 0, but is 0.0"),
        ({"temperature": -1.0}, "temperature must be finite and above 0, but is -1.0"),
        ({"temperature": math.nan}, "temperature must be finite and above 0, but is nan"),
        ({"temperature": math.inf}, "temperature must be finite and above 0, but is inf"),
        ({"top_k": 0}, "top_k must be at least 1, but is 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], but is 0.0"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\], but is 1.1"),
        ({"top_p": math.nan}, r"top_p must be in \(0, 1\], but is nan"),
    ],
)
def test_sampling_arguments_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        sample(Table([0], 7), 1, max_len=3, **IDS, **wrong)
    with pytest.raises(ValueError, match=message):
        sampling_candidates(torch.zeros(1, 3), **wrong)


class Broken(Table):
    """Turns to `value` in the second step, in the last sentence only."""

    def __init__(self, value, token=slice(None)):
        super().__init__([0, 1, 2], 7)
        self.value, self.token = value, token

    def logits(self, sentence, history):
        logits = torch.zeros(7, dtype=torch.float64)
        logits[3] = 3.0
        if sentence == 2 and len(history) == 2:
            logits[self.token] = self.value
        return logits


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
@pytest.mark.parametrize(("value", "token"), [(math.nan, 4), (math.inf, 5), (NEVER, slice(None))])
def test_broken_logits_are_refused(decode, value, token):
    more = {"beam_size": 3} if decode is beam_search else {"forbidden_ids": [2]}
    with pytest.raises(ValueError, match=r"step 2: logits must hold no NaN or \+inf"):
        decode(Broken(value, token), 3, max_len=5, **IDS, **more)


def test_beam_search_says_when_no_token_is_left():
    """All probability on <pad>: no hypothesis can be made."""
    step = Markov(torch.tensor([0.0] + [NEVER] * 6).expand(3, 7, 7))
    with pytest.raises(ValueError, match="logits must leave a token to choose"):
        beam_search(step, 3, beam_size=2, max_len=5, **IDS)


class Wrong(Table):
    def __init__(self, change):
        super().__init__([0, 1, 2], 7)
        self.change = change

    def __call__(self, tokens):
        return self.change(super().__call__(tokens))


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
def test_a_step_function_must_keep_its_contract(decode):
    more = {"beam_size": 2} if decode is beam_search else {}
    for change in (lambda x: x[:2], lambda x: x[:, None], lambda x: x[0]):
        with pytest.raises(ValueError, match=r"step must return logits of shape \(N, V\)"):
            decode(Wrong(change), 3, max_len=5, **IDS, **more)
    with pytest.raises(TypeError, match="step must return floating-point logits"):
        decode(Wrong(lambda x: x.long()), 3, max_len=5, **IDS, **more)
