"""Parquet from strangers: how large its values become is found out before they are made.

Compression, a dictionary, or an encoding that writes of each text only how it differs from the one before,
turns a few kilobytes into gigabytes. What the footer says of sizes need not be true, so the pages are asked:
a page is decompressed into as many bytes as its header says, and into no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardio.errors import FormatError

# In which values take no more room than in memory, but for dictionaries, whose values are counted below.
_ENCODINGS = frozenset(
    {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"}
    | {"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
)

# Types of Thrift's compact protocol that stand in page headers, and widths of those of fixed width; true and
# false are in the type itself.
_THRIFT_I32, _THRIFT_BINARY, _THRIFT_STRUCT = 5, 8, 12
_THRIFT_INTEGERS = (4, _THRIFT_I32, 6)
_THRIFT_WIDTHS = {1: 0, 2: 0, 3: 1, 7: 8}
_MOST_DEPTH = 8


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
    _check_size("columns", 8 * metadata.num_rows, most)
    places = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    texts = []
    for name in columns:
        if name not in places:
            raise FormatError(f"a Parquet file has no plain column {name!r}", found=", ".join(places)[:300])
        for group in groups:
            chunk = group.column(places[name])
            pages = sum(_page_sizes(data, *_chunk_bounds(chunk)))
            _check_size(f"the pages of column {name!r}", pages, most)
            unknown = set(chunk.encodings) - _ENCODINGS
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


def _chunk_bounds(chunk: Any) -> tuple[int, int]:
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        starts.append(chunk.dictionary_page_offset)
    start, size = min(starts), chunk.total_compressed_size
    if start < 0 or size < 0:
        raise FormatError("a column of a Parquet file is nowhere in it", found=f"byte {start}, {size} bytes")
    return start, start + size


def _page_sizes(data: bytes, start: int, stop: int) -> Iterator[int]:
    """Yield into how many bytes each page of a column chunk is decompressed."""
    try:
        while start < stop:
            header, start = _thrift_struct(data, start)
            # See PageHeader in https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
            size, stored = header[2], header[3]
            if size < 0 or stored < 0 or start + stored > len(data):
                raise FormatError(
                    "a page of a Parquet file has a size that is impossible", found=(size, stored)
                )
            yield size
            start += stored
    except (IndexError, KeyError) as error:
        raise FormatError("a page of a Parquet file has no valid header", found=f"byte {start}") from error


def _thrift_struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, int], int]:
    """Return the integers of a struct by field number, and where it ends.

    Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

    Raises:
        IndexError, KeyError: it is none.
    """

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
        raise IndexError

    def skip(kind: int) -> int:
        """Pass one value; return it where it is an integer."""
        nonlocal at
        if kind in _THRIFT_INTEGERS:
            value = varint()
            return value >> 1 ^ -(value & 1)
        if kind == _THRIFT_BINARY:
            size = varint()
            at += size
        elif kind == _THRIFT_STRUCT and depth < _MOST_DEPTH:
            at = _thrift_struct(data, at, depth + 1)[1]
        else:
            at += _THRIFT_WIDTHS[kind]
        return 0

    found: dict[int, int] = {}
    number = 0
    while (byte := data[at]) != 0:
        at += 1
        number = number + (byte >> 4) if byte >> 4 else skip(_THRIFT_I32)
        found[number] = skip(byte & 15)
    return found, at + 1


def _check_size(what: str, size: int, most: int) -> None:
    if size > most:
        what = f"{what} of a Parquet file are over the limit"
        raise FormatError(what, expected=f"at most {most} bytes", found=size)
