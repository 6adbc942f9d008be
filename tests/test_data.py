"""`src.data`: cleaning, the split without leaks, corpora of one's own, and the real sentences."""

import re
from pathlib import Path

import pytest

from src.data import tatoeba
from src.data.readers import CorpusError, Pair, read_moses, read_tsv
from src.data.splits import Splits, easy_subset, split_pairs
from src.data.tatoeba import Cleaning, clean_pairs, load_pairs, read_tatoeba
from src.data.tokenization import split_words


@pytest.fixture
def sentences(tmp_path, monkeypatch):
    """A file of Tatoeba's form with a case for each thing that cleaning does."""
    english_german_french_spanish = [
        ("Hello!", "Hallo!", "Bonjour\u202f!", "-"),
        ("Hello!", "-", "Bonjour\xa0!", "¡Hola!"),  # the same as the line before, once normalised
        ("I see her.", "Ich sehe sie.", "Je la vois.", "La veo."),
        ("They killed time.", "-", "Ils passaient le temps.", "-"),
        ("We play chess.", "-", "Nous jouons jusqu’à l’aube pour tuer l’ennui.", "-"),
        ("Go.", "-", "Allez tous les jours à l'école à pied.", "-"),
        ("-", "-", "Sans anglais.", "-"),
    ]
    path = tmp_path / "SENTENCES"
    lines = [
        "\t".join([str(n), "日本語", en, "Nederlands", de, fr, es, "Svenska", "-"])
        for n, (en, de, fr, es) in enumerate(english_german_french_spanish)
    ]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(tatoeba, "fetch", lambda name: {"tatoeba": path}[name])


def test_read_tatoeba_takes_the_columns_of_the_language(sentences):
    assert len(read_tatoeba("fra")) == 6
    assert read_tatoeba("deu") == [("Hello!", "Hallo!"), ("I see her.", "Ich sehe sie.")]
    assert read_tatoeba("spa") == [("Hello!", "¡Hola!"), ("I see her.", "La veo.")]


def test_load_pairs_normalises_deduplicates_and_filters(sentences):
    assert load_pairs("fra") == [
        Pair("Hello!", "Bonjour !"),
        Pair("I see her.", "Je la vois."),
        Pair("Go.", "Allez tous les jours à l'école à pied."),
    ]
    assert len(load_pairs("fra", content_filter=False)) == 5
    assert load_pairs("fra", max_words=3) == load_pairs("fra")[:2]
    assert load_pairs("fra", min_words=2) == load_pairs("fra")[1:2]


def test_cleaning_counts_every_pair_once(sentences):
    pairs, report = clean_pairs(read_tatoeba("fra"), "fra", max_words=3)
    assert report == Cleaning(raw=6, duplicate=1, unsuitable=2, other_length=1, kept=2)
    assert len(pairs) == report.kept


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_pairs("jpn"), "target must be one of deu, fra, spa, but is 'jpn'"),
        (lambda: clean_pairs([("a", "b")], "jpn"), "language must be one of eng, .* is 'jpn'"),
        (lambda: clean_pairs([], "fra", min_words=0), "but are 0 and None"),
        (lambda: clean_pairs([], "fra", min_words=4, max_words=3), "but are 4 and 3"),
    ],
)
def test_bad_arguments(sentences, call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("language", "word", "longer"),
    [
        ("eng", "killed", "skilled"),
        ("fra", "tués", "tu"),
        ("deu", "NACKTE", "Nacken"),
        ("spa", "asesinato", "asistir"),
        ("deu", "Scheißwetter", "scheint"),
    ],
)
def test_content_filter_matches_whole_words(language, word, longer):
    assert not tatoeba.is_suitable(f"Ah, {word}!", language)
    assert tatoeba.is_suitable(f"Ah, {longer}!", language)


# --- the split ---------------------------------------------------------------------------------


def sides(splits):
    return [splits.train, splits.valid, splits.test]


def test_pairs_linked_through_others_stay_together():
    chain = [Pair(f"source {i}", f"target {i + j}") for i in range(97) for j in (0, 1)]
    splits = [split_pairs(chain, valid=0.3, test=0.3, seed=seed) for seed in range(31)]
    sizes = {tuple(map(len, sides(one))) for one in splits}
    assert sizes == {(194, 0, 0), (0, 194, 0), (0, 0, 194)}


def test_split_shares_and_seed():
    pairs = [Pair(f"source {i}", f"target {i}") for i in range(4001)]
    splits = split_pairs(pairs, valid=0.1, test=0.2, seed=3)
    # Binomial: four standard deviations are 101 of the test, 76 of the validation side.
    assert abs(len(splits.test) - 800) < 101
    assert abs(len(splits.valid) - 400) < 76
    assert splits == split_pairs(pairs, valid=0.1, test=0.2, seed=3)
    assert splits.test != split_pairs(pairs, valid=0.1, test=0.2, seed=4).test
    assert split_pairs(pairs, valid=0.0, test=0.0) == Splits(pairs, [], [])
    # The same in every process and on every machine.
    assert splits.test[:3] == [pairs[i] for i in (9, 10, 11)]


@pytest.mark.parametrize(("valid", "test"), [(-0.1, 0.1), (0.1, -0.1), (0.5, 0.5)])
def test_bad_shares(valid, test):
    with pytest.raises(ValueError, match=f"sum to less than 1, but are {valid} and {test}"):
        split_pairs([], valid=valid, test=test)


def test_easy_subset_takes_its_words_from_the_training_side_alone():
    train = [Pair("a b.", "1"), Pair("a b.", "2"), Pair("a c.", "3"), Pair("a a a a.", "4")]
    test = [Pair("d.", str(i)) for i in range(97)] + [Pair("B, a.", "5"), Pair("b.", "6")]
    easy = easy_subset(Splits(train, [], test), num_words=3, max_tokens=4)
    # The words are ".", "a" and "b": "d", frequent in the test only, is none of them.
    assert easy == Splits(train[:2], [], [Pair("b.", "6")])


def test_easy_subset_can_ask_for_easy_translations_too():
    train = [Pair("a.", "x y."), Pair("a.", "x y z."), Pair("a.", "x x."), Pair("a.", "q.")]
    test = [Pair("a.", "x."), Pair("a.", "w.")]
    easy = easy_subset(
        Splits(train, [], test), 9, 9, num_target_words=3, max_target_tokens=3
    )  # the words are ".", "x" and "y", and "x y z." is too long besides
    assert easy == Splits([train[0], train[2]], [], [Pair("a.", "x.")])
    with pytest.raises(ValueError, match="num_target_words must be at least 1, but is 0"):
        easy_subset(Splits([], [], []), num_target_words=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8), "num_words must be at least 1, but is 0"),
        ((800, 0), "max_tokens must be at least 1, but is 0"),
    ],
)
def test_easy_subset_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        easy_subset(Splits([], [], []), *arguments)


# --- a corpus of one's own ---------------------------------------------------------------------


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_read_tsv(tmp_path):
    path = write(tmp_path / "own.tsv", "\ufeffHi.\tSalut.\tby me\r\nA\u2028b\t« C’est »\tyou\n")
    assert read_tsv(path) == [Pair("Hi.", "Salut."), Pair("A b", '"C\'est"')]
    assert read_tsv(path, source=2, target=0) == [Pair("by me", "Hi."), Pair("you", "A b")]


def test_read_moses(tmp_path):
    # Neither a line separator nor a next-line character ends a line of these files.
    src = write(tmp_path / "own.en", "Hi.\nOne\u2028more\u0085word.\n")
    tgt = write(tmp_path / "own.fr", "Salut.\nEncore un mot.")
    assert read_moses(src, tgt) == [
        Pair("Hi.", "Salut."),
        Pair("One more word.", "Encore un mot."),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"own\.tsv: the file is empty"),
        ("a\tb\nc\n", r"own\.tsv, line 2: needs 2 tab-separated columns, but has 1"),
        ("a\tb\n\nc\td\n", r"own\.tsv, line 2: needs 2 tab-separated columns, but has 1"),
        ("a\tb\nc\t \u200b\n", r"own\.tsv, line 2: the sentence is empty"),
        (b"a\tb\nc\td\n\xe9t\xe9\te\n", r"own\.tsv, line 3: not UTF-8, .* at byte 0"),
    ],
)
def test_malformed_tsv(tmp_path, content, message):
    with pytest.raises(CorpusError, match=message):
        read_tsv(write(tmp_path / "own.tsv", content))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("d\ne\n", r"own\.en has 3 lines, but .*own\.fr has 2"),
        ("d\n\nf\n", r"own\.fr, line 2: the sentence is empty"),
        (b"d\ne\n\xff\n", r"own\.fr, line 3: not UTF-8, invalid start byte at byte 0"),
        ("", r"own\.fr: the file is empty"),
    ],
)
def test_malformed_moses(tmp_path, target, message):
    src = write(tmp_path / "own.en", "a\nb\nc\n")
    with pytest.raises(CorpusError, match=message):
        read_moses(src, write(tmp_path / "own.fr", target))


def test_missing_files(tmp_path):
    with pytest.raises(CorpusError, match=r"own\.tsv: cannot be read, No such file"):
        read_tsv(tmp_path / "own.tsv")
    with pytest.raises(CorpusError, match=r"own\.en: cannot be read, No such file"):
        read_moses(tmp_path / "own.en", tmp_path / "own.fr")
    with pytest.raises(ValueError, match="source and target must be 0 or more, but are 0 and -1"):
        read_tsv(tmp_path / "own.tsv", target=-1)


# --- the real sentences ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def french():
    """Pairs and report of the real corpus; reading it takes seconds, so it is done once."""
    return clean_pairs(read_tatoeba("fra"), "fra")


@pytest.fixture(scope="module")
def french_splits(french):
    return split_pairs(french[0])


@pytest.mark.slow
def test_real_corpus_is_the_one_that_the_book_describes(french):
    pairs, report = french
    assert report == Cleaning(
        raw=36571, duplicate=1665, unsuitable=209, other_length=0, kept=len(pairs)
    )
    assert Pair("Let's try something.", "Essayons quelque chose !") in pairs
    assert all(sentence == tatoeba.normalise(sentence) for pair in pairs[::97] for sentence in pair)
    page = Path(__file__).parents[1] / "book" / "data.md"
    assert tatoeba._describe("fra", pairs, report) in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_real_split_has_no_leak(french, french_splits):
    assert sum(map(len, sides(french_splits))) == len(french[0])
    for column in (0, 1):
        found = [
            {" ".join(re.findall(r"[^\W_]+", pair[column].lower())) for pair in side}
            for side in sides(french_splits)
        ]
        assert found[2].isdisjoint(found[0] | found[1]) and found[1].isdisjoint(found[0])


@pytest.mark.slow
def test_real_easy_subset(french_splits):
    easy = easy_subset(french_splits, num_words=800, max_tokens=8)
    words = {word for pair in easy.train for word in split_words(pair.source)}
    assert len(words) <= 800
    assert max(len(split_words(pair.source)) for pair in easy.test) <= 8
    assert all(
        set(part) <= set(side)
        for part, side in zip(sides(easy), sides(french_splits), strict=False)
    )
    assert [len(side) for side in sides(easy)] == [6495, 356, 380]


def test_main_prints_counts_licence_and_examples(sentences, capsys):
    tatoeba.main(["--target", "fra"])
    printed = capsys.readouterr().out
    assert "CC BY 2.0 FR" in printed and tatoeba.ASSETS["tatoeba"].sha256 in printed
    counts = re.findall(r"(pairs in the file|repeated|content filter|kept) +(\d+)", printed)
    assert [int(number) for _, number in counts] == [6, 1, 2, 3]
    assert "    Hello! | Bonjour !\n    I see her. | Je la vois.\n" in printed
    assert "English – deu" not in printed
    tatoeba.main([])
    assert "English – deu" in capsys.readouterr().out
