"""What all configurations share: fields that are checked, and their way into JSON and back."""

import dataclasses
from typing import Any


class Configuration:
    """Base of the frozen dataclasses that decide a model's shape and arithmetic."""

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Configuration":
        """Build from names and values; what is left out takes its default.

        Raises:
            ValueError: If a name is not a field, or a value is out of its range.
        """
        unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"unknown field of {cls.__name__}: {', '.join(unknown)}")
        return cls(**fields)

    def _demand(self, name: str, fits: bool, rule: str) -> None:
        if not fits:
            raise ValueError(f"{name} must be {rule}, but is {getattr(self, name)!r}")
