"""Kinds that are known to a room that loads slowly; asked for only when somebody names one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Kinds"]


class Kinds:
    """The kinds of sources or of targets, as `choices` of an argument; give that a metavar.

    Args:
        name: of the tuple in `shardio.convert`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __iter__(self) -> Iterator[str]:
        from shardio import convert

        kinds: tuple[str, ...] = getattr(convert, self._name)
        return iter(kinds)

    def __contains__(self, kind: object) -> bool:
        return any(kind == known for known in self)
