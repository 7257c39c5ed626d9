"""From the values of one feature, record by record, to its column, and what both ways have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.codecs._columns import Column, RaggedColumn
from shardio.errors import CorruptRecordError, FormatError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardio.metadata import Feature

__all__ = ["collate", "each", "item_decoder", "lacks"]


def collate(name: str, feature: Feature, values: Sequence[Any]) -> Column:
    """Bring the values that records hold into the column that `decode_batch` gives.

    Numbers of fixed shape stack to one array [n, *shape]; of varying shape they become a `RaggedColumn`,
    where a missing value is an empty row; all else is a list.

    Raises:
        SchemaError: a value of fixed shape is None; an array has no place for that.
    """
    if feature.dtype is None:
        return list(values)
    if not feature.unknown_dimensions:
        lacking = next((row for row, value in enumerate(values) if value is None), None)
        if lacking is not None:
            raise lacks(name, lacking)
        shape = tuple(size or 0 for size in feature.shape)
        return np.array(values, feature.dtype) if len(values) else np.empty((0, *shape), feature.dtype)
    empty = np.empty(tuple(size or 0 for size in feature.shape), feature.dtype)
    rows = [empty if value is None else value for value in values]
    return RaggedColumn.of_rows(rows, feature.dtype, feature.shape)


def lacks(name: str, row: int) -> SchemaError:
    """Return the error for a record that lacks an optional feature whose column has no place for nothing."""
    advice = (
        'give the feature a default in the schema, e.g. Feature("float32", default=0.0), '
        "or choose the other features with features=[...]"
    )
    return SchemaError(
        f"feature {name!r} is missing in a record, and its column is an array", row=row, advice=advice
    )


def item_decoder(feature: Feature) -> Callable[[bytes], Any] | None:
    """Return what makes a value of the stored bytes of one item; None where the bytes are the value."""
    if feature.kind in ("bytes", "image"):
        return None
    return bytes.decode if feature.kind == "text" else feature.restore_item


def each(
    name: str,
    decode: Callable[[bytes], Any],
    items: Sequence[bytes],
    rows: Sequence[int],
    missing: frozenset[int] = frozenset(),
) -> list[Any]:
    """Decode the items of a feature; what is in missing rows becomes None.

    Args:
        name: of the feature, for the error.
        decode: makes a value of an item.
        items: stored bytes.
        rows: for each item the row that it belongs to, for the error.
        missing: rows whose items are no values.

    Raises:
        FormatError: an item is not what the schema says; names the feature and the row within the call.
    """
    values: list[Any] = []
    try:
        if missing:
            values.extend(
                None if row in missing else decode(item) for item, row in zip(items, rows, strict=True)
            )
        else:
            values.extend(map(decode, items))
    except FormatError as error:
        error.what = f"feature {name!r}: {error.what}"
        raise error.located(row=rows[len(values)]) from error.__cause__
    except (ValueError, RecursionError) as error:
        what = f"feature {name!r} is damaged ({type(error).__name__}: {error})"
        raise CorruptRecordError(
            what, row=rows[len(values)], advice="look at the shard with `shardio verify`"
        ) from error
    return values
