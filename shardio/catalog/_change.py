"""One change, one commit: read the latest version, compute what follows, create it; repeat lost races."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from shardio.catalog._catalog import Catalog
from shardio.catalog._commit import Base, publish
from shardio.catalog._lists import StoredLists
from shardio.catalog._version import Version
from shardio.errors import CommitConflictError
from shardio.metadata import Manifest


def commit_change(
    catalog: Catalog,
    build: Callable[[Version, StoredLists], Manifest | None],
    *,
    operation: str,
    seen: Version,
    keys: Iterable[str] = (),
    dry_run: bool = False,
) -> Version:
    """Make one change of a dataset its next version; nothing of it is visible before.

    Args:
        catalog: of the dataset.
        build: takes the latest version and returns the manifest that follows it: that of the version, with
            `dataclasses.replace` for what changes; or None where there is nothing left to do. What a manifest
            says of its own commit alone is left out of it already. It is called again with the newer version
            after each lost race, and must look again whether the change still applies; where it does not, it
            raises `CommitConflictError`. Lists and sidecars that it stores go through the `StoredLists`,
            which stores each content once.
        operation: a word for `shardio log`.
        seen: the version that the change was computed from.
        keys: of the shards that the change adds, which were stored before; those that garbage collection
            gives up meanwhile are not committed. They are stored under names never used before.
        dry_run: only find out whether the change applies to the latest version; for changes whose `build`
            stores nothing.

    Returns:
        The new version; the latest one where there was nothing left to do, and in a dry run.

    Raises:
        CommitConflictError: the change no longer applies to the latest version.
        CommitOutcomeUnknownError: no answer came back; nothing was deleted. Look with `shardio log`.
        StorageError: the place cannot be written, or the environment failed.
    """
    store = catalog.store
    if not dry_run:
        store.refuse_writing(advice="change the dataset where it can be written, or a copy of it")
    lists = StoredLists(store)

    def follow(base: Version | None) -> Manifest | Version:
        if base is None:
            raise CommitConflictError("there is no shardio dataset here any more", url=store.url)
        manifest = build(Version(base.manifest.carried, base.sha256), lists)
        if manifest is None:
            return base
        return replace(manifest, operation=operation, sessions=manifest.named_sessions)

    if dry_run:
        latest = catalog.load()
        follow(latest)
        return latest
    return publish(catalog, follow, bases=[Base.of(seen)], keys=keys, lists=lists)
