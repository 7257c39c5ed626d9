"""Polars: a dataset as a LazyFrame, of which the columns and rows that a query needs are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.arguments import need
from shardio.engines._reading import open_for, spans_of

need("shardio.engines.polars", "shardio[polars]", "polars", "pyarrow")

import polars as pl  # noqa: E402 - after the line that says how it is installed
from polars.io.plugins import register_io_source  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def scan(
    url: str | Path,
    *,
    features: Sequence[str] | None = None,
    split: str | None = None,
    where: str | None = None,
    **options: Any,
) -> pl.LazyFrame:
    """Return a dataset as a `polars.LazyFrame`, in storage order; nothing is read before `collect`.

    A filter over columns of the table of small features (`shardio.build_table`) is answered by it, and only
    the records that are left are read.

    Args:
        url: of the dataset.
        features: names of features, or `<feature>_length`; None for all.
        split: its name; None for the only one.
        where: a condition in SQL over features and `<feature>_length`, such as "label = 3"; what meets it is
            found here and now.
        options: those of `shardio.open`, such as `version=` and `storage_options=`.

    Raises:
        ValueError: no such split or feature, or several splits.
        NotFoundError, FormatError, StorageError: as `shardio.open`.
    """
    reader = open_for(url, split, where, options)
    empty: Any = pl.from_arrow(reader.arrow_schema(features).empty_table())
    spans = spans_of(reader)

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        del size
        shown = empty.columns if columns is None else columns
        tested = [] if predicate is None else list(dict.fromkeys(predicate.meta.root_names()))
        left = rows
        narrows = bool(tested) and reader.has_table(tested)
        for span in spans:
            part = span.filter(_mask(span.to_arrow(tested), predicate)) if narrows else span
            wanted = list(dict.fromkeys([*shown, *tested]))
            for table in part.iter_arrow(wanted):
                frame: Any = pl.from_arrow(table)
                if predicate is not None:
                    frame = frame.filter(predicate)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame.select(shown)
                if left == 0:
                    return

    return register_io_source(read, schema=empty.schema)


def _mask(table: Any, predicate: Any) -> Any:
    frame: Any = pl.from_arrow(table)
    return frame.select(predicate.alias("kept"))["kept"].fill_null(value=False).to_numpy()
