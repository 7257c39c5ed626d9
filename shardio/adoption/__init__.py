"""Adoption: make shards that others wrote random-access and verifiable, in place, by adding sidecars.

`adopt` finds shards, scans each once with the framer of its kind (`shardio_indexer`), puts an index beside it
and commits one new version.  See docs/adoption.md.  The room is not called `adopt`: `shardio.adopt` is the
function.
"""

from __future__ import annotations

from shardio.adoption._adopt import adopt as adopt
from shardio.adoption._external_index import export_indexes as export_indexes
from shardio.adoption._report import (
    AdoptProgress as AdoptProgress,
    AdoptReport as AdoptReport,
    Refusal as Refusal,
)
from shardio.adoption._scan import (
    ScanOptions as ScanOptions,
    ScanResult as ScanResult,
    scan_shard as scan_shard,
)
