"""Options of the command lines: flags, configuration files and dataclass fields as one thing.

A setting has one name everywhere. It is looked for on the command line, then in the file of
``--config``, then in the run that is resumed, and last among the defaults.
"""

import argparse
import dataclasses
import difflib
import inspect
import json
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from src.files import replacing


class Parser(argparse.ArgumentParser):
    """An argument parser that says in one sentence what is wrong, and keeps defaults apart.

    What is parsed holds only what was given; `defaults` holds the rest, so that several sources
    can be laid over each other.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            **kwargs,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.defaults: dict[str, Any] = {}
        self.kinds: dict[str, argparse.Action] = {}
        self.optional: set[str] = set()  # what may be None although its default is not

    def error(self, message: str) -> NoReturn:
        """Leave with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help lists all options)\n")

    def option(
        self,
        group: Any,
        flag: str,
        *,
        default: Any = None,
        help: str,
        shown: str = "",
        **kwargs,
    ) -> None:
        """Add an option whose default is shown in the help and kept in `defaults`.

        Args:
            group: Where to add it: the parser or one of its groups.
            flag: Such as ``--max-len``.
            default: Taken where nobody gives another.
            help: What it is.
            shown: What the help calls the default, if not by its value.
            **kwargs: Of `argparse`'s ``add_argument``.
        """
        if default is not None and not shown:
            shown = (
                " ".join(map(str, default))
                if isinstance(default, tuple)
                else str(default)
            )
        text = f"{help.rstrip('.')} (default: {shown or 'none'})"
        action = group.add_argument(flag, help=text.replace("%", "%%"), **kwargs)
        self.kinds[action.dest] = action
        self.defaults[action.dest] = default

    def fields(
        self, group: Any, cls: type, *, skip: Iterable[str] = (), shown: str = ""
    ) -> None:
        """Add an option for each field of a dataclass, explained by its docstring.

        Args:
            group: Where to add them.
            cls: The dataclass.
            skip: Fields to leave out.
            shown: What the help calls all defaults; then they are left to somebody else (None).
        """
        hints, texts = typing.get_type_hints(cls), describe(cls)
        for field in dataclasses.fields(cls):
            if field.name in skip:
                continue
            kind = hints[field.name]
            optional = isinstance(kind, types.UnionType)  # "int | None"
            if optional:
                self.optional.add(field.name)
            kind = typing.get_args(kind)[0] if optional else kind
            kwargs: dict[str, Any] = {
                "type": _or_none(kind) if optional else kind,
                "metavar": kind.__name__.upper(),
            }
            if kind is bool:
                kwargs = {"action": argparse.BooleanOptionalAction}
            elif typing.get_origin(kind) is tuple:
                number = typing.get_args(kind)
                kwargs = {"type": number[0], "nargs": len(number), "metavar": "X"}
            default = (
                None if shown or field.default is dataclasses.MISSING else field.default
            )
            self.option(
                group,
                flag(field.name),
                default=default,
                help=texts.get(field.name, field.name),
                shown=shown,
                **kwargs,
            )

    def at_least(self, options: Mapping[str, Any], **smallest: int) -> None:
        """Leave with status 2 if a number is below the smallest that its option may have."""
        for name, number in smallest.items():
            if options[name] is not None and options[name] < number:
                self.error(
                    f"{flag(name)} must be at least {number}, got {options[name]}"
                )

    def given(self, argv: Sequence[str] | None) -> dict[str, Any]:
        """Only what the command line says; lists become tuples."""
        return _tuples(vars(self.parse_args(argv)))

    def given_in(self, path: str | Path) -> dict[str, Any]:
        """What a TOML or JSON file says, checked like the command line.

        Tables (``[model]``, ``[training]``) may group the settings; their names mean nothing. A
        JSON ``null`` means None, and is refused where None has no meaning.
        """
        words, nothing = [], {}
        for key, value in _flat(read_settings(path)):
            name = key.replace("-", "_")
            if name not in self.kinds:
                near = difflib.get_close_matches(name, self.kinds, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.error(f"{path}: unknown setting {key!r}{hint}")
            if value is None:
                if name not in self.optional and self.defaults[name] is not None:
                    self.error(f"{path}: {key} must not be null")
                nothing[name] = None
            elif isinstance(value, bool):
                if not isinstance(self.kinds[name], argparse.BooleanOptionalAction):
                    self.error(f"{path}: {key} must not be true or false")
                words.append(flag(name) if value else flag(f"no_{name}"))
            else:
                values = value if isinstance(value, list) else [value]
                # "--x=-1": a value may look like a flag; with several values it must not.
                words += (
                    [f"{flag(name)}={values[0]}"]
                    if len(values) == 1
                    else [flag(name), *map(str, values)]
                )
        return self.given(words) | nothing


def flag(name: str) -> str:
    """The option of a setting: ``max_len`` → ``--max-len``."""
    return "--" + name.replace("_", "-")


def in_flags(text: str, names: Iterable[str]) -> str:
    """Write the settings that a message is about, those before "must", as options."""
    head, must, rule = text.partition(" must ")
    if not must:
        return text
    names = set(names)
    word = r"(?<!\S)\w+(?![^\s,])"  # not a part of a path
    return (
        re.sub(word, lambda w: flag(w[0]) if w[0] in names else w[0], head)
        + must
        + rule
    )


def layered(groups: Iterable[set[str]], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings over each other, the later over the earlier.

    Args:
        groups: Sets of names that exclude each other: one given later takes the others away.
        *sources: From the weakest to the strongest.
    """
    result: dict[str, Any] = {}
    for source in sources:
        for group in groups:
            if any(source.get(name) is not None for name in group):
                result |= dict.fromkeys(group)
        result |= source
    return result


def describe(cls: type) -> dict[str, str]:
    """Name → text of each entry under ``Args:`` in Google-style docstrings, inherited ones too."""
    found: dict[str, str] = {}
    for own in reversed(cls.__mro__):
        lines = inspect.cleandoc(vars(own).get("__doc__") or "")
        section = re.search(r"^Args:\n((?:    .*\n|\n)*)", lines + "\n", re.MULTILINE)
        text = section[1] if section else ""
        entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", text, re.MULTILINE)
        found |= {
            name: " ".join(text.replace("`", "").split()) for name, text in entries
        }
    return found


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read a TOML or JSON file, by its ending.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it has another ending, or is not what the ending says.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json":
            content = json.loads(text)
            if not isinstance(content, dict):
                raise ValueError("it must hold an object")
            return content
    except ValueError as error:  # of tomllib, json or the UTF-8 codec
        raise ValueError(f"{path} is not a configuration: {error}") from error
    raise ValueError(f"{path} must end with .toml or .json")


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def complain(program: str, error: BaseException) -> int:
    """Say in one line what went wrong; returns the exit status 2."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = (
            f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        )
    rank = os.environ.get("RANK", "0")
    where = f"{program}, process {rank}" if rank != "0" else program
    # One write: torchrun's processes share a standard error without a buffer, and print makes two.
    sys.stderr.write(f"{where}: {' '.join(text.split())}\n")
    sys.stderr.flush()
    return 2


def _or_none(kind: type) -> Callable[[str], Any]:
    """A reader of values that also knows the word "none", to switch something off."""

    def read(text: str) -> Any:
        return None if text == "none" else kind(text)

    read.__name__ = kind.__name__  # named in argparse's messages
    return read


def _flat(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in settings.items():
        flat += _flat(value) if isinstance(value, Mapping) else [(key, value)]
    return flat


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
