"""A compressed object tried both ways in one pass: its members as blocks, and the whole as a stream.

A stream goes up to the first damage, for who decodes it cannot step over that; blocks can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio_indexer._cut import GapFound
from shardio_indexer._runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardio_indexer._cut import BlockCutter
    from shardio_indexer._member_blocks import MemberBlocks
    from shardio_indexer._members import Member
    from shardio_indexer._runs import Bytes, Framer

__all__ = ["BothWays"]


class BothWays:
    """Takes what `decode_members` yields.

    Args:
        framer: finds frames.
        members: take them as blocks.
        cutter: cuts the stream.

    Attributes:
        damage: stored bytes that were left out, if the members are blocks.
        broken: where the stream ends before the object does, or None.
    """

    def __init__(
        self,
        framer: Framer,
        members: MemberBlocks,
        cutter: BlockCutter,
    ) -> None:
        self.damage: list[GapFound] = []
        self.broken: GapFound | None = None
        self._framer = framer
        self._members = members
        self._cutter = cutter
        self._ended: list[Member] = []
        self._place = 0
        self._cut = False

    def take(self, data: Bytes) -> None:
        """Take decoded bytes."""
        self._end_members()
        self._feed(self._framer.feed(data))

    def end_member(self, member: Member, size: int) -> None:
        """Take the end of a member of an object of `size` bytes."""
        if member.reason is not None and member.reason.startswith("damage"):
            stop = self._place + member.stored_bytes
            self.damage.append(GapFound(self._place, stop, member.reason))
            self._cut = not member.stepped_over
            if member.stepped_over and self.broken is None:
                # What was begun in front of it has no end.
                self._cutter.take(Run(b"", reason=member.reason))
                self.broken = GapFound(self._place, size, member.reason)
        self._place += member.stored_bytes
        self._ended.append(member)

    def finish(self) -> None:
        """Close what is open."""
        # A last line without its line feed ends before its member does.
        self._feed(self._framer.end(cut=self._cut))
        self._end_members()
        self._cutter.finish()

    def _feed(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._members.add(run)
            if self.broken is None:
                self._cutter.take(run)

    def _end_members(self) -> None:
        for member in self._ended:
            self._members.end_member(member)
        self._ended.clear()
