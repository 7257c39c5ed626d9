"""The commit: create manifest v+1 only if it does not exist.

A lost reply is not a failure.  After "exists" or any failure to create, the manifest is read back: own
write id -> it was committed; another one -> the race was lost; absent -> the same bytes are put again, or the
failure is raised.  Appends then rebase on the newer version, overwrites raise.  Nothing is ever deleted here.

Once the manifest may be under its name, the outcome is success or `CommitOutcomeUnknownError`: a caller
that is informed that nothing happened writes the same records again.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from shardio.catalog._catalog import Catalog
from shardio.catalog._lists import StoredLists
from shardio.catalog._version import Version
from shardio.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    FormatError,
    NotFoundError,
    ShardioError,
    StorageError,
)
from shardio.metadata import Manifest, naming, seal_manifest
from shardio.storage import NotDurableError, UnknownOutcomeError, read_intact

# A lost race is another writer's success; so many in a row mean that something is wrong.
_MAX_REBASES = 1000
_MAX_PUTS = 5


class Base(NamedTuple):
    """The version that a write or a change began with.

    Attributes:
        number: of the version; 0 where there was no dataset.
        sha256: of its manifest's object; empty where it is not known.
    """

    number: int = 0
    sha256: bytes = b""

    @classmethod
    def of(cls, version: Version | None) -> Base:
        """Return the base that a version is; None for no dataset."""
        return cls() if version is None else cls(version.number, version.sha256)


@functools.cache
def writer_name() -> str:
    """Return program and version, for people that look into a file."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"shardio {version('shardio')}"
    except PackageNotFoundError:
        return "shardio"


def publish(
    catalog: Catalog,
    build: Callable[[Version | None], Manifest | Version],
    *,
    bases: Collection[Base] = (),
    keys: Iterable[str] = (),
    lists: StoredLists | None = None,
) -> Version:
    """Create the next version.

    Args:
        catalog: of the dataset.
        build: takes the latest version (or None) and returns the manifest that follows it; called again after
            each lost race, and where it could not read what another process has expired.  It returns a
            `Version` where there is nothing left to do, and raises where it cannot follow that version.
            Numbers, parent and write id are filled in here.
        bases: the versions that the caller started from. Each must still be part of the dataset's history:
            a dataset that was removed or replaced meanwhile is another one. What was committed since the
            oldest is looked through for keys that garbage collection has doomed.
        keys: the keys that the new version adds.
        lists: that `build` stores; those that were doomed meanwhile are forgotten, so that it stores them
            again.

    Raises:
        CommitConflictError: another version is in the way, or the dataset was removed or replaced.
        CommitOutcomeUnknownError: no answer came back, and looking gave none either.
    """
    write_id = secrets.token_bytes(16)
    own_keys = set(keys)
    seen, bases = min(bases, default=Base()), set(bases)
    fences: list[Version] = []
    for _ in range(_MAX_REBASES):
        base = catalog.latest()
        newer = _fences(catalog, base, seen.number)
        _check_history(catalog, base, newer, seen, bases)
        fences += newer
        # After a lost race only what is newer needs a look.
        seen = Base.of(base)
        bases = {seen}
        if lists is not None:
            for fence in newer:
                lists.forget(fence.manifest.expiry.doomed_keys)
        try:
            built = build(base)
        except (NotFoundError, FormatError):
            # What it reads may be gone with a version that another process has expired since.
            if base is None or not catalog.has_expired(base, others=True):
                raise
            continue
        if isinstance(built, Version):
            # Asked before the fence: what is committed already need not care for what was given up since.
            return built
        _check_fences(catalog, fences, own_keys)
        fences.clear()
        manifest = replace(
            built,
            version=base.number + 1 if base else 1,
            parent_version=base.number if base else 0,
            parent_sha256=base.sha256 if base else b"",
            write_id=write_id,
            created_ms=int(datetime.now(UTC).timestamp() * 1000),
            writer=writer_name(),
        )
        try:
            data, sha256 = seal_manifest(manifest, limits=catalog.limits)
        except FormatError as error:
            raise error.located(url=catalog.store.url) from error
        if _create(catalog, manifest, data):
            # Only a hint: a reader that does not find it lists instead.
            with contextlib.suppress(ShardioError):
                catalog.store.overwrite(naming.HINT_KEY, str(manifest.version).encode())
            return Version(manifest, sha256, catalog.table)
    raise CommitConflictError(
        f"lost {_MAX_REBASES} races for the next version",
        url=catalog.store.url,
        advice="try again with fewer writers",
    )


def _fences(catalog: Catalog, base: Version | None, seen: int) -> list[Version]:
    """Return the versions after `seen`; what they have doomed, the next version must not add."""
    if base is None or base.number <= seen:
        return []
    return [*catalog.between(seen + 1, base.number - 1), base]


def _check_history(
    catalog: Catalog, latest: Version | None, fences: list[Version], seen: Base, bases: Collection[Base]
) -> None:
    """Refuse to follow a dataset whose history does not hold the versions that the caller started from.

    Args:
        catalog: of the dataset.
        latest: its latest version now.
        fences: the versions after `seen`.
        seen: the oldest of `bases`.
        bases: all of them.
    """
    history = {version.number: version.sha256 for version in fences}
    if fences:
        history[seen.number] = fences[0].manifest.parent_sha256
    elif latest is not None:
        history[latest.number] = latest.sha256
    for base in bases:
        found = history.get(base.number)
        if base.number and (found is None or (base.sha256 and found != base.sha256)):
            raise CommitConflictError(
                "the dataset was removed or replaced while this was written",
                url=catalog.store.url,
                expected=f"version {base.number}, sha256:{base.sha256.hex()}",
                found="no dataset"
                if latest is None
                else f"version {latest.number} of another history"
                if found is None
                else f"version {base.number}, sha256:{found.hex()}",
                advice="nothing was committed; open the dataset that is there now, and write again",
            )


def _check_fences(catalog: Catalog, fences: list[Version], keys: set[str]) -> None:
    for fence in fences:
        doomed = keys.intersection(fence.manifest.expiry.doomed_keys)
        if doomed:
            raise CommitConflictError(
                f"garbage collection in version {fence.number} gave up objects that this commit adds",
                url=catalog.store.url,
                found=sorted(doomed)[:3],
                advice="write them again under a new session",
            )


def _create(catalog: Catalog, manifest: Manifest, data: bytes) -> bool:
    """Create the manifest's object; return False if another writer's is there."""
    store = catalog.store
    key = naming.manifest_key(manifest.version)
    unknown: StorageError | None = None
    for _ in range(_MAX_PUTS):
        failed: StorageError | None = None
        try:
            if store.put_and_confirm(key, data):
                return True
        except NotDurableError as error:
            raise _outcome_unknown(catalog, manifest, error) from error
        except UnknownOutcomeError as error:
            unknown = error
        except StorageError as error:
            failed = error
        try:
            found = read_intact(functools.partial(catalog.fetch, manifest.version)).manifest
        except NotFoundError:
            if failed is None:
                continue
            if unknown is None:
                # The store says that it did not create the object, and it is not there.
                raise failed from failed.__cause__
            raise _outcome_unknown(catalog, manifest, unknown) from failed
        except (StorageError, FormatError) as error:
            first = unknown or failed
            if first is None and isinstance(error, FormatError):
                raise
            raise _outcome_unknown(catalog, manifest, first or error) from error
        return found.write_id == manifest.write_id
    raise _outcome_unknown(catalog, manifest, unknown) from unknown


def _outcome_unknown(
    catalog: Catalog, manifest: Manifest, cause: StorageError | FormatError | None
) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"it is unknown whether version {manifest.version} was committed",
        url=catalog.store.url_of(naming.manifest_key(manifest.version)),
        expected=f"write id {manifest.write_id.hex()}",
        found=None if cause is None else str(cause),
        advice="nothing was deleted; look with `shardio log`, and run a named session again to finish it",
    )
