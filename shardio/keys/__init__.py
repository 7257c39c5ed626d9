"""Records by key: indexes of keys that datasets may have, how they are built, searched and checked."""

from __future__ import annotations

from shardio.keys._build import (
    DuplicateKey as DuplicateKey,
    KeysReport as KeysReport,
    build_keys as build_keys,
)
from shardio.keys._find import find as find, find_all as find_all, key_types as key_types
from shardio.keys._run import StoredRun as StoredRun
