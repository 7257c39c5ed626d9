"""Reports: results of calls as values; `to_dict` returns them as JSON types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from shardio.redact import redact

__all__ = ["Report", "ReportItem"]


class Report:
    """Base of the dataclasses that report the result of a call.

    Attributes:
        _computed: names of properties that `to_dict` adds after the fields.
    """

    _computed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        # Reports are printed, logged and pickled.
        for each in fields(self):  # type: ignore[arg-type] # subclasses are dataclasses
            value = getattr(self, each.name)
            shown = _redacted(value)
            if shown is not value:
                object.__setattr__(self, each.name, shown)

    def to_dict(self) -> dict[str, Any]:
        """Return fields and figures by name, as JSON types."""
        names = [each.name for each in fields(self)]  # type: ignore[arg-type] # subclasses are dataclasses
        return {name: _plain(getattr(self, name)) for name in (*names, *self._computed)}


class ReportItem(Report):
    """Base of the dataclasses that reports list; unknown fields are None."""

    def to_dict(self) -> dict[str, Any]:
        """Return the known fields, as JSON types."""
        return {name: value for name, value in super().to_dict().items() if value is not None}


def _redacted(value: Any) -> Any:
    """Return a value without secrets of URLs; the same object if it has none."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        pairs = [(_redacted(name), _redacted(item)) for name, item in value.items()]
        same = all(a is b and c is d for (a, c), (b, d) in zip(value.items(), pairs, strict=True))
        return value if same else dict(pairs)
    if isinstance(value, list | tuple):
        items = [_redacted(item) for item in value]
        if all(a is b for a, b in zip(value, items, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
