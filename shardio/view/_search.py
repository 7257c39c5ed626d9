"""Search and sort the records of a split: by a key, an SQL condition, text, a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.codecs import need_pyarrow

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shardio import DatasetReader, Feature, Schema

    Selection = Any

_SCANNED = 64 << 20  # stored bytes that a search may read where there is no table
_SORTED = 10_000_000  # values that fit in memory for sorting


class Search(NamedTuple):
    """The search of a page; by default every record in storage order.

    Attributes:
        where: a condition in SQL.
        text: contained in a text feature, ignoring case.
        key: of records with an index of keys.
        feature: of the key; "" for the first one.
        sort: feature, or `<feature>_length`, by which records are sorted, missing values last.
        descending: greatest first.
    """

    where: str = ""
    text: str = ""
    key: str = ""
    feature: str = ""
    sort: str = ""
    descending: bool = False

    def conditions(self, schema: Schema | None) -> list[str]:
        """Return the SQL conditions of the search."""
        return [each for each in (self.where, _contains(schema, self.text)) if each.strip()]


def is_column(feature: Feature) -> bool:
    """Tell whether conditions and sorting can use the values of a feature."""
    return not feature.shape and feature.kind in ("number", "text") and not feature.type.startswith("complex")


def literal(value: Any) -> str:
    """Return a number or text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _contains(schema: Schema | None, text: str) -> str:
    if not text:
        return ""
    names = [name for name, each in (schema or {}).items() if each.kind == "text" and not each.shape]
    if not names:
        raise ValueError("text search needs a feature of type text, and the schema has none")
    quoted = ('"' + name.replace('"', '""') + '"' for name in names)
    return " OR ".join(f"contains(lower({name}), lower({literal(text)}))" for name in quoted)


def search(reader: DatasetReader, asked: Search, look: Callable[[Any], None]) -> Selection:
    """Return the positions of the matching records, in order.

    Args:
        reader: of the split, which decodes.
        asked: the search.
        look: called while records are read; an exception in it ends the search.

    Raises:
        ValueError: an invalid condition, an unknown column, or a search that would read too much.
    """
    conditions = asked.conditions(reader.schema)
    if conditions or asked.sort:
        _check_size(reader)
    if asked.key:
        reader = reader.select(_with_key(reader, asked))
    for condition in conditions:
        reader = reader.filter(condition, progress=look)
    return _sorted(reader, asked) if asked.sort else reader.selection


def _check_size(reader: DatasetReader) -> None:
    without = reader.num_shards - len(reader.table_files())
    if without and reader.num_bytes > _SCANNED:
        raise ValueError(
            f"{without:,} of {reader.num_shards:,} shards have no table of small features, and this search "
            "would read all their records; build tables first: shardio table URL --features NAME"
        )


def _with_key(reader: DatasetReader, asked: Search) -> NDArray[np.int64]:
    kinds = reader.key_features
    name = asked.feature or next(iter(kinds), "")
    typed: str | bytes | int = asked.key
    if name in kinds and kinds[name] == "bytes":
        typed = asked.key.encode()
    elif name in kinds and kinds[name] != "text":
        try:
            typed = int(asked.key)
        except ValueError:
            raise ValueError(f"the keys {name!r} are integers ({kinds[name]}), found {asked.key!r}") from None
    found: NDArray[np.int64] = reader.find_all(typed, feature=asked.feature or None)
    return found


def _sorted(reader: DatasetReader, asked: Search) -> NDArray[np.int64]:
    pa = need_pyarrow("sorting")
    import pyarrow.compute as pc

    feature = None if reader.schema is None else reader.schema.get(asked.sort)
    if feature is not None and not is_column(feature):
        message = f"{asked.sort!r} is {feature.short}, which has no order: sort by a number or a text"
        raise ValueError(message)
    if len(reader) > _SORTED:
        raise ValueError(f"{len(reader):,} records are too many to sort; filter to {_SORTED:,} first")
    values = reader.to_arrow([asked.sort])[asked.sort]
    values = values.cast(pa.float32()) if pa.types.is_float16(values.type) else values
    way = "descending" if asked.descending else "ascending"
    order = pc.sort_indices(pa.table({"by": values}), sort_keys=[("by", way)])
    positions: NDArray[np.int64] = np.asarray(reader.selection, np.int64)[order.to_numpy()]
    return positions


def python(opening: str, asked: Search, schema: Schema | None, *, start: int, stop: int) -> str:
    """Return code that finds the same records.

    Args:
        opening: the arguments of `shardio.open`.
        asked: the search.
        schema: of the dataset.
        start, stop: the range of matches to show.
    """
    lines = ["import shardio", "", f"ds = shardio.open({opening})"]
    if asked.key:
        feature = f", feature={asked.feature!r}" if asked.feature else ""
        lines.append(f"ds = ds.select(ds.find_all({asked.key!r}{feature}))")
    lines += [f"ds = ds.filter({condition!r})" for condition in asked.conditions(schema)]
    if asked.sort:
        way = ", ascending=False" if asked.descending else ""
        lines += [
            f"frame = ds.to_pandas([{asked.sort!r}], positions=True)",
            f'frame = frame.sort_values({asked.sort!r}{way}, kind="stable")',
            'ds = ds.select(frame["_position"])',
        ]
    return "\n".join([*lines, f"records = ds[{start}:{stop}]", ""])
