"""Garbage collection: by exact key, dry run first, fenced by the commit.

What is expired or abandoned is the caller's word, never a clock.  Phase one commits a version that names the
expired versions, the doomed keys and the abandoned sessions; from then on no commit can add one of them.
Phase two deletes the named keys.  A run that was killed in between is finished by the next one, which reads
the doomed keys from the manifests.  Manifests themselves are never deleted, so a version number is never free
twice.

A list that no version names is doomed without a word: its name says no session, and a commit that is still on
its way stores its list again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardio.catalog._commit import publish
from shardio.errors import NotFoundError
from shardio.metadata import (
    DATA,
    INDEX_SUFFIX,
    INDEXES,
    LISTS,
    SESSIONS,
    Expiry,
    Manifest,
    check_session,
    is_list_key,
    is_random_session,
    parse_data_key,
    parse_receipt_key,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from shardio.catalog._catalog import Catalog, Version
    from shardio.storage import ObjectInfo

__all__ = ["GcReport", "collect_garbage"]


@dataclass(frozen=True)
class GcReport:
    """What garbage collection found and did.

    Attributes:
        dry_run: nothing was changed.
        version: the version that fences the deletions; None where there was nothing to do.
        expired_versions: versions that can no longer be opened, all told.
        doomed: objects that are (or would be) deleted, with their sizes in bytes.
        deleted: how many of them this run removed.
        unclaimed: sessions that have objects here and are in no version: still being written, or given up;
            name them in `abandon` to have them removed. Bytes by session.
        temporaries: what interrupted writes left behind, which may belong to a writer that is still at work.
    """

    dry_run: bool
    version: int | None
    expired_versions: tuple[int, ...]
    doomed: tuple[ObjectInfo, ...]
    deleted: int
    unclaimed: dict[str, int]
    temporaries: tuple[ObjectInfo, ...]

    @property
    def doomed_bytes(self) -> int:
        """Bytes that are (or would be) freed."""
        return sum(info.size for info in self.doomed)


def collect_garbage(
    catalog: Catalog,
    *,
    expire: Collection[int] = (),
    keep: int | None = None,
    abandon: Collection[str] = (),
    dry_run: bool = True,
) -> GcReport:
    """Remove what only expired versions and abandoned sessions hold.

    Args:
        catalog: of the dataset.
        expire: versions to expire; never the latest.
        keep: expire all but the latest so many versions.
        abandon: sessions, not part of any version, whose writers will not come back.
        dry_run: only say what would be done.

    Raises:
        ValueError: a version or session that cannot be given up.
        NotFoundError: there is no dataset.
    """
    versions = list(catalog.versions())
    if not versions:
        raise NotFoundError("there is no shardio dataset here", url=catalog.store.url)
    latest = versions[-1]
    for session in abandon:
        _check_abandon(session, versions)
    expired = _expired(versions, expire, keep)
    new_expired = expired - set(latest.manifest.expiry.expired_versions)
    objects = _objects(catalog)
    theirs: set[str] = set()
    live = _keys(catalog, [version for version in versions if version.number not in expired], theirs)
    gone = {*latest.manifest.expiry.abandoned_sessions, *abandon}
    dead = _keys(
        catalog, [version for version in versions if version.number in expired], theirs, missing_ok=True
    )
    already = {key for version in versions for key in version.manifest.expiry.doomed_keys}
    merged = {session.session for version in versions for session in version.manifest.sessions}
    doomed = [
        info
        for info in objects
        if info.key not in live | theirs
        and (
            info.key in dead | already
            or is_list_key(info.key)
            or _session_of(info) in gone
            # What lost attempts of a merged session left: it cannot be merged again with other content.
            or (info.key.startswith(DATA) and _session_of(info) in merged)
        )
    ]
    unclaimed = _unclaimed((info for info in objects if info.key not in live | theirs), gone | merged)
    temporaries = tuple(catalog.store.list_temporaries())
    report = GcReport(dry_run, None, tuple(sorted(expired)), tuple(doomed), 0, unclaimed, temporaries)
    if dry_run or not (
        doomed or new_expired or set(abandon) - set(latest.manifest.expiry.abandoned_sessions)
    ):
        return report

    expiry = Expiry(tuple(sorted(expired)), tuple(sorted(gone)), tuple(sorted(info.key for info in doomed)))
    fence = _fence(catalog, latest, expiry)
    deleted = sum(catalog.store.delete(info.key) for info in doomed)
    return replace(report, version=fence.number, deleted=deleted)


def _objects(catalog: Catalog) -> list[ObjectInfo]:
    """Return the objects in shardio's own folders that garbage collection may know of."""
    return [
        info
        for prefix in (DATA, LISTS, SESSIONS, INDEXES)
        for info in catalog.store.list(prefix)
        # What else lies among the indexes, somebody else has put there.
        if prefix != INDEXES or info.key.endswith(INDEX_SUFFIX)
    ]


def _unclaimed(objects: Iterable[ObjectInfo], known: set[str]) -> dict[str, int]:
    """Return the bytes of objects by session, but for the sessions that are known."""
    found: dict[str, int] = {}
    for info in objects:
        owner = _session_of(info)
        if owner and owner not in known:
            found[owner] = found.get(owner, 0) + info.size
    return found


def _fence(catalog: Catalog, planned_on: Version, expiry: Expiry) -> Version:
    """Commit the version that names what goes; a plan made on an older version is dropped."""

    def build(base: Version | None) -> Manifest:
        if base is None or base.sha256 != planned_on.sha256:
            from shardio.errors import CommitConflictError

            raise CommitConflictError(
                "somebody committed while garbage was being looked for; nothing was removed",
                url=catalog.store.url,
                expected=f"version {planned_on.number}",
                found=f"version {base.number if base else 0}",
                advice="run it again",
            )
        return replace(base.manifest, operation="gc", expiry=expiry)

    return publish(catalog, build, seen=planned_on.number)


def _expired(versions: list[Version], expire: Collection[int], keep: int | None) -> set[int]:
    latest = versions[-1].number
    if keep is not None and keep < 1:
        message = f"keep={keep} must be at least 1: the latest version cannot be expired"
        raise ValueError(message)
    wrong = [number for number in expire if not 1 <= number < latest]
    if wrong:
        message = f"cannot expire {wrong}: versions 1 to {latest - 1} can be, the latest ({latest}) cannot"
        raise ValueError(message)
    expired = {*versions[-1].manifest.expiry.expired_versions, *expire}
    if keep is not None:
        expired |= set(range(1, latest - keep + 1))
    return expired


def _check_abandon(session: str, versions: list[Version]) -> None:
    check_session(session)
    for version in versions:
        if version.manifest.session(session) is not None:
            message = (
                f"session {session!r} is part of version {version.number}: expire that to remove its records"
            )
            raise ValueError(message)


def _keys(
    catalog: Catalog, versions: Iterable[Version], theirs: set[str], *, missing_ok: bool = False
) -> set[str]:
    """Return all keys that versions name: lists, shards, indexes, deletion sidecars.

    Adopted shards are somebody else's, wherever they lie and whatever they are called: they go to `theirs`.
    """
    keys: set[str] = set()
    seen: set[str] = set()
    for version in versions:
        for ref in version.manifest.lists:
            if ref.key in seen:
                continue
            seen.add(ref.key)
            keys.add(ref.key)
            # The list of a version that expired earlier is gone, and so are its shards.
            if missing_ok and catalog.store.head(ref.key) is None:
                continue
            for shard in catalog.shards_of(ref):
                if not shard.adopted:
                    keys.add(shard.key)
                elif not shard.root:
                    theirs.add(shard.key)
                keys.add(shard.usual_index_key)
                if shard.deletion_key:
                    keys.add(shard.deletion_key)
    return keys


def _session_of(info: ObjectInfo) -> str | None:
    receipt = parse_receipt_key(info.key)
    if receipt is not None:
        return receipt.session
    data = parse_data_key(info.key)
    return data.session if data is not None else None


def unclaimed_random(report: GcReport) -> list[str]:
    """Return the unclaimed sessions that nobody named, for the command line's advice."""
    return [session for session in report.unclaimed if is_random_session(session)]
