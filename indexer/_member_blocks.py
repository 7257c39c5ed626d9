"""Members of a compressed object as blocks, as long as each holds whole frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio_indexer._members import MOST_MEMBER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.format import Limits
    from shardio.metadata import IndexBuilder
    from shardio_indexer._members import Member
    from shardio_indexer._runs import Run

__all__ = ["MemberBlocks"]


class MemberBlocks:
    """Members as blocks, as long as each holds whole frames.

    Args:
        index: takes the blocks as their frames become known; of use where `finish` says so.
        limits: of a block of several records, and of one.

    Attributes:
        possible: no member has broken the rule so far.
    """

    def __init__(self, index: IndexBuilder, limits: Limits) -> None:
        self.possible = True
        self._index = index
        self._most = min(MOST_MEMBER, limits.block)
        self._longest = limits.record + 16
        self._members: list[Member] = []  # ended, with frames that may not have been seen yet
        self._stops = np.empty(0, np.int64)  # decoded offsets, of the members that are no blocks yet
        self._begin = 0  # decoded offset of the first of them
        self._seen = 0  # decoded bytes in all runs

    def add(self, run: Run) -> None:
        """Take what the framer found."""
        if not self.possible:
            return
        if run.reason is not None:
            # Bytes without a record cannot share a block with records.
            self._give_up()
            return
        if run.stops is not None:
            self._stops = np.concatenate([self._stops, run.stops + self._seen])
        self._seen += len(run.data)
        self._settle()
        if self._seen - self._begin > self._most and len(self._stops) > 1:
            self._give_up()

    def end_member(self, member: Member) -> None:
        """Note that a member ended; its frames may be seen later."""
        if not self.possible:
            return
        if member.decoded_bytes and (member.reason is not None or not member.block):
            self._give_up()
            return
        self._members.append(member)
        self._settle()

    def finish(self) -> bool:
        """Tell whether all members became blocks."""
        return self.possible and not self._members and self._begin == self._seen

    def _settle(self) -> None:
        """Turn into blocks the members whose frames are all known."""
        known = int(self._stops[-1]) if len(self._stops) else self._begin
        while self._members:
            member = self._members[0]
            stop = self._begin + member.decoded_bytes
            if stop > known:
                return
            count = int(np.searchsorted(self._stops, stop, side="right")) if member.decoded_bytes else 0
            stops = self._stops[:count]
            if member.decoded_bytes and (not count or int(stops[-1]) != stop):
                self._give_up()
                return
            if member.decoded_bytes > (self._most if count > 1 else self._longest):
                self._give_up()
                return
            self._add(member, (stops - self._begin).astype(np.uint32))
            self._stops = self._stops[count:]
            self._begin = stop
            del self._members[0]

    def _add(self, member: Member, stops: NDArray[np.uint32]) -> None:
        if len(stops):
            self._index.add_block(
                stored_bytes=member.stored_bytes,
                decoded_bytes=member.decoded_bytes,
                crc32c=member.crc32c,
                frame_stop=stops,
            )
        else:
            self._index.add_gap(
                stored_bytes=member.stored_bytes,
                decoded_bytes=0,
                crc32c=member.crc32c,
                reason=member.reason or "empty member",
            )

    def _give_up(self) -> None:
        self.possible = False
        self._members = []
        self._stops = np.empty(0, np.int64)
