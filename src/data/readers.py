"""Sentence pairs from files: a corpus of one's own, in either of the two usual forms.

Nothing is skipped or guessed: what is wrong with a file is said with its name and the line.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from src.data.tokenization import normalise


class CorpusError(ValueError):
    """A corpus file is missing or malformed; the message names the file and the line."""


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def read_tsv(path: str | Path, *, source: int = 0, target: int = 1) -> list[Pair]:
    """Read a corpus of one pair a line, tab-separated, and normalise its sentences.

    Args:
        path: UTF-8 file, with or without byte order mark.
        source: Column of the source sentence, counted from 0.
        target: Column of the target sentence. Further columns are ignored.

    Raises:
        CorpusError: If the file is missing, is empty or not UTF-8, if a line has too few columns
            or if a sentence is empty. Names the file and the line.
        ValueError: If a column is negative.
    """
    if min(source, target) < 0:
        raise ValueError(
            f"source and target must be 0 or more, but are {source} and {target}"
        )
    pairs = []
    for where, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) <= max(source, target):
            raise CorpusError(
                f"{where}: needs {max(source, target) + 1} tab-separated columns, "
                f"but has {len(fields)}"
            )
        pairs.append(
            Pair(_sentence(where, fields[source]), _sentence(where, fields[target]))
        )
    return pairs


def read_moses(src_path: str | Path, tgt_path: str | Path) -> list[Pair]:
    """Read a corpus in two files, line n of one translating line n of the other.

    Args:
        src_path: UTF-8 file of source sentences.
        tgt_path: UTF-8 file of target sentences.

    Raises:
        CorpusError: If a file is missing, is empty or not UTF-8, if a line is empty, or if the
            files have unequal numbers of lines. Names the file and the line.
    """
    sources, targets = list(read_lines(src_path)), list(read_lines(tgt_path))
    if len(sources) != len(targets):
        raise CorpusError(
            f"{src_path} has {len(sources)} lines, but {tgt_path} has {len(targets)}"
        )
    return [
        Pair(_sentence(*source), _sentence(*target))
        for source, target in zip(sources, targets, strict=False)
    ]


def _sentence(where: str, text: str) -> str:
    sentence = normalise(text)
    if not sentence:
        raise CorpusError(f"{where}: the sentence is empty")
    return sentence


def read_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield ``("FILE, line N", text)`` for each line of a UTF-8 file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read, {error.strerror}") from error
    if not content:
        raise CorpusError(f"{path}: the file is empty")
    # Only \n ends a line. str.splitlines would also cut at characters within a sentence
    # (U+2028, U+0085), and the two files of a corpus would run apart.
    content = content.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
    for number, line in enumerate(content.split(b"\n"), start=1):
        where = f"{path}, line {number}"
        try:
            yield where, line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{where}: not UTF-8, {error.reason} at byte {error.start}"
            ) from error
