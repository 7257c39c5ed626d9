"""Small features by the column, as Arrow: from the table that shards may have beside them, or from records.

A column is a feature of the schema, or `<feature>_length`.  A table is used where its name says that it was
made of this very shard and by this very schema; its bytes are compared with the list of shards before any of
them is parsed.  Where a shard has no such table its records are read, and a warning says so.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import closest, names as as_names
from shardio.callers import warn
from shardio.codecs import arrow_array, arrow_type_of, need_pyarrow, value_lengths
from shardio.errors import FormatError, NotFoundError, SchemaError, ShardioError
from shardio.format import DEFAULT_LIMITS
from shardio.metadata import (
    Feature,
    Schema,
    ShardEntry,
    ShardTable,
    TableColumn,
    check_sidecar,
    naming,
    table_address,
    table_column,
)
from shardio.reader._parquet import read_parquet
from shardio.reader._source import DatasetSource, ShardSource
from shardio.reader._subset import Selection, count_below, is_ascending, positions_between
from shardio.storage import Store, read_intact

SourceT = TypeVar("SourceT", bound=ShardSource)

LENGTH = "_length"
_BATCH = 4096
_BATCH_BYTES = 32 << 20
TABLE_ADVICE = "make it again: shardio table URL --rebuild"


@dataclass(frozen=True)
class ChosenColumn:
    """A column that is asked for.

    Attributes:
        name: of the column.
        source: name of the feature that it is made of.
        derived: "" for the value, "length" for its length.
        feature: the feature.
    """

    name: str
    source: str
    derived: str
    feature: Feature

    @property
    def type(self) -> Any:
        """Type in Arrow."""
        import pyarrow as pa

        return pa.int64() if self.derived else arrow_type_of(self.feature)

    @property
    def stored(self) -> str:
        """Name of the feature in the records, which stays when it is renamed for readers."""
        return self.feature.stored_name or self.source

    @property
    def described(self) -> TableColumn:
        """The column as manifests describe it."""
        return table_column(self.name, self.stored, self.derived, self.feature)

    def array(self, values: Any) -> Any:
        """Return values of the feature, as `read_batch` gives them, as an Arrow array of this column."""
        import pyarrow as pa

        if self.derived:
            return pa.array(value_lengths(values), pa.int64())
        return arrow_array(values, self.feature)


def choose_columns(schema: Schema | None, names: Sequence[str], *, what: str) -> list[ChosenColumn]:
    """Return the columns of some names.

    Args:
        schema: of the dataset.
        names: features, or `<feature>_length` for text, bytes, images and ragged features.
        what: needs them, for messages.

    Raises:
        TypeError: `names` is not a sequence of names.
        ValueError: there is no schema, no such feature, or no such length; or a name comes twice.
    """
    names = as_names("features", names)
    if schema is None:
        raise ValueError(f"{what} needs a schema, and this dataset has none: its records are bytes")
    if schema.sequence_features:
        raise ValueError(f"{what} needs columns, and feature lists have none")
    if len(set(names)) != len(names):
        raise ValueError(f"features={list(names)} names a column twice")
    return [_column(schema, name) for name in names]


def _column(schema: Schema, name: str) -> ChosenColumn:
    if name in schema:
        feature = schema[name]
        if feature.type.startswith("complex"):
            raise ValueError(f"feature {name!r}: Arrow has no type for {feature.type}")
        return ChosenColumn(name, name, "", feature)
    base = name.removesuffix(LENGTH)
    if base != name and base in schema:
        feature = schema[base]
        if not _has_length(feature):
            message = f"feature {base!r} is {feature.short}, which has no length: there is no column {name!r}"
            raise ValueError(message)
        return ChosenColumn(name, base, "length", feature)
    known = [*schema, *(f"{each}{LENGTH}" for each in schema if _has_length(schema[each]))]
    near = closest(name, known)
    meant = f"; did you mean {near!r}? The" if near else "; the"
    raise ValueError(f"there is no feature {name!r}{meant} schema has {', '.join(schema)}")


def _has_length(feature: Feature) -> bool:
    if feature.shape:
        return feature.shape[0] is None
    return feature.kind in ("text", "bytes", "image")


def table_refusal(column: ChosenColumn) -> str | None:
    """Say why a column cannot be one of a table of small features; None where it can."""
    feature = column.feature
    if column.derived:
        return None
    if feature.kind == "image":
        small = f"{column.name}{LENGTH} is one"
        return f"feature {column.name!r} is {feature.short}: a table holds small features; {small}"
    if feature.shape or feature.kind == "tensor":
        more = f"; {column.name}{LENGTH} is one" if _has_length(feature) else ""
        return f"feature {column.name!r} is {feature.short}: a table holds single values{more}"
    return None


def with_features(source: SourceT, features: Sequence[str] | None, *, values: bool = False) -> SourceT:
    """Return the same open shards, of which other features are decoded, and damage is raised.

    Args:
        source: the shards.
        features: names of the features; None for those of the reader.
        values: decode values by the schema, whatever the reader was told.

    Raises:
        ValueError, TypeError: there are no such features.
    """
    other = copy.copy(source)
    given = replace(source.options, on_error="raise")
    if values:
        given = replace(given, decode=True)
    if features is not None:
        given = replace(given, features=as_names("features", features))
    other.options = given
    other.__dict__.pop("codec", None)
    _ = other.codec  # refuses features that are missing before anything is read
    return other


def sources_of(columns: Sequence[ChosenColumn]) -> list[str]:
    """Return the features that columns are made of, each once."""
    return list(dict.fromkeys(column.source for column in columns))


def read_column_batch(records: Any, positions: Any, columns: Sequence[ChosenColumn]) -> dict[str, Any]:
    """Return features of some records as `read_batch` does, but None where an optional one is missing.

    Args:
        records: whose source decodes the features of the columns; see `with_features`.
        positions: integers, as in `read`.
        columns: that are wanted.
    """
    if not _by_value(columns):
        found: dict[str, Any] = records.read_batch(positions)
        return found
    values = records.read(positions)
    return {name: [value.get(name) for value in values] for name in sources_of(columns)}


def _by_value(columns: Sequence[ChosenColumn]) -> bool:
    """Tell whether a missing number has no place in an array, or a missing list none among ragged ones."""
    features = [column.feature for column in columns if column.feature.optional]
    return any(bool(f.shape) or (f.kind == "number" and not f.has_default) for f in features)


def arrow_batch(records: Any, positions: Any, columns: Sequence[ChosenColumn]) -> Any:
    """Return columns of some records as a pyarrow Table; see `read_column_batch`."""
    return _as_table(read_column_batch(records, positions, columns), columns)


def column_batches(records: Any, columns: Sequence[ChosenColumn], size: int) -> Iterator[dict[str, Any]]:
    """Yield features of all records by the batch of `size`, reading ahead; see `read_column_batch`."""
    if not _by_value(columns):
        yield from records.iter_batches(size)
        return
    for low in range(0, len(records), size):
        yield read_column_batch(records, range(low, min(low + size, len(records))), columns)


def arrow_batches(records: Any, columns: Sequence[ChosenColumn], size: int) -> Iterator[Any]:
    """Yield columns of all records as pyarrow Tables of `size` rows, reading ahead; see `arrow_batch`."""
    return (_as_table(found, columns) for found in column_batches(records, columns, size))


def _as_table(found: dict[str, Any], columns: Sequence[ChosenColumn]) -> Any:
    import pyarrow as pa

    arrays = [column.array(found[column.source]) for column in columns]
    return pa.Table.from_arrays(arrays, schema=columns_schema(columns))


def columns_schema(columns: Sequence[ChosenColumn]) -> Any:
    """Return the Arrow schema of some columns."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, column.type) for column in columns])


def iterate_rows(
    reader: Callable[[ShardSource], Any], source: ShardSource, number: int, columns: Sequence[ChosenColumn]
) -> Iterator[dict[str, Any]]:
    """Yield the features of some columns of all rows of a shard, deleted ones too, by the batch.

    Args:
        reader: `Records`, or a kind of it.
        source: the shards.
        number: of the shard.
        columns: that are wanted.
    """
    entry = source.table[number].without_deletions()
    options = replace(
        source.options, on_error="raise", decode=True, features=tuple(sources_of(columns)), cache=None
    )
    alone = ShardSource(
        source.url, ShardTable.from_entries([entry]), source.pool.stores, options, source.schema,
    )  # fmt: skip
    records = reader(alone)
    step = batch_rows(source, number)
    for low in range(0, len(records), step):
        yield read_column_batch(records, np.arange(low, min(low + step, len(records))), columns)


def batch_rows(source: ShardSource, number: int) -> int:
    """Return how many records of a shard are read at a time: few where they are large."""
    rows, size = int(source.table.rows[number]), int(source.table.decoded_bytes[number])
    return max(1, min(_BATCH, _BATCH_BYTES * rows // max(size, 1)))


def table_columns(source: ShardSource) -> tuple[TableColumn, ...]:
    """Return the columns of the table that the version has; empty where it has none."""
    return source.version.manifest.table if isinstance(source, DatasetSource) else ()


def columns_now(
    schema: Schema | None, table: Sequence[TableColumn]
) -> list[tuple[TableColumn, ChosenColumn]]:
    """Return the columns of a table with what they are by the schema now; without features no longer read."""
    called = {feature.stored_name or name: name for name, feature in (schema or {}).items()}
    kept = [column for column in table if column.feature in called]
    names = [called[column.feature] + (LENGTH if column.derived else "") for column in kept]
    return list(zip(kept, choose_columns(schema, names, what="a table"), strict=True)) if kept else []


def check_table_columns(source: ShardSource) -> None:
    """Raise SchemaError where files of a table would tell another program something else than readers see."""
    for made, now in columns_now(source.schema, table_columns(source)):
        if made != now.described:
            raise SchemaError(
                f"the schema has changed since the table was made: its column {made.name!r} is "
                + (f"now {now.name!r}" if made.name != now.name else "of another type or default"),
                url=source.url,
                advice="make it again with what readers see now: shardio table URL",
            )


def shards_without_table(source: ShardSource, columns: Sequence[ChosenColumn]) -> NDArray[np.bool_]:
    """Tell of each shard whether it lacks a table with these very columns; bool [shards]."""
    table = source.table
    known = table_columns(source)
    wanted = {column.described for column in columns}
    if not wanted <= set(known):
        return np.ones(len(table), bool)
    return np.array([not has_table(table, number, known) for number in range(len(table))], bool)


def has_table(table: ShardTable, number: int, columns: tuple[TableColumn, ...]) -> bool:
    """Tell whether a shard has a table of these columns, made of this very shard."""
    found = naming.table_address_of(table.table_key[number])
    return found is not None and found == table_address(table.index_head_sha256[number].tobytes(), columns)


def load_table(source: ShardSource, number: int, columns: Sequence[ChosenColumn]) -> Any:
    """Return columns of the table of a shard, a row for each physical row, checked; a pyarrow Table.

    Raises:
        FormatError, NotFoundError: the table is damaged, gone, or not of this shard.
        StorageError: the environment failed.
    """
    entry = source.table[number]
    store = source.pool.stores[0]
    url = store.url_of(entry.table_key)
    limits = source.options.limits or DEFAULT_LIMITS
    try:
        data = read_table_bytes(store, entry, min(entry.table_bytes, limits.index))
    except NotFoundError as error:
        source.pool.check_expired()
        what = "the list of shards names a table that is not there"
        raise NotFoundError(what, url=url, shard=entry.key, advice=TABLE_ADVICE) from error
    except FormatError as error:
        raise replace_advice(error, shard=entry.key) from error
    return _parse_table(data, entry.rows, columns, url=url, shard=entry.key, most=limits.index)


def read_table_bytes(store: Store, entry: ShardEntry, most: int) -> bytes:
    """Return the bytes of the table of a shard, `most` at most, compared with the list of shards.

    Raises:
        FormatError, NotFoundError: they are not those that it names, or not there.
        StorageError: the environment failed.
    """

    def read() -> bytes:
        data = store.get(entry.table_key, max_bytes=most)
        digest, url = entry.table_sha256, store.url_of(entry.table_key)
        check_sidecar(
            data, entry.table_bytes, digest, what="a table", shard=entry, url=url, advice=TABLE_ADVICE
        )
        return data

    return read_intact(read)


def replace_advice(error: ShardioError, **places: Any) -> ShardioError:
    """Return an error about a table with what to do about it."""
    error.advice = TABLE_ADVICE
    return error.located(**places)


def _parse_table(
    data: bytes, rows: int, columns: Sequence[ChosenColumn], *, url: str, shard: str, most: int
) -> Any:
    pa = need_pyarrow("a table of small features")
    import pyarrow.parquet as pq

    places: dict[str, Any] = {"url": url, "shard": shard, "advice": TABLE_ADVICE}
    names = [column.name for column in columns]
    try:
        found = pq.read_metadata(pa.BufferReader(data)).num_rows
        table: Any = read_parquet(data, ["row", *names], most=most) if found == rows else None
        ascend = table is not None and np.array_equal(table["row"].to_numpy(), np.arange(rows))
        values = table.select(names).cast(columns_schema(columns)) if ascend else None
    except FormatError as error:
        raise error.located(**places) from error
    except (pa.ArrowException, ValueError, KeyError, OSError) as error:
        raise FormatError("a table does not parse", found=f"{error!s:.300}", **places) from error
    if table is None:
        raise FormatError("a table has other rows than its shard", expected=rows, found=found, **places)
    if values is None:
        raise FormatError("the rows of a table do not ascend from 0", **places)
    return values


def live_rows(source: ShardSource, number: int) -> NDArray[np.int64] | None:
    """Return the physical rows of a shard that are not deleted, or None for all of them."""
    deleted = source.pool.deleted(number)
    if deleted is None:
        return None
    kept = np.ones(int(source.table.rows[number]), bool)
    kept[deleted] = False
    return np.flatnonzero(kept)


def warn_of_records(source: ShardSource, lacking: NDArray[np.bool_], columns: Sequence[ChosenColumn]) -> None:
    """Warn that records are read because shards have no table of some columns."""
    many = int(np.count_nonzero(lacking))
    if not many:
        return
    which = "no shard has" if many == len(lacking) else f"{many} of {len(lacking)} shards do not have"
    names = ",".join(column.name for column in columns)
    refused = any(table_refusal(column) for column in columns)
    hint = "" if refused else f"; `shardio table {source.url} --features {names}` makes one"
    message = f"records are read, because {which} a table of {names}{hint}"
    warn(message)


def _shard_columns(
    records: Any, columns: Sequence[ChosenColumn], number: int, low: int, stop: int, *, in_table: bool
) -> Iterator[Any]:
    """Yield columns of the records `[low, stop)` of an ascending reader, all of one shard."""
    if not in_table:
        yield from arrow_batches(records[low:stop], columns, batch_rows(records.source, number))
        return
    yield table_rows(records, columns, number, low, stop)


def table_rows(records: Any, columns: Sequence[ChosenColumn], number: int, low: int, stop: int) -> Any:
    """Return columns of the records `[low, stop)` of an ascending reader, from the table of their shard."""
    source = records.source
    before = int(source.stops[number - 1]) if number else 0
    rows = positions_between(records.selection, low, stop) - before
    live = live_rows(source, number)
    return load_table(source, number, columns).take(rows if live is None else live[rows])


def iterate_columns(records: Any, columns: Sequence[ChosenColumn]) -> Iterator[Any]:
    """Yield columns of all records of an ascending reader as pyarrow Tables; memory holds one at a time.

    Raises:
        FormatError, NotFoundError, StorageError: with the address of the table or record.
    """
    for read, _ in _shard_reads(records, records.selection, columns):
        yield from read()


def _shard_reads(
    records: Any, selection: Selection, columns: Sequence[ChosenColumn]
) -> Iterator[tuple[Callable[[], Iterator[Any]], bool]]:
    """Yield what yields the columns of each shard of an ascending selection, and whether it has a table."""
    source = records.source
    has_tables = ~shards_without_table(source, columns)
    reader = type(records)(with_features(source, sources_of(columns), values=True), selection)
    edges = count_below(selection, np.concatenate([np.zeros(1, np.int64), source.stops]))
    for number in np.flatnonzero(np.diff(edges)).tolist():
        low, stop, in_table = int(edges[number]), int(edges[number + 1]), bool(has_tables[number])
        yield partial(_shard_columns, reader, columns, number, low, stop, in_table=in_table), in_table


def read_columns(records: Any, columns: Sequence[ChosenColumn], *, positions: bool, warn: bool = True) -> Any:
    """Return columns of all records, in their order; a pyarrow Table.

    Args:
        records: any reader.
        columns: that are wanted.
        positions: add the int64 column `_position`: `records[position]` is the record.
        warn: say where a table of small features would save reading records.

    Raises:
        FormatError, NotFoundError, StorageError: with the address of the table or record.
    """
    pa = need_pyarrow("to_arrow")
    source = records.source
    selection = records.selection
    order = None
    if not is_ascending(selection):
        held, order = np.unique(np.asarray(selection, np.int64), return_inverse=True)
        selection = held
    reads = list(_shard_reads(records, selection, columns))
    if warn:
        warn_of_records(source, np.array([not in_table for _, in_table in reads], bool), columns)
    empty = columns_schema(columns).empty_table()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "shardio-columns") as pool:
        parts = [each for found in pool.map(lambda read: list(read[0]()), reads) for each in found]
    whole = pa.concat_tables([empty, *parts])
    if order is not None:
        whole = whole.take(order)
    if positions:
        whole = whole.append_column("_position", pa.array(np.arange(len(records))))
    return whole


def pandas_frame(table: Any) -> Any:
    """Return a pyarrow Table as a DataFrame.

    Integers of a column that lacks some stay integers, in a column of objects with NaN for what is missing:
    as float64, which pandas takes, large ones would be others.
    """
    import pyarrow as pa

    frame = table.to_pandas(integer_object_nulls=True)
    for field in table.schema:
        if pa.types.is_integer(field.type) and table[field.name].null_count:
            frame[field.name] = frame[field.name].fillna(np.nan).astype(object)
    return frame
