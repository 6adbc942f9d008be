"""`src.data.tokenization`: what is encoded comes back, and both kinds have one interface."""

import json
import subprocess
import sys
import time

import pytest
import torch

from src.data.tokenization import (
    SPECIALS,
    SubwordTokenizer,
    Tokenizer,
    WordTokenizer,
    join_words,
    normalise,
    split_words,
)

SENTENCES = [
    "L'eau n'est pas chaude aujourd'hui.",
    "Est-ce que tu viens ?",
    "The water isn't warm today.",
    "Qu'y a-t-il ?",
    "Where is the water?",
    "¿Dónde está el agua?",
    "Das Wasser ist heiß.",
] * 3
KINDS = [WordTokenizer, SubwordTokenizer]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("L\u2019\xe9t\xe9", "L'été"),
        ("L'e\u0301t\u200be\u0301", "L'été"),
        ("e\u200b\u0301te\u00ad\u0301", "été"),
        ("Quoi\u202f?\xa0 Rien\u3000!", "Quoi ? Rien !"),
        ("Il dit\xa0: «\xa0Viens.\xa0»", 'Il dit : "Viens."'),
        ("Er sagte: „Komm!“ und »geh«.", 'Er sagte: "Komm!" und "geh".'),
        ("»A« und »B«", '"A" und "B"'),
        ("(«\u202fOui\t non \xa0») «» « \n»", '("Oui non") "" ""'),
        ("« \u200bOui » «  Non", '"Oui" " Non'),
        ("non\xadstop – wait…", "nonstop - wait..."),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u200cمی\u200c خواهم\u200d", "می خواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("👨\u200d👩\u200d👧 a\u200db", "👨\u200d👩\u200d👧 ab"),
    ],
)
def test_normalise(text, normal):
    assert normalise(text) == normal


def test_a_long_gap_after_a_guillemet_costs_linear_time():
    start = time.process_time()
    assert normalise("«" + 2000 * " " + "x") == '" x'
    assert normalise(2000 * "« ") == " ".join(2000 * '"')
    assert time.process_time() - start < 1  # a few milliseconds; a cubic pattern takes 30 s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("L'eau qu'il boit.", ["l'", "eau", "qu'", "il", "boit", "."]),
        ("Aujourd'hui, j'y suis.", ["aujourd'hui", ",", "j'", "y", "suis", "."]),
        ("Est-ce lui ? A-t-il faim ?", ["est", "-ce", "lui", "?", "a", "-t-il", "faim", "?"]),
        ("Donnez-le-moi là-bas, ok?", ["donnez", "-le", "-moi", "là-bas", ",", "ok", "?"]),
        ("Peut-être.", ["peut-être", "."]),
        ("I don't think it's Tom's.", ["i", "don't", "think", "it's", "tom's", "."]),
        ("At 7:30 it cost $10,000.", ["at", "7:30", "it", "cost", "$", "10,000", "."]),
        ('He said, "Go!" (twice)', ["he", "said", ",", '"', "go", "!", '"', "(", "twice", ")"]),
        ("¿Qué? ¡No!", ["¿", "qué", "?", "¡", "no", "!"]),
        ("我爱吃苹果，3.5公斤！", [*"我爱吃苹果，", "3.5", *"公斤！"]),
        ("カレーを食べた。", [*"カレーを食べた。"]),
        ("मैं हिन्दी पढ़ता हूँ.", ["मैं", "हिन्दी", "पढ़ता", "हूँ", "."]),
        ("كِتَابٌ جَدِيدٌ", ["كِتَابٌ", "جَدِيدٌ"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("Oh 👨\u200d👩\u200d👧!", ["oh", "👨\u200d👩\u200d👧", "!"]),
        ("", []),
    ],
)
def test_split_words(text, words):
    assert split_words(text) == words
    spaced = text.replace(" ?", "?")
    assert join_words(words) == spaced.lower()


SUBWORDS = SubwordTokenizer.train(SENTENCES, 300)


def test_vocabulary_by_frequency_then_by_code_point():
    tokenizer = WordTokenizer.train(["b a c", "c b", "c d"], 7)
    assert tokenizer.tokens(range(7)) == [*SPECIALS, "c", "b", "a"]
    assert len(tokenizer) == 7
    assert tokenizer.encode("a D c") == [6, 3, 4]
    assert tokenizer.decode([6, 3, 4]) == "a <unk> c"
    reordered = WordTokenizer.train(["c d", "c b", "c a b"], 7)
    assert reordered.tokens(range(7)) == tokenizer.tokens(range(7))


@pytest.mark.slow
def test_subword_training_is_the_same_in_every_process():
    program = (
        "import sys, json; from src.data.tokenization import SubwordTokenizer\n"
        "t = SubwordTokenizer.train(json.loads(sys.argv[1]), 300)\n"
        "print(json.dumps(t.tokens(range(len(t)))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, json.dumps(SENTENCES)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(run.stdout) == SUBWORDS.tokens(range(len(SUBWORDS)))


@pytest.mark.parametrize("kind", KINDS)
def test_one_interface(kind):
    tokenizer = kind.train(SENTENCES, 300)
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.tokens([0, 1, 2, 3]) == list(SPECIALS)
    for text in SENTENCES:
        ids = tokenizer.encode(text)
        assert min(ids) > 3
        assert tokenizer.encode(tokenizer.decode(ids)) == ids
        # <bos> and <pad> say nothing, <eos> ends the sentence; tensors are welcome.
        framed = torch.tensor([1, *ids, 2, ids[0], 0, 0])
        assert tokenizer.decode(framed) == tokenizer.decode(ids)
    assert tokenizer.encode("") == tokenizer.encode(" \u200b") == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_file_round_trip(kind, tmp_path):
    tokenizer = kind.train(SENTENCES, 300)
    path = tmp_path / "tokenizer.json"
    tokenizer.to_file(path)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    for reader in (kind, Tokenizer):
        again = reader.from_file(path)
        assert type(again) is kind and len(again) == len(tokenizer)
        for text in [*SENTENCES, "<eos> jamais vu"]:
            assert again.encode(text) == tokenizer.encode(text)
    other = KINDS[1 - KINDS.index(kind)]
    with pytest.raises(ValueError, match=f"holds a tokenizer of kind .*, not a {other.__name__}"):
        other.from_file(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"tokenizer": "word"}',
        "\xff",
        '{"tokenizer": "subword", "state": {}}',
        '{"tokenizer": "subword", "state": 5}',
        '{"tokenizer": "word", "state": 5}',
        '{"tokenizer": "word", "state": "abc"}',
        '{"tokenizer": "word", "state": ["a", 5]}',
        '{"tokenizer": "word", "state": ["a", "a"]}',
        '{"tokenizer": "word", "state": {"a": 1}}',
    ],
)
def test_files_that_hold_no_tokenizer(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer's file"):
        Tokenizer.from_file(path)


@pytest.mark.parametrize("kind", KINDS)
def test_one_string_is_no_list_of_sentences(kind, unchecked):
    with pytest.raises(TypeError, match="sentences must be strings, several of them, but are one"):
        kind.train("Where is the water?", 300)


def test_failed_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    SUBWORDS.to_file(path)
    before = path.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        WordTokenizer(["\ud800"]).to_file(path)  # a lone surrogate is no text
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WordTokenizer.train(["a"], 4), "vocab_size must be above 4, but is 4"),
        (lambda: SubwordTokenizer.train(["a"], 259), "vocab_size must be at least 260, but is 259"),
        (lambda: WordTokenizer(["a", "b", "a"]), r"words must be unique .* repeats \['a'\]"),
        (lambda: WordTokenizer(["<pad>"]), r"no special tokens, but repeats \['<pad>'\]"),
        (lambda: WordTokenizer(["a"]).decode([5]), "ids must be in 0 … 4, but one is 5"),
        (lambda: WordTokenizer(["a"]).tokens([-1]), "ids must be in 0 … 4, but one is -1"),
        (lambda: SUBWORDS.decode([10**6]), "ids must be in 0 … .*, but one is 1000000"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
