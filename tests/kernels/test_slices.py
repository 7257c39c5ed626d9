"""Records out of buffers: what Python's own slices say, of every kind of buffer, never beyond its end."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.suites.errors import refused

DATA = bytes(range(256)) * 4


def mapped(data: bytes) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


BUFFERS = [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.int64), mapped]
WRONG = [(-1, 2), (5, 4), (0, 1025), (1025, 1025), (-(1 << 63), (1 << 63) - 1), ((1 << 63) - 1, -(1 << 63))]


@pytest.mark.parametrize("wrap", BUFFERS)
def test_slices_are_pythons(kernels, wrap) -> None:
    starts, stops = [3, 0, 1000, 5, 1024, 0], [10, 0, 1024, 6, 1024, 1024]
    expected = [DATA[a:b] for a, b in zip(starts, stops, strict=True)]
    assert kernels.slice_records(wrap(DATA), starts, stops) == expected
    values, offsets = kernels.gather(wrap(DATA), starts, stops)
    assert (values.dtype, offsets.dtype) == (np.uint8, np.int64)
    assert values.tobytes() == b"".join(expected)
    assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert values.flags.writeable
    assert kernels.slice_records(wrap(DATA), [900], [903]) == [DATA[900:903]]


@pytest.mark.parametrize("wrap", BUFFERS)
@pytest.mark.parametrize("starts", [[0, 10, 20], [5, 5, 1016], [1016, 0, 3], [7], []])
def test_equal_lengths_become_rows(kernels, wrap, starts) -> None:
    out = np.full((len(starts), 8), 255, np.uint8)
    assert kernels.gather_fixed(wrap(DATA), np.array(starts, np.int64), 8, out) is None
    assert [row.tobytes() for row in out] == [DATA[start : start + 8] for start in starts]


def test_a_mapped_file_can_be_closed_afterwards(kernels) -> None:
    """No kernel keeps a view of what it was given."""
    file = mapped(DATA)
    kernels.slice_records(file, [0], [9])
    kernels.gather(file, [0], [9])
    kernels.gather_fixed(file, [0], 8, np.empty((1, 8), np.uint8))
    kernels.crc32c_many(file, [0], [9])
    kernels.check_frames(file, [0], [16])
    kernels.scan_frames(file)
    file.close()


def test_several_buffers_are_gathered_in_any_order(kernels) -> None:
    other = bytearray(b"another buffer")
    values, offsets = kernels.gather_from([DATA, other, b""], [1, 0, 1, 2], [0, 250, 8, 0], [7, 260, 14, 0])
    assert values.tobytes() == b"another" + DATA[250:260] + b"buffer"
    assert offsets.tolist() == [0, 7, 17, 23, 23]
    assert kernels.gather_from([], [], [], [])[1].tolist() == [0]
    for which, start, stop in [(2, 0, 1), (1, 0, 15), (3, 0, 0), (-1, 0, 0), (0, 5, 4), (0, -1, 4)]:
        with pytest.raises(IndexError):
            kernels.gather_from([DATA, other, b""], [0, which], [0, start], [1, stop])
    with pytest.raises(ValueError, match="numbers of buffers"):
        kernels.gather_from([DATA], [0], [0, 1], [1, 2])


@pytest.mark.parametrize(("start", "stop"), WRONG)
def test_a_range_outside_names_itself(kernels, start, stop) -> None:
    """No range that leaves the buffer is read; the error names the first such range."""
    for function in (kernels.slice_records, kernels.gather, kernels.crc32c_many):
        with pytest.raises(IndexError):
            function(DATA, [0, start, -5], [1, stop, -5])


@pytest.mark.parametrize("start", [-1, 1017, (1 << 63) - 1, -(1 << 63)])
def test_a_row_outside_names_itself(kernels, start) -> None:
    with pytest.raises(IndexError):
        kernels.gather_fixed(DATA, [0, start], 8, np.empty((2, 8), np.uint8))


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 7), np.uint8),
        np.empty((1, 8), np.uint8),
        np.empty((2, 8), np.int8),
        np.empty(16, np.uint8),
        None,
        np.empty((8, 2), np.uint8).T,
        np.empty((2, 16), np.uint8)[:, ::2],
        np.frombuffer(bytes(16), np.uint8).reshape(2, 8),
    ],
)
def test_rows_need_a_place_that_fits(kernels, out) -> None:
    with refused(ValueError, "out:"):
        kernels.gather_fixed(DATA, [0, 1], 8, out)


def test_rows_may_be_empty_but_not_negative(kernels) -> None:
    kernels.gather_fixed(DATA, [0, 1024], 0, np.empty((2, 0), np.uint8))
    kernels.gather_fixed(b"", [], 8, np.empty((0, 8), np.uint8))
    with pytest.raises(ValueError, match="0 or more"):
        kernels.gather_fixed(DATA, [0], -1, np.empty((1, 8), np.uint8))


def test_bounds_are_integers_in_pairs(kernels) -> None:
    with refused(TypeError, "starts"):
        kernels.slice_records(DATA, [0.5], [1])
    with refused(TypeError, "stops"):
        kernels.slice_records(DATA, [0], [[1]])
    with pytest.raises(ValueError, match="as many starts as stops, found 1 and 2"):
        kernels.slice_records(DATA, [0], [1, 2])
    assert kernels.slice_records(DATA, np.array([0], np.uint32), np.array([1], np.uint64)) == [b"\0"]
    assert kernels.slice_records(DATA, [], []) == []
    assert kernels.slice_records(b"", [0], [0]) == [b""]
    assert kernels.gather(b"", [], [])[0].size == 0


@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(-2, 62), st.integers(-2, 62)), max_size=8))
def test_any_bounds(kernels, data, ranges) -> None:
    starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
    right = all(0 <= start <= stop <= len(data) for start, stop in ranges)
    if right:
        expected = [data[start:stop] for start, stop in ranges]
        assert kernels.slice_records(data, starts, stops) == expected
        assert kernels.gather(data, starts, stops)[0].tobytes() == b"".join(expected)
        return
    for function in (kernels.slice_records, kernels.gather, kernels.crc32c_many):
        with pytest.raises(IndexError):
            function(data, starts, stops)
