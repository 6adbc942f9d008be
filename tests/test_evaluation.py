"""Translating many sentences, alignments and BLEU."""

import pytest
import torch

from src.config import RecurrentConfig
from src.data.tokenization import SubwordTokenizer, WordTokenizer
from src.recurrent import AttentionSeq2Seq
from src.training import evaluation
from src.training.evaluation import (
    _groups,
    align,
    align_words,
    corpus_bleu,
    translate,
    translate_nbest,
)
from toy_training import tiny_model

SOURCE = WordTokenizer(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
TARGET = WordTokenizer(
    [
        "un",
        "deux",
        "trois",
        "quatre",
        "cinq",
        "six",
        "sept",
        "huit",
        "neuf",
        "dix",
        "onze",
        "douze",
        "treize",
    ]
)


@pytest.fixture
def model():
    return tiny_model(src_vocab_size=len(SOURCE), tgt_vocab_size=len(TARGET), seed=3).eval()


SENTENCES = [
    "one two three four five",
    "nine",
    "two two",
    "",
    "five four three two one nine eight seven",
    "three",
    "one six",
    "   ",
    "seven eight nine one two three",
]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_order_and_batches_do_not_change_a_translation(model, beam_size):
    alone = [translate(model, [s], SOURCE, TARGET, beam_size=beam_size)[0] for s in SENTENCES]
    assert alone[3] == alone[7] == "" and len(set(alone)) > 3
    for limits in ({"batch_size": 2}, {"max_tokens": 20}, {}):
        together = translate(model, SENTENCES, SOURCE, TARGET, beam_size=beam_size, **limits)
        assert together == alone, limits


def test_recurrent_models_are_translated_by_the_same_code():
    torch.manual_seed(0)
    config = RecurrentConfig(len(SOURCE), len(TARGET))
    model = AttentionSeq2Seq(config).eval()
    together = translate(model, SENTENCES, SOURCE, TARGET, batch_size=4, max_len=6)
    assert together == [translate(model, [s], SOURCE, TARGET, max_len=6)[0] for s in SENTENCES]


def test_batches_are_of_similar_length_and_within_the_limits():
    sources = [[0] * n for n in (3, 9, 1, 4, 9, 2, 7)]
    groups = list(_groups(range(7), sources, batch_size=3, max_tokens=20))
    assert [[len(sources[i]) for i in g] for g in groups] == [[9, 9], [7, 4], [3, 2, 1]]
    # A sentence that is too long for the limit comes alone, but it comes.
    assert list(_groups([1], sources, batch_size=3, max_tokens=5)) == [[1]]


def test_the_models_limit_and_the_callers(model):
    for beam_size in (1, 2):
        found = translate_nbest(model, SENTENCES, SOURCE, TARGET, beam_size=beam_size, max_len=3)
        assert max(len(hypotheses[0].ids) for hypotheses in found) <= 3
    long = " ".join(["one"] * 31)  # 32 with the end token: just what the model takes
    assert len(translate_nbest(model, [long], SOURCE, TARGET)[0][0].ids) <= 32
    with pytest.raises(ValueError, match=r"sentences\[1\] must have at most max_len = 32 tokens"):
        translate(model, ["one", long + " one"], SOURCE, TARGET)


def test_score_is_the_models_log_probability(model):
    (best,) = translate_nbest(model, ["one two"], SOURCE, TARGET)[0]
    src = torch.tensor([[*SOURCE.encode("one two"), SOURCE.eos_id]])
    ended = len(best.ids) < 2 * 3 + 10
    tgt = torch.tensor([[TARGET.bos_id, *best.ids, *([TARGET.eos_id] if ended else [])]])
    log_probs = model(src, tgt[:, :-1]).log_softmax(dim=-1)
    expected = log_probs.gather(2, tgt[:, 1:, None]).sum()
    assert best.score == pytest.approx(expected.item(), rel=1e-4)


def test_nbest_is_sorted_and_starts_with_the_best(model):
    options = {"beam_size": 4, "max_len": 5}
    found = translate_nbest(model, SENTENCES, SOURCE, TARGET, num_return=3, **options)
    best = translate(model, SENTENCES, SOURCE, TARGET, **options)
    assert [hypotheses[0].text for hypotheses in found] == best
    for hypotheses in found:
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)


def test_forbidden_tokens_do_not_appear(model):
    free = translate_nbest(model, SENTENCES, SOURCE, TARGET)
    used = {i for hypotheses in free for i in hypotheses[0].ids}
    banned = sorted(used)[:1]
    found = translate_nbest(model, SENTENCES, SOURCE, TARGET, forbidden_ids=banned)
    assert not {i for hypotheses in found for i in hypotheses[0].ids} & set(banned)


def test_the_model_comes_back_in_its_mode_and_dropout_is_off():
    model = tiny_model(src_vocab_size=len(SOURCE), tgt_vocab_size=len(TARGET), dropout=0.5)
    model.train()
    first = translate(model, SENTENCES, SOURCE, TARGET)
    assert first == translate(model, SENTENCES, SOURCE, TARGET) and model.training


def test_translate_refuses_bad_numbers(model):
    for name in ("batch_size", "max_tokens", "max_len"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            translate(model, SENTENCES, SOURCE, TARGET, **{name: 0})
    with pytest.raises(ValueError, match=r"num_return must be in \[1, beam_size = 2\], got 3"):
        translate_nbest(model, SENTENCES, SOURCE, TARGET, beam_size=2, num_return=3)


def test_nothing_to_translate(model):
    assert translate(model, [], SOURCE, TARGET) == []
    assert translate(model, ["", " "], SOURCE, TARGET) == ["", ""]


def test_alignment_follows_the_cross_attention(model):
    ids = TARGET.encode("un deux trois")
    pairs = align(model, "five six", ids, SOURCE, TARGET)
    src = torch.tensor([[*SOURCE.encode("five six"), SOURCE.eos_id]])
    maps = model.attention_maps(src, torch.tensor([[TARGET.bos_id, *ids]]))
    weights = maps["cross"][-1][0].mean(dim=0)
    assert pairs == [(weights[t, :2].argmax().item(), t) for t in range(3)]
    assert align(model, "", ids, SOURCE, TARGET) == align(model, "one", [], SOURCE, TARGET) == []


def test_a_translation_as_long_as_the_model_takes_is_aligned(model):
    ids = TARGET.encode(" ".join(["un deux"] * 16))
    assert len(ids) == model.config.max_len
    assert [t for _, t in align(model, "five six", ids, SOURCE, TARGET)] == list(range(32))


class Attentive(torch.nn.Module):
    """Only looks: target token t at source token ``looks[t]``."""

    def __init__(self, *looks):
        super().__init__()
        self.looks, self.device = looks, torch.nn.Parameter(torch.zeros(()))

    def attention_maps(self, src, tgt):
        weights = torch.zeros(1, 1, tgt.shape[1], src.shape[1])
        for t, s in enumerate(self.looks):
            weights[0, 0, t, s] = 1
        return {"cross": [weights]}


def test_alignment_of_words_counts_what_white_space_sets_apart():
    bytes_alone = SubwordTokenizer.train([], 260)
    ids = bytes_alone.encode("le roi")
    assert len(ids) == 7 == len(bytes_alone.encode("a king"))  # a space, too, before each word
    model = Attentive(0, 1, 3, 1, 4, 4, 5)  # the third is the end of "le"
    pairs = align_words(model, " a\u00a0 king ", ids, bytes_alone, bytes_alone)
    assert pairs == [(0, 0), (1, 0), (0, 1), (1, 1)]
    # Punctuation is a token of its own, and a part of the word that one sees; or it is not.
    french = WordTokenizer(["l'", "eau", ",", "roi"])
    ids = french.encode("l'eau, roi")
    assert french.decode(ids) == "l'eau, roi"
    model = Attentive(0, 1, 1, 2)
    for source, wanted in (("one, two", [(0, 0), (1, 1)]), ("one , two", [(0, 0), (1, 0), (2, 1)])):
        english = WordTokenizer(["one", ",", "two"])
        assert align_words(model, source, ids, english, french) == wanted


def test_alignment_of_words_stays_within_the_words():
    tokenizer = SubwordTokenizer.train([], 260)
    line = "« so »"  # becomes "so" in quotes, of fewer tokens than its three words
    last = len(tokenizer.encode(line)) - 1
    space = tokenizer.encode("a")[:1]
    ids = [*space, *tokenizer.encode("a"), *space]  # nothing follows the last space
    for looks in ([0] * 4, [last] * 4):
        pairs = align_words(Attentive(*looks), line, ids, tokenizer, tokenizer)
        assert {t for _, t in pairs} == {0} and all(0 <= s < 3 for s, _ in pairs)
    assert align_words(Attentive(0), line, space, tokenizer, tokenizer) == []
    assert align_words(Attentive(), "", [], tokenizer, tokenizer) == []


# ---------------------------------------------------------------- BLEU


@pytest.mark.parametrize("hypotheses", [["", ""], ["a", "b"], ["", "the cat"], ["a b c d", ""]])
def test_short_and_empty_outputs_have_a_score(hypotheses):
    result = corpus_bleu(hypotheses, ["the cat sat on the mat", "a b c d"])
    assert 0 <= result.score < 50


def test_bleu_is_sacrebleus_with_its_signature():
    import sacrebleu

    hypotheses = ["the cat sat on a mat", "there is the dog", "One two three four five"]
    references = ["the cat sat on the mat", "there is a dog", "one two three four five"]
    result = corpus_bleu(hypotheses, references)
    assert result.score == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert result.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert corpus_bleu(hypotheses, references, lowercase=True).score > result.score
    assert corpus_bleu(references, references).score == pytest.approx(100)


CHINESE = ["我爱吃苹果。", "他们昨天去了北京。"]


@pytest.mark.parametrize(
    ("references", "tokenizer"),
    [
        (CHINESE, "zh"),
        (["リンゴを食べるのが好きです。", "昨日北京に行きました。"], "char"),
        (["ฉันชอบกินแอปเปิ้ล"], "char"),
        (["나는 사과를 좋아한다 그리고"], "13a"),
        (["मुझे सेब खाना पसंद है"], "13a"),
        (["I like 苹果 and many other kinds of fruit"], "13a"),
    ],
)
def test_a_perfect_translation_has_100_in_every_script(references, tokenizer, monkeypatch):
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    result = corpus_bleu(references, references)
    assert result.score == pytest.approx(100) and f"tok:{tokenizer}|" in result.signature
    assert corpus_bleu([text[::-1] for text in references], references).score < 60


def test_japanese_is_cut_by_mecab_where_it_is_there(monkeypatch):
    monkeypatch.setattr(evaluation, "find_spec", lambda name: object())
    assert evaluation.bleu_tokenizer(["リンゴを食べる"]) == "ja-mecab"


def test_where_no_reference_has_four_words_shorter_ngrams_decide():
    result = corpus_bleu(["Go on."], ["Go on."])
    assert result.score == pytest.approx(100) and "|eff:yes|" in result.signature
    assert corpus_bleu(["Go off."], ["Go on."]).score < 60
    assert corpus_bleu(["Go on."], ["Go on."], effective_order=False).score == 0
    assert "|eff:no|" in corpus_bleu(["Go on."], ["Go on and on."]).signature


@pytest.mark.parametrize("name", ["sentences", "hypotheses", "references"])
def test_one_string_is_not_a_list_of_sentences(model, name, unchecked):
    calls = {
        "sentences": lambda: translate(model, "one two", SOURCE, TARGET),
        "hypotheses": lambda: corpus_bleu("one", ["one", "two", "six"]),
        "references": lambda: corpus_bleu(["one", "two", "six"], "one"),
    }
    with pytest.raises(TypeError, match=f"{name} must be strings, several of them, but are one"):
        calls[name]()


def test_bleu_refuses_unequal_numbers():
    with pytest.raises(ValueError, match="hypotheses and references must be as many: 2 and 1"):
        corpus_bleu(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="hypotheses must hold at least one sentence"):
        corpus_bleu([], [])
