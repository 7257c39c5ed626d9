"""What a change of a dataset did, or would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardio.catalog import Catalog, StoredLists, Version, commit_change
from shardio.metadata import Manifest
from shardio.reports import Report


@dataclass(frozen=True)
class ChangeReport(Report):
    """Result of a change.

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
    """Result of `delete`.

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


def change_facts(
    catalog: Catalog,
    operation: str,
    base: Version,
    number: int | None,
    *,
    before: Mapping[str, int],
    after: Mapping[str, int],
    dry_run: bool,
) -> dict[str, Any]:
    """Return the fields of a `ChangeReport`.

    Args:
        catalog: of the dataset.
        operation: as `shardio log` says it.
        base: the version that the change was, or would be, made of.
        number: of the new version, or None where there is none.
        before, after: live records by split.
        dry_run: nothing was changed.
    """
    return {
        "url": catalog.store.url,
        "operation": operation,
        "dry_run": dry_run,
        "version": number,
        # A lost race makes it follow a later one.
        "base_version": base.number if number is None else number - 1,
        "before": before,
        "after": after,
    }


def records_of(manifest: Manifest) -> dict[str, int]:
    """Return the live records of a version by split."""
    return {split.name: split.rows for split in manifest.splits}


@dataclass(frozen=True)
class Change:
    """What a change makes of a version.

    Attributes:
        base: the version.
        manifest: returns the manifest that follows, or None where there is nothing to change.
        after: live records by split afterwards.
        facts: further fields of the report.
    """

    base: Version
    manifest: Callable[[StoredLists], Manifest | None]
    after: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)


def make_change(
    catalog: Catalog, plan: Callable[[Version], Change], *, operation: str, dry_run: bool
) -> dict[str, Any]:
    """Commit a change of the latest version, or only plan it; return the fields of its report.

    Args:
        catalog: of the dataset.
        plan: returns what the change makes of a version; called again where another commit came first.
        operation: as `shardio log` says it.
        dry_run: change nothing.
    """

    def attempt(seen: Version) -> dict[str, Any]:
        change, made, number = plan(Version(seen.manifest.carried, seen.sha256)), False, None

        def build(base: Version, lists: StoredLists) -> Manifest | None:
            nonlocal change, made
            if base.sha256 != change.base.sha256:
                change = plan(base)
            manifest = change.manifest(lists)
            made = manifest is not None
            return manifest

        if not dry_run:
            committed = commit_change(catalog, build, operation=operation, seen=seen)
            number = committed.number if made else None
        before, after = records_of(change.base.manifest), change.after
        facts = change_facts(
            catalog, operation, change.base, number, before=before, after=after, dry_run=dry_run
        )
        return {**facts, **change.facts}

    return catalog.reading(attempt)
