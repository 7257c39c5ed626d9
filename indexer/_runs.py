"""What scanners hand to the index builder: runs of decoded bytes, and what they are.

The law of every scanner: its runs, one after another, are the decoded bytes of the shard, each byte once, and
where frames end does not depend on how the bytes arrived in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from shardio.format import DEFAULT_LIMITS, Framing, Limits, RecordCrc

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Bytes", "Check", "Framer", "Run", "Salvage"]

Bytes: TypeAlias = "bytes | memoryview"
Check: TypeAlias = Literal["crc32c", "crc32", "none"]


class Run(NamedTuple):
    """Decoded bytes in a row.

    Attributes:
        data: the bytes.
        stops: int64, ends of frames in `data`, the last at its end; the first frame may have begun in earlier
            runs. None where `data` is part of a frame that goes on, or a gap.
        reason: why the bytes belong to no record; bytes of a frame that was begun and has no end belong to
            the gap, too.
    """

    data: Bytes
    stops: NDArray[np.int64] | None = None
    reason: str | None = None


class Framer(Protocol):
    """Finds frames in decoded bytes, in one pass and bounded memory.

    Attributes:
        framing: what it looks for.
        record_crc: what the checksums of its frames are.
        notes: what deserves a word and is no damage, with how often it was seen.
    """

    framing: Framing
    record_crc: RecordCrc
    notes: Counter[str]

    def feed(self, piece: Bytes) -> Iterator[Run]:
        """Take the next decoded bytes; yield what they complete.

        Raises:
            FormatError: damage, where it is not to be left out; `start` is a decoded offset.
        """

    def end(self, *, cut: bool = False) -> Iterator[Run]:
        """Yield the rest: there are no more bytes, or with `cut` they were lost to damage."""


class Salvage(NamedTuple):
    """What a scanner does about damage, and what is too large to believe."""

    wanted: bool = False
    limits: Limits = DEFAULT_LIMITS
