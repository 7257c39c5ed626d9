"""What a change of a dataset did, or would do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardio.reports import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.metadata import Manifest

__all__ = ["ChangeReport", "DeleteReport", "records_of"]


@dataclass(frozen=True)
class ChangeReport(Report):
    """What a change did, or would do.

    Attributes:
        url: of the dataset.
        operation: what it was, as `shardio log` says it.
        dry_run: nothing was changed.
        version: the new version; None in a dry run, and where there was nothing to do.
        base_version: the version that it follows, or would follow.
        before, after: live records by split.
    """

    url: str
    operation: str
    dry_run: bool
    version: int | None
    base_version: int
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DeleteReport(ChangeReport):
    """What `delete` did, or would do.

    Attributes:
        read_version: the version whose positions were meant.
        deleted: records that are (or would be) deleted now.
        already_deleted: records that met the condition in `read_version` and are deleted in a later one.
        shards: of each shard concerned, how many of its rows are deleted now.
    """

    read_version: int = 0
    deleted: int = 0
    already_deleted: int = 0
    shards: Mapping[str, int] = field(default_factory=dict)


def records_of(manifest: Manifest) -> dict[str, int]:
    """Return the live records of a version by split."""
    return {split.name: split.rows for split in manifest.splits}
