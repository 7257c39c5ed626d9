"""Manifests and lists: taken from a mirror by digest, or made again from what is left and proven by digest.

Promises: what is stored under a name that a digest names are the very bytes of that digest; nothing is made
up.  Manifests and lists are the one kind of object that repair writes over: they are sealed, so that what is
damaged is known to be, their names are bound to what names them, and while the latest cannot be read no
version can be committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from shardio.catalog import Catalog, Version
from shardio.errors import (
    FormatError,
    NotFoundError,
    ShardioError,
    UnsupportedVersionError,
)
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
_TAKE_AWAY = "without a copy, remove the object, and repair makes a manifest from what is left"


@dataclass
class Metadata(Repairs):
    """What became of manifests and lists.

    Attributes:
        top: number of the latest version that is known to have been committed; 0 for none.
        versions: those that can be read (or could, once repaired), by number.
    """

    top: int = 0
    versions: dict[int, Version] = field(default_factory=dict)


def mend_metadata(catalog: Catalog, mirror: Catalog | None, *, digest: str | None, dry_run: bool) -> Metadata:
    """Repair manifests, lists of shards and lists of sessions of all versions that did not expire.

    Args:
        catalog: of the dataset.
        mirror: a copy of it, or None.
        digest: of the latest version, where the caller knows it.
        dry_run: change nothing.

    Raises:
        FormatError: the mirror is another dataset.
        UnsupportedVersionError: a newer shardio wrote a manifest.
        StorageError: the environment failed.
    """
    work = _Work(catalog, mirror, digest, dry_run)
    work.mend_manifests()
    work.mend_lists()
    return work.out


@dataclass(eq=False, repr=False)
class _Work:
    catalog: Catalog
    mirror: Catalog | None
    digest: str | None
    dry_run: bool
    out: Metadata = field(default_factory=Metadata)

    def __post_init__(self) -> None:
        self.store = self.catalog.store

    # Manifests.

    def mend_manifests(self) -> None:
        """Read all manifests from the latest to the first; each names the one before by SHA-256."""
        out = self.out
        hinted = self.catalog.hinted()
        listed = _listed(self.store)
        there = _listed(self.mirror.store) if self.mirror is not None else set()
        out.top = max({hinted, *listed}) or max(there, default=0)
        numbers = list(range(out.top, 0, -1))
        found = dict(zip(numbers, self.store.concurrently(self._read, numbers), strict=True))
        self._check_uuids(found)
        self._check_mirror(found.values())
        for number in numbers:
            state = found[number]
            if isinstance(state, Version):
                child = out.versions.get(number + 1)
                if child is None or child.manifest.parent_sha256 == state.sha256:
                    out.versions[number] = state
                    continue
                url = self.store.url_of(naming.manifest_key(number))
                wanted = child.manifest.parent_sha256
                state = FormatError(
                    f"a manifest is not the one that version {number + 1} was built on",
                    url=url,
                    expected=f"SHA-256 {wanted.hex()}",
                    found=f"SHA-256 {state.sha256.hex()}",
                )
            self._mend_manifest(number, state, out.versions.get(number - 1) or found.get(number - 1))

    def _read(self, number: int) -> Version | ShardioError:
        try:
            return self.catalog.load(number, known_live=True)
        except UnsupportedVersionError:
            raise
        except (FormatError, NotFoundError) as error:
            return error

    def _check_uuids(self, found: dict[int, Version | ShardioError]) -> None:
        """Take a manifest of another dataset for what it is: a damaged one."""
        read = [each for each in found.values() if isinstance(each, Version)]
        uuids = Counter(each.manifest.dataset_uuid for each in read).most_common(2)
        if len(uuids) < 2 or uuids[0][1] == uuids[1][1]:
            return
        for each in read:
            if each.manifest.dataset_uuid != uuids[0][0]:
                found[each.number] = FormatError(
                    "a manifest of another dataset is here",
                    url=self.store.url_of(naming.manifest_key(each.number)),
                    expected=f"dataset UUID {uuids[0][0].hex()}",
                    found=each.manifest.dataset_uuid.hex(),
                )

    def _check_mirror(self, found: Iterable[Version | ShardioError]) -> None:
        """Refuse a mirror that is another dataset."""
        if self.mirror is None:
            return
        own = next((each.manifest for each in found if isinstance(each, Version)), None)
        theirs = None
        for number in sorted(_listed(self.mirror.store), reverse=True):
            try:
                theirs = self.mirror.load(number, known_live=True).manifest
            except UnsupportedVersionError:
                raise
            except ShardioError:
                continue
            break
        if theirs is None:
            raise NotFoundError(
                "the mirror has no manifest that can be read",
                url=self.mirror.store.url,
                advice="name a copy of the whole dataset as mirror",
            )
        if own is not None and own.dataset_uuid != theirs.dataset_uuid:
            raise FormatError(
                "the mirror is another dataset",
                url=self.mirror.store.url,
                expected=f"dataset UUID {own.dataset_uuid.hex()}",
                found=theirs.dataset_uuid.hex(),
                advice="name a copy of this dataset as mirror",
            )

    def _mend_manifest(self, number: int, error: ShardioError, before: Version | ShardioError | None) -> None:
        key = naming.manifest_key(number)
        url = self.store.url_of(key)
        missing = isinstance(error, NotFoundError)
        kind = "missing" if missing else "manifest"
        child = self.out.versions.get(number + 1)
        copy = self._mirrored(number)
        if copy is None:
            advice = _MIRROR if child is not None else f"{_MIRROR}; {_TAKE_AWAY}"
            if missing and child is None:
                return  # the latest is gone: it is made again from what is left
            self.out.leave(kind, error, advice, url=url)
            return
        data, version = copy
        if child is not None:
            proven = version.sha256 == child.manifest.parent_sha256
        else:
            proven = self._is_latest(version, missing=missing, before=before)
        if not proven:
            advice = (
                "the mirror's manifest of this version is another one"
                if child is not None or self.digest is not None
                else f"nothing left here proves that the mirror's manifest of version {number} is the one "
                f"that was here: if it is, give digest={version.digest!r}"
            )
            self.out.leave(kind, error, advice, url=url)
            return
        self._restore(key, data, "manifest", missing=missing)
        self.out.versions[number] = version

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

    def mend_lists(self) -> None:
        """Read the lists of all versions that did not expire."""
        if not self.out.versions:
            return
        latest = self.out.versions[max(self.out.versions)]
        expired = set(latest.manifest.expiry.expired_versions)
        live = [version for number, version in sorted(self.out.versions.items()) if number not in expired]
        for sessions in (False, True):
            refs = {
                ref.key: (ref, version)
                for version in reversed(live)
                for ref in (version.manifest.session_lists if sessions else version.manifest.lists)
            }
            wanted = list(refs.values())
            states = self.store.concurrently(
                partial(self._state, sessions=sessions), [ref for ref, _ in wanted]
            )
            for (ref, version), error in zip(wanted, states, strict=True):
                if error is not None:
                    self._mend_list(ref, version, error, sessions=sessions)

    def _state(self, ref: ListRef, *, sessions: bool) -> ShardioError | None:
        try:
            if sessions:
                self.catalog.sessions_of(ref)
            else:
                self.catalog.shards_of(ref)
        except UnsupportedVersionError:
            raise
        except FormatError as error:
            return error
        return None

    def _mend_list(self, ref: ListRef, version: Version, error: ShardioError, *, sessions: bool) -> None:
        source, data = "mirror", None
        if self.mirror is not None:
            data = self._list_data(self.mirror.store, ref, sessions=sessions)
        if data is None:
            source, data = "left over", self._rebuilt(ref, version, sessions=sessions)
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

    def _rebuilt(self, ref: ListRef, version: Version, *, sessions: bool) -> bytes | None:
        """Return a list made again from what is left, where its digest proves it."""
        if sessions:
            return self._made_sessions(ref)
        refs = list(version.manifest.lists)
        begin = sum(each.shards for each in refs[: refs.index(ref)])
        parent = self.out.versions.get(version.number - 1)
        try:
            before = ShardTable.from_entries([]) if parent is None else self.catalog.table(parent)
        except ShardioError:
            before = ShardTable.from_entries([])
        merged = {each.session for each in version.manifest.sessions if each.version == version.number}
        own = entries_of(
            self.store,
            [
                info.key
                for info in (self.store.list(naming.DATA) if merged else ())
                if not info.key.endswith(naming.INDEX_SUFFIX)
                and (name := naming.DataKey.parse(info.key)) is not None
                and name.session in merged
            ],
            len(version.manifest.schemas),
        )
        for whole in (
            ShardTable.concatenate([before, ShardTable.from_entries(own)]),
            ShardTable.from_entries(own),
        ):
            if begin + ref.shards > len(whole):
                continue
            table = whole.take(range(begin, begin + ref.shards))
            data, sha256 = pack_list(table)
            if sha256 == ref.sha256:
                return data
        return None

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
        if not self.dry_run:
            if not missing:
                self.store.overwrite(key, data)
            else:
                put_object(self.store, key, data)
        by = None if self.dry_run else key
        self.out.repaired.append(
            Repaired(how="restored", what=what, url=self.store.url_of(key), by=by, source=source)
        )


def entries_of(store: Store, keys: Iterable[str], schema: int) -> list[ShardEntry]:
    """Return shards as their indexes describe them, by session, task and sequence.

    Those whose index is not there, or damaged, are left out.
    """
    found = []
    for key in keys:
        name = naming.DataKey.parse(key)
        if name is None:
            continue
        try:
            with store.open(naming.usual_index_key(key)) as index:
                head = read_head(index, DEFAULT_LIMITS)
        except (FormatError, NotFoundError):
            continue
        entry = ShardEntry.of_index(head, split=name.split, key=key)
        found.append(((name.session, name.task, name.sequence, name.attempt), entry))
    return [replace(entry, schema=schema) for _, entry in sorted(found, key=lambda item: item[0])]


def _listed(store: Store) -> set[int]:
    try:
        found = {naming.manifest_version(info.key) for info in store.list(naming.MANIFESTS)}
    except CannotListError:
        # A web server: what the hint names, and all before it.
        return set(range(1, Catalog(store).hinted() + 1))
    return {number for number in found if number is not None}
