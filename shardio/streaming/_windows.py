"""Windows in memory: the rows that the second shuffle moves among, fetched, checked and decoded.

A window is a table of where each of its payloads lies in a few buffers.  Blocks of mapped shards are checked
and left where they are; other blocks are read and decoded.  Nothing is copied per record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardio.metadata import live_to_physical
from shardio.reader import is_damage

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shardio.format import Buffer
    from shardio.order import Pieces
    from shardio.reader import Damage, Span
    from shardio.streaming._members import Member

__all__ = ["WindowData", "load_window"]


@dataclass(frozen=True, eq=False)
class WindowData:
    """The rows of a window, in the order of its pieces.

    Attributes:
        buffers: what the payloads lie in.
        table: int64[3, rows]: number of the buffer (-1: skipped because of damage), start and stop in it.
        member: the dataset.
        pieces: which rows of which shards these are.
    """

    buffers: list[Buffer]
    table: NDArray[np.int64]
    member: Member
    pieces: Pieces

    def place(self, local: int) -> tuple[int, int]:
        """Return the shard's number and the physical row of a row of the window; for messages."""
        ends = np.cumsum(self.pieces.stops - self.pieces.starts)
        piece = int(np.searchsorted(ends, local, side="right"))
        number = int(self.pieces.shards[piece])
        row = int(self.pieces.stops[piece] - ends[piece]) + local
        return number, int(_physical(self.member, number, row, row + 1)[0])


def load_window(member: Member, pieces: Pieces, damage: Damage) -> WindowData:
    """Fetch, check and decode the rows of a window.

    What lies in mapped shards is found in one go a shard; the rest is asked for at once, then taken in turn.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, where it is not to be skipped.
        StorageError: the environment failed.
    """
    loading = _Loading(member, pieces, damage)
    waiting: list[tuple[int, Callable[[], list[Span]] | None]] = []
    for number in dict.fromkeys(pieces.shards.tolist()):
        own = np.flatnonzero(pieces.shards == number).tolist()
        if not loading.place_mapped(number, own):
            waiting += [(piece, loading.begin(piece)) for piece in own]
    for piece, wait in waiting:
        loading.finish(piece, wait)
    return WindowData(loading.buffers, loading.table, member, pieces)


class _Loading:
    """A window that is being filled; rows that are not are damaged ones."""

    def __init__(self, member: Member, pieces: Pieces, damage: Damage) -> None:
        self._member = member
        self._damage = damage
        self._shards = pieces.shards.tolist()
        self._rows = [
            _physical(member, number, start, stop)
            for number, start, stop in zip(
                self._shards, pieces.starts.tolist(), pieces.stops.tolist(), strict=True
            )
        ]
        self._ends = np.cumsum(pieces.stops - pieces.starts).tolist()
        self.buffers: list[Buffer] = []
        self.table = np.full((3, self._ends[-1] if self._ends else 0), -1, np.int64)

    def place_mapped(self, number: int, own: list[int]) -> bool:
        """Find the rows of all pieces of a shard at once; False where they must be read, or are damaged."""
        try:
            direct = self._member.source.pool.get(number).direct(np.concatenate([self._rows[i] for i in own]))
        except Exception as error:
            # Skipping goes block by block, in `finish`.
            if not self._damage.skips or not is_damage(error):
                raise
            return False
        if direct is None:
            return False
        self._place(np.concatenate([self._at(i) for i in own]), *direct)
        return True

    def begin(self, piece: int) -> Callable[[], list[Span]] | None:
        """Send the requests of a piece and return what waits for them; None where that failed already."""
        try:
            shard = self._member.source.pool.get(self._shards[piece])
            first, last = shard.blocks_of(self._rows[piece][[0, -1]]).tolist()
            return shard.begin([(first, last + 1)])
        except Exception as error:
            if not self._damage.skips or not is_damage(error):
                raise
            return None

    def finish(self, piece: int, wait: Callable[[], list[Span]] | None) -> None:
        """Wait for a piece; where it is damaged and that may be, take the blocks that are not."""
        rows, at = self._rows[piece], self._at(piece)
        try:
            if wait is not None:
                self._take(at, rows, wait()[0])
                return
        except Exception as error:
            if not self._damage.skips or not is_damage(error):
                raise
        self._salvage(self._shards[piece], rows, at)

    def _salvage(self, number: int, rows: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Load block by block, leaving out those that are damaged; or all, if the shard cannot be opened."""
        try:
            shard = self._member.source.pool.get(number)
            blocks = shard.blocks_of(rows)
        except Exception as error:
            if not is_damage(error):
                raise
            self._damage.note(error, self._member.source.table.key[number], rows)
            return
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for own, places in zip(np.split(rows, cuts), np.split(at, cuts), strict=True):
            block = int(shard.blocks_of(own[:1])[0])
            try:
                self._take(places, own, shard.load(block, block + 1))
            except Exception as error:
                if not is_damage(error):
                    raise
                self._damage.note(error, shard.key, own)

    def _at(self, piece: int) -> NDArray[np.int64]:
        stop = self._ends[piece]
        return np.arange(stop - len(self._rows[piece]), stop)

    def _take(self, at: NDArray[np.int64], rows: NDArray[np.int64], span: Span) -> None:
        items = rows - span.first_row
        self._place(at, span.buffer, span.starts[items], span.stops[items])

    def _place(
        self, at: NDArray[np.int64], buffer: Buffer, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> None:
        # Spans of a mapped shard share its map.
        number = next((i for i, held in enumerate(self.buffers) if held is buffer), len(self.buffers))
        if number == len(self.buffers):
            self.buffers.append(buffer)
        self.table[0, at] = number
        self.table[1, at] = starts
        self.table[2, at] = stops


def _physical(member: Member, number: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return the rows in a shard of live rows `start .. stop - 1` of what the stream takes of it."""
    skipped = int(member.skipped[number])
    rows = np.arange(start + skipped, stop + skipped)
    deleted = member.source.pool.deleted(number)
    return rows if deleted is None else live_to_physical(rows, deleted)
