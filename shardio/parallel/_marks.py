"""What a function of `write_dataset` may yield besides values: ready payloads, and what it leaves out."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Encoded", "LeftOut"]


class Encoded(bytes):
    """The payload of a record, made by the dataset's schema already; it is stored as it is."""

    __slots__ = ()


@dataclass(frozen=True)
class LeftOut:
    """A record that the function leaves out: it is counted and listed in the report's `failed`.

    Attributes:
        shown: what was left out, for people.
        error: why.
    """

    shown: str
    error: str
