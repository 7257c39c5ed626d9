"""Framers, sniffing and the cutting of blocks: the bytes of a shard in, its index out; no I/O.

Installed as `shardio_indexer`.  What finds shards and commits them is `shardio.adoption`, whose names are
forwarded: `shardio_indexer.adopt` is `shardio.adopt`.
"""

from __future__ import annotations

import importlib
from typing import Any

from shardio_indexer._blocks import (
    Framer as Framer,
    SalvageOptions as SalvageOptions,
    iterate_frames as iterate_frames,
)
from shardio_indexer._offsets import parse_record_index as parse_record_index
from shardio_indexer._sniff import (
    FORMATS as FORMATS,
    HEAD_BYTES as HEAD_BYTES,
    ShardKind as ShardKind,
    look_at as look_at,
)
from shardio_indexer._tar import TarFramer as TarFramer
from shardio_indexer._tfrecord import (
    iterate_payloads as iterate_payloads,
    salvage_payloads as salvage_payloads,
)

_FORWARDED = (
    "AdoptProgress", "AdoptReport", "Refusal", "ScanOptions", "ScanResult", "adopt", "export_indexes",
    "scan_shard",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a name of `shardio.adoption`, which knows filesystems and is loaded when it is asked for."""
    if name not in _FORWARDED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("shardio.adoption"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FORWARDED})
