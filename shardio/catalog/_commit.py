"""The commit: create manifest v+1 only if it does not exist.

A lost reply is not a failure.  After "exists" or an unknown outcome the manifest is read back: own write id
-> it was committed; another's -> somebody else won; absent -> the same bytes are put again.  Appends then
rebase on the newer version, overwrites raise.  Nothing is ever deleted here.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardio.catalog._catalog import Catalog, Version
from shardio.errors import CommitConflictError, CommitOutcomeUnknownError, NotFoundError, StorageError
from shardio.metadata import HINT_KEY, Manifest, manifest_key, parse_manifest, seal_manifest
from shardio.storage import UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardio.catalog._lists import StoredLists

__all__ = ["publish", "writer_name"]

# A lost race is somebody else's success; so many in a row mean that something is wrong.
_MAX_REBASES = 1000
_MAX_PUTS = 5


@functools.cache
def writer_name() -> str:
    """Return program and version, for people who look into a file."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"shardio {version('shardio')}"
    except PackageNotFoundError:
        return "shardio"


def publish(
    catalog: Catalog,
    build: Callable[[Version | None], Manifest | Version],
    *,
    seen: int = 0,
    keys: Iterable[str] = (),
    lists: StoredLists | None = None,
) -> Version:
    """Create the next version.

    Args:
        catalog: of the dataset.
        build: takes the latest version (or None) and returns the manifest that follows it; called again after
            each lost race.  It returns a `Version` where there is nothing left to do, and raises where it
            cannot follow that version.  Numbers, parent and write id are filled in here.
        seen: version that the caller started from; what was committed since is looked through for keys
            that garbage collection has doomed.
        keys: the keys that the new version adds.
        lists: that `build` stores; those that were doomed meanwhile are forgotten, so that it stores them
            again.

    Raises:
        CommitConflictError: another version stands in the way.
        CommitOutcomeUnknownError: no answer came back, and looking gave none either.
    """
    write_id = secrets.token_bytes(16)
    own_keys = set(keys)
    for _ in range(_MAX_REBASES):
        base = catalog.latest()
        seen = _check_fence(catalog, base, seen, own_keys, lists)
        built = build(base)
        if isinstance(built, Version):
            return built
        manifest = replace(
            built,
            version=base.number + 1 if base else 1,
            parent_version=base.number if base else 0,
            parent_sha256=base.sha256 if base else b"",
            write_id=write_id,
            created_ms=int(datetime.now(UTC).timestamp() * 1000),
            writer=writer_name(),
        )
        data, sha256 = seal_manifest(manifest)
        if len(data) > catalog.limits.manifest:
            what = f"the manifest would have {len(data)} bytes, over the limit of {catalog.limits.manifest}"
            raise ValueError(what)
        if _create(catalog, manifest, data):
            # Only a hint: a reader that does not find it lists instead.
            with contextlib.suppress(StorageError):
                catalog.store.put_hint(HINT_KEY, str(manifest.version).encode())
            return Version(manifest, sha256)
    raise CommitConflictError(
        f"lost {_MAX_REBASES} races for the next version",
        url=catalog.store.url,
        advice="try again with fewer writers",
    )


def _check_fence(
    catalog: Catalog, base: Version | None, seen: int, keys: set[str], lists: StoredLists | None
) -> int:
    """Look through the versions after `seen` for doomed keys among `keys`; return the new `seen`."""
    latest = base.number if base else 0
    for number in range(seen + 1, latest + 1):
        version = base if base and number == latest else catalog.load(number, known_live=True)
        doomed = keys.intersection(version.manifest.expiry.doomed_keys)
        if doomed:
            raise CommitConflictError(
                f"garbage collection in version {number} gave up objects that this commit adds",
                url=catalog.store.url,
                found=sorted(doomed)[:3],
                advice="write them again under a new session",
            )
        if lists is not None:
            lists.forget(version.manifest.expiry.doomed_keys)
    return max(seen, latest)


def _create(catalog: Catalog, manifest: Manifest, data: bytes) -> bool:
    """Create the manifest's object; return False if another writer's stands there."""
    store = catalog.store
    key = manifest_key(manifest.version)
    unknown: Exception | None = None
    for _ in range(_MAX_PUTS):
        try:
            if store.put_and_confirm(key, data):
                return True
        except UnknownOutcomeError as error:
            unknown = error
        try:
            there = store.get(key, max_bytes=catalog.limits.manifest)
        except NotFoundError:
            continue
        except StorageError as error:
            raise _outcome_unknown(catalog, manifest) from error
        found, _ = parse_manifest(
            there, version=manifest.version, url=store.url_of(key), limits=catalog.limits
        )
        return found.write_id == manifest.write_id
    raise _outcome_unknown(catalog, manifest) from unknown


def _outcome_unknown(catalog: Catalog, manifest: Manifest) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"it is unknown whether version {manifest.version} was committed",
        url=catalog.store.url_of(manifest_key(manifest.version)),
        expected=f"write id {manifest.write_id.hex()}",
        advice="nothing was deleted; look with `shardio log`, and run a named session again to finish it",
    )
