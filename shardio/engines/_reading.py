"""What reading has in common for all engines: opening a dataset, and cutting it into spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.arguments import integer
from shardio.reader import DatasetReader, open_split

if TYPE_CHECKING:
    from pathlib import Path

    from shardio.reader import Span

_SPAN_BYTES = 64 << 20


def open_for(
    url: str | Path | DatasetReader, split: str | None, where: str | None, options: dict[str, Any]
) -> DatasetReader:
    """Return the reader that an engine reads, at one version; `options` are those of `shardio.open`."""
    found = url if isinstance(url, DatasetReader) else open_split(url, split, **options)
    return found if where is None else found.filter(where)


def spans_of(reader: DatasetReader, at_least: int = 0) -> list[Span]:
    """Return the spans of a reader, at least as many as an engine asks for if there are enough records."""
    wanted = integer("partitions", at_least)
    size = reader.num_bytes // wanted if wanted > 0 else _SPAN_BYTES
    return reader.spans(bytes=max(1, min(_SPAN_BYTES, size)))
