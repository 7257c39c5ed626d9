"""What reading has done so far, counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["ReadStats"]


@dataclass
class ReadStats:
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

    def to_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return asdict(self)
