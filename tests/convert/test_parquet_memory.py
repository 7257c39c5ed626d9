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
