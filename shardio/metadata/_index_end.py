"""The end of an index: what follows its last column.

Readers check the head and the parts of `frame_stop` that they use; whoever checks an index whole, looks here
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.errors import FormatError
from shardio.metadata._features import INDEX_ADVICE
from shardio.metadata._index import END

if TYPE_CHECKING:
    from shardio.format import Buffer
    from shardio.metadata._index import IndexHead

__all__ = ["check_index_end"]


def check_index_end(index: IndexHead, end: Buffer, *, url: str | None = None) -> None:
    """Check the bytes of an index from the end of `frame_stop` to the end of the file.

    Raises:
        FormatError: they are not zeros up to a multiple of 64 and "SHRDEND1".
    """
    start = index.frame_stop_offset + 4 * index.rows
    wanted = bytes(index.index_bytes - len(END) - start) + END
    if bytes(end) != wanted:
        raise FormatError(
            "an index does not end as the format says",
            url=url,
            start=start,
            stop=start + len(end),
            expected=f"{len(wanted) - len(END)} zeros and {END!r}",
            found=bytes(end[:96]),
            advice=INDEX_ADVICE,
        )
