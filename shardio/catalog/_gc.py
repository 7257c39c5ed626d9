"""Garbage collection: by exact key, dry run first, fenced by the commit.

What is expired or abandoned is the caller's word, never a clock.  Phase one commits a version that names the
expired versions, the doomed keys and the abandoned sessions; from then on no commit can add one of them.
Phase two deletes the named keys.  A run that was killed in between is finished by the next one, which reads
the doomed keys from the manifests.  Manifests themselves are never deleted, so a version number is never free
twice.

Where others commit meanwhile, the plan follows their versions, as an append does: what they name is not
garbage.  What is not of shardio's making is never removed, whatever a list or a manifest says, and nothing
behind a link.

A list or a sidecar of deleted rows that no version names is doomed whatever is abandoned: its name says no
session, and a commit that is still on its way stores it again.  So are tables and key indexes: a build
makes again what was doomed meanwhile.

A version that has a tag does not expire.

What a collection costs follows from what changed since the last one, not from the length of the history.  A
fence that dooms all there was of its expired versions says so, and their manifests are not read again.  It
is found among the versions that live: only a later collection, or an erasure, makes it expire.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardio.arguments import integer, integers
from shardio.catalog._commit import Base, publish
from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.metadata import Expiry, ListRef, Manifest, ShardTable, naming
from shardio.progress import CountProgress, displayed
from shardio.reports import Report
from shardio.storage import ObjectInfo, linked_folders, unlisted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shardio.catalog._catalog import Catalog, Version

# So many keys are named at first where the disk has no room for a manifest that names them all.
_FEW = 8


@dataclass(frozen=True)
class GcReport(Report):
    """What garbage collection found and did.

    Attributes:
        url: of the dataset.
        dry_run: nothing was changed.
        version: the version that fences the deletions; None where there was nothing to do.
        expired_versions: versions that can no longer be opened, all told.
        doomed: objects that are (or would be) deleted, with their sizes in bytes.
        deleted: how many of them this run removed.
        unclaimed: sessions that have objects here and are in no version: still being written, or given up;
            name them in `abandon` to have them removed. Bytes by session.
        temporaries: what interrupted writes left behind, which may belong to a writer that is still at work.
        unlisted: what could not be looked at, in words; of a bucket, what becomes of unfinished uploads.
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

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that are (or would be) freed."""
        return sum(info.size for info in self.doomed)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            **super().to_dict(),
            "doomed": _sizes(self.doomed),
            "temporaries": _sizes(self.temporaries),
        }


def _sizes(objects: Iterable[ObjectInfo]) -> list[dict[str, Any]]:
    return [{"key": info.key, "bytes": info.size} for info in objects]


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
        keep: expire all but the latest versions, this many.
        abandon: sessions, not part of any version, whose writers will not come back.
        dry_run: only say what would be done.
        progress: shows how many objects were deleted.

    Raises:
        ValueError: a version or session that cannot be given up.
        NotFoundError: there is no dataset.
        StorageError: the environment failed; what was deleted is garbage, and the next run deletes the rest.
    """
    plan = catalog.reading(
        lambda latest: _Removals(catalog, latest, expire=expire, keep=keep, abandon=abandon)
    )
    report = plan.report()
    if dry_run or not plan.has_work():
        return replace(report, dry_run=dry_run)
    deleted = 0
    before: tuple[ObjectInfo, ...] = ()
    try:
        fence = _fence(plan)
    except StorageError as error:
        if not _is_full(error):
            raise
        fence, before, deleted = _make_room(plan, error)
        if plan.doomed:
            fence = _fence(plan)
    report = plan.report()
    with displayed(progress, "gc") as show:
        gone = catalog.store.concurrently(lambda info: catalog.store.delete(info.key), report.doomed)
        for done, there in enumerate(gone, 1):
            deleted += there
            if show is not None:
                show(CountProgress(done, len(report.doomed), "objects"))
    return replace(
        report,
        dry_run=False,
        version=fence.number,
        deleted=deleted,
        doomed=tuple(sorted({*before, *report.doomed})),
    )


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def _make_room(plan: _Removals, error: StorageError) -> tuple[Version, tuple[ObjectInfo, ...], int]:
    """Where the disk is full: give up the hint for a small fence, and delete the largest objects first.

    Returns:
        The fence, what it has doomed, and how many objects were deleted.
    """
    store = plan.catalog.store
    # What an earlier version has doomed needs no new fence.
    with contextlib.suppress(ShardioError):
        for info in plan.fenced:
            store.delete(info.key)
    # A reader that finds no hint lists instead; the block that it took is enough for a small manifest.
    store.delete(naming.HINT_KEY)
    try:
        fence = _fence(plan, most=_FEW)
    except StorageError:
        with contextlib.suppress(ShardioError):
            store.overwrite(naming.HINT_KEY, str(plan.latest.number).encode())
        raise error from error.__cause__
    largest = plan.largest(_FEW)
    deleted = sum(store.delete(info.key) for info in largest)
    with contextlib.suppress(ShardioError):
        store.overwrite(naming.HINT_KEY, str(fence.number).encode())
    plan.forget(largest)
    plan.follow(fence)
    return fence, tuple(largest), deleted


def _fence(plan: _Removals, *, most: int | None = None) -> Version:
    """Commit the version that names what goes; the plan follows what others have committed meanwhile."""

    def build(base: Version | None) -> Manifest:
        if base is None:
            raise NotFoundError("there is no shardio dataset here any more", url=plan.catalog.store.url)
        plan.follow(base)
        return replace(base.manifest.carried, operation="gc", expiry=plan.expiry(most))

    return publish(plan.catalog, build, bases=[Base.of(plan.latest)])


class _Removals:
    """What is garbage, as of the latest version that was looked at."""

    def __init__(
        self,
        catalog: Catalog,
        latest: Version,
        *,
        expire: Collection[int],
        keep: int | None,
        abandon: Collection[str],
    ) -> None:
        self.catalog = catalog
        self._expire = set(integers("expire", expire).tolist())
        keep = None if keep is None else integer("keep", keep)
        self._abandon = set(abandon)
        versions = _history(catalog, latest)
        for session in abandon:
            naming.check_session(session)
        self._check_expire(versions[-1].number, self._expire, keep)
        self._keep_below = 0 if keep is None else versions[-1].number - keep + 1
        self._versions: list[Version] = []
        self._named: dict[str, tuple[frozenset[str], frozenset[str]] | None] = {}
        self._unlisted: list[str] = []
        self._linked = False
        self._objects = self._listed()
        self._temporaries = self._listed_temporaries()
        self._take(versions)

    @property
    def latest(self) -> Version:
        """The latest version that was looked at."""
        return self._versions[-1]

    def follow(self, base: Version) -> None:
        """Look at what was committed since."""
        if base.sha256 != self.latest.sha256:
            if base.manifest.expiry.expired_versions != self.latest.manifest.expiry.expired_versions:
                # They may be of versions whose objects came after the listing.
                self._objects = self._listed()
            self._take([*self.catalog.between(self.latest.number + 1, base.number - 1), base])

    def forget(self, objects: Iterable[ObjectInfo]) -> None:
        """Leave out objects that were deleted."""
        gone = {info.key for info in objects}
        self._objects = [info for info in self._objects if info.key not in gone]

    def has_work(self) -> bool:
        """Tell whether there is anything to fence."""
        known = self.latest.manifest.expiry
        new = self.expired - set(known.expired_versions) or self._gone - set(known.abandoned_sessions)
        return bool(self.doomed or new)

    def largest(self, most: int) -> list[ObjectInfo]:
        """Return the doomed objects that free the most."""
        return sorted(self.doomed, key=lambda info: -info.size)[:most]

    def expiry(self, most: int | None) -> Expiry:
        """Return what the fence says; with `most`, naming only so many keys."""
        doomed = self.doomed if most is None else self.largest(most)
        return Expiry(
            tuple(sorted(self.expired)),
            tuple(sorted(self._gone)),
            tuple(sorted(info.key for info in doomed)),
            complete=most is None and not self._linked,
        )

    def report(self) -> GcReport:
        """Return what was found."""
        given_up, named = self._gone | self._merged, self._live | self._adopted
        unclaimed = _unclaimed((info for info in self._objects if info.key not in named), given_up)
        return GcReport(
            url=self.catalog.store.url,
            dry_run=True,
            version=None,
            expired_versions=tuple(sorted(self.expired)),
            doomed=tuple(sorted(self.doomed)),
            deleted=0,
            unclaimed=unclaimed,
            temporaries=tuple(self._temporaries),
            unlisted=tuple(self._unlisted),
        )

    @staticmethod
    def _check_expire(latest: int, expire: Collection[int], keep: int | None) -> None:
        if keep is not None and keep < 1:
            message = f"keep={keep} must be at least 1: the latest version cannot be expired"
            raise ValueError(message)
        wrong = [number for number in sorted(expire) if not 1 <= number < latest]
        if wrong:
            message = (
                f"cannot expire {wrong}: versions 1 to {latest - 1} can be, the latest ({latest}) cannot"
            )
            raise ValueError(message)

    def _check_tags(self) -> Collection[int]:
        """Return the versions that have tags, by the latest one; refuse to expire one of them."""
        tags = self.latest.manifest.tags
        for name, number in tags.items():
            if number in self._expire:
                message = (
                    f"cannot expire version {number}: it has the tag {name!r}; `shardio tag URL {name} "
                    "--delete` removes that"
                )
                raise ValueError(message)
        return tags.values()

    def _listed(self) -> list[ObjectInfo]:
        """Return the objects in shardio's own folders that garbage collection may know of."""
        store = self.catalog.store
        found = []
        for prefix in naming.FOLDERS:
            # Other files among the indexes are not of shardio's making.
            found += [
                info
                for info in store.list(prefix)
                if prefix != naming.INDEXES or info.key.endswith(naming.INDEX_SUFFIX)
            ]
            linked = [
                f"{folder} is a link to a folder elsewhere; what is behind it was not looked at"
                for folder in linked_folders(store, prefix)
            ]
            self._unlisted += [note for note in linked if note not in self._unlisted]
            self._linked |= bool(linked)
        return found

    def _listed_temporaries(self) -> list[ObjectInfo]:
        store = self.catalog.store
        found: list[ObjectInfo] = []
        try:
            found.extend(store.list_temporaries())
        except StorageError as error:
            # Such a listing takes no part in what is garbage: a service that has none may be cleaned up, too.
            self._unlisted.append(f"what interrupted writes left here could not be listed: {error}")
        note = unlisted(store)
        if note is not None:
            self._unlisted.append(note)
        return found

    def _take(self, versions: list[Version]) -> None:
        """Add later versions, and find out again what is garbage."""
        for session in self._abandon:
            here = (version.manifest.session(session) for version in versions)
            merged = next(filter(None, here), None) or self.catalog.merged(versions[-1], session)
            if merged is not None:
                message = (
                    f"session {session!r} is part of version {merged.version}: "
                    "expire that to remove its records"
                )
                raise ValueError(message)
        self._versions += versions
        known = self.latest.manifest.expiry
        tagged = set(self._check_tags())
        kept = set(range(1, self._keep_below)) - tagged
        self.expired = self._expire | kept | set(known.expired_versions)
        self._gone = self._abandon | set(known.abandoned_sessions)
        self._merged = {
            session.session for version in self._versions for session in version.manifest.sessions
        }
        already = {key for version in self._versions for key in version.manifest.expiry.doomed_keys}
        live, dead = self._live_and_dead()
        # Rewrites name no session: that of a shard which a version names was committed as a whole.
        self._merged |= {
            name.session for key in live | dead if (name := naming.DataKey.parse(key)) is not None
        }
        # Those of versions that were collected before stand in lists of sessions, if they have names.
        unnamed = (info for info in (*self._objects, *self._temporaries) if info.key not in live)
        unknown = set(filter(None, map(_session_of, unnamed))) - self._merged
        self._merged |= {name for name in unknown if self.catalog.merged(self.latest, name)}
        self.doomed = [
            info
            for info in self._objects
            if info.key not in live
            and info.key not in self._adopted
            and naming.is_own_key(info.key)
            and (
                info.key in dead
                or info.key in already
                or naming.is_unowned_key(info.key)
                or naming.is_sidecar_key(info.key)
                or _session_of(info) in self._gone
                # What lost attempts of a merged session left: it cannot be merged again with other content.
                or (info.key.startswith(naming.DATA) and _session_of(info) in self._merged)
            )
        ]
        self.fenced = [info for info in self.doomed if info.key in already]
        self._live = live

    def _live_and_dead(self) -> tuple[set[str], set[str]]:
        """Return the keys that live versions name, and those that only expired ones do.

        The latest versions are read first: once everything that was listed is known to be live, older lists
        have nothing to add.  Adopted shards belong to others, whatever their folder and names; they go
        to `_adopted`.  `adopt` takes no file that is called as shardio's own are, but other programs write
        lists too, and a file of theirs that is deleted is lost.
        """
        self._adopted: set[str] = set()
        newest = self._versions[::-1]
        lists = [
            {
                ref.key: ref
                for version in newest
                if (version.number in self.expired) is gone
                for ref in version.manifest.lists
            }
            for gone in (False, True)
        ]
        # Lists of sessions name no objects; each is live with the versions that name it.
        alive = [version for version in newest if version.number not in self.expired]
        live = {*lists[0], *(ref.key for version in alive for ref in version.manifest.session_lists)}
        # The names of a run's parts say whose they are.
        runs = {run.key for version in alive for index in version.manifest.keys for run in index.runs}
        live |= {info.key for info in self._objects if naming.key_run_of(info.key) in runs}
        dead = set(lists[1]) - live
        unknown = {
            info.key
            for info in self._objects
            if info.key.startswith((naming.DATA, naming.INDEXES, naming.TABLES))
        }
        unknown = {key for key in unknown if naming.is_own_key(key)}
        for key, named in self._read(list(lists[0].values()), missing_ok=False, wanted=unknown):
            live |= {key, *named[0]}
            self._adopted |= named[1]
        if unknown:
            for key, named in self._read(list(lists[1].values()), missing_ok=True, wanted=None):
                dead |= {key, *named[0]}
                self._adopted |= named[1]
        return live, dead - live

    def _read(
        self, refs: list[ListRef], *, missing_ok: bool, wanted: set[str] | None
    ) -> Iterable[tuple[str, tuple[frozenset[str], frozenset[str]]]]:
        """Yield what lists name, own and adopted, until nothing is `wanted` any more."""
        unread = [ref for ref in refs if ref.key not in self._named]
        for ref in refs:
            if ref.key in self._named:
                yield from self._keys_of(ref, missing_ok=missing_ok, wanted=wanted)
        # Small steps first: the latest lists mostly name everything.
        step = 16
        for begin in range(0, len(unread), step):
            if wanted is not None and not wanted:
                return
            part = unread[begin : begin + step]
            for ref, table in zip(
                part, self.catalog.store.concurrently(self.catalog.find_shards, part), strict=True
            ):
                self._named[ref.key] = None if table is None else _keys(table)
                yield from self._keys_of(ref, missing_ok=missing_ok, wanted=wanted)

    def _keys_of(
        self, ref: ListRef, *, missing_ok: bool, wanted: set[str] | None
    ) -> Iterable[tuple[str, tuple[frozenset[str], frozenset[str]]]]:
        named = self._named[ref.key]
        if named is None:
            if not missing_ok:
                self.catalog.shards_of(ref)  # raises, in its own words
            # The list of a version that expired earlier is gone, and so are its shards.
            return
        if wanted is not None:
            wanted -= named[0]
            wanted -= named[1]
        yield ref.key, named


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


def _keys(table: ShardTable) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys of shardio's own that a list names, and those of adopted shards under root 0."""
    own: set[str] = set()
    theirs: set[str] = set()
    for shard in table:
        if not shard.adopted:
            own.add(shard.key)
        elif not shard.root:
            theirs.add(shard.key)
        own.add(shard.usual_index_key)
        if shard.deletion_key:
            own.add(shard.deletion_key)
        if shard.table_key:
            own.add(shard.table_key)
    return frozenset(own), frozenset(theirs)


def _unclaimed(objects: Iterable[ObjectInfo], known: set[str]) -> dict[str, int]:
    """Return the bytes of objects by session, but for the sessions that are known."""
    found: dict[str, int] = {}
    for info in objects:
        owner = _session_of(info)
        if owner and owner not in known:
            found[owner] = found.get(owner, 0) + info.size
    return found


def _session_of(info: ObjectInfo) -> str | None:
    receipt = naming.ReceiptKey.parse(info.key)
    if receipt is not None:
        return receipt.session
    data = naming.DataKey.parse(info.key)
    return data.session if data is not None else None
