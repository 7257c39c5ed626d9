"""Versions of a dataset: resolve, commit, append, sessions, garbage collection.

A dataset is seen whole or not at all: creating the next manifest is the commit, exactly one writer wins, and
a lost reply is looked up instead of guessed.  Everything here works through the six primitives of a `Store`.
"""

from __future__ import annotations

from shardio.catalog._calls import commit, gc, log
from shardio.catalog._catalog import Catalog, Version
from shardio.catalog._commit import publish, writer_name
from shardio.catalog._gc import GcReport, collect_garbage
from shardio.catalog._lists import StoredLists
from shardio.catalog._merge import MODES, commit_receipts
from shardio.catalog._place import check_place
from shardio.catalog._sessions import (
    SafeWork,
    commit_session,
    complete_tasks,
    find_safe_work,
    forget_session,
    session_shards,
)

__all__ = [
    "MODES",
    "Catalog",
    "GcReport",
    "SafeWork",
    "StoredLists",
    "Version",
    "check_place",
    "collect_garbage",
    "commit",
    "commit_receipts",
    "commit_session",
    "complete_tasks",
    "find_safe_work",
    "forget_session",
    "gc",
    "log",
    "publish",
    "session_shards",
    "writer_name",
]
