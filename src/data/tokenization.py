"""From sentences to token ids and back: whole words, or pieces of words learnt by BPE.

Both tokenizers have one interface, `Tokenizer`, and the same four special tokens. Both learn from
the sentences that they are given and from nothing else: give them the training side alone.
"""

import json
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import regex as re  # whose \w knows combining marks, and \X what is seen as one character
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from src.files import replacing

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")

_SAME = {
    "'": "\u2018\u2019\u201a\u201b\u02bc\u00b4\u2032",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\uff0d",
    "": "\u200b\u2060\ufeff\u00ad",
    "...": "\u2026",
}
_CHARACTERS = str.maketrans(
    {char: plain for plain, chars in _SAME.items() for char in chars}
)
# French sets a space inside its guillemets. German turns them round, »so«, and sets none.
_GUILLEMETS = re.compile(r"(?<![^\s(])«([^«»]*)»")
# Persian, the scripts of India and emoji need their joiners; anywhere else nobody sees them.
_JOINED = r"[\p{L}\p{M}\p{So}\p{Sk}--[\p{Latin}\p{Greek}\p{Cyrillic}\u0300-\u036f]]"
_NEEDLESS_JOINERS = re.compile(
    rf"(?V1)(?<!{_JOINED})[\u200c\u200d]+|[\u200c\u200d]+(?!{_JOINED}|[\u200c\u200d])"
)


def normalise(text: str) -> str:
    """Write a sentence in one way: Unicode NFC, plain quotes, dashes and spaces.

    Letters, case and accents stay. Every kind of white space, the no-break spaces of French
    typography among them, becomes one space; curly and angular quotation marks become straight;
    invisible characters go, but for the joiners of scripts that are written with them. Applying
    it twice changes nothing more.
    """
    text = unicodedata.normalize("NFC", text)
    text = _GUILLEMETS.sub(lambda match: f'"{match[1].strip()}"', text)
    text = _NEEDLESS_JOINERS.sub("", text.translate(_CHARACTERS))
    # Again NFC: letter and accent may have been kept apart by an invisible character.
    return unicodedata.normalize("NFC", " ".join(text.split()))


class Tokenizer(ABC):
    """What the rest of the package may ask of a tokenizer.

    ``encode`` and ``decode`` know nothing of ``<bos>`` and ``<eos>``: whoever makes training
    examples adds them (`src.data.batches.encode_pairs`).
    """

    pad_id: ClassVar[int] = 0
    bos_id: ClassVar[int] = 1
    eos_id: ClassVar[int] = 2
    unk_id: ClassVar[int] = 3
    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def train(cls, sentences: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn a vocabulary of at most ``vocab_size`` tokens, special ones included."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the size V of the vocabulary, special tokens included."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a sentence: 3 … V-1, that is, no special token but ``unk_id``."""

    @abstractmethod
    def tokens(self, ids: Iterable[int] | Tensor) -> list[str]:
        """Return the token of each id, special ones too: the labels of an attention map."""

    @abstractmethod
    def _join(self, ids: list[int]) -> str:
        """Make a sentence of ids that are neither ``<pad>`` nor ``<bos>`` nor ``<eos>``."""

    @abstractmethod
    def _state(self) -> Any:
        """Return what `_from_state` needs, as JSON knows it."""

    @classmethod
    @abstractmethod
    def _from_state(cls, state: Any) -> "Tokenizer": ...

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        """Return the sentence that ids stand for, as far as the first ``<eos>``.

        Args:
            ids: Token ids, a list or a tensor of rank 1. ``<pad>`` and ``<bos>`` are left out.

        Raises:
            ValueError: If an id is outside 0 … V-1.
        """
        kept = []
        for token_id in self._checked(ids):
            if token_id == self.eos_id:
                break
            if token_id not in (self.pad_id, self.bos_id):
                kept.append(token_id)
        return self._join(kept)

    def to_file(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file, whole or not at all."""
        text = json.dumps(
            {"tokenizer": self.kind, "state": self._state()}, ensure_ascii=False
        )
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")

    @classmethod
    def from_file(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer back. `Tokenizer.from_file` reads either kind.

        Raises:
            ValueError: If the file holds no tokenizer, or one of another kind.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            kind, state = content["tokenizer"], content["state"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a tokenizer's file: {error!r}") from error
        for found in (WordTokenizer, SubwordTokenizer):
            if found.kind == kind and issubclass(found, cls):
                try:
                    return found._from_state(state)
                except Exception as error:  # `tokenizers` raises nothing more special
                    raise ValueError(
                        f"{path} is not a tokenizer's file: {error!r}"
                    ) from error
        raise ValueError(
            f"{path} holds a tokenizer of kind {kind!r}, not a {cls.__name__}"
        )

    def _checked(self, ids: Iterable[int] | Tensor) -> list[int]:
        ids = [int(token_id) for token_id in ids]
        for token_id in ids:
            if not 0 <= token_id < len(self):
                raise ValueError(
                    f"ids must be in 0 … {len(self) - 1}, but one is {token_id}"
                )
        return ids


# Chinese and Japanese set no spaces, so each of their characters is a token.
_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}ー]"
_LETTER = rf"(?:(?!{_CJK})\w)"
# French verbs carry their pronoun on a hyphen: donnez-moi, est-ce, a-t-il, celui-ci.
_PRONOUN = (
    r"-(?:t-)?(?:je|tu|ils?|elles?|on|nous|vous|ce|moi|toi|lui|leur|les?|la|là|ci|y|en)"
    rf"(?!{_LETTER})"
)
_TOKEN = re.compile(
    r"(?:[cdjlmnst]|(?:jusqu|lorsqu|puisqu|quoiqu|qu))'(?=\w)"  # elision: l'eau, qu'il
    rf"|(?<=\w){_PRONOUN}"
    rf"|\d+(?:[.,:]\d+)+(?!{_LETTER})"  # 3.5, 10,000, 7:30
    rf"|{_CJK}\p{{M}}*"
    rf"|{_LETTER}+(?:'{_LETTER}+|(?!{_PRONOUN})-{_LETTER}+)*"  # don't, aujourd'hui, peut-être
    r"|(?=[^\w\s])\X"  # a punctuation mark, or a family of emoji
)
_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%")
_NO_SPACE_AFTER = frozenset("([{¿¡$£#")
_NO_SPACE_AROUND = re.compile(rf"{_CJK}|[、。〈-】〔-〛！，．：；？（）［］｛｝～・]")


def split_words(text: str) -> list[str]:
    """Split a sentence into lower-case words and punctuation marks.

    French is split where it grows together, ``l'eau`` into ``l'`` and ``eau``, ``est-ce`` into
    ``est`` and ``-ce``; English contractions such as ``don't`` stay whole. Chinese and Japanese
    are split into characters. Other scripts without spaces, Thai for one, are not split at all:
    take subwords for them.
    """
    return _TOKEN.findall(normalise(text).lower())


def join_words(tokens: Iterable[str]) -> str:
    """Undo `split_words` up to case and the spaces around punctuation."""
    text, glue, quoted = "", True, False
    for token in tokens:
        unspaced = _NO_SPACE_AROUND.match(token) is not None
        closing = token == '"' and quoted
        attached = (
            token in _NO_SPACE_BEFORE or closing or (token[0] == "-" and len(token) > 1)
        )
        text += token if glue or attached or unspaced else " " + token
        opening = token == '"' and not quoted
        glue = (
            token in _NO_SPACE_AFTER
            or opening
            or unspaced
            or (token[-1] == "'" and len(token) > 1)
        )
        quoted ^= token == '"'
    return text


def check_several(name: str, sentences: Iterable) -> None:
    """Refuse one string where several are wanted: its letters would pass for sentences.

    Raises:
        TypeError: If ``sentences`` is a string.
    """
    if isinstance(sentences, str):
        raise TypeError(
            f"{name} must be strings, several of them, but are one string: {sentences[:30]!r}"
        )


class WordTokenizer(Tokenizer):
    """Whole words in lower case: a token is a thing that one can read off an attention map.

    Words that the vocabulary lacks become ``<unk>``.
    """

    kind = "word"

    def __init__(self, words: Iterable[str]) -> None:
        """Make a vocabulary of the special tokens and of ``words``, in that order.

        Raises:
            TypeError: If ``words`` is a single string.
            ValueError: If a word comes twice or is a special token.
        """
        check_several("words", words)
        self._tokens = [*SPECIALS, *words]
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        if len(self._ids) < len(self._tokens):
            twice = [
                token for token, count in Counter(self._tokens).items() if count > 1
            ]
            raise ValueError(
                f"words must be unique and no special tokens, but repeats {twice[:5]}"
            )

    @classmethod
    def train(cls, sentences: Iterable[str], vocab_size: int) -> "WordTokenizer":
        """Choose the most frequent words; of equally frequent ones the first by code point.

        Args:
            sentences: Training sentences.
            vocab_size: Largest size V of the vocabulary, special tokens included.

        Raises:
            TypeError: If ``sentences`` is a single string.
            ValueError: If ``vocab_size`` leaves no room for a word.
        """
        check_several("sentences", sentences)
        if vocab_size <= len(SPECIALS):
            raise ValueError(
                f"vocab_size must be above {len(SPECIALS)}, but is {vocab_size}"
            )
        counts = Counter(
            token for sentence in sentences for token in split_words(sentence)
        )
        by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(by_frequency[: vocab_size - len(SPECIALS)])

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(token, self.unk_id) for token in split_words(text)]

    def tokens(self, ids: Iterable[int] | Tensor) -> list[str]:
        return [self._tokens[token_id] for token_id in self._checked(ids)]

    def _join(self, ids: list[int]) -> str:
        return join_words(self._tokens[token_id] for token_id in ids)

    def _state(self) -> list[str]:
        return self._tokens[len(SPECIALS) :]

    @classmethod
    def _from_state(cls, state: list[str]) -> "WordTokenizer":
        if not isinstance(state, list) or not all(
            isinstance(word, str) for word in state
        ):
            raise ValueError("state must be a list of words")
        return cls(state)


class SubwordTokenizer(Tokenizer):
    """Byte-pair encoding over UTF-8 bytes, by Hugging Face's `tokenizers`.

    It keeps case and accents, and knows no unknown word: the 256 bytes are tokens themselves, so
    ``decode(encode(text)) == normalise(text)`` for every text.

    Source: Sennrich et al. 2016, § 3.2; over bytes: Radford et al. 2019, § 2.2.
    """

    kind = "subword"

    def __init__(self, bpe: tokenizers.Tokenizer) -> None:
        self._bpe = bpe
        # A sentence that says "<eos>" means the five characters. Not part of the saved file.
        self._bpe.encode_special_tokens = True

    @classmethod
    def train(cls, sentences: Iterable[str], vocab_size: int) -> "SubwordTokenizer":
        """Learn merges from ``sentences`` until there are ``vocab_size`` tokens.

        Args:
            sentences: Training sentences.
            vocab_size: Largest size V of the vocabulary, with special tokens and the 256 bytes.

        Raises:
            TypeError: If ``sentences`` is a single string.
            ValueError: If ``vocab_size`` is below 260.
        """
        check_several("sentences", sentences)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        smallest = len(SPECIALS) + len(alphabet)
        if vocab_size < smallest:
            raise ValueError(
                f"vocab_size must be at least {smallest}, but is {vocab_size}"
            )
        bpe = tokenizers.Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        bpe.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIALS),
            initial_alphabet=alphabet,
            min_frequency=2,
            show_progress=False,
        )
        bpe.train_from_iterator(
            (normalise(sentence) for sentence in sentences), trainer
        )
        return cls(bpe)

    def __reduce__(self) -> tuple:
        """Copy and pickle as the file does: `tokenizers` alone would forget what is not in it."""
        return type(self)._from_state, (self._state(),)

    def __len__(self) -> int:
        return self._bpe.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        text = normalise(text)
        return self._bpe.encode(text, add_special_tokens=False).ids if text else []

    def tokens(self, ids: Iterable[int] | Tensor) -> list[str]:
        """Return the text of each id; the first piece of a word starts with its space."""
        return [
            self._bpe.decode([token_id], skip_special_tokens=False)
            for token_id in self._checked(ids)
        ]

    def _join(self, ids: list[int]) -> str:
        return self._bpe.decode(ids, skip_special_tokens=False).removeprefix(" ")

    def _state(self) -> dict[str, Any]:
        return json.loads(self._bpe.to_str())

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "SubwordTokenizer":
        return cls(tokenizers.Tokenizer.from_str(json.dumps(state)))
