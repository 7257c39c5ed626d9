"""What is too large to believe: checked before anything is allocated.

A caller may raise a limit; a file may not.
"""

from __future__ import annotations

from dataclasses import dataclass

_U32 = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds, in bytes unless named otherwise.

    Attributes:
        record: payload of one record; at most 2^32 - 17, so that its frame fits a u32 column.
        block: stored and decoded bytes of a block of several records; a block of one record may be larger.
        zstd_window: window that a Zstandard frame may ask for, of a block.
        stream_window: the same, of a stream that is decoded from its start; as much as `zstd -d` takes. Each
            stream under way may hold so much memory.
        manifest: manifest, list of shards, receipt, deletion sidecar and header of an index, each.
        index: one sidecar index.
        metadata: the free metadata of a dataset, as JSON.
        shards: number of shards in a dataset.
        rows: number of records in a dataset.
        items: fields in a manifest or receipt, at any depth, a nested message counted as 8; texts of one
            column; shards of one list.
    """

    record: int = 1 << 30
    block: int = 64 << 20
    zstd_window: int = 8 << 20
    stream_window: int = 128 << 20
    manifest: int = 64 << 20
    index: int = 1 << 30
    metadata: int = 1 << 20
    shards: int = 10**8
    rows: int = 1 << 40
    items: int = 1 << 21

    def __post_init__(self) -> None:
        """Refuse limits that no column could hold."""
        for name in ("record", "block"):
            value = getattr(self, name)
            if not 0 < value <= _U32 - 16:
                raise ValueError(
                    f"limit {name}={value} must be between 1 and {_U32 - 16}: columns of the index are u32"
                )


DEFAULT_LIMITS = Limits()
