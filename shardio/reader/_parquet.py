"""Parquet from strangers: how large its values become is found out before they are made.

A dictionary, or an encoding that writes of each text only how it differs from the one before, turns a few
kilobytes into gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardio.errors import FormatError

# In which values take no more room than in memory, but for dictionaries, whose values are counted below.
_ENCODINGS = frozenset(
    {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"}
    | {"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
)


def read_parquet(data: bytes, columns: Sequence[str], *, most: int) -> Any:
    """Return columns of a Parquet file, none of them nested, as a pyarrow Table.

    Args:
        data: the whole file.
        columns: their names.
        most: bytes that they may take, each.

    Raises:
        FormatError: they would take more, are encoded so that nobody can tell beforehand, or are not there.
        pyarrow.ArrowException, OSError: the file does not parse.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(pa.BufferReader(data))
    schema = metadata.schema.to_arrow_schema()
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    _check_size("stored columns", sum(group.total_byte_size for group in groups), most)
    _check_size("columns", 8 * metadata.num_rows, most)
    places = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    texts = []
    for name in columns:
        if name not in places:
            raise FormatError(f"a Parquet file has no plain column {name!r}", found=", ".join(places)[:300])
        for group in groups:
            unknown = set(group.column(places[name]).encodings) - _ENCODINGS
            if unknown:
                what = f"column {name!r} of a Parquet file has an encoding whose size cannot be bounded"
                raise FormatError(what, found=", ".join(sorted(unknown)))
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_primitive(kind):
            _check_size(
                f"the values of column {name!r}", metadata.num_rows * max(1, kind.bit_width // 8), most
            )
        elif _is_text(pa, kind):
            texts.append(name)
        elif not pa.types.is_boolean(kind):
            raise FormatError(f"column {name!r} of a Parquet file has no plain type", found=str(kind))
    # As dictionaries, in which each text stands once.
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
    table = file.read(columns=list(columns), use_threads=False)
    for name in texts:
        number = table.schema.get_field_index(name)
        column = table.column(number)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        size = 0
        for chunk in column.chunks:
            if pa.types.is_dictionary(chunk.type):
                lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
                size += pc.sum(lengths.take(chunk.indices)).as_py() or 0
        _check_size(f"the values of column {name!r}", size, most)
        table = table.set_column(number, name, column.cast(kind))
    return table


def _is_text(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind)
        or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )  # fmt: skip


def _check_size(what: str, size: int, most: int) -> None:
    if size > most:
        what = f"{what} of a Parquet file are over the limit"
        raise FormatError(what, expected=f"at most {most} bytes", found=size)
