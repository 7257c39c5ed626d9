"""What a caller may choose about reading, and what reading has done so far, counted; travels to workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardio.codecs import ImageOptions, RecordCodec
from shardio.format import Limits
from shardio.reports import Report
from shardio.storage import Address, CacheOptions

_ON_ERROR = ("raise", "skip", "quarantine")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of `shardio.open`, gathered; see there.

    Attributes:
        storage_options: as in fsspec, of the dataset's own root.
        engine: None, "fsspec" or "obstore".
        decode: True, False, "image", `ImageOptions`, or a codec of the caller's own.
        features: names to decode, or None for all.
        cache: where blocks are kept, or None.
        verify: compare block checksums.
        on_error: "raise", "skip" or "quarantine".
        allow_roots: storage options by URL of the roots of adopted shards that may be read.
        limits: upper bounds; None for the format's.
        max_open_shards: how many shards are kept open.
        mmap: look into local shards of our own as mapped memory; without, they are read.
        decoded_bytes: of compressed blocks that lookups keep decoded, at most.
        functions: what is called with each value, one after another.
    """

    storage_options: Mapping[str, Any] | None = None
    engine: str | None = None
    decode: bool | str | ImageOptions | RecordCodec = True
    features: tuple[str, ...] | None = None
    cache: CacheOptions | None = None
    verify: bool = True
    on_error: str = "raise"
    allow_roots: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limits: Limits | None = None
    max_open_shards: int = 256
    mmap: bool = True
    decoded_bytes: int = 16 << 20
    functions: tuple[Callable[[Any], Any], ...] = ()

    @classmethod
    def at(cls, address: Address, **options: Any) -> ReadOptions:
        """Return options with which the dataset at an address is read."""
        return cls(
            storage_options=address.storage_options,
            engine=address.engine,
            allow_roots=address.allow_roots,
            **options,
        )

    def __post_init__(self) -> None:
        """Refuse what makes no sense, by name."""
        if isinstance(self.decode, str) and self.decode != "image":
            raise ValueError(f'decode={self.decode!r} must be True, False or "image"')
        if self.on_error not in _ON_ERROR:
            raise ValueError(f"on_error={self.on_error!r} must be one of {', '.join(_ON_ERROR)}")
        if self.decoded_bytes < 0:
            raise ValueError(f"decoded_bytes={self.decoded_bytes} must not be negative; 0 keeps nothing")
        if self.features is not None and self.decode is False:
            raise ValueError("features= names what is decoded, and decode=False decodes nothing")

    @property
    def images(self) -> ImageOptions | None:
        """How images are decoded; None: they stay the files' bytes."""
        if isinstance(self.decode, bool):
            return None

        if isinstance(self.decode, str):
            return ImageOptions()
        return self.decode if isinstance(self.decode, ImageOptions) else None


@dataclass
class ReadStats(Report):
    """Counters of one process; threads may lose a count to each other, no decision depends on them.

    Attributes:
        blocks_opened: blocks checked or decoded.
        bytes_read: bytes asked of files and buckets; mapped files need not be asked.
        cache_hits: blocks that the cache on local disk held.
        refetched: runs of blocks that were fetched again because they did not match their checksums.
        streams_restarted: reads of a compressed stream that had to decode it from its start.
        records_skipped: records left out because of damage, under `on_error="skip"` or `"quarantine"`.
    """

    blocks_opened: int = 0
    bytes_read: int = 0
    cache_hits: int = 0
    refetched: int = 0
    streams_restarted: int = 0
    records_skipped: int = 0
