"""Features that folders of adopted shards tell, `year=2020/part-0.tfrecord`, and their records do not hold.

A version names them.  Records of shards that shardio wrote hold them as any other feature; records of adopted
shards have one value a shard, whatever else they hold under that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import starmap
from typing import Any, NoReturn, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio.codecs import RecordCodec, as_list, collate, record_codec
from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema, ShardTable
from shardio.sources import FolderKey, key_value, keys_of_shard

# By the names of features, for each shard the value that folders tell, None where none does, or HELD.
Told: TypeAlias = "dict[str, NDArray[np.object_]]"
HELD = object()  # the records of the shard hold the feature themselves


def told_by_folders(
    table: ShardTable, roots: Mapping[int, str], schema: Schema, partitions: Sequence[str]
) -> Told:
    """Return what folders tell of the shards of a table.

    Args:
        table: the shards.
        roots: URLs of data roots, by number.
        schema: of the dataset.
        partitions: the names under which records would hold the features.

    Raises:
        SchemaError: a folder says what does not fit its feature, or none a required one; names it.
    """
    features = {name: schema[name] for name in schema.called(partitions)}
    told = {name: np.full(len(table), HELD, object) for name in features}
    known: dict[tuple[int, str], dict[str, Any]] = {}
    etags, keys, numbers = table.etag, table.key, table.root.tolist()
    for shard, root in enumerate(numbers):
        if not (root or etags[shard]):
            continue
        folder = keys[shard].rpartition("/")[0]
        if (root, folder) not in known:
            said = keys_of_shard(roots.get(root, ""), keys[shard])
            known[root, folder] = {name: _value(said, name, each) for name, each in features.items()}
        for name, value in known[root, folder].items():
            told[name][shard] = value
    return told


def _value(said: Mapping[str, str | None], name: str, feature: Feature) -> Any:
    """Return the value of a feature that folders tell, None where they tell none."""
    value = key_value(said.get(feature.stored_name or name), name, feature)
    if value is not None:
        return feature.restore(feature.fit(value, name))
    if not feature.optional:
        raise SchemaError(
            f"no folder of a shard tells the feature {name!r}, which the schema requires",
            found=", ".join(map(FolderKey.__str__, starmap(FolderKey, said.items()))) or "no such folder",
            advice="let it be missing: shardio schema set URL --feature "
            f'\'{name}={{"type": "{feature.short}", "optional": true}}\'',
        )
    return None


class PartitionedCodec(RecordCodec):
    """A codec that adds to the values of another one what the folders of their shards say.

    Args:
        schema: of all features.
        features: those that are decoded; None for all.
        told: what folders say.
        inner: of the features that no folder tells, decoding those that are wanted.
        own: of those that folders tell, for records that hold them all the same.
    """

    by_shard = True

    def __init__(
        self,
        schema: Schema,
        features: Sequence[str] | None,
        told: Told,
        inner: RecordCodec,
        own: RecordCodec,
    ) -> None:
        self.schema: Schema | None = schema
        self.features = None if features is None else tuple(features)
        self.inner: RecordCodec = inner
        self._told = {name: column.copy() for name, column in told.items()}
        for name, column in self._told.items():
            column[[item is None for item in column]] = schema[name].default
        self._types = {name: schema[name] for name in told}
        self._own = own
        self._held = np.array(
            [any(item is HELD for item in of) for of in zip(*told.values(), strict=True)], bool
        )
        self._shards: NDArray[np.int64] | None = None
        inner.decode_batch([], features=self._divided(None)[1])  # names the feature that does not exist

    def of_shards(self, numbers: NDArray[np.int64]) -> Self:
        """Return this codec for one call, whose records are of the shards with these numbers."""
        other = copy(self)
        other._shards = numbers  # noqa: SLF001 - its own
        return other

    def encode(self, value: Any) -> NoReturn:
        """Refuse: a record does not say in which folder it is."""
        del value
        raise TypeError("records of adopted shards are read, not written")

    def decode_many(self, payloads: Any, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to values with the features that folders tell behind the others, or in the order asked."""
        asked, rest = self._divided(features)
        values = self.inner.decode_many(payloads, features=rest)
        told = self._columns(payloads, asked)
        for row, value in enumerate(values):
            value.update((name, column[row]) for name, column in told.items())
        if asked is None:
            return values
        # The key of a tar sample is there, whether asked for or not.
        others = [name for name in next(iter(values), ()) if name not in asked]
        return [{name: value[name] for name in (*others, *asked) if name in value} for value in values]

    def decode_batch(self, payloads: Any, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to columns, those that folders tell as `collate` makes them of values."""
        asked, rest = self._divided(features)
        columns = self.inner.decode_batch(payloads, features=rest)
        for name, column in self._columns(payloads, asked).items():
            columns[name] = collate(name, self._types[name], column)
        if asked is None:
            return columns
        others = [name for name in columns if name not in asked]
        return {name: columns[name] for name in (*others, *asked)}

    def _divided(
        self, features: Sequence[str] | None
    ) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        """Return the features that are asked for, and those of them that records hold; None for all."""
        asked = self.features if features is None else tuple(features)
        return asked, None if asked is None else tuple(name for name in asked if name not in self._types)

    def _columns(self, payloads: Any, asked: Sequence[str] | None) -> dict[str, list[Any]]:
        """Return by name what folders tell of records, or these hold themselves."""
        assert self._shards is not None  # noqa: S101 - `of_shards` gave them
        names = [name for name in self._types if asked is None or name in asked]
        columns = {name: self._told[name][self._shards].tolist() for name in names}
        held = np.flatnonzero(self._held[self._shards])
        if names and held.size:
            records, rows = as_list(payloads), held.tolist()
            found = self._own.decode_many([records[row] for row in rows], features=names)
            for row, value in zip(rows, found, strict=True):
                for name, column in columns.items():
                    column[row] = value.get(name) if column[row] is HELD else column[row]
        return columns


def payload_ends(told: Told, schema: Schema) -> list[bytes]:
    """Return for each shard what makes its payloads hold what folders tell: an Example that follows them.

    Two protobuf messages one behind the other are the message that has the fields of both, the last one's
    where a key is in both.  Source: https://protobuf.dev/programming-guides/encoding/#last-one-wins.
    """
    codec = record_codec(Schema({name: schema[name].replace(optional=True, default=None) for name in told}))
    shards = zip(*(column.tolist() for column in told.values()), strict=True)
    rows = (dict(zip(told, each, strict=True)) for each in shards)
    values = ({name: item for name, item in row.items() if item not in (None, HELD)} for row in rows)
    return [codec.encode(each) if each else b"" for each in values]
