"""What a conversion or an export left out, as its report lists it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SkippedRecord"]


@dataclass(frozen=True)
class SkippedRecord:
    """A record, or a file, that was left out: where it lies, and why."""

    where: str
    reason: str
