"""Reports: what a call did, or what it found, as a value; `to_dict` returns it as JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

__all__ = ["Report", "ReportItem"]


class Report:
    """Base of the dataclasses that say what a call did.

    Attributes:
        _computed: names of properties that `to_dict` adds after the fields.
    """

    _computed: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return fields and figures by name, as JSON holds them."""
        names = [each.name for each in fields(self)]  # type: ignore[arg-type] # subclasses are dataclasses
        return {name: _plain(getattr(self, name)) for name in (*names, *self._computed)}


class ReportItem(Report):
    """Base of the dataclasses that reports list, whose fields are None where they are not known."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are known, as JSON holds them."""
        return {name: value for name, value in super().to_dict().items() if value is not None}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
