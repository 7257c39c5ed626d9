"""Manifests and lists: taken from a mirror by digest, a list also made again where its digest proves it.

Promises: what is stored under a name that a digest names are the very bytes of that digest; nothing is made
up.  Manifests and lists are the one kind of object that repair writes over: they are sealed, so that what is
damaged is known to be, their names are bound to what names them, and while the latest cannot be read no
version can be committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardio.catalog import Catalog, Version
from shardio.errors import FormatError, NotFoundError, ShardioError, UnsupportedVersionError
from shardio.format import DEFAULT_LIMITS
from shardio.lifecycle._repair_report import Repaired, Repairs
from shardio.lifecycle._repair_shard import get_right, put_object
from shardio.metadata import (
    ListRef,
    ShardEntry,
    ShardTable,
    naming,
    pack_list,
    parse_list,
    parse_manifest,
    parse_sessions,
    seal_sessions,
)
from shardio.reader import read_head
from shardio.storage import CannotListError, Store

_SEAL = b"SHRDEND1"
_MIRROR = "name a copy of the dataset with mirror="


@dataclass
class RepairedMetadata(Repairs):
    """What became of manifests and lists.

    Attributes:
        top: number of the latest version that is known to have been committed; 0 for none.
        versions: those that can be read (or could, once repaired), by number.
    """

    top: int = 0
    versions: dict[int, Version] = field(default_factory=dict)


def repair_metadata(
    catalog: Catalog, mirror: Catalog | None, *, digest: str | None, dry_run: bool
) -> RepairedMetadata:
    """Repair manifests, lists of shards and lists of sessions of all versions that did not expire.

    Args:
        catalog: of the dataset.
        mirror: a copy of it, or None.
        digest: of the latest version, where the caller knows it.
        dry_run: change nothing.

    Raises:
        FormatError: the mirror is another dataset.
        NotFoundError: neither the dataset nor the mirror has a manifest.
        UnsupportedVersionError: a newer shardio wrote a manifest.
        StorageError: the environment failed.
    """
    work = _MetadataRepair(catalog, mirror, digest, dry_run)
    work.repair_manifests()
    work.repair_lists()
    return work.out


@dataclass(eq=False, repr=False)
class _MetadataRepair:
    catalog: Catalog
    mirror: Catalog | None
    digest: str | None
    dry_run: bool
    out: RepairedMetadata = field(default_factory=RepairedMetadata)

    def __post_init__(self) -> None:
        self.store = self.catalog.store

    # Manifests.

    def repair_manifests(self) -> None:
        """Read all manifests from the latest to the first; each names the one before by SHA-256."""
        out = self.out
        theirs = {} if self.mirror is None else _readable(self.mirror)
        if self.mirror is not None and not theirs:
            raise NotFoundError(
                "the mirror has no manifest that can be read",
                url=self.mirror.store.url,
                advice="name a copy of the whole dataset as mirror",
            )
        out.top = max({self.catalog.hinted(), *_numbers(self.store)}) or max(theirs, default=0)
        numbers = list(range(out.top, 0, -1))
        states = dict(zip(numbers, self.store.concurrently(self._read, numbers), strict=True))
        self._check_mirror(states, theirs)
        for number in numbers:
            state, child = states[number], out.versions.get(number + 1)
            if isinstance(state, Version) and child and child.manifest.parent_sha256 != state.sha256:
                state = FormatError(
                    f"a manifest is not the one that version {number + 1} was built on",
                    url=self.store.url_of(naming.manifest_key(number)),
                    expected=f"SHA-256 {child.manifest.parent_sha256.hex()}",
                    found=f"SHA-256 {state.sha256.hex()}",
                )
            if isinstance(state, Version):
                out.versions[number] = state
            else:
                self._repair_manifest(number, state, states.get(number - 1))

    def _read(self, number: int) -> Version | ShardioError:
        try:
            return self.catalog.load(number, known_live=True)
        except UnsupportedVersionError:
            raise
        except (FormatError, NotFoundError) as error:
            return error

    def _check_mirror(self, states: dict[int, Version | ShardioError], theirs: dict[int, Version]) -> None:
        """Refuse a mirror that is another dataset."""
        own = {each.manifest.dataset_uuid for each in states.values() if isinstance(each, Version)}
        other = {each.manifest.dataset_uuid for each in theirs.values()}
        if self.mirror is not None and own and not own & other:
            raise FormatError(
                "the mirror is another dataset",
                url=self.mirror.store.url,
                expected=f"dataset UUID {min(own).hex()}",
                found=min(other).hex(),
                advice="name a copy of this dataset as mirror",
            )

    def _repair_manifest(
        self, number: int, error: ShardioError, before: Version | ShardioError | None
    ) -> None:
        key = naming.manifest_key(number)
        missing = isinstance(error, NotFoundError)
        child = self.out.versions.get(number + 1)
        copy, advice = self._mirrored(number), _MIRROR
        if copy is not None:
            data, version = copy
            if child is not None:
                proven = version.sha256 == child.manifest.parent_sha256
            else:
                proven = self._is_latest(version, missing=missing, before=before)
            if proven:
                self._restore(key, data, "manifest", missing=missing)
                self.out.versions[number] = version
                return
            advice = (
                "the mirror's manifest of this version is another one"
                if child is not None or self.digest is not None
                else f"nothing left here proves that the mirror's manifest of version {number} is the one "
                f"that was here: if it is, give digest={version.digest!r}"
            )
        self.out.leave("missing" if missing else "manifest", error, advice, url=self.store.url_of(key))

    def _is_latest(self, version: Version, *, missing: bool, before: Version | ShardioError | None) -> bool:
        """Tell whether a manifest of the mirror is the latest one that stood here."""
        if self.digest is not None:
            return self.digest.lower() == version.digest
        if isinstance(before, Version) and before.sha256 != version.manifest.parent_sha256:
            return False
        if not missing:
            data = self.store.get(naming.manifest_key(version.number), max_bytes=self.catalog.limits.manifest)
            if data.endswith(_SEAL) and data[-40:-8] == version.sha256:
                return True
        # Names of lists are random: one that is here, and in no version before, was stored for this one.
        earlier = {ref.key for ref in before.manifest.lists} if isinstance(before, Version) else set()
        own = [ref for ref in version.manifest.lists if ref.key not in earlier]
        return bool(own) and all(self._list_data(self.store, ref, sessions=False) is not None for ref in own)

    def _mirrored(self, number: int) -> tuple[bytes, Version] | None:
        if self.mirror is None:
            return None

        def parse(data: bytes) -> Version:
            return Version(*parse_manifest(data, version=number))

        return get_right(self.mirror.store, naming.manifest_key(number), self.catalog.limits.manifest, parse)

    # Lists.

    def repair_lists(self) -> None:
        """Read the lists of all versions that did not expire."""
        versions = self.out.versions
        expired = set(versions[max(versions)].manifest.expiry.expired_versions) if versions else set()
        live = [
            version for number, version in sorted(versions.items(), reverse=True) if number not in expired
        ]
        wanted: dict[str, tuple[ListRef, Version, bool]] = {}
        for version in live:
            wanted |= {ref.key: (ref, version, False) for ref in version.manifest.lists}
            wanted |= {ref.key: (ref, version, True) for ref in version.manifest.session_lists}
        every = list(wanted.values())
        errors = self.store.concurrently(self._list_error, every)
        for (ref, version, sessions), error in zip(every, errors, strict=True):
            if error is not None:
                self._repair_list(ref, version, error, sessions=sessions)

    def _list_error(self, wanted: tuple[ListRef, Version, bool]) -> ShardioError | None:
        ref, _, sessions = wanted
        read: Callable[[ListRef], object] = self.catalog.sessions_of if sessions else self.catalog.shards_of
        try:
            read(ref)
        except UnsupportedVersionError:
            raise
        except FormatError as error:
            return error
        return None

    def _repair_list(self, ref: ListRef, version: Version, error: ShardioError, *, sessions: bool) -> None:
        source, data = "mirror", None
        if self.mirror is not None:
            data = self._list_data(self.mirror.store, ref, sessions=sessions)
        if data is None:
            source, data = (
                "left over",
                self._made_sessions(ref) if sessions else self._made_list(ref, version),
            )
        if data is None:
            advice = (
                "the mirror does not have these bytes; name another copy of the dataset"
                if self.mirror is not None
                else f"{_MIRROR}, or open an earlier version"
            )
            self.out.leave("list", error, advice, url=self.store.url_of(ref.key))
            return
        self._restore(ref.key, data, "list", missing=self.store.head(ref.key) is None, source=source)

    def _list_data(self, store: Store, ref: ListRef, *, sessions: bool) -> bytes | None:
        """Return the bytes of a list that a place has, where they are those that the manifest names."""

        def check(data: bytes) -> None:
            parse: Callable[[bytes], tuple[object, bytes]] = parse_sessions if sessions else parse_list
            if parse(data)[1] != ref.sha256:
                raise FormatError("a list is not the one that the manifest names", url=store.url_of(ref.key))

        found = get_right(store, ref.key, self.catalog.limits.manifest, check)
        return None if found is None else found[0]

    def _made_list(self, ref: ListRef, version: Version) -> bytes | None:
        """Return a list made of the shards before and its session's indexes; None if it is another."""
        refs = list(version.manifest.lists)
        begin = sum(each.shards for each in refs[: refs.index(ref)])
        parent = self.out.versions.get(version.number - 1)
        try:
            before = [] if parent is None else list(self.catalog.table(parent))
        except ShardioError:
            before = []
        sessions = (each.session for each in version.manifest.sessions if each.version == version.number)
        merged = {*map(naming.session_id, sessions)}
        own = self._entries_of(merged, len(version.manifest.schemas)) if merged else []
        for entries in ([*before, *own], own):
            part = entries[begin : begin + ref.shards]
            data, sha256 = pack_list(ShardTable.from_entries(part))
            if sha256 == ref.sha256:
                return data
        return None

    def _entries_of(self, session_ids: set[str], schema: int) -> list[ShardEntry]:
        """Return shards of sessions as their indexes describe them, by session, task and sequence."""
        found = []
        for info in self.store.list(naming.DATA):
            name = None if info.key.endswith(naming.INDEX_SUFFIX) else naming.DataKey.parse(info.key)
            if name is None or name.session_id not in session_ids:
                continue
            try:
                with self.store.open(naming.usual_index_key(info.key)) as index:
                    head = read_head(index, DEFAULT_LIMITS)
            except (FormatError, NotFoundError):
                continue
            entry = replace(ShardEntry.of_index(head, split=name.split, key=info.key), schema=schema)
            found.append(((name.session_id, name.task, name.sequence, name.attempt), entry))
        return [entry for _, entry in sorted(found, key=lambda item: item[0])]

    def _made_sessions(self, ref: ListRef) -> bytes | None:
        """Return a list of sessions from the manifests: each session stood in that of its own version."""
        merged = [
            each
            for number, version in sorted(self.out.versions.items())
            for each in version.manifest.sessions
            if each.version == number
        ]
        for begin in range(len(merged) - ref.shards + 1):
            data, sha256 = seal_sessions(merged[begin : begin + ref.shards])
            if sha256 == ref.sha256:
                return data
        return None

    def _restore(self, key: str, data: bytes, what: str, *, missing: bool, source: str = "mirror") -> None:
        """Store the very bytes that a digest names, under the name that they had."""
        if not self.dry_run and missing:
            put_object(self.store, key, data)
        elif not self.dry_run:
            self.store.overwrite(key, data)
        by = None if self.dry_run else key
        self.out.repaired.append(
            Repaired(how="restored", what=what, url=self.store.url_of(key), by=by, source=source)
        )


def _numbers(store: Store) -> set[int]:
    """Return the numbers of the manifests that are there."""
    try:
        found = {naming.manifest_version(info.key) for info in store.list(naming.MANIFESTS)}
    except CannotListError:
        # A web server: what the hint names, and all before it.
        return set(range(1, Catalog(store).hinted() + 1))
    return {number for number in found if number is not None}


def _readable(mirror: Catalog) -> dict[int, Version]:
    """Return the latest version of a mirror whose manifest can be read, by its number."""
    for number in sorted(_numbers(mirror.store), reverse=True):
        try:
            return {number: mirror.load(number, known_live=True)}
        except UnsupportedVersionError:
            raise
        except ShardioError:
            continue
    return {}
