"""What holds for every input: masks, attention, models, decoding, texts and batches at random.

Examples are few and always the same. ``--hypothesis-profile=thorough`` draws twenty times as many,
new ones each time.
"""

import copy
import itertools
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from src.config import RecurrentConfig, TransformerConfig
from src.data.batches import BucketedBatches, Example
from src.data.readers import Pair
from src.data.splits import split_pairs
from src.data.tokenization import (
    SPECIALS,
    SubwordTokenizer,
    WordTokenizer,
    join_words,
    normalise,
    split_words,
)
from src.decoding import StepFunction, beam_search, greedy, sample
from src.functional import attention, masked_softmax
from src.masks import (
    causal_mask,
    from_additive,
    from_key_padding_mask,
    length_mask,
    padding_mask,
    to_additive,
    valid_lens_mask,
    window_mask,
)
from src.multihead import MultiHeadAttention
from src.recurrent import AttentionSeq2Seq, Seq2Seq
from src.scoring import DotProduct
from src.training.checkpoints import load_checkpoint, save_checkpoint
from src.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2
VOCAB, MAX_LEN = 11, 13
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def examples(number):
    """That many for a profile of 100 examples."""
    return settings(max_examples=number * settings.default.max_examples // 100)


# ---- what is drawn

seeds = st.integers(0, 10**6)
backends = st.sampled_from(["explicit", "sdpa"])
# Numbers of queries and of keys, which are as many or more.
lengths = st.integers(1, 7).flatmap(
    lambda t: st.tuples(st.just(t), st.one_of(st.just(t), st.integers(t, 9)))
)


@st.composite
def attentions(draw, dtypes=(torch.float64,)):
    """Query, key, value and options of `attention`, and who may attend to whom, in full."""
    axes = draw(st.lists(st.integers(1, 3), max_size=2))
    num_queries, num_keys = draw(lengths)
    width, value_width = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    is_causal, dtype = draw(st.booleans()), draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(seeds))
    shape = (*axes, num_queries, num_keys)
    allowed = torch.ones(shape, dtype=torch.bool)
    mask = None
    if share := draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])):  # none at all means no mask
        mask_shape = [draw(st.sampled_from([1, size])) for size in shape]
        mask = torch.rand(mask_shape, generator=generator) < share
        allowed &= mask
    if is_causal:
        allowed = allowed.tril(num_keys - num_queries)
    query, key, value = (
        torch.randn(*axes, *size, generator=generator, dtype=torch.float64).mul(2).to(dtype)
        for size in ((num_queries, width), (num_keys, width), (num_keys, value_width))
    )
    options = {"is_causal": is_causal, "backend": draw(backends)}
    return (query, key, value, mask), options, allowed


@st.composite
def transformers(draw, dropout=False):
    """A small Transformer in float64, of any kind; biases and gains are random, too."""
    shares = st.sampled_from([0.0, 0.3]) if dropout else st.just(0.0)
    num_heads = draw(st.integers(1, 3))
    config = TransformerConfig(
        VOCAB,
        VOCAB,
        d_model=num_heads * draw(st.sampled_from([4, 6])),
        num_heads=num_heads,
        d_ff=draw(st.integers(1, 7)),
        num_encoder_layers=draw(st.integers(1, 2)),
        num_decoder_layers=draw(st.integers(1, 2)),
        max_len=MAX_LEN,
        dropout=draw(shares),
        attention_dropout=draw(shares),
        ffn_dropout=draw(shares),
        norm_first=draw(st.booleans()),
        activation=draw(st.sampled_from(["relu", "gelu"])),
        positions=draw(st.sampled_from(["sinusoidal", "learned", "rotary", "none"])),
        tie_embeddings=draw(st.sampled_from(["none", "target", "all"])),
        scale_embeddings=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
        num_token_types=draw(st.integers(0, 2)),
        backend=draw(backends),
    )
    return made(Transformer, config, draw(seeds))


@st.composite
def recurrents(draw, dropout=False):
    """A small recurrent translator in float64, of any kind."""
    scorer = draw(st.sampled_from(["additive", "bilinear", "dot", "scaled_dot"]))
    d_encoder = 2 * draw(st.integers(1, 4))
    config = RecurrentConfig(
        VOCAB,
        VOCAB,
        d_embed=draw(st.integers(1, 7)),
        d_encoder=d_encoder,
        scorer=scorer,
        d_decoder=d_encoder if "dot" in scorer else draw(st.integers(1, 7)),
        bidirectional=draw(st.booleans()),
        num_encoder_layers=draw(st.integers(1, 2)),
        num_decoder_layers=draw(st.integers(1, 2)),
        d_score=draw(st.integers(1, 7)),
        dropout=draw(st.sampled_from([0.0, 0.3])) if dropout else 0.0,
        query_from=draw(st.sampled_from(["previous", "current"])),
    )
    return made(draw(st.sampled_from([Seq2Seq, AttentionSeq2Seq])), config, draw(seeds))


def made(kind, config, seed):
    torch.manual_seed(seed)
    model = kind(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def translators(dropout=False):
    return st.one_of(transformers(dropout), recurrents(dropout))


def sentences(max_size, min_size=1, min_rows=1):
    words = st.lists(st.integers(3, VOCAB - 1), min_size=min_size, max_size=max_size)
    return st.lists(words, min_size=min_rows, max_size=4)


def padded(rows, more=0):
    width = max(map(len, rows)) + more
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


@st.composite
def batches(draw, min_size=1):
    """Padded sources, and targets of one length that begin with <bos>."""
    src = padded(draw(sentences(7)))
    length = draw(st.integers(min_size, 6)) - 1
    words = draw(
        st.lists(st.integers(3, VOCAB - 1), min_size=length * len(src), max_size=length * len(src))
    )
    first = torch.full((len(src), 1), BOS)
    return src, torch.cat([first, torch.tensor(words, dtype=torch.long).view(len(src), -1)], 1)


def close(ours, theirs, tolerance=1e-10):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# ---- masks


@examples(60)
@given(lengths, st.integers(0, 9), st.integers(0, 9))
def test_a_window_is_a_rule_of_distances(sizes, left, right):
    num_queries, num_keys = sizes
    distance = torch.arange(num_keys)[-num_queries:, None] - torch.arange(num_keys)
    window = window_mask(num_queries, num_keys, left=left, right=right)
    assert torch.equal(window[0], (distance <= left) & (distance >= -right))
    causal = causal_mask(num_queries, num_keys)
    assert torch.equal(causal[0], distance >= 0)
    assert torch.equal(causal_mask(num_queries), causal[..., -num_queries:])
    assert torch.equal(window_mask(num_queries, num_keys, left=num_keys), causal)
    assert torch.equal(window_mask(num_queries, num_keys, left=left), causal & window)


@examples(30)
@given(sentences(7, min_size=0), st.integers(0, 3), st.sampled_from(FLOATS))
def test_masks_of_padding_agree_and_combine(rows, more, dtype):
    assume(any(rows))
    ids, lens = padded(rows, more), torch.tensor([len(row) for row in rows])
    real = padding_mask(ids, PAD)
    assert torch.equal(real[:, 0], ids != PAD)
    assert torch.equal(length_mask(lens, ids.shape[1]), real)
    assert torch.equal(from_key_padding_mask(ids == PAD), real)
    both = real & causal_mask(ids.shape[1])
    places = torch.arange(1, ids.shape[1] + 1)
    assert torch.equal(valid_lens_mask(torch.minimum(lens[:, None], places), ids.shape[1]), both)
    additive = to_additive(both, dtype)
    assert additive.dtype == dtype and bool((additive[~both] == float("-inf")).all())
    assert bool((additive[both] == 0).all()) and torch.equal(from_additive(additive), both)


# ---- attention


@examples(40)
@given(st.data(), st.integers(1, 4), st.integers(1, 6), st.floats(-50, 50), seeds)
def test_softmax_sees_differences_of_allowed_scores_only(data, rows, columns, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = 20 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, columns, generator=generator) < 0.6
    weights = masked_softmax(scores, mask)
    assert bool((weights >= 0).all()) and bool((weights[~mask] == 0).all())
    close(weights.sum(-1), mask.any(-1).double(), 1e-12)
    close(masked_softmax(scores + shift, mask), weights, 1e-12)
    order = data.draw(st.permutations(range(columns)))
    close(masked_softmax(scores[:, order], mask[:, order]), weights[:, order], 1e-12)
    anything = data.draw(st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e308]))
    assert torch.equal(masked_softmax(scores.masked_fill(~mask, anything), mask), weights)


@examples(80)
@given(attentions(FLOATS))
def test_outputs_are_means_of_allowed_values(case):
    (query, key, value, mask), options, allowed = case
    output, weights = attention(query, key, value, mask, return_weights=True, **options)
    some, eps = allowed.any(-1), torch.finfo(query.dtype).eps
    assert weights.shape == allowed.shape and output.dtype == weights.dtype == query.dtype
    assert bool((weights >= 0).all()) and bool((weights[~allowed] == 0).all())
    close(weights.double().sum(-1), some.double(), 4 * eps)
    values = value.unsqueeze(-3).expand(*allowed.shape, value.shape[-1])
    lowest, highest = (
        sign * (sign * values).masked_fill(~allowed.unsqueeze(-1), -float("inf")).amax(-2)
        for sign in (-1, 1)
    )
    slack = 4 * eps * value.abs().amax()
    unweighted = attention(query, key, value, mask, **options)
    close(unweighted, output, float(slack))
    for found in (output, unweighted):
        assert bool((found[~some] == 0).all())
        assert bool(((found >= lowest - slack) & (found <= highest + slack))[some].all())


@examples(40)
@given(st.integers(1, 3), st.integers(1, 5), lengths, seeds, backends, st.booleans(), st.data())
def test_without_positions_attention_knows_no_order(
    num_heads, width, sizes, seed, backend, bias, data
):
    torch.manual_seed(seed)
    core = DotProduct(backend=backend)
    module = MultiHeadAttention(num_heads * width, num_heads, bias=bias, core=core).double()
    query, key, value = (torch.randn(2, n, num_heads * width).double() for n in (*sizes, sizes[1]))
    mask = torch.rand(2, *sizes) < 0.7
    output = module(query, key, value, mask)
    order = data.draw(st.permutations(range(sizes[1])))
    close(module(query, key[:, order], value[:, order], mask[..., order]), output, 1e-12)
    order = data.draw(st.permutations(range(sizes[0])))
    close(module(query[:, order], key, value, mask[:, order]), output[:, order], 1e-12)


@examples(60)
@given(attentions(FLOATS), st.integers(1, 3), st.sampled_from([-1, 1]), st.floats(0, 1))
def test_what_is_forbidden_may_hold_any_finite_number(case, unseen, sign, share):
    """A key, too, as long as its scores are finite: the fused kernel adds −inf to them."""
    (query, key, value, mask), options, _ = case
    unseen = torch.arange(key.shape[-2]) < unseen
    mask = ~unseen.expand_as(query @ key.mT) if mask is None else mask & ~unseen
    options |= {"is_causal": False}
    expected = attention(query, key, value, mask, **options)
    largest = torch.finfo(query.dtype).max
    value = value.masked_fill(unseen[:, None], sign * share * largest)
    assert torch.equal(attention(query, key, value, mask, **options), expected)
    if options["backend"] == "sdpa":
        share /= float(query.abs().sum(-1).max()) + 1
    key = key.masked_fill(unseen[:, None], sign * share * largest)
    assert torch.equal(attention(query, key, value, mask, **options), expected)
    if options["backend"] == "explicit":  # its mask replaces the scores, whatever they are
        for anything in (float("inf"), float("nan")):
            other = key.masked_fill(unseen[:, None], anything)
            assert torch.equal(attention(query, other, value, mask, **options), expected)


# ---- models


@examples(40)
@given(translators(dropout=True), batches(min_size=2), seeds, st.booleans(), st.data())
@torch.no_grad()
def test_the_future_does_not_reach_the_past(model, batch, seed, training, data):
    src, tgt = batch
    model.train(training)
    at = data.draw(st.integers(1, tgt.shape[1] - 1))
    torch.manual_seed(seed)
    before = model(src, tgt)
    changed = tgt.clone()
    changed[:, at:] = 3 + (tgt[:, at:] - 2) % (VOCAB - 3)
    torch.manual_seed(seed)
    after = model(src, changed)
    assert torch.equal(after[:, :at], before[:, :at])
    model.eval()
    changed = tgt.clone()
    changed[:, at - 1] = EOS
    difference = (model(src, changed) != model(src, tgt)).any(-1)
    assert bool(difference[:, at - 1 :].all()) and not bool(difference[:, : at - 1].any())


@examples(40)
@given(translators(), batches(), st.integers(0, 5), st.integers(0, 3), st.booleans())
@torch.no_grad()
def test_padding_leaves_the_logits_of_real_tokens(model, batch, more, more_tgt, training):
    src, tgt = batch
    model.train(training)
    logits = model(src, tgt)
    wider = torch.nn.functional.pad(src, (0, more)), torch.nn.functional.pad(tgt, (0, more_tgt))
    close(model(*wider)[:, : tgt.shape[1]], logits)
    for row, length in enumerate((src != PAD).sum(1).tolist()):
        close(model(src[row : row + 1, :length], tgt[row : row + 1]), logits[row : row + 1])
    if isinstance(model, Transformer):
        targets = torch.nn.functional.pad(torch.full_like(tgt, EOS), (0, more_tgt))
        close(model(*wider, targets), logits.flatten(0, 1))
        with pytest.raises(ValueError, match="src must hold each row's tokens first"):
            model(torch.nn.functional.pad(src, (1, 0)), tgt)


@examples(25)
@given(transformers(), batches(), st.floats(-1e30, 1e30))
@torch.no_grad()
def test_nothing_is_read_from_a_padded_memory(model, batch, number):
    src, tgt = batch
    memory, mask = model.encode(src), padding_mask(src, PAD)
    disturbed = memory.masked_fill(~mask.transpose(1, 2), number)
    assert torch.equal(model.decode(tgt, disturbed, mask), model.decode(tgt, memory, mask))


def opened(model, src):
    """Two functions that share a state: feed tokens, which gives logits, and choose rows."""
    if isinstance(model, Transformer):
        cache = model.new_cache(src)
        return lambda tokens: model.decode_cached(tokens, cache), cache.select
    states = [model.start(src)]

    def feed(tokens):
        before = [None if x is None else x.clone() for x in states[-1]]
        logits, state = model.advance(tokens, states[-1])
        assert all(x is y or torch.equal(x, y) for x, y in zip(before, states[-1], strict=True))
        states.append(state)
        return logits

    return feed, lambda index: states.append(states[-1].select(index))


picks = st.lists(st.integers(0, 3), min_size=1, max_size=5)
moves = st.tuples(st.integers(1, 3), st.one_of(st.none(), picks, picks.map(sorted)))


@examples(40)
@given(translators(), sentences(7, min_rows=2), st.lists(moves, min_size=1, max_size=4), seeds)
def test_decoding_with_a_state_is_decoding_without(model, rows, moves, seed):
    """Chunks of any length, before which rows are reordered, dropped and repeated."""
    src, generator = padded(rows), torch.Generator().manual_seed(seed)
    feed, select = opened(model, src)
    step, tgt = model.stepper(src), torch.full((len(src), 0), BOS)
    assert isinstance(step, StepFunction)
    for length, pick in [(1, range(len(src))), *moves]:
        index = torch.randperm(len(src), generator=generator)
        if pick is not None:
            index = torch.tensor([min(i, len(src) - 1) for i in pick])
        src, tgt = src[index], tgt[index]
        select(index)
        step.select(index)
        new = torch.randint(1, VOCAB, (len(src), length), generator=generator)
        tgt = torch.cat([tgt, new], 1)
        logits = model(src, tgt)[:, -length:]
        close(feed(new), logits)
        steps = torch.stack([step(token) for token in new.unbind(1)], 1)
        assert not steps.requires_grad
        close(steps, logits)


# ---- decoding

IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


def rescored(model, src, tokens):
    """Log-probability of each row, by teacher forcing."""
    fed = torch.cat([torch.full((len(tokens), 1), BOS), tokens[:, :-1]], 1)
    scores = model(src, fed).log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    return scores.masked_fill(tokens == PAD, 0).sum(1)


@examples(40)
@given(
    translators(), sentences(7), st.integers(1, 5), st.integers(1, 6), st.floats(0, 3), st.data()
)
@torch.no_grad()
def test_beams_are_sorted_single_and_scored_as_by_teacher_forcing(
    model, rows, beam_size, max_len, alpha, data
):
    src, options = padded(rows), {"max_len": max_len, **IDS}
    row = data.draw(st.integers(0, len(src) - 1))
    one = src[row : row + 1, : len(rows[row])]
    num_return = data.draw(st.integers(1, beam_size))

    def beams(src, beam_size, num_return=1):
        return beam_search(
            model.stepper(src),
            len(src),
            beam_size=beam_size,
            num_return=num_return,
            length_penalty=alpha,
            **options,
        )

    def norms(tokens):
        return ((5 + (tokens != PAD).sum(1).double()) / 6) ** alpha

    tokens, scores = beams(src, beam_size, num_return)
    assert bool((scores[:, :-1] >= scores[:, 1:]).all())
    for beam, finite in zip(tokens.tolist(), scores.isfinite(), strict=True):
        found = [tuple(t) for t, there in zip(beam, finite, strict=True) if there]
        assert len(set(found)) == len(found) > 0
    for rank in range(num_return):
        here = scores[:, rank].isfinite()
        norm = norms(tokens[here, rank])
        close(scores[here, rank], rescored(model, src[here], tokens[here, rank]) / norm, 1e-9)
    alone = beams(one, beam_size, num_return)
    assert torch.equal(alone.tokens[0], tokens[row, :, : alone.tokens.shape[2]])
    close(alone.scores[0], scores[row])

    tokens, scores = greedy(model.stepper(src), len(src), return_scores=True, **options)
    found = beams(src, 1)
    assert torch.equal(found.tokens[:, 0], tokens)
    close(scores, rescored(model, src, tokens), 1e-9)
    close(found.scores[:, 0], scores / norms(tokens), 1e-9)
    alone = greedy(model.stepper(one), 1, **options)
    assert torch.equal(alone[0], tokens[row, : alone.shape[1]])
    tokens, scores = sample(
        model.stepper(src), len(src), temperature=1.5, top_k=3, return_scores=True, **options
    )
    close(scores, rescored(model, src, tokens), 1e-9)


# ---- copies


def ties(model):
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return sorted(names.values())


def through_a_file(model):
    config = model.config.to_dict()
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "model.safetensors", model, config=config)
        twin = type(model)(type(model.config).from_dict(config)).double()
        load_checkpoint(Path(folder) / "model.safetensors", twin, config=config)
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        again = type(model)(model.config).double()
        again.load_state_dict(torch.load(Path(folder) / "model.pt"))
    assert all(map(torch.equal, twin.parameters(), again.parameters()))
    return twin.eval()


@examples(12)
@given(translators(), batches())
@torch.no_grad()
def test_copies_keep_outputs_and_ties(model, batch):
    logits = model(*batch)
    if isinstance(model, Transformer):
        model.attention_maps(*batch)  # leaves nothing behind that could not be copied
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), through_a_file(model)):
        assert torch.equal(twin(*batch), logits)
        assert ties(twin) == ties(model) and twin.num_parameters() == model.num_parameters()
        next(twin.parameters()).add_(1)
        assert torch.equal(model(*batch), logits)


@examples(20)
@given(translators(), batches(), st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
@torch.no_grad()
def test_casting_there_and_back_rounds_parameters_and_nothing_else(model, batch, dtype):
    twin, rounded = copy.deepcopy(model), copy.deepcopy(model)
    assert twin.to(dtype)(*batch).dtype == dtype
    for parameter in rounded.parameters():
        parameter.copy_(parameter.to(dtype))
    assert torch.equal(twin.double()(*batch), rounded(*batch)) and ties(twin) == ties(model)
    for there, here in zip(twin.parameters(), model.parameters(), strict=True):
        assert bool(((there - here).abs() <= torch.finfo(dtype).eps * (here.abs() + 1e-4)).all())


@examples(5)
@given(transformers(), batches(min_size=3), st.integers(2, 5), seeds)
@torch.no_grad()
def graphs_of_a_model(model, batch, rows, seed):
    """One graph, compiled or exported, for other rows and for other numbers of rows."""
    batch = [torch.cat([ids, ids]) for ids in batch]  # a size of 1 makes a graph of its own
    generator = torch.Generator().manual_seed(seed)
    other = [torch.randint(3, VOCAB, (rows, ids.shape[1]), generator=generator) for ids in batch]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    rows_differ = ({0: torch.export.Dim.AUTO},) * 2
    exported = torch.export.export(model, tuple(batch), dynamic_shapes=rows_differ).module()
    for graph, (src, tgt) in itertools.product((compiled, exported), (batch, other)):
        close(graph(src, tgt), model(src, tgt))


@pytest.mark.slow
def test_models_are_one_graph():
    """In a process of its own: the annotations' checks of this one cannot be compiled."""
    profile = settings.get_current_profile_name()
    program = (
        "import conftest, hypothesis, torch\n"
        f"hypothesis.settings.load_profile({profile!r})\n"
        "torch._dynamo.config.error_on_recompile = True\n"
        "import test_properties\n"
        "test_properties.graphs_of_a_model()"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr


# ---- texts

# Letters of several scripts, and what the patterns treat specially.
SCRIPTS = ["abcdeàéœß", "αβγδέ", "абвгё", "كتابن", "कखगिा", "אבגד"]
words = st.sampled_from(SCRIPTS).flatmap(lambda letters: st.text(letters, min_size=1, max_size=6))
plain = st.lists(words, max_size=7).map(" ".join)
texts = st.one_of(
    plain,
    st.lists(st.sampled_from([*SPECIALS, "l'", "-t-il", " ", "我", "が", "?"])).map("".join),
    st.text(
        st.one_of(
            st.sampled_from(
                "aàlqutevous  ''--.,:;!?\"«»()¿$%3\u2019\u202f\u200b\u0301<>_…"
                "我ー，。\u200c\u200d\u094dم👨\ufe0f"
            ),
            st.characters(codec="utf-8"),
        ),
        max_size=23,
    ),
)
SUBWORDS = SubwordTokenizer.train(["Est-ce que l'eau est chaude ?", "<eos> das Wasser"] * 3, 300)


def twins(tokenizer):
    pickled = pickle.loads(pickle.dumps(tokenizer))
    return tokenizer, copy.copy(tokenizer), copy.deepcopy(tokenizer), pickled


@examples(60)
@given(texts)
@example("a-il 我")
def test_texts_come_back_from_tokenizers_and_their_copies(text):
    normal = normalise(text)
    assert normalise(normal) == normal == normal.strip() and "  " not in normal
    known = WordTokenizer(sorted(set(split_words(text)) - set(SPECIALS)))
    for tokenizer in twins(SUBWORDS):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == normal
        assert all(len(SPECIALS) <= token < len(tokenizer) for token in ids)
    for tokenizer in twins(known):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == join_words(split_words(text))
        assert all(len(SPECIALS) <= token < len(tokenizer) for token in ids)
        assert tokenizer.encode(tokenizer.decode(ids)) == ids
    foreign = WordTokenizer(["eau"]).encode(text)
    assert all(token in (3, 4) for token in foreign)


@examples(60)
@given(plain)
def test_plain_words_of_any_script_come_back_in_lower_case(text):
    tokenizer = WordTokenizer.train([text], 99)
    assert tokenizer.decode(tokenizer.encode(text)) == normalise(text).lower()


# ---- batches and splits


@st.composite
def pairs_of_ids(draw):
    sizes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(2, 9)), min_size=1, max_size=30))
    return [Example([7] * (s - 1) + [EOS], [BOS] + [7] * (t - 2) + [EOS]) for s, t in sizes]


@examples(60)
@given(
    pairs_of_ids(),
    st.sampled_from(["max_tokens", "batch_size"]),
    st.integers(9, 40),
    st.integers(1, 4),
    st.integers(0, 5),
    seeds,
    st.booleans(),
)
def test_ranks_share_an_epoch_that_holds_each_example_once(
    pairs, limit, most, world_size, epoch, seed, shuffle
):
    def read(rank):
        batches = BucketedBatches(
            pairs, **{limit: most}, rank=rank, world_size=world_size, seed=seed, shuffle=shuffle
        )
        list(batches)  # how often one read before does not matter
        batches.set_epoch(epoch)
        found = list(batches)
        assert len(found) == len(batches)
        return found

    ranks = [read(rank) for rank in range(world_size)]
    every = list(itertools.chain(*ranks))
    fillers = [batch for batch in every if batch.index.tolist() == [-1]]
    real = [batch for batch in every if batch.index.tolist() != [-1]]
    assert {len(found) for found in ranks} == {-(-len(real) // world_size)}
    assert sorted(torch.cat([batch.index for batch in real]).tolist()) == list(range(len(pairs)))
    for batch in real:
        width = max(batch.src.shape[1], batch.tgt.shape[1]) if limit == "max_tokens" else 1
        assert len(batch) * width <= most
        assert batch.num_tokens == sum(len(pairs[i].tgt) - 1 for i in batch.index)
        for src, tgt, i in zip(batch.src, batch.tgt, batch.index.tolist(), strict=True):
            assert src[src != PAD].tolist() == pairs[i].src
            assert tgt[tgt != PAD].tolist() == pairs[i].tgt
    for filler in fillers:
        assert filler.num_tokens == 0 and bool((filler.src != PAD).any())
        assert len(filler) == 1 and filler.tgt.tolist() == [[BOS, PAD]]
    for found, again in zip(ranks, map(read, range(world_size)), strict=True):
        assert [b.index.tolist() for b in found] == [b.index.tolist() for b in again]


# Few distinct sentences, so that they repeat, meet through others, and differ by case only.
short = st.sampled_from(["a", "A!", "b", "b c", "B  C.", "d", "e?", "é", "E\u0301", "f", "!", "?"])


def same(sentence):
    """The test's own idea of equal sentences, apart from the module's."""
    return "".join(c for c in normalise(sentence).lower() if c not in ".!?") or sentence


@examples(60)
@given(st.lists(st.builds(Pair, short, short), max_size=29), seeds, st.data())
def test_no_sentence_is_on_two_sides_of_a_split(pairs, seed, data):
    def sides(pairs):
        splits = split_pairs(pairs, valid=0.3, test=0.3, seed=seed)
        return [splits.train, splits.valid, splits.test]

    found = sides(pairs)
    assert sorted(itertools.chain(*found)) == sorted(pairs)
    for column, (one, other) in itertools.product((0, 1), itertools.combinations(found, 2)):
        assert {same(p[column]) for p in one}.isdisjoint(same(p[column]) for p in other)
    shuffled = sides(data.draw(st.permutations(pairs)))
    assert [sorted(side) for side in shuffled] == [sorted(side) for side in found]
