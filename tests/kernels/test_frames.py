"""TFRecord frames: encoded, scanned and checked alike by every implementation, whatever the bytes."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio import kernels as public
from shardio.kernels._compiled import _frames
from tests.kernels.differential import IMPLEMENTATIONS
from tests.suites.errors import refused

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorflow"
PAYLOADS = [b"", b"x", b"12345678", bytes(range(256)), b"\0" * 40, b"tail"]


def masked(crc: int) -> bytes:
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(payload: bytes, crc=public.crc32c, length: int | None = None) -> bytes:
    """Build one frame from the specification, with a length that may be wrong."""
    head = struct.pack("<Q", len(payload) if length is None else length)
    return head + masked(crc(head)) + payload + masked(crc(payload))


FRAMES = b"".join(frame(payload) for payload in PAYLOADS)
STOPS = np.cumsum([16 + len(payload) for payload in PAYLOADS])
STARTS = np.concatenate([[0], STOPS[:-1]])


@pytest.mark.parametrize(
    ("data", "crc"),
    [(b"", 0), (b"123456789", 0xE3069283), (b"\0" * 32, 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_crc32c_has_the_values_of_rfc_3720(kernels, data, crc) -> None:
    assert public.crc32c(data) == crc
    assert public.crc32c(data[4:], public.crc32c(data[:4])) == crc
    assert kernels.crc32c_many(data, [0], [len(data)]).tolist() == [crc]


@given(st.lists(st.binary(max_size=50) | st.integers(0, 70_000).map(bytes), max_size=4))
def test_a_crc_goes_on_over_data_whose_own_is_known(parts) -> None:
    crc = 0
    for part in parts:
        crc = public.crc32c_joined(crc, public.crc32c(part), len(part))
    assert crc == public.crc32c(b"".join(parts))


@given(
    st.lists(st.binary(max_size=60) | st.integers(0, 90_000).map(bytes), max_size=12),
    st.sampled_from([1, 40, 200, 70_000, 3_000_000]),
)
def test_a_buffer_of_frames_holds_what_encoding_them_at_once_gives(payloads, block_bytes) -> None:
    """A payload is taken if it fits, and by force if not; what comes out is whole; the buffer starts over."""
    buffer = public.FrameBuffer(block_bytes)
    blocks: list[list[bytes]] = [[]]
    for payload in payloads:
        size = sum(16 + len(taken) for taken in blocks[-1])
        wrapped = payload if len(payload) % 3 else memoryview(payload)
        assert buffer.add(wrapped) == (size + 16 + len(payload) <= block_bytes)
        if buffer.rows == len(blocks[-1]):
            if blocks[-1] and len(payload) % 2:
                check_taken(buffer, blocks[-1])
                blocks.append([])
            buffer.force(wrapped)
        blocks[-1].append(payload)
        assert (buffer.rows, buffer.size) == (len(blocks[-1]), sum(16 + len(p) for p in blocks[-1]))
    check_taken(buffer, blocks[-1])
    check_taken(buffer, [])


@given(
    st.lists(st.binary(max_size=60) | st.integers(0, 90_000).map(bytes), max_size=12),
    st.sampled_from([40, 200, 70_000]),
    st.integers(0, 14),
    st.integers(0, 14),
)
def test_many_payloads_are_taken_up_to_the_first_that_is_not(payloads, block_bytes, start, odd) -> None:
    """What does not fit, or is another buffer than bytes, ends it; nothing of that one is taken."""
    mixed = [memoryview(each) if k == odd else each for k, each in enumerate(payloads)]
    buffer = public.FrameBuffer(block_bytes)
    taken, size = [], 0
    for payload in mixed[start:]:
        size += 16 + len(payload)
        if size > block_bytes or isinstance(payload, memoryview):
            break
        taken.append(payload)
    assert buffer.add_many(mixed, start) == start + len(taken)
    check_taken(buffer, taken)


def check_taken(buffer, payloads: list[bytes]) -> None:
    """Take the frames and compare them with the specification."""
    found = buffer.take()
    frames = [frame(payload) for payload in payloads]
    assert found.frames == b"".join(frames)
    assert found.frame_stops.tolist() == np.cumsum([len(part) for part in frames], dtype=int).tolist()
    assert found.crc32c == public.crc32c(found.frames)
    assert (buffer.rows, buffer.size) == (0, 0)


def test_the_mask() -> None:
    """Of 0, and of the example of the specification: rotated right by 15 bits, plus a constant."""
    assert public.mask_crc(0) == 0xA282EAD8
    assert public.mask_crc(1) == (1 << 17) + 0xA282EAD8


@pytest.mark.parametrize(("instruction", "wide"), [(True, True), (True, False), (False, False)])
def test_crc32c_is_right_at_every_length_and_place(kernels, instruction, wide) -> None:
    """Wide products, lanes, words and single bytes join to the library's value; so do tables."""
    data = random.Random(1).randbytes(9000)
    starts = np.array([*range(20), *([3] * 60), *([5] * 900)])
    stops = np.array([20 + 441 * k for k in range(20)] + [3 + 150 * k for k in range(60)] + [*range(5, 905)])
    _frames.use_instruction(instruction, wide)
    try:
        found = kernels.crc32c_many(data, starts, stops)
    finally:
        _frames.use_instruction(True, True)
    assert found.dtype == np.uint32
    expected = [public.crc32c(data[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda part: np.frombuffer(part, np.uint8)])
def test_frames_are_those_of_the_specification(kernels, wrap) -> None:
    frames, stops = kernels.encode_frames([wrap(payload) for payload in PAYLOADS])
    assert frames == FRAMES
    assert stops.dtype == np.uint32
    assert stops.tolist() == STOPS.tolist()


def test_frames_are_those_of_tensorflow(kernels) -> None:
    data = (GOLDEN / "raw-plain.tfrecord").read_bytes()
    payloads = [base64.b64decode(text) for text in json.loads((GOLDEN / "expected.json").read_text())["raw"]]
    frames, stops = kernels.encode_frames(payloads)
    assert frames == data
    scan = kernels.scan_frames(data)
    assert scan.frame_stops.tolist() == stops.tolist()
    assert (scan.stopped, scan.problem) == (len(data), None)
    starts = np.concatenate([[0], scan.frame_stops[:-1]])
    assert kernels.check_frames(data, starts, scan.frame_stops) == -1
    assert kernels.slice_records(data, starts + 12, scan.frame_stops - 4) == payloads


def test_no_payloads_make_no_frames(kernels) -> None:
    frames, stops = kernels.encode_frames([])
    assert frames == b""
    assert (stops.dtype, stops.size) == (np.uint32, 0)
    scan = kernels.scan_frames(b"")
    assert (scan.frame_stops.size, scan.stopped, scan.problem) == (0, 0, None)
    assert kernels.check_frames(b"", [], []) == -1


def test_frames_that_no_u32_could_point_into_are_refused(kernels, monkeypatch) -> None:
    monkeypatch.setattr(_frames, "MAX_BLOCK", 40)
    assert len(kernels.encode_frames([b"x" * 24])[0]) == 40
    with pytest.raises(ValueError, match="more than 40 bytes"):
        kernels.encode_frames([b"x" * 25])


@pytest.mark.parametrize("wrong", ["text", 7, None, np.arange(10)[::2]])
def test_what_is_no_buffer_is_a_type_error(kernels, wrong) -> None:
    with pytest.raises(TypeError, match="contiguous buffer"):
        kernels.encode_frames([wrong])
    with pytest.raises(TypeError, match="contiguous buffer"):
        kernels.scan_frames(wrong)


def test_a_scan_stops_at_the_first_incomplete_frame(kernels) -> None:
    """Every cut gives the whole frames before it, where to continue, and no problem."""
    for cut in range(len(FRAMES) + 1):
        scan = kernels.scan_frames(FRAMES[:cut])
        whole = int((cut >= STOPS).sum())
        assert scan.frame_stops.dtype == np.int64
        assert scan.frame_stops.tolist() == STOPS[:whole].tolist()
        assert scan[1:5] == (int(STARTS[whole]) if whole < len(PAYLOADS) else cut, None, None, None)


def test_every_flipped_bit_is_found_in_its_frame(kernels) -> None:
    """A flipped bit stops the scan at the frame that holds it, and the check names that frame."""
    for place in range(len(FRAMES)):
        row = int(np.searchsorted(STOPS, place, "right"))
        within = place - STARTS[row]
        for bit in range(8):
            damaged = bytearray(FRAMES)
            damaged[place] ^= 1 << bit
            scan = kernels.scan_frames(damaged)
            assert scan.frame_stops.tolist() == STOPS[:row].tolist()
            assert scan.stopped == STARTS[row]
            assert scan.problem == ("length crc" if within < 12 else "payload crc")
            assert scan.expected != scan.found
            assert kernels.check_frames(damaged, STARTS, STOPS) == row


def test_both_sides_of_a_wrong_crc_are_reported(kernels) -> None:
    damaged = bytearray(frame(b"payload"))
    damaged[12] ^= 1
    scan = kernels.scan_frames(damaged)
    assert scan.expected == public.mask_crc(public.crc32c(b"payload"))
    assert scan.found == public.mask_crc(public.crc32c(damaged[12:19]))


@pytest.mark.parametrize("length", [1 << 30, (1 << 31) - 1, 1 << 31, 1 << 63, (1 << 64) - 1, (1 << 64) - 16])
def test_a_lying_length_reads_nothing(kernels, length) -> None:
    """A length with a right CRC that leads past the buffer or the limit is never followed."""
    data = frame(b"before") + frame(b"x", length=length)
    scan = kernels.scan_frames(data)
    assert scan.frame_stops.tolist() == [22]
    expected = (None, None, None) if length <= 1 << 30 else ("length over limit", 1 << 30, length)
    assert scan[1:5] == (22, *expected)
    assert kernels.scan_frames(data, check="none", max_record=5)[1:5] == (0, "length over limit", 5, 6)
    assert kernels.check_frames(data, [0, 22], [22, len(data)]) == 1


def test_the_crc_of_a_length_is_judged_before_the_length(kernels) -> None:
    data = bytearray(frame(b"x", length=1 << 40))
    data[8] ^= 1
    assert kernels.scan_frames(data).problem == "length crc"
    assert kernels.scan_frames(data[:12]).problem == "length crc"
    assert kernels.scan_frames(data[:11]).problem is None


def test_careless_writers_can_be_read(kernels) -> None:
    """Some writers store CRC-32 where CRC-32C belongs, or nothing at all."""
    data = b"".join(frame(payload, zlib.crc32) for payload in [*PAYLOADS, bytes(5000)])
    stops = np.append(STOPS, STOPS[-1] + 5016)
    assert kernels.scan_frames(data, check="crc32").frame_stops.tolist() == stops.tolist()
    assert kernels.scan_frames(data).problem == "length crc"
    assert kernels.check_frames(data, np.append(0, stops[:-1]), stops, check="crc32") == -1
    zeros = b"".join(struct.pack("<QI", len(payload), 0) + payload + bytes(4) for payload in PAYLOADS)
    assert kernels.scan_frames(zeros, check="none").frame_stops.tolist() == STOPS.tolist()
    assert kernels.check_frames(zeros, STARTS, STOPS, check="none") == -1
    with refused(ValueError, "crc32c", "crc32"):
        kernels.scan_frames(data, check="md5")


def test_a_check_looks_at_the_bounds_too(kernels) -> None:
    lowest, highest = -(1 << 63), (1 << 63) - 1
    for start, stop in [
        (0, 17), (0, 15), (1, 16), (-1, 16), (0, highest), (lowest, 16), (lowest, highest), (highest, lowest),
        (16, 0), (lowest, lowest), (len(FRAMES), len(FRAMES)), (len(FRAMES) - 4, len(FRAMES) + 12),
    ]:  # fmt: skip
        assert kernels.check_frames(FRAMES, [16, start], [33, stop]) == 1
    assert kernels.check_frames(FRAMES, STARTS[::-1], STOPS[::-1]) == -1
    with pytest.raises(ValueError, match="as many starts as stops"):
        kernels.check_frames(FRAMES, [0], [])


def test_many_frames_are_scanned_in_several_rounds(kernels) -> None:
    """More frames than either implementation takes in one round."""
    frames, stops = kernels.encode_frames([b"ab"] * 20_000)
    scan = kernels.scan_frames(frames + b"\0" * 12)
    assert scan.frame_stops.tolist() == stops.tolist()
    assert scan.problem == "length crc"
    damaged = bytearray(frames)
    damaged[17_000 * 18 + 13] ^= 1
    scan = kernels.scan_frames(damaged)
    assert scan.frame_stops.tolist() == stops[:17_000].tolist()
    assert (scan.stopped, scan.problem) == (17_000 * 18, "payload crc")


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3),
    st.integers(0, 20),
    st.sampled_from(["crc32c", "crc32", "none"]),
    st.sampled_from([5, 40, 1 << 30]),
)
def test_implementations_agree_on_damaged_frames(payloads, edits, cut, check, limit) -> None:
    """Whatever the bytes, every field of the scan and the verdict of the check are the same."""
    data = bytearray(b"".join(map(frame, payloads)))
    for place, byte in edits:
        if place < len(data):
            data[place] = byte
    data = data[: len(data) - cut] if cut < len(data) else data
    starts = np.cumsum([0, *[16 + len(payload) for payload in payloads]])
    scans, checks = [], []
    for module in IMPLEMENTATIONS:
        scan = module.scan_frames(data, check=check, max_record=limit)
        scans.append((scan.frame_stops.tolist(), scan.frame_stops.dtype, scan[1:5]))
        ends = scan.frame_stops.tolist()
        if scan.crcs is not None:
            assert check == "crc32c"
            assert scan.crcs.tolist() == [public.crc32c(bytes(data[:end])) for end in ends]
        checks.append(module.check_frames(data, starts[:-1], starts[1:], check=check))
    assert all(scan == scans[0] for scan in scans)
    assert len(set(checks)) == 1
