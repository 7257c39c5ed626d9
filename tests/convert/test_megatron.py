"""Megatron's indexed datasets, written here by the published layout, and compared token by token."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
import shardio_indexer
from shardio.errors import FormatError, NotFoundError, SchemaError

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def write(
    prefix: Path, documents: list[list[list[Any]]], dtype: str = "uint16", modes: list[int] | None = None
) -> Path:
    """Write `prefix.idx` and `prefix.bin` as Megatron-LM's `indexed_dataset.py` does."""
    sequences = [np.array(sequence, f"<{np.dtype(dtype).str[1:]}") for each in documents for sequence in each]
    Path(f"{prefix}.bin").write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    places = np.cumsum([0, *(sequence.nbytes for sequence in sequences)])[:-1]
    bounds = np.cumsum([0, *map(len, documents)])
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(sequences), len(bounds))
    index += np.array([len(sequence) for sequence in sequences], "<i4").tobytes()
    index += places.astype("<i8").tobytes() + bounds.astype("<i8").tobytes()
    Path(f"{prefix}.idx").write_bytes(index + bytes(modes or []))
    return prefix


def tokens(values: list[Any]) -> list[list[Any]]:
    return [value["tokens"].tolist() for value in values]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", list(CODES))
def test_tokens_keep_their_type(convert, tmp_path, dtype):
    documents = [[[1, 2, 3]], [[]], [[100, 5]]]
    (tmp_path / "p").mkdir()
    prefix = write(tmp_path / "p" / "corpus", documents, dtype)
    for source in (f"{prefix}.idx", tmp_path / "p"):
        assert tokens(convert(source)) == [[1, 2, 3], [], [100, 5]]
        assert convert.report.kind == "megatron"
    for source in (prefix, f"{prefix}.bin"):
        assert tokens(convert(source, kind="megatron")) == [[1, 2, 3], [], [100, 5]]
    assert {name: each.short for name, each in convert.report.schema.items()} == {"tokens": f"{dtype}[?]"}


def test_sequences_of_a_document_are_not_lost(convert, tmp_path):
    prefix = write(tmp_path / "a", [[[1, 2], [3]], [], [[4]]], modes=[0, 1, 0])
    values = convert(f"{prefix}.idx")
    assert tokens(values) == [[1, 2, 3], [], [4]]
    assert [value["lengths"].tolist() for value in values] == [[2, 1], [], [1]]
    assert [value["modes"].tolist() for value in values] == [[0, 1], [], [0]]


DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 255), max_size=5), max_size=3), max_size=12)


@settings(max_examples=max(12, settings().max_examples // 10), deadline=None)
@given(documents=DOCUMENTS)
def test_any_documents(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("megatron")
    prefix = write(folder / "x", documents, "uint8")
    report = shardio.convert_dataset(f"{prefix}.idx", folder / "d")
    values = list(shardio.open(folder / "d"))
    assert tokens(values) == [[token for sequence in each for token in sequence] for each in documents]
    if "lengths" in report.schema:
        assert [value["lengths"].tolist() for value in values] == [[*map(len, each)] for each in documents]
    else:
        assert all(len(each) == 1 for each in documents)


def test_splits_and_types_of_several_files(convert, tmp_path):
    (tmp_path / "p").mkdir()
    write(tmp_path / "p" / "train_text_document", [[[1]]], "uint16")
    write(tmp_path / "p" / "val_text_document", [[[70_000]]], "int32")
    assert tokens(convert(tmp_path / "p")) == [[1], [70_000]]
    assert convert.report.schema["tokens"].short == "int32[?]"
    assert convert.report.records == {"train": 1, "val": 1}
    assert convert.report.ignored == []


def test_types_by_hand(convert, tmp_path):
    prefix = write(tmp_path / "a", [[[1, 2]], [[300]]])
    values = convert(f"{prefix}.idx", schema={"tokens": "int64[?]"})
    assert values[1]["tokens"].dtype == np.int64
    convert.refused(f"{prefix}.idx", SchemaError, "300", schema={"tokens": "uint8[?]"})


def others(folder: Path) -> dict[str, tuple[Path, str]]:
    """Write a file of each kind, alone in a folder; return it and what it is called."""
    import zipfile

    found: dict[str, tuple[Path, str]] = {}

    def file(name: str, data: bytes, said: str) -> Path:
        path = folder / name.replace(".", "_") / name
        path.parent.mkdir()
        path.write_bytes(data)
        found[name] = (path, said)
        return path

    np.savez(file("b.npz", b"", "npz file of NumPy.*numpy.load"), x=np.arange(3))
    np.save(file("c.npy", b"", "array of NumPy.*numpy.load"), np.arange(3))
    with zipfile.ZipFile(file("d.zip", b"", "zip file.*unpack it"), "w") as archive:
        archive.writestr("a/b.jpg", b"x")
    # What array_record 0.8.6 wrote.
    head = "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
    file("e.array_record", bytes.fromhex(head) + bytes(32), "ArrayRecord.*ArrayRecordDataSource")
    file("index.json", b'{"chunks": [], "config": {"compression": null}}', "LitData.*StreamingDataset")
    file("f.db", b"SQLite format 3\0" + bytes(90), "SQLite.*sqlite3")
    file("g.idx", b"TNTIDX\0\0" + bytes(90), "fairseq")
    return found


def test_other_kinds_are_named_with_the_way_in(convert, tmp_path):
    for path, said in others(tmp_path).values():
        convert.refused(path, FormatError, f"this is .*{said}")
        convert.refused(path.parent, FormatError, f"this is .*{said}")
        (refusal,) = shardio_indexer.adopt(path, into=tmp_path / "adopted").refused
        assert re.search(f"this is .*{said}", str(refusal.error))
        with pytest.raises(NotFoundError, match=f"this is .*{said}"):
            shardio_indexer.adopt(path.parent)
        (path.parent / "README.md").write_text("# Notes")
        convert.refused(path.parent, FormatError, f"this is .*{said}")


def test_adoption_says_that_conversion_takes_it(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    prefix = write(tmp_path / "a", [[[1, 2]]])
    (refusal,) = shardio_indexer.adopt(f"{prefix}.idx", into=tmp_path / "adopted").refused
    assert "shardio convert SOURCE URL --kind megatron" in refusal.error.advice
    pq.write_table(pa.table({"n": [1]}), tmp_path / "part-0")
    (refusal,) = shardio_indexer.adopt(tmp_path / "part-0", into=tmp_path / "adopted").refused
    assert "this is Parquet" in refusal.error.what
    assert shardio.convert_dataset(tmp_path / "part-0", tmp_path / "new").records == {"train": 1}
