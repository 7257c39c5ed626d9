"""Garbage collection: by exact key, dry run first, fenced by the commit.

What is expired or abandoned is the caller's word, never a clock.  Phase one commits a version that names the
expired versions, the doomed keys and the abandoned sessions; from then on no commit can add one of them.
Phase two deletes the named keys.  A killed run is finished by the next one, which reads the doomed keys from
the manifests.  Manifests themselves are never deleted, so a version number is never free twice.  On a disk
without room for the manifest, the hint makes room for one that names the largest objects alone.

After a lost race the plan is made again: what others have committed is not garbage.  What shardio did not
make is never removed, whatever a list or a manifest says, and nothing behind a link.  A list, a sidecar of
deleted rows, a table or a key index that no version names is doomed whatever is abandoned: its name says no
session, and a commit or build that is still on its way stores it again.  A tagged version does not expire.

The cost follows from what changed since the last collection, not from the length of the history: a fence that
dooms all there was of its expired versions says so (`complete`), and their manifests are not read again.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.arguments import integer, integers
from shardio.catalog._commit import Base, publish
from shardio.catalog._losses import find_losses
from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.metadata import Expiry, Manifest, ShardTable, naming
from shardio.progress import CountProgress, displayed
from shardio.reports import Report
from shardio.storage import ObjectInfo, linked_folders, unlisted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from shardio.catalog._catalog import Catalog
    from shardio.catalog._version import Version

_LISTS_AT_ONCE = 16  # the latest lists mostly name everything
_FEW = 8  # keys are named at first where the disk has no room for a manifest that names them all


@dataclass(frozen=True)
class GcReport(Report):
    """Result of a garbage collection.

    Attributes:
        url: of the dataset.
        dry_run: nothing was changed.
        version: the version that fences the deletions; None where there was nothing to do.
        expired_versions: all versions that can no longer be opened.
        doomed: objects that are (or would be) deleted, with their sizes in bytes.
        deleted: how many of them this run removed.
        unclaimed: sessions that have objects here and are in no version: still being written, or given up;
            name them in `abandon` to have them removed. Bytes by session; one that has left no receipt is
            called `auto.` and the id in the names of its shards.
        temporaries: files of interrupted writes, which may belong to a running writer.
        unlisted: places that could not be listed, and for a bucket a note on unfinished uploads.
        lost_for_good: number of lost records by shard that a mirror can no longer restore once these
            versions have expired.
    """

    url: str
    dry_run: bool
    version: int | None
    expired_versions: tuple[int, ...]
    doomed: tuple[ObjectInfo, ...]
    deleted: int
    unclaimed: dict[str, int]
    temporaries: tuple[ObjectInfo, ...]
    unlisted: tuple[str, ...] = ()
    lost_for_good: Mapping[str, int] = field(default_factory=dict)

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that are (or would be) freed."""
        return sum(info.size for info in self.doomed)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        objects = {"doomed": self.doomed, "temporaries": self.temporaries}
        sizes = {
            name: [{"key": info.key, "bytes": info.size} for info in infos] for name, infos in objects.items()
        }
        return {**super().to_dict(), **sizes}


def collect_garbage(
    catalog: Catalog,
    *,
    expire: Collection[int] = (),
    keep: int | None = None,
    abandon: Collection[str] = (),
    dry_run: bool = True,
    progress: bool | Callable[[CountProgress], None] = False,
) -> GcReport:
    """Remove what only expired versions and abandoned sessions hold.

    Args:
        catalog: of the dataset.
        expire: versions to expire; never the latest.
        keep: how many of the latest versions stay.
        abandon: sessions, not part of any version, whose writers will not come back.
        dry_run: only say what would be done.
        progress: shows how many objects were deleted.

    Raises:
        ValueError, NotFoundError: a version or session that cannot be given up; there is no dataset.
        StorageError: the environment failed; what was deleted is garbage, and the next run deletes the rest.
    """
    expired = frozenset(integers("expire", expire).tolist())
    kept = None if keep is None else integer("keep", keep)
    if kept is not None and kept < 1:
        raise ValueError(f"keep={kept} must be at least 1: the latest version cannot be expired")
    sessions = frozenset(map(naming.check_session, abandon))

    def make(latest: Version) -> _Plan:
        wrong = sorted(number for number in expired if not 1 <= number < latest.number)
        if wrong:
            last = latest.number - 1
            raise ValueError(f"cannot expire {wrong}: 1 to {last} can be, the latest ({last + 1}) cannot")
        below = 0 if kept is None else latest.number - kept + 1
        return _Plan(catalog, latest, _Request(expired, below, sessions))

    plan = catalog.reading(make)
    if dry_run or not plan.has_work():
        return replace(plan.report, dry_run=dry_run)

    def remove(most: int | None = None) -> GcReport:
        """Commit the version that names what goes, at most so many objects, then delete these."""

        def build(base: Version | None) -> Manifest:
            nonlocal plan
            if base is None:
                raise NotFoundError("there is no shardio dataset here any more", url=catalog.store.url)
            plan = _follow(plan, base)
            return replace(base.manifest.carried, operation="gc", expiry=plan.expiry(most))

        fence = publish(catalog, build, bases=[Base.of(plan.latest)])
        doomed, deleted = plan.doomed[:most], 0
        with displayed(progress, "gc") as show:
            gone = catalog.store.concurrently(lambda info: catalog.store.delete(info.key), doomed)
            for done, there in enumerate(gone, 1):
                deleted += there
                if show is not None:
                    show(CountProgress(done, len(doomed), "objects"))
        found = tuple(sorted(doomed))
        return replace(plan.report, dry_run=False, version=fence.number, doomed=found, deleted=deleted)

    try:
        return remove()
    except StorageError as error:
        if not _is_full(error):
            raise
    # A reader that finds no hint lists instead, and the block that it took is enough for a small manifest.
    hint = f"{plan.latest.number}".encode()
    catalog.store.delete(naming.HINT_KEY)
    try:
        few = remove(_FEW)
    except StorageError:
        with contextlib.suppress(ShardioError):
            catalog.store.overwrite(naming.HINT_KEY, hint)
        raise
    if len(plan.doomed) == len(few.doomed):
        return few
    rest = remove()
    doomed = tuple(sorted({*few.doomed, *rest.doomed}))
    return replace(few, version=rest.version, doomed=doomed, deleted=few.deleted + rest.deleted)


def _follow(plan: _Plan, base: Version) -> _Plan:
    """Return the plan of the latest version: another one where others have committed."""
    return plan if base.sha256 == plan.latest.sha256 else _Plan(plan.catalog, base, plan.request)


def _is_full(error: BaseException | None) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return error is not None and _is_full(error.__cause__)


class _Request(NamedTuple):
    """What the caller gives up: versions, those before a number, and sessions."""

    expire: frozenset[int]
    below: int
    abandon: frozenset[str]


class _Plan:
    """What is garbage, as of one version.

    Attributes:
        expired: versions, all told.
        doomed: objects that go, the largest first, lists last.
    """

    def __init__(self, catalog: Catalog, latest: Version, request: _Request) -> None:
        self.catalog, self.latest, self.request = catalog, latest, request
        known, tags = latest.manifest.expiry, latest.manifest.tags
        for name, number in tags.items():
            if number in request.expire:
                what = f"cannot expire version {number}: it has the tag {name!r}"
                raise ValueError(f"{what}; `shardio tag URL {name} --delete` removes that")
        versions = _history(catalog, latest)
        below = set(range(1, request.below)) - {*tags.values()}
        self.expired = request.expire | below | {*known.expired_versions}
        self.abandoned = request.abandon | {*known.abandoned_sessions}
        store = catalog.store
        # Other files among the indexes are not of shardio's making.
        suffixes = {folder: naming.INDEX_SUFFIX * (folder == naming.INDEXES) for folder in naming.FOLDERS}
        listed = ((info, suffix) for folder, suffix in suffixes.items() for info in store.list(folder))
        objects = [info for info, suffix in listed if info.key.endswith(suffix)]
        notes = [
            f"{link} is a link to a folder elsewhere; what is behind it was not looked at"
            for folder in naming.FOLDERS
            for link in linked_folders(store, folder)
        ]
        self._linked = bool(notes)
        temporaries: list[ObjectInfo] = []
        try:
            temporaries += store.list_temporaries()
        except StorageError as error:
            # Such a listing takes no part in what is garbage: a service that has none may be cleaned up, too.
            notes.append(f"what interrupted writes left here could not be listed: {error}")
        notes += filter(None, [unlisted(store)])
        live, dead, adopted = self._named(versions, objects)
        receipts = [key for info in objects if (key := naming.ReceiptKey.parse(info.key)) is not None]
        names = {naming.session_id(key.session): key.session for key in receipts}
        owners = {info.key: _session_id_of(info.key) for info in objects if info.key not in adopted}
        uncommitted = {owner for key, owner in owners.items() if owner and key not in live}
        given_up = {*map(naming.session_id, self.abandoned)}
        merged = self._merged(versions, uncommitted)
        # Rewrites name no session: that of a shard which a version names was committed as a whole.
        committed = merged | {owner for key in live | dead if (owner := _session_id_of(key))}
        already = {key for version in versions for key in version.manifest.expiry.doomed_keys}

        def is_doomed(key: str) -> bool:
            if key in live or key in adopted or not naming.is_own_key(key):
                return False
            # What lost attempts of a merged session left: it cannot be merged again with other content.
            lost = key.startswith(naming.DATA) and owners[key] in committed
            known = key in dead or key in already or naming.is_unowned_key(key)
            return known or owners[key] in given_up or lost

        doomed = (info for info in objects if is_doomed(info.key))
        # Lists last: without a list, the next plan would not find the objects that it names.
        self.doomed = sorted(doomed, key=lambda info: (info.key.startswith(naming.LISTS), -info.size))
        unclaimed_bytes = dict.fromkeys(uncommitted - given_up - committed, 0)
        for info in objects:
            owner = owners.get(info.key)
            if owner in unclaimed_bytes and info.key not in live:
                unclaimed_bytes[owner] += info.size
        unclaimed = {
            names.get(owner) or naming.session_of_id(owner): size for owner, size in unclaimed_bytes.items()
        }
        self.report = GcReport(
            store.url, dry_run=True, version=None, expired_versions=tuple(sorted(self.expired)),
            doomed=tuple(sorted(self.doomed)), deleted=0,
            unclaimed=dict(sorted(unclaimed.items())),
            temporaries=tuple(temporaries), unlisted=tuple(notes),
            lost_for_good=self._lost_for_good(versions),
        )  # fmt: skip

    def _lost_for_good(self, versions: list[Version]) -> dict[str, int]:
        """Return the lost records, by shard, that a mirror can restore until these versions expire."""
        losses = find_losses(self.catalog, {version.number: version for version in versions})
        newest = max(self.expired, default=0)
        lost = {loss.entry.key: loss.lost_rows[0] for loss in losses if loss.version.number <= newest}
        return {key: rows for key, rows in lost.items() if rows}

    def _merged(self, versions: list[Version], uncommitted: set[str]) -> set[str]:
        """Return the ids of sessions that were merged; refuse to give up one of them.

        Raises:
            ValueError: the caller gives up a session that is part of a version.
        """
        each_merged = (each for version in versions for each in version.manifest.sessions)
        merged = {naming.session_id(each.session): each.version for each in each_merged}
        if self.request.abandon or uncommitted - merged.keys():
            # Those of versions that were collected before stand in lists of sessions, if they have names.
            for ref in self.latest.manifest.session_lists:
                listed = self.catalog.sessions_of(ref)
                merged |= {naming.session_id(name): each.version for name, each in listed.items()}
        for name in self.request.abandon:
            if version := merged.get(naming.session_id(name)):
                what = f"session {name!r} is part of version {version}"
                raise ValueError(f"{what}: expire that to remove its records")
        return {*merged}

    def has_work(self) -> bool:
        """Tell whether there is anything to fence."""
        known = self.latest.manifest.expiry
        new = self.expired - {*known.expired_versions} or self.abandoned - {*known.abandoned_sessions}
        return bool(self.doomed or new)

    def expiry(self, most: int | None) -> Expiry:
        """Return the expiry that the new version records, of which at most so many keys."""
        keys = tuple(sorted(info.key for info in self.doomed[:most]))
        whole = len(keys) == len(self.doomed) and not self._linked
        return Expiry(tuple(sorted(self.expired)), tuple(sorted(self.abandoned)), keys, complete=whole)

    def _named(
        self, versions: list[Version], objects: list[ObjectInfo]
    ) -> tuple[set[str], set[str], set[str]]:
        """Return the keys that live versions name, those that only expired ones do, and adopted shards.

        The latest lists are read first: once all that was listed is live, older ones have nothing to add.
        Adopted shards belong to others, whatever they are called: other programs write lists, too.
        """
        newest = versions[::-1]
        living = [version for version in newest if version.number not in self.expired]
        lists = {ref.key: ref for version in living for ref in version.manifest.lists}
        old = {ref.key: ref for version in newest for ref in version.manifest.lists if ref.key not in lists}
        runs = {run.key for version in living for index in version.manifest.keys for run in index.runs}
        live = runs | {*lists}
        # Lists of sessions name no objects; each is live with the versions that name it.
        live |= {ref.key for version in living for ref in version.manifest.session_lists}
        folders = (naming.DATA, naming.INDEXES, naming.TABLES)
        unknown = {info.key for info in objects if info.key.startswith(folders)}
        unknown = {key for key in unknown if naming.is_own_key(key)}
        dead, adopted = {*old}, set[str]()
        store, refs = self.catalog.store, [*lists.values()]
        for first in range(0, len(refs) if unknown else 0, _LISTS_AT_ONCE):
            for table in store.concurrently(self.catalog.shards_of, refs[first : first + _LISTS_AT_ONCE]):
                _add_keys(table, live, adopted)
            if not (unknown := unknown - live - adopted):
                break
        # The list of a version that expired earlier is gone, and so are its shards.
        for found in store.concurrently(self.catalog.find_shards, [*old.values()] if unknown else []):
            if found is not None:
                _add_keys(found, dead, adopted)
        return live, dead - live, adopted


def _history(catalog: Catalog, latest: Version) -> list[Version]:
    """Return the versions that tell what is garbage, in order: all but those that were collected before."""
    expired = set(latest.manifest.expiry.expired_versions)
    living = [number for number in range(1, latest.number) if number not in expired]
    versions = [*catalog.numbered(living), latest]
    collected = {
        number
        for version in versions
        if version.manifest.expiry.complete
        for number in version.manifest.expiry.expired_versions
    }
    versions += catalog.numbered(sorted(expired - collected))
    return sorted(versions, key=lambda version: version.number)


def _add_keys(table: ShardTable, own: set[str], adopted: set[str]) -> None:
    """Add the keys of shardio's own that a list names, and those of adopted shards under root 0."""
    for key, index, root, etag in zip(
        table.key, table.index_key, table.root.tolist(), table.etag, strict=True
    ):
        if not root:
            (adopted if etag else own).add(key)
        own.add(index or naming.usual_index_key(key))
    own.update(filter(None, table.deletion_key), filter(None, table.table_key))


def _session_id_of(key: str) -> str | None:
    data, receipt = naming.DataKey.parse(key), naming.ReceiptKey.parse(key)
    return data.session_id if data else naming.session_id(receipt.session) if receipt else None
