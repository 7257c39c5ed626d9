"""Lines of text: a frame is a line up to and with its line feed; the last line may lack it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from shardio.format import Framing, RecordCrc
from shardio_indexer._runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio_indexer._runs import Bytes

__all__ = ["LineFramer"]

_LINE_FEED = 10


class LineFramer:
    """Find lines; no bytes are damage to it."""

    framing = Framing.LINES
    record_crc = RecordCrc.ABSENT

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()
        self._open = False

    def feed(self, piece: Bytes) -> Iterator[Run]:
        """Take the next decoded bytes; yield the lines that they complete."""
        stops = np.flatnonzero(np.frombuffer(piece, np.uint8) == _LINE_FEED) + 1
        last = int(stops[-1]) if len(stops) else 0
        if last:
            yield Run(piece[:last], stops)
            self._open = False
        if last < len(piece):
            yield Run(piece[last:])
            self._open = True

    def end(self, *, cut: bool = False) -> Iterator[Run]:
        """Yield the end of a last line without a line feed."""
        if self._open and cut:
            yield Run(b"", reason="damage: the last line is cut short")
        elif self._open:
            self.notes["the last line has no line feed"] += 1
            yield Run(b"", np.zeros(1, np.int64))
