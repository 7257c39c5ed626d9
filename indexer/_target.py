"""Where the dataset goes: beside its shards, where the caller says, or to the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.errors import ShardioError
from shardio.storage import RemoteStore, connect
from shardio_indexer._place import Place, common_folder
from shardio_indexer._shard import Shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardio.storage import Store
    from shardio_indexer._places import Search
    from shardio_indexer._splits import Splits

__all__ = ["Target", "choose_target", "lay_out"]


class Target(NamedTuple):
    """The dataset's own place.

    Attributes:
        place: where it lies.
        store: what writes there.
        options: storage options of it.
        note: why it lies somewhere else than beside the shards, or "".
    """

    place: Place
    store: Store
    options: Mapping[str, Any] | None
    note: str


def choose_target(
    search: Search,
    into: str | None,
    *,
    storage_options: Mapping[str, Any] | None,
    into_options: Mapping[str, Any] | None,
) -> Target:
    """Choose the dataset's place.

    Raises:
        ValueError: the shards have no folder in common, and the caller names no other one.
        StorageError: the caller's place cannot be written.
    """
    if into is not None:
        place = Place.parse(into)
        options = into_options if into_options is not None else _same_kind(place, search, storage_options)
        return _target(place, options, "")
    root = common_folder(search.folders)
    if root is None:
        places = ", ".join(sorted({place.url for place in search.folders}))
        message = (
            f"these shards have no folder in common ({places}): say where the dataset shall go with into="
        )
        raise ValueError(message)
    target = _target(root, storage_options, "")
    reason = _cannot_write(target.store)
    if reason is None:
        return target
    cache = _cache_folder(root)
    note = f"{root.url} cannot be written ({reason}), so the dataset lies in {cache.url}"
    return _target(cache, None, note)


def lay_out(search: Search, target: Target, splits: Splits) -> tuple[list[Shard], list[str]]:
    """Return the shards with their data roots, and the URLs that no split's pattern matches."""
    roots = _roots(search.folders)
    shards, left = [], []
    for place, found in search.shards.items():
        key = place.below(target.place)
        root = ""
        if key is None:
            folder = next(root for root in roots if place.below(root) is not None)
            root, key = folder.url, place.below(folder)
        assert key is not None  # noqa: S101 - for the type checker
        split = splits.of(key)
        if split is None:
            left.append(place.url)
            continue
        shards.append(
            Shard(
                split=split,
                root=root,
                key=key,
                url=place.url,
                size=found.size,
                stamp=found.stamp,
                doubtful=place in search.doubtful,
            )
        )
    return shards, left


def _target(place: Place, options: Mapping[str, Any] | None, note: str) -> Target:
    given = options if place.scheme else None
    return Target(place, connect(place.url, storage_options=given), given, note)


def _same_kind(place: Place, search: Search, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the shards' storage options where the dataset lies in the same kind of storage."""
    return options if any(folder.scheme == place.scheme for folder in search.folders) else None


def _roots(folders: Iterable[Place]) -> list[Place]:
    """Return one data root a disk, bucket or web server."""
    groups: dict[tuple[str, str], list[Place]] = {}
    for folder in folders:
        groups.setdefault((folder.scheme, folder.parts[0] if folder.scheme else ""), []).append(folder)
    roots = []
    for group in groups.values():
        root = common_folder(group)
        roots += [root] if root is not None else list(dict.fromkeys(group))
    return roots


def _cannot_write(store: Store) -> str | None:
    """Return why nothing can be written, or None."""
    if store.read_only:
        return store.read_only_reason
    if store.is_local:
        folder = pathlib.Path(store.url)
        while not folder.exists():
            folder = folder.parent
        return None if os.access(folder, os.W_OK | os.X_OK) else "no permission"
    if isinstance(store, RemoteStore):
        try:
            store.probe()
        except ShardioError as error:
            return str(error.found or error.what)
    return None


def _cache_folder(root: Place) -> Place:
    """Return the folder in the user's cache for shards that lie under a root."""
    home = pathlib.Path.home()
    cache = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    digest = hashlib.sha256(root.url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Place.parse(str(cache / "shardio" / "adopted" / digest))
