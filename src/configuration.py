"""What all configurations share: fields that are checked, and their way into JSON and back."""

import dataclasses
from types import NoneType
from typing import Any, get_args, get_origin

_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text",
          tuple: "a sequence", NoneType: "None"}  # fmt: skip
_ACCEPTED = {float: (float, int), tuple: (tuple, list)}


def check_types(fields: Any) -> None:
    """Refuse a dataclass that holds a value of another type than its field is declared with.

    An integer may stand where a number is asked for; true and false are no integers.

    Raises:
        TypeError: The message names the field, the value and what is asked for.
    """
    for field in dataclasses.fields(fields):
        value, declared = getattr(fields, field.name), field.type
        kinds = (tuple,) if get_origin(declared) is tuple else get_args(declared) or (declared,)
        accepted = tuple({kind for own in kinds for kind in _ACCEPTED.get(own, (own,))})
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
            rule = " or ".join(_NAMES[kind] for kind in kinds)
            raise TypeError(f"{field.name} must be {rule}, but is {value!r}")


class Configuration:
    """Base of the frozen dataclasses that decide a model's shape and arithmetic."""

    def __post_init__(self) -> None:
        """Check the fields' types; a configuration's own checks come after these."""
        check_types(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Configuration":
        """Build from names and values; what is left out takes its default.

        Raises:
            ValueError: If a name is not a field, or a value is out of its range.
            TypeError: If a value is of another type than its field.
        """
        unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"unknown field of {cls.__name__}: {', '.join(unknown)}")
        return cls(**fields)

    def _demand(self, name: str, fits: bool, rule: str) -> None:
        if not fits:
            raise ValueError(f"{name} must be {rule}, but is {getattr(self, name)!r}")
