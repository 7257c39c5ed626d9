"""What a function of `write_dataset` may yield besides values and `BadRecord`: ready payloads, and notes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Encoded", "Note"]


class Encoded(bytes):
    """The payload of a record, made by the dataset's schema already; it is stored as it is."""

    __slots__ = ()


@dataclass(frozen=True)
class Note:
    """What a report is to say beside what was written and left out; no record is lost by it.

    Attributes:
        where: what it is about, for people.
        text: one sentence.
    """

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"
