"""Adoption: make shards that others wrote random-access and verifiable, in place, by adding sidecars.

Installed as `shardio_indexer`; the program is `shardio-index`.  `adopt` finds shards, scans each once with
the scanner of its framing, puts an index beside it and commits one new version.  See docs/adoption.md.
"""

from __future__ import annotations

from shardio_indexer._adopt import adopt
from shardio_indexer._external_index import export_indexes
from shardio_indexer._report import AdoptProgress, AdoptReport, Refusal
from shardio_indexer._scan import ScanOptions, ScanResult, scan_shard

__all__ = [
    "AdoptProgress",
    "AdoptReport",
    "Refusal",
    "ScanOptions",
    "ScanResult",
    "adopt",
    "export_indexes",
    "scan_shard",
]
