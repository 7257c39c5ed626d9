"""What a file claims of its size is compared with what is there, before anything is allocated."""

from __future__ import annotations

import io
import struct
import tracemalloc

import numpy as np
import pytest

from shardio.errors import CorruptRecordError, FormatError
from shardio.format import parse_npy
from shardio.metadata import encode_metadata
from shardio.metadata._manifest import decode_metadata
from shardio.reader._parquet import read_parquet
from tests.suites.errors import refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MOST = 1 << 20


@pytest.fixture(autouse=True)
def little_memory():
    """No case takes more than tens of megabytes."""
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    yield
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    assert pa.default_memory_pool().max_memory() - before < 64 << 20
    tracemalloc.stop()


def npy(header: bytes, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    width = "<H" if version == (1, 0) else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(width, len(header)) + header + data


@pytest.mark.parametrize(
    "data",
    [
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(8)),
        npy(b"{'descr': '|V0', 'fortran_order': False, 'shape': (1099511627776,), }"),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': " + b"(" * 5000 + b")" * 5000 + b", }"),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"\x93NUMPY nothing",
        b"PK\x03\x04",
        b"",
    ],
)
def test_npy_headers_that_lie_are_refused(data: bytes) -> None:
    with refused(ValueError, "array"):
        parse_npy(data)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.ones((3, 2), ">f4")),
        np.float16(2),
        np.zeros((0, 3), "?"),
    ],
)
def test_npy_files_are_read_as_numpy_reads_them(array: np.ndarray) -> None:
    np.save(out := io.BytesIO(), array)
    found = parse_npy(out.getvalue())
    assert (found.dtype, found.shape) == (np.asarray(array).dtype, np.asarray(array).shape)
    np.testing.assert_array_equal(found, array)


def parquet(table: object, **options: object) -> bytes:
    pq.write_table(table, out := io.BytesIO(), compression="zstd", store_schema=False, **options)
    return out.getvalue()


def lying_parquet() -> bytes:
    """Return a column of 4 MB whose footer says that it takes 9 bytes."""
    data = parquet(pa.table({"x": ["a" * 4_000_000]}), use_dictionary=False)
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    # As Thrift writes them: a doubled number in groups of 7 bits, and the other one padded to its length.
    groups = [2 * chunk.total_uncompressed_size >> shift & 127 for shift in (0, 7, 14, 21)]
    old = bytes([*(group | 128 for group in groups[:-1]), groups[-1]])
    assert data.count(old) == 2
    return data.replace(old, b"\x92\x80\x80\x00")


TEXT = "a" * 100_000
ROWS = 10_000
BOMBS = {
    "a dictionary": lambda: parquet(
        pa.table({"x": pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), [TEXT])})
    ),
    "prefixes": lambda: parquet(
        pa.table({"x": [TEXT] * 500}), use_dictionary=False, column_encoding={"x": "DELTA_BYTE_ARRAY"}
    ),
    "runs of numbers": lambda: parquet(pa.table({"x": np.zeros(1 << 20, np.int64)})),
    "runs of nothing": lambda: parquet(pa.table({"x": pa.nulls(1 << 20, pa.string())})),
    "a footer that lies": lying_parquet,
    "lists": lambda: parquet(pa.table({"x": [["a"]]})),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_tables_that_unfold_are_refused_before_they_do(bomb: str) -> None:
    data = BOMBS[bomb]()
    assert len(data) < 1 << 20
    with pytest.raises(FormatError):
        read_parquet(data, ["x"], most=MOST)


def test_a_table_within_the_limit_is_read() -> None:
    table = pa.table(
        {"x": ["a", None, "b" * 1000], "n": [1, None, 3], "ok": [True, False, None], "b": [b"", b"1", None]}
    )
    for options in ({}, {"use_dictionary": False}):
        assert read_parquet(parquet(table, **options), ["n", "x", "b", "ok"], most=MOST) == table.select(
            ["n", "x", "b", "ok"]
        )


@pytest.mark.parametrize(
    "data",
    [b'{"a": NaN}', b'{"a": 1e999}', b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a": 1, "a": 2}'],
)
def test_free_metadata_that_no_json_is(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_metadata(data)


def test_free_metadata_that_could_not_be_read_is_not_written() -> None:
    value: object = 1
    for _ in range(300):
        value = [value]
    with refused(ValueError, "nested"):
        encode_metadata({"a": value})


def test_a_tensor_that_repeats_its_last_element_is_bounded() -> None:
    from shardio.codecs import parse_tensor
    from shardio.v1.tf_tensor_pb2 import TensorFlowTensor

    for fields in ({"dtype": 1, "float_val": [1.0]}, {"dtype": 7, "string_val": [b"a"]}):
        message = TensorFlowTensor(**fields)
        message.tensor_shape.dim.add(size=1 << 28)
        with pytest.raises(CorruptRecordError):
            parse_tensor(message.SerializeToString())
