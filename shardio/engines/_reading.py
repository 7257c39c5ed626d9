"""What reading has in common for all engines: opening a dataset, and filters that its tables answer."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.arguments import integer
from shardio.reader import DatasetReader, open_split

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardio.reader import Span

_SPAN_BYTES = 64 << 20


def open_for(
    url: str | Path | DatasetReader, split: str | None, where: str | None, options: dict[str, Any]
) -> DatasetReader:
    """Return the reader that an engine reads, at one version; `options` are those of `shardio.open`."""
    found = url if isinstance(url, DatasetReader) else open_split(url, split, **options)
    return found if where is None else found.filter(where)


def spans_of(reader: DatasetReader, at_least: int = 0) -> list[Span]:
    """Return the spans of a reader, at least as many as an engine asks for if there are enough records."""
    wanted = integer("partitions", at_least)
    size = reader.num_bytes // wanted if wanted > 0 else _SPAN_BYTES
    return reader.spans(bytes=max(1, min(_SPAN_BYTES, size)))


_OPERATORS = {"=", "<", "<=", ">", ">=", "IN", "IS NULL", "IS NOT NULL"}


def comparison(reader: DatasetReader, column: str, operator: str, values: Iterable[Any] = ()) -> str | None:
    """Return a comparison as a condition for `DatasetReader.filter`, where tables of all shards answer it.

    Args:
        reader: of the dataset.
        column: its name.
        operator: as SQL writes it: a comparison, "IN", "IS NULL" or "IS NOT NULL".
        values: that it is compared with.

    Returns:
        The condition; None where the engine has to look at the records.
    """
    if operator not in _OPERATORS or not reader.has_table([column]):
        return None
    literals = [_literal(value) for value in values]
    if None in literals or (operator == "IN" and not literals):
        return None
    name = '"' + column.replace('"', '""') + '"'
    if operator.startswith("IS"):
        return f"{name} {operator}"
    shown = ", ".join(filter(None, literals))
    return f"{name} IN ({shown})" if operator == "IN" else f"{name} {operator} {shown}"


def _literal(value: Any) -> str | None:
    """Return a value as SQL writes it; None for what SQL would compare in another way than engines do."""
    if isinstance(value, bool | np.bool_):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating) and math.isfinite(value):
        return f"CAST({json.dumps(float(value))} AS DOUBLE)"
    if isinstance(value, str) and "\0" not in value:
        return "'" + value.replace("'", "''") + "'"
    return None
