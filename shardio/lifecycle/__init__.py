"""What changes an existing dataset: each change is one commit, whole or not at all.

Nothing is changed in place. A change computes what follows from the version that it read, and `commit_change`
makes that the next version, also where others commit meanwhile.
"""

from __future__ import annotations

from shardio.lifecycle._change import commit_change
from shardio.lifecycle._compact import CompactReport, compact
from shardio.lifecycle._delete import delete
from shardio.lifecycle._diff import DiffReport, SplitDiff, diff
from shardio.lifecycle._erase import EraseReport
from shardio.lifecycle._keys import DuplicateKey, KeysReport, build_keys, write_run
from shardio.lifecycle._repair import repair
from shardio.lifecycle._repair_report import Repaired, RepairProgress, RepairReport
from shardio.lifecycle._report import ChangeReport, DeleteReport
from shardio.lifecycle._restore import restore
from shardio.lifecycle._schema import SchemaReport, set_schema
from shardio.lifecycle._splits import remove_split, rename_split
from shardio.lifecycle._table import TableReport, build_table
from shardio.lifecycle._tags import tag, tags, untag

__all__ = [
    "ChangeReport",
    "CompactReport",
    "DeleteReport",
    "DiffReport",
    "DuplicateKey",
    "EraseReport",
    "KeysReport",
    "RepairProgress",
    "RepairReport",
    "Repaired",
    "SchemaReport",
    "SplitDiff",
    "TableReport",
    "build_keys",
    "build_table",
    "commit_change",
    "compact",
    "delete",
    "diff",
    "remove_split",
    "rename_split",
    "repair",
    "restore",
    "set_schema",
    "tag",
    "tags",
    "untag",
    "write_run",
]
