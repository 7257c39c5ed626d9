"""What changes an existing dataset: each change is one commit, whole or not at all.

Nothing is changed in place. A change computes what follows from the version that it read, and `commit_change`
makes that the next version, also where others commit meanwhile.
"""

from __future__ import annotations

from shardio.lifecycle._compact import CompactReport as CompactReport, compact as compact
from shardio.lifecycle._delete import delete as delete
from shardio.lifecycle._diff import DiffReport as DiffReport, diff as diff
from shardio.lifecycle._erase import EraseReport as EraseReport, erase as erase
from shardio.lifecycle._repair import repair as repair
from shardio.lifecycle._repair_report import RepairReport as RepairReport
from shardio.lifecycle._report import ChangeReport as ChangeReport, DeleteReport as DeleteReport
from shardio.lifecycle._restore import restore as restore
from shardio.lifecycle._schema import SchemaReport as SchemaReport, set_schema as set_schema
from shardio.lifecycle._splits import remove_split as remove_split, rename_split as rename_split
from shardio.lifecycle._tags import tag as tag, tags as tags, untag as untag
