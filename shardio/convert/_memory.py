"""Datasets of what a program holds: tables of Arrow, pandas and polars, and values that a function yields."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from shardio.arguments import need
from shardio.convert._convert import convert_dataset
from shardio.convert._jsonl import JsonLines
from shardio.convert._parquet import table_package
from shardio.convert._schema import infer_from_values
from shardio.errors import SchemaError
from shardio.formats import LOOK_AT, Sample, SourceOptions
from shardio.metadata import Schema
from shardio.parallel import WriteOptions
from shardio.reader import DatasetReader, open_split
from shardio.writer import DatasetWriter, check_writer_options


def from_arrow(table: Any, url: str | Path, *, split: str = "train", **options: Any) -> DatasetReader:
    """Write a pyarrow Table into a dataset, a record a row, and return a reader of it.

    Args:
        table: a `pyarrow.Table` or `RecordBatch`. Types become features as those of Parquet files do:
            structs a feature for each field, lists ragged features, columns with nulls optional ones.
        url: of the dataset.
        split: its name.
        options: those of `convert_dataset`, such as `schema=`, `mode=`, `compression=`, `shuffle=`.

    Raises:
        TypeError: it is something else.
        CommitConflictError, SchemaError, StorageError, ValueError: as `convert_dataset`.
        ImportError: pyarrow is not installed: `pip install "shardio[table]"`.

    Examples:
        >>> import pyarrow, shardio, tempfile
        >>> table = pyarrow.table({"name": ["wren", "robin"], "legs": [2, 2]})
        >>> ds = shardio.from_arrow(table, tempfile.mkdtemp() + "/birds")
        >>> len(ds), ds[1]["name"]
        (2, 'robin')
    """
    return _written("pyarrow", table, url, split, options)


def from_pandas(df: Any, url: str | Path, *, split: str = "train", **options: Any) -> DatasetReader:
    """Write a pandas DataFrame into a dataset, a record a row, and return a reader of it; see `from_arrow`.

    An index that has a name, or is not of integers, becomes a feature, too; other integers are row numbers.

    Examples:
        >>> import pandas, shardio, tempfile
        >>> df = pandas.DataFrame({"name": ["wren", "robin"], "legs": [2, 2]})
        >>> shardio.from_pandas(df, tempfile.mkdtemp() + "/birds").column_names
        ['name', 'legs']
    """
    return _written("pandas", df, url, split, options)


def from_polars(df: Any, url: str | Path, *, split: str = "train", **options: Any) -> DatasetReader:
    """Write a polars DataFrame into a dataset, a record a row, and return a reader of it; see `from_arrow`.

    A LazyFrame is collected first.
    """
    return _written("polars", df.collect() if hasattr(df, "collect") else df, url, split, options)


def from_generator(
    values: Callable[[], Iterable[Any]] | Iterable[Any],
    url: str | Path,
    *,
    schema: Mapping[str, Any] | Schema | None = None,
    split: str = "train",
    **options: Any,
) -> DatasetReader:
    """Write what a generator yields into a dataset, in constant memory, and return a reader of it.

    Args:
        values: a function that returns an iterable of values, or an iterable: mappings by feature, or bytes.
        url: of the dataset.
        schema: of the records. Without it mappings get the one inferred from the first 1,000 of them.
        split: its name.
        options: those of `DatasetWriter`: `mode=`, `compression=`, `shard_bytes=`, `storage_options=`.

    Raises:
        SchemaError: a value does not fit; names feature and record. Nothing was published.
        CommitConflictError, StorageError, ValueError: as `DatasetWriter`.

    Examples:
        >>> import shardio, tempfile
        >>> def squares():
        ...     for n in range(100):
        ...         yield {"n": n, "square": n * n}
        >>> shardio.from_generator(squares, tempfile.mkdtemp() + "/squares")[7]["square"]
        np.int64(49)
    """
    given = values() if callable(values) else values
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        message = f"from_generator takes a function that returns an iterable, found {type(given).__name__}"
        raise TypeError(message)
    rest = iter(given)
    first = list(itertools.islice(rest, LOOK_AT)) if schema is None else []
    inferred = bool(first) and isinstance(first[0], Mapping)
    if inferred:
        samples = [Sample(f"value {number}", value) for number, value in enumerate(first)]
        try:
            schema = infer_from_values(JsonLines("", SourceOptions()), samples, None)
        except SchemaError as error:
            # Here nothing is left out.
            error.advice = "give its values one type, or each feature a type with schema="
            raise
    try:
        with DatasetWriter(url, schema, **options) as out:
            out.write_many(itertools.chain(first, rest), split)
    except SchemaError as error:
        if inferred:
            error.advice = error.advice or "say what is meant with schema=, which names every feature"
        raise
    return _reader(url, split, out.version, options)


def _written(package: str, table: Any, url: str | Path, split: str, options: dict[str, Any]) -> DatasetReader:
    name = f"shardio.from_{package.removeprefix('py')}"
    if table_package(table) != package:
        raise TypeError(f"{name} takes a table of {package}, found {type(table).__name__}")
    known = (*signature(convert_dataset).parameters, *WriteOptions.__annotations__)
    unknown = {option: value for option, value in options.items() if option not in known}
    check_writer_options(unknown, name, known)
    need(name, "shardio[table]", "pyarrow")
    report = convert_dataset(table, url, split=split, **options)
    return _reader(url, split, report.version, options)


def _reader(url: str | Path, split: str, version: int | None, options: Mapping[str, Any]) -> DatasetReader:
    """Return a reader of what was written; without records there is no split."""
    reading = {"version": version, "storage_options": options.get("storage_options")}
    whole = open_split(url, "all", **reading)
    return open_split(url, split, **reading) if split in whole.splits else whole[:0]
