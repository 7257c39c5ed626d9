"""Manifests, lists and indexes of keys: from a mirror by digest; a list also made again where it proves it.

Promise: nothing is made up.  What is damaged here is written over: a digest names it, so that it is known to
be damaged, and while the latest manifest cannot be read no version can be committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from shardio.catalog import Catalog, Version
from shardio.errors import FormatError, NotFoundError, ShardioError, UnsupportedVersionError
from shardio.format import DEFAULT_LIMITS
from shardio.keys import StoredRun
from shardio.lifecycle._mirror import Named, Restorer
from shardio.metadata import (
    KeyRunRef,
    ListRef,
    ShardEntry,
    ShardTable,
    naming,
    pack_list,
    parse_manifest,
    seal_sessions,
)
from shardio.reader import read_head
from shardio.storage import CannotListError, Store, read_intact

T = TypeVar("T")

_MIRROR = "name a copy of the dataset with mirror="


def repair_metadata(catalog: Catalog, restorer: Restorer, digest: str | None) -> dict[int, Version]:
    """Repair what versions that did not expire name; return those that can be read (or could), by number.

    Args:
        catalog: of the dataset.
        restorer: puts objects back.
        digest: of the latest version, where the caller knows it.

    Raises:
        FormatError: the mirror is another dataset.
        NotFoundError: neither the dataset nor the mirror has a manifest.
        UnsupportedVersionError: a newer shardio wrote a manifest.
        StorageError: the environment failed.
    """
    versions = _repair_manifests(catalog, restorer, digest)
    if not versions:
        return versions
    latest = versions[max(versions)].manifest
    objects: dict[str, tuple[Named[Any], Iterator[bytes]]] = {}
    for number in sorted(versions.keys() - {*latest.expiry.expired_versions}, reverse=True):
        manifest = versions[number].manifest
        for ref in manifest.lists:
            objects[ref.key] = _named_list(ref), _made_lists(catalog, versions, number, ref)
        for ref in manifest.session_lists:
            objects[ref.key] = _named_sessions(ref), _made_sessions(versions, ref)
    for run in (run for index in latest.keys for run in index.runs):
        objects[run.key] = _named_run(run), iter(())
    named = [each for each, _ in objects.values()]
    found = catalog.store.concurrently(partial(_read, catalog.store), named)
    for (each, made), error in zip(objects.values(), [*found], strict=True):
        if isinstance(error, ShardioError):
            _repair_object(restorer, each, made, error)
    return versions


def _read(store: Store, named: Named[T]) -> T | ShardioError:
    """Return an object's content, or the error of reading it."""
    try:
        return named.read(store)
    except UnsupportedVersionError:
        raise
    except (FormatError, NotFoundError) as error:
        return error


def _repair_object(restorer: Restorer, named: Named[Any], made: Iterator[bytes], error: ShardioError) -> None:
    """Put an object back from the mirror, or from bytes that it may have been; else say that it stays so."""
    missing = restorer.store.head(named.key) is None
    if restorer.restore(named, missing=missing) is not None:
        return
    for data in made:
        restorer.path_of(named.key).write_bytes(data)
        if not isinstance(_read(restorer.copies, named), ShardioError):
            restorer.put(named, missing=missing, source="left over")
            return
    advice = f"{_MIRROR}, or open an earlier version"
    if restorer.mirror is not None:
        advice = "the mirror does not have these bytes; name another copy of the dataset"
    elif named.what == "keys":
        advice = error.advice or advice
    restorer.out.leave(named.what, error, advice, url=restorer.store.url_of(named.key))


def _named_list(ref: ListRef) -> Named[Any]:
    return Named("list", ref.key, lambda store: Catalog(store).shards_of(ref), ref.size)


def _named_sessions(ref: ListRef) -> Named[Any]:
    return Named("list", ref.key, lambda store: Catalog(store).sessions_of(ref), ref.size)


def _named_run(ref: KeyRunRef) -> Named[Any]:
    return Named("keys", ref.key, lambda store: deque(StoredRun(store, ref, DEFAULT_LIMITS), 0), ref.size)


# Manifests.


def _named_manifest(number: int) -> Named[Version]:
    key, most = naming.manifest_key(number), DEFAULT_LIMITS.manifest

    def read(store: Store) -> Version:
        def fetch() -> Version:
            return Version(*parse_manifest(store.get(key, max_bytes=most), version=number))

        return read_intact(fetch)

    return Named("manifest", key, read, most)


def _repair_manifests(catalog: Catalog, restorer: Restorer, digest: str | None) -> dict[int, Version]:
    """Read all manifests from the latest to the first; each names the one before by SHA-256."""
    store, mirror, versions = catalog.store, restorer.mirror, dict[int, Version]()
    theirs = None if mirror is None else _any_version(mirror)
    top = max({catalog.hinted(), *_numbers(store)}) or (theirs.number if theirs else 0)
    if not top:
        raise NotFoundError(
            "there is no shardio dataset here",
            url=store.url,
            advice="check the address; a single shard is salvaged with `shardio adopt --salvage`",
        )
    objects = [_named_manifest(number) for number in range(1, top + 1)]
    found = [None, *store.concurrently(partial(_read, store), objects)]
    own = {each.manifest.dataset_uuid for each in found if isinstance(each, Version)}
    if mirror is not None and theirs is not None and own and theirs.manifest.dataset_uuid not in own:
        raise FormatError(
            "the mirror is another dataset",
            url=mirror.url,
            expected=f"dataset UUID {min(own).hex()}",
            found=theirs.manifest.dataset_uuid.hex(),
            advice="name a copy of this dataset as mirror",
        )
    for number in range(top, 0, -1):
        state, child = found[number], versions.get(number + 1)
        wanted = f"sha256:{child.manifest.parent_sha256.hex()}" if child else digest and digest.lower()
        if isinstance(state, Version) and child and state.digest != wanted:
            what = f"a manifest is not the one that version {number + 1} was built on"
            state = FormatError(what, expected=wanted, found=state.digest)
        if isinstance(state, Version):
            versions[number] = state
            continue
        named, advice = objects[number - 1], _MIRROR
        copy, missing = restorer.fetch(named), isinstance(state, NotFoundError)
        if copy and (copy.digest == wanted if wanted else _is_latest(store, copy, found[number - 1])):
            restorer.put(named, missing=missing)
            versions[number] = copy
            continue
        if copy:
            advice = (
                "the mirror's manifest of this version is another one"
                if wanted
                else f"nothing left here proves that the mirror's manifest of version {number} is the one "
                f"that was here: if it is, give digest={copy.digest!r}"
            )
        assert state is not None  # noqa: S101 - for mypy: only that of version 0 is
        restorer.out.leave("manifest", state, advice, url=store.url_of(named.key))
    return versions


def _is_latest(store: Store, version: Version, before: object) -> bool:
    """Tell whether a manifest of the mirror is the latest one that stood here.

    Names of lists are random: one that is here, and in no version before, was stored for this one.
    """
    earlier: set[str] = set()
    if isinstance(before, Version):
        if before.sha256 != version.manifest.parent_sha256:
            return False
        earlier = {ref.key for ref in before.manifest.lists}
    own = [ref for ref in version.manifest.lists if ref.key not in earlier]
    return bool(own) and not any(isinstance(_read(store, _named_list(ref)), ShardioError) for ref in own)


def _any_version(mirror: Store) -> Version:
    """Return the latest version of the mirror whose manifest can be read."""
    for number in sorted(_numbers(mirror), reverse=True):
        found = _read(mirror, _named_manifest(number))
        if isinstance(found, Version):
            return found
    raise NotFoundError(
        "the mirror has no manifest that can be read",
        url=mirror.url,
        advice="name a copy of the whole dataset as mirror",
    )


def _numbers(store: Store) -> set[int]:
    """Return the numbers of the manifests that are there."""
    try:
        found = {naming.manifest_version(info.key) for info in store.list(naming.MANIFESTS)}
    except CannotListError:
        # A web server: what the hint names, and all before it.
        return set(range(1, Catalog(store).hinted() + 1))
    return {number for number in found if number is not None}


# Lists as they may have been.


def _made_lists(catalog: Catalog, versions: dict[int, Version], number: int, ref: ListRef) -> Iterator[bytes]:
    """Yield what a list may have been: of the shards before and those that its sessions' indexes name."""
    manifest = versions[number].manifest
    refs = list(manifest.lists)
    begin = sum(each.shards for each in refs[: refs.index(ref)])
    before: list[ShardEntry] = []
    with suppress(ShardioError, KeyError):
        before = list(catalog.table(versions[number - 1]))
    sessions = {naming.session_id(each.session) for each in manifest.sessions if each.version == number}
    own = _entries_of(catalog.store, sessions, len(manifest.schemas))
    for entries in ([*before, *own], own):
        yield pack_list(ShardTable.from_entries(entries[begin : begin + ref.shards]))[0]


def _entries_of(store: Store, session_ids: set[str], schema: int) -> list[ShardEntry]:
    """Return shards of sessions as their indexes describe them, by session, task and sequence."""
    found = []
    for info in store.list(naming.DATA) if session_ids else ():
        name = None if info.key.endswith(naming.INDEX_SUFFIX) else naming.DataKey.parse(info.key)
        if name is None or name.session_id not in session_ids:
            continue
        with suppress(FormatError, NotFoundError), store.open(naming.usual_index_key(info.key)) as index:
            head = read_head(index, DEFAULT_LIMITS)
            entry = replace(ShardEntry.of_index(head, split=name.split, key=info.key), schema=schema)
            found.append(((name.session_id, name.task, name.sequence, name.attempt), entry))
    return [entry for _, entry in sorted(found, key=lambda item: item[0])]


def _made_sessions(versions: dict[int, Version], ref: ListRef) -> Iterator[bytes]:
    """Yield what a list of sessions may have been: each stood in the manifest of its own version."""
    merged = [
        each
        for number, version in sorted(versions.items())
        for each in version.manifest.sessions
        if each.version == number
    ]
    for begin in range(len(merged) - ref.shards + 1):
        yield seal_sessions(merged[begin : begin + ref.shards])[0]
