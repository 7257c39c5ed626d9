"""Datasets that are damaged on purpose, and what reading them may do: raise, or return what is right."""

from __future__ import annotations

from pathlib import Path

import shardio
from shardio.catalog import Catalog
from shardio.errors import ShardioError
from shardio.metadata import naming
from shardio.storage import connect


class Victim:
    """A small dataset of one kind in one place, and how its objects are replaced."""

    def __init__(self, url: str, payloads: list[bytes]) -> None:
        self.url = url
        self.payloads = payloads
        self.store = connect(url)
        self.objects = {
            info.key: self.store.get(info.key, max_bytes=1 << 20)
            for info in self.store.list()
            if not info.key.startswith("_shardio/sessions/") and info.key != "_shardio/latest"
        }
        catalog = Catalog(self.store)
        latest = catalog.latest()
        keys = [] if latest is None else catalog.table(latest).key
        places = {key: place for place, key in enumerate(keys)}
        self._order = lambda key: (places.get(key.removesuffix(naming.INDEX_SUFFIX), len(places)), key)

    def put(self, key: str, data: bytes | None) -> None:
        """Put other bytes under a key, or none; an inode is never changed, for it may be mapped."""
        if self.store.is_local:
            path = Path(self.url, key)
            path.unlink(missing_ok=True)
            if data is not None:
                path.write_bytes(data)
        else:
            self.store.delete(key)
            if data is not None:
                self.store.put_if_absent(key, data)

    def restore(self, *keys: str) -> None:
        for key in keys:
            self.put(key, self.objects[key])

    def of_kind(self, end: str) -> list[str]:
        """Return keys: ".tfrecord" (whatever its compression), ".shardidx", ".list" or ".manifest".

        Of shards and indexes those of the dataset come first, in its order.
        """
        if end == ".tfrecord":
            keys = [key for key in self.objects if key.startswith("data/") and not key.endswith(".shardidx")]
        else:
            keys = [key for key in self.objects if key.endswith(end)]
        return sorted(keys, key=self._order)


def by_iteration(url: str) -> list[bytes]:
    return list(shardio.open(url, "all", decode=False))


def by_lookup(url: str) -> list[bytes]:
    ds = shardio.open(url, "all", decode=False)
    return [ds[k] for k in range(len(ds))]


def by_batch(url: str) -> list[bytes]:
    ds = shardio.open(url, "all", decode=False)
    return ds.read(list(range(len(ds)))[::-1])[::-1]


WAYS = {"iteration": by_iteration, "lookup": by_lookup, "batch": by_batch}


def found_out(url: str, way: str) -> ShardioError | None:
    """Read everything one way; return the error of ours that it gives, or None if it gives none."""
    try:
        WAYS[way](url)
    except ShardioError as error:
        return error
    return None
