"""A few bytes of Parquet that stand for gigabytes of values are read a part at a time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardio

ROWS = 600


@pytest.mark.slow
@pytest.mark.parametrize("kept_type", [False, True])
def test_a_dictionary_of_one_large_text_is_not_unfolded_at_once(tmp_path, kept_type) -> None:
    text = "x" * (1 << 20)
    column = pa.DictionaryArray.from_arrays(pa.array([0, None] * (ROWS // 2), pa.int32()), pa.array([text]))
    table = pa.table({"text": column, "n": pa.array(range(ROWS))})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=["text"], store_schema=kept_type)
    before = pa.default_memory_pool().max_memory()
    shardio.convert_dataset(tmp_path / "a.parquet", tmp_path / "ds", compression="zstd", workers=1)
    assert pa.default_memory_pool().max_memory() - before < 100 << 20
    ds = shardio.open(tmp_path / "ds")
    assert len(ds) == ROWS
    assert (ds[0]["text"], ds[1]["text"], int(ds[ROWS - 1]["n"])) == (text, None, ROWS - 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["list", "struct", "list of structs"])
def test_nor_is_one_within_other_values(tmp_path, form) -> None:
    text = "x" * (1 << 20)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([text]))
    structs = pa.StructArray.from_arrays([texts], ["t"])
    offsets = pa.array(range(ROWS + 1), pa.int32())
    column = {
        "list": lambda: pa.ListArray.from_arrays(offsets, texts),
        "struct": lambda: structs,
        "list of structs": lambda: pa.ListArray.from_arrays(offsets, structs),
    }[form]()
    pq.write_table(pa.table({"x": column, "n": range(ROWS)}), tmp_path / "a.parquet", store_schema=False)
    before = pa.default_memory_pool().max_memory()
    shardio.convert_dataset(tmp_path / "a.parquet", tmp_path / "ds", compression="zstd", workers=1)
    assert pa.default_memory_pool().max_memory() - before < 100 << 20
    value = shardio.open(tmp_path / "ds")[1]
    assert value["x.t" if form == "struct" else "x"] == {
        "list": [text], "struct": text, "list of structs": [{"t": text}]
    }[form]  # fmt: skip
