"""Manifests and lists: taken from a mirror by digest, a list also made again where its digest proves it.

Promises: what is stored under a name that a digest names are the very bytes of that digest; nothing is made
up.  Manifests and lists are the one kind of object that repair writes over: they are sealed, so that what is
damaged is known to be, their names are bound to what names them, and while the latest cannot be read no
version can be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
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

_MIRROR = "name a copy of the dataset with mirror="


@dataclass
class RepairedMetadata(Repairs):
    """What became of manifests and lists.

    Attributes:
        versions: those that can be read (or could, once repaired), by number.
    """

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
        self.copy = None if self.mirror is None else self.mirror.store

    # Manifests.

    def repair_manifests(self) -> None:
        """Read all manifests from the latest to the first; each names the one before by SHA-256."""
        versions = self.out.versions
        theirs = self._read_mirror()
        top = max({self.catalog.hinted(), *_numbers(self.store)}) or (theirs.number if theirs else 0)
        if not top:
            raise NotFoundError(
                "there is no shardio dataset here",
                url=self.store.url,
                advice="check the address; a single shard is salvaged with `shardio adopt --salvage`",
            )
        numbers = list(range(top, 0, -1))
        states = dict(zip(numbers, self.store.concurrently(self._read, numbers), strict=True))
        own = {each.manifest.dataset_uuid for each in states.values() if isinstance(each, Version)}
        if theirs is not None and own and theirs.manifest.dataset_uuid not in own:
            raise FormatError(
                "the mirror is another dataset",
                url=None if self.copy is None else self.copy.url,
                expected=f"dataset UUID {min(own).hex()}",
                found=theirs.manifest.dataset_uuid.hex(),
                advice="name a copy of this dataset as mirror",
            )
        for number in numbers:
            state, child = states[number], versions.get(number + 1)
            if isinstance(state, Version) and child and child.manifest.parent_sha256 != state.sha256:
                state = FormatError(
                    f"a manifest is not the one that version {number + 1} was built on",
                    expected=f"SHA-256 {child.manifest.parent_sha256.hex()}",
                    found=f"SHA-256 {state.sha256.hex()}",
                )
            if isinstance(state, Version):
                versions[number] = state
            else:
                self._repair_manifest(number, state, states.get(number - 1))

    def _read(self, number: int) -> Version | ShardioError:
        try:
            return self.catalog.load(number, known_live=True)
        except UnsupportedVersionError:
            raise
        except (FormatError, NotFoundError) as error:
            return error

    def _read_mirror(self) -> Version | None:
        """Return the latest version of the mirror whose manifest can be read."""
        if self.mirror is None:
            return None
        for number in sorted(_numbers(self.mirror.store), reverse=True):
            try:
                return self.mirror.load(number, known_live=True)
            except UnsupportedVersionError:
                raise
            except ShardioError:
                continue
        raise NotFoundError(
            "the mirror has no manifest that can be read",
            url=self.mirror.store.url,
            advice="name a copy of the whole dataset as mirror",
        )

    def _repair_manifest(
        self, number: int, error: ShardioError, before: Version | ShardioError | None
    ) -> None:
        key, child, advice = naming.manifest_key(number), self.out.versions.get(number + 1), _MIRROR
        missing = isinstance(error, NotFoundError)
        copy = get_right(
            self.copy,
            key,
            self.catalog.limits.manifest,
            lambda data: Version(*parse_manifest(data, version=number)),
        )
        if copy is not None:
            data, version = copy
            if child is not None:
                proven = version.sha256 == child.manifest.parent_sha256
            elif self.digest is not None:
                proven = self.digest.lower() == version.digest
            else:
                proven = self._is_latest(version, before)
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

    def _is_latest(self, version: Version, before: Version | ShardioError | None) -> bool:
        """Tell whether a manifest of the mirror is the latest one that stood here.

        Names of lists are random: one that is here, and in no version before, was stored for this one.
        """
        earlier: set[str] = set()
        if isinstance(before, Version):
            if before.sha256 != version.manifest.parent_sha256:
                return False
            earlier = {ref.key for ref in before.manifest.lists}
        own = [ref for ref in version.manifest.lists if ref.key not in earlier]
        return bool(own) and all(self._list_data(self.store, ref, parse_list) is not None for ref in own)

    # Lists.

    def repair_lists(self) -> None:
        """Read the lists of all versions that did not expire."""
        versions = self.out.versions
        expired = set(versions[max(versions)].manifest.expiry.expired_versions) if versions else set()
        wanted: dict[str, tuple[ListRef, Version | None]] = {}
        for number in sorted(versions.keys() - expired, reverse=True):
            manifest = versions[number].manifest
            wanted |= {ref.key: (ref, versions[number]) for ref in manifest.lists}
            wanted |= {ref.key: (ref, None) for ref in manifest.session_lists}
        errors = self.store.concurrently(self._list_error, [*wanted.values()])
        for (ref, version), error in zip(wanted.values(), errors, strict=True):
            if error is not None:
                self._repair_list(ref, version, error)

    def _list_error(self, wanted: tuple[ListRef, Version | None]) -> ShardioError | None:
        read: Callable[[ListRef], object] = self.catalog.shards_of if wanted[1] else self.catalog.sessions_of
        try:
            read(wanted[0])
        except UnsupportedVersionError:
            raise
        except FormatError as error:
            return error
        return None

    def _repair_list(self, ref: ListRef, version: Version | None, error: ShardioError) -> None:
        source, data = "mirror", self._list_data(self.copy, ref, parse_list if version else parse_sessions)
        if data is None:
            source = "left over"
            made = self._made_sessions(ref) if version is None else self._made_lists(ref, version)
            data = next((data for data, sha256 in made if sha256 == ref.sha256), None)
        if data is None:
            advice = (
                "the mirror does not have these bytes; name another copy of the dataset"
                if self.mirror is not None
                else f"{_MIRROR}, or open an earlier version"
            )
            self.out.leave("list", error, advice, url=self.store.url_of(ref.key))
            return
        self._restore(ref.key, data, "list", missing=self.store.head(ref.key) is None, source=source)

    def _list_data(
        self, store: Store | None, ref: ListRef, parse: Callable[[bytes], tuple[object, bytes]]
    ) -> bytes | None:
        """Return the bytes of a list that a place has, where they are those that the manifest names."""

        def check(data: bytes) -> None:
            if parse(data)[1] != ref.sha256:
                raise FormatError("a list is not the one that the manifest names")

        found = get_right(store, ref.key, self.catalog.limits.manifest, check)
        return None if found is None else found[0]

    def _made_lists(self, ref: ListRef, version: Version) -> Iterator[tuple[bytes, bytes]]:
        """Yield what a list may have been: of the shards before and those that its sessions' indexes name."""
        refs = list(version.manifest.lists)
        begin = sum(each.shards for each in refs[: refs.index(ref)])
        before: list[ShardEntry] = []
        with suppress(ShardioError, KeyError):
            before = list(self.catalog.table(self.out.versions[version.number - 1]))
        sessions = (each.session for each in version.manifest.sessions if each.version == version.number)
        own = self._entries_of({*map(naming.session_id, sessions)}, len(version.manifest.schemas))
        for entries in ([*before, *own], own):
            yield pack_list(ShardTable.from_entries(entries[begin : begin + ref.shards]))

    def _entries_of(self, session_ids: set[str], schema: int) -> list[ShardEntry]:
        """Return shards of sessions as their indexes describe them, by session, task and sequence."""
        found = []
        for info in self.store.list(naming.DATA) if session_ids else ():
            name = None if info.key.endswith(naming.INDEX_SUFFIX) else naming.DataKey.parse(info.key)
            if name is None or name.session_id not in session_ids:
                continue
            with (
                suppress(FormatError, NotFoundError),
                self.store.open(naming.usual_index_key(info.key)) as index,
            ):
                head = read_head(index, DEFAULT_LIMITS)
                entry = replace(ShardEntry.of_index(head, split=name.split, key=info.key), schema=schema)
                found.append(((name.session_id, name.task, name.sequence, name.attempt), entry))
        return [entry for _, entry in sorted(found, key=lambda item: item[0])]

    def _made_sessions(self, ref: ListRef) -> Iterator[tuple[bytes, bytes]]:
        """Yield what a list of sessions may have been: each stood in the manifest of its own version."""
        merged = [
            each
            for number, version in sorted(self.out.versions.items())
            for each in version.manifest.sessions
            if each.version == number
        ]
        for begin in range(len(merged) - ref.shards + 1):
            yield seal_sessions(merged[begin : begin + ref.shards])

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
