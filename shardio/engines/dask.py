"""Dask: a dataset as a dataframe or a bag; each partition is a part of one shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.arguments import names, need
from shardio.engines._reading import open_for, spans_of

need("shardio.engines.dask", "shardio[dask]", "dask", "pandas", "pyarrow")

import dask.bag  # noqa: E402 - after the line that says how it is installed
import dask.dataframe  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardio.reader import Span


def read_dataframe(
    url: str | Path,
    *,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    where: str | None = None,
    npartitions: int = 0,
    **options: Any,
) -> dask.dataframe.DataFrame:
    """Return a dataset as a `dask.dataframe.DataFrame`, in storage order; nothing is read before `compute`.

    Args:
        url: of the dataset.
        columns: features, or `<feature>_length`; None for all. Others are not decoded, nor those that the
            computation does not use.
        split: its name; None for the only one.
        where: a condition in SQL over features and `<feature>_length`, such as "label = 3"; what meets it is
            found here and now.
        npartitions: how many partitions at least.
        options: those of `shardio.open`, such as `version=` and `storage_options=`.

    Raises:
        ValueError: no such split or feature, several splits, or no records.
        NotFoundError, FormatError, StorageError: as `shardio.open`.
    """
    chosen = None if columns is None else names("columns", columns)
    reader = open_for(url, split, where, options)
    schema, spans = reader.arrow_schema(chosen), spans_of(reader, npartitions)
    empty = _frame(schema.empty_table())
    if not spans:
        return dask.dataframe.from_pandas(empty, npartitions=1)
    # Dask narrows the columns of a function that takes `columns`.
    return dask.dataframe.from_map(_read, spans, columns=schema.names, meta=empty, label="shardio")


def read_bag(
    url: str | Path,
    *,
    split: str | None = None,
    where: str | None = None,
    npartitions: int = 0,
    **options: Any,
) -> dask.bag.Bag:
    """Return the records as a `dask.bag.Bag`, as iterating over a reader gives them; see `read_dataframe`."""
    spans = spans_of(open_for(url, split, where, options), npartitions)
    if not spans:
        return dask.bag.from_sequence([], npartitions=1)
    return dask.bag.from_sequence(spans, npartitions=len(spans)).map_partitions(_records)


def _read(span: Span, columns: Sequence[str]) -> Any:
    return _frame(span.to_arrow(columns))


def _frame(table: Any) -> Any:
    return table.to_pandas(types_mapper=_arrow_dtype)


def _arrow_dtype(kind: Any) -> Any:
    """Return the pandas type that holds nulls too, so that all partitions have one type."""
    import pandas as pd

    return pd.ArrowDtype(kind)


def _records(spans: Any) -> list[Any]:
    return [record for span in spans for record in span]
