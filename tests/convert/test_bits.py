"""Parquet and back: every bit of every number, signalling NaNs too, in every shape of a column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardio

BITS = {
    "f2": np.array([0x7C01, 0xFE01, 0x8000, 0x3C00], "u2"),
    "f4": np.array([0x7F800001, 0xFF812345, 0x80000000, 0x3F800000], "u4"),
    "f8": np.array([0x7FF0000000000001, 0xFFF0000000001234, 1 << 63, 0x3FF0000000000000], "u8"),
}


def _offsets(*places: int | None) -> Any:
    return pa.array(places, pa.int32())


def _columns(flat: Any) -> dict[str, Any]:
    pairs = pa.FixedSizeListArray.from_arrays(pa.concat_arrays([flat, flat]), 2)
    two = pa.ListArray.from_arrays(_offsets(0, 2, 4), flat)
    return {
        "plain": flat,
        "some": pa.concat_arrays([flat.slice(0, 3), pa.nulls(1, flat.type)]),
        "lists": pa.ListArray.from_arrays(_offsets(0, 2, 2, 3, 4), flat),
        "some_lists": pa.ListArray.from_arrays(_offsets(0, 2, None, 3, 4), flat),
        "large": pa.LargeListArray.from_arrays(pa.array([0, 2, 2, 3, 4], pa.int64()), flat),
        "pairs": pairs,
        "of_pairs": pa.ListArray.from_arrays(_offsets(0, 1, 2, 2, 4), pairs),
        "of_lists": pa.ListArray.from_arrays(_offsets(0, 1, 1, 2, 2), two),
    }


def _bits(column: Any) -> list[Any]:
    """The bits of the numbers of a column, row by row, as Arrow's own buffers have them."""
    kind = column.type
    if pa.types.is_floating(kind):
        return column.view(f"int{kind.bit_width}").to_pylist()
    inner = _bits(column.values[column.offset * kind.list_size :] if _is_fixed(kind) else column.values)
    if _is_fixed(kind):
        return [inner[row * kind.list_size :][: kind.list_size] for row in range(len(column))]
    stops = column.offsets.to_pylist()
    there = column.is_valid().to_pylist()
    return [inner[stops[row] : stops[row + 1]] if there[row] else None for row in range(len(column))]


def _is_fixed(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))


@pytest.mark.parametrize("size", BITS)
def test_every_bit_of_a_number_comes_back(tmp_path: Path, size: str) -> None:
    columns = _columns(pa.array(BITS[size].view(size)))
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "in" / "train.parquet")
    shardio.convert_dataset(tmp_path / "in", tmp_path / "ds")
    wanted = {name: _bits(column) for name, column in columns.items()}
    for row, value in enumerate(shardio.open(tmp_path / "ds")):
        for name, item in value.items():
            flat = None if wanted[name][row] is None else np.ravel(np.array(wanted[name][row], f"i{size[1]}"))
            assert (None if item is None else np.ravel(item).tobytes()) == (
                None if flat is None else flat.tobytes()
            ), (name, row)
    shardio.export_dataset(tmp_path / "ds", tmp_path / "out", kind="parquet")
    (file,) = (tmp_path / "out").iterdir()
    back = pq.read_table(file)
    assert {name: _bits(back[name].combine_chunks()) for name in wanted} == wanted


def test_numbers_become_documents_where_they_are_asked_for(tmp_path: Path) -> None:
    table = {"a": pa.array([[1, 2], [3]]), "b": pa.array([1.5, None])}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    types = {"a": "json", "b": shardio.Feature("json", optional=True)}
    shardio.convert_dataset(tmp_path / "a.parquet", tmp_path / "ds", schema=types)
    found = list(shardio.open(tmp_path / "ds"))
    assert json.dumps(found) == '[{"a": [1, 2], "b": 1.5}, {"a": [3], "b": null}]'
