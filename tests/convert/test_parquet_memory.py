"""Parquet is read a part at a time, whatever it stands for, and each footer is parsed once."""

from __future__ import annotations

from typing import Any

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


def test_each_footer_is_parsed_once(tmp_path, monkeypatch) -> None:
    """By the process that lists the files; readers of row groups get it."""
    for number in range(3):
        table = pa.table({"n": range(number, 300, 3)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=10)
    parsed: list[Any] = []
    open_file = pq.ParquetFile.__init__

    def opened(self: Any, source: Any, metadata: Any = None, **options: Any) -> None:
        if metadata is None:
            parsed.append(source)
        open_file(self, source, metadata=metadata, **options)

    monkeypatch.setattr(pq.ParquetFile, "__init__", opened)
    shardio.convert_dataset(tmp_path, tmp_path / "ds", workers=1)
    assert sorted(record["n"] for record in shardio.open(tmp_path / "ds")) == list(range(300))
    assert len(parsed) == 3


def test_rows_of_arrow_files_are_named_by_their_batch(tmp_path) -> None:
    """An Arrow file does not say how many rows come before a batch."""
    table = pa.table({"n": [1, 2, None, 4, 5, None]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table, max_chunksize=2)
    report = shardio.convert_dataset(
        tmp_path / "a.arrow", tmp_path / "ds", schema={"n": "int64"}, on_error="skip"
    )
    places = [bad.where.removeprefix(f"{tmp_path}/a.arrow ") for bad in report.skipped]
    assert places == ["record batch 1 row 0", "record batch 2 row 1"]
