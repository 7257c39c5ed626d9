"""Versions of a dataset: resolve, commit, append, sessions, garbage collection.

A dataset is seen whole or not at all: creating the next manifest is the commit, exactly one writer wins, and
a lost reply is looked up instead of guessed.  Everything here works through the six primitives of a `Store`.
"""

from __future__ import annotations

from shardio.catalog._calls import commit as commit, gc as gc, log as log
from shardio.catalog._catalog import Catalog as Catalog
from shardio.catalog._change import commit_change as commit_change
from shardio.catalog._commit import Base as Base, publish as publish, writer_name as writer_name
from shardio.catalog._gc import GcReport as GcReport, collect_garbage as collect_garbage
from shardio.catalog._lists import StoredLists as StoredLists
from shardio.catalog._losses import Loss as Loss, find_losses as find_losses
from shardio.catalog._merge import MODES as MODES, commit_receipts as commit_receipts
from shardio.catalog._place import check_place as check_place
from shardio.catalog._schemas import merge_onto as merge_onto
from shardio.catalog._sessions import (
    SafeWork as SafeWork,
    commit_session as commit_session,
    complete_receipts as complete_receipts,
    find_safe_work as find_safe_work,
    forget_session as forget_session,
    items_of_tasks as items_of_tasks,
    remove_shards as remove_shards,
    session_shards as session_shards,
)
from shardio.catalog._version import Version as Version, feature_facts as feature_facts
