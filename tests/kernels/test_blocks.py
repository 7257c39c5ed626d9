"""Payloads of whole blocks: what was framed comes out again, of blocks that are right and no others."""

from __future__ import annotations

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardio.kernels import BlockChecks
from tests.kernels.differential import IMPLEMENTATIONS

BLOCKS = [[b"one", b"", b"three"], [], [b"x" * 1000], [b"", b""]]
BEFORE = b"something before"
COLUMNS = ["sizes", "frame_crcs", "crcs"]


def laid_out(kernels, blocks=BLOCKS):
    """Return (buffer, bases, rows, frame_stops, checks) of blocks that are one after another."""
    made = [kernels.encode_frames(payloads) for payloads in blocks]
    sizes = np.array([len(frames) for frames, _ in made], np.int64)
    checks = BlockChecks(
        sizes,
        np.array([crc32c.crc32c(stops.tobytes()) for _, stops in made], np.uint32),
        np.array([crc32c.crc32c(frames) for frames, _ in made], np.uint32),
    )
    bases = len(BEFORE) + np.cumsum(sizes) - sizes
    stops = np.concatenate([np.empty(0, np.uint32), *[stops for _, stops in made]])
    return BEFORE + b"".join(frames for frames, _ in made), bases, [len(b) for b in blocks], stops, checks


@given(st.lists(st.lists(st.binary(max_size=40), max_size=5), max_size=5))
def test_what_was_framed_comes_out_again(blocks) -> None:
    for kernels in IMPLEMENTATIONS:
        buffer, *where, checks = laid_out(kernels, blocks)
        expected = [payload for payloads in blocks for payload in payloads]
        for form in (bytes, bytearray, memoryview):
            assert kernels.slice_frames(form(buffer), *where) == expected
            assert kernels.slice_blocks(form(buffer), *where, checks) == expected


def test_no_flipped_bit_gets_out(kernels) -> None:
    """A block whose bytes or stops do not match their checksum is never cut."""
    buffer, bases, rows, stops, checks = laid_out(kernels)
    for bit in range(8 * len(BEFORE), 8 * len(buffer), 7):
        bad = bytearray(buffer)
        bad[bit // 8] ^= 1 << bit % 8
        assert kernels.slice_blocks(bad, bases, rows, stops, checks) is None
        assert len(kernels.slice_blocks(bad, bases, rows, stops, checks._replace(crcs=None))) == sum(rows)
    for bit in range(32 * len(stops)):
        bad = stops.copy()
        bad[bit // 32] ^= 1 << bit % 32
        assert kernels.slice_blocks(buffer, bases, rows, bad, checks._replace(crcs=None)) is None
    for name in COLUMNS:
        for block in range(len(rows)):
            column = getattr(checks, name).copy()
            column[block] ^= 1
            assert kernels.slice_blocks(buffer, bases, rows, stops, checks._replace(**{name: column})) is None


def test_frames_fill_their_block_although_the_checksum_agrees(kernels) -> None:
    """An index with the right checksums of wrong contents causes no read outside a block."""
    buffer, bases, rows, stops, checks = laid_out(kernels, [[b"one", b"two"], [b"more"]])
    for wrong in ([19, 37, 20], [19, 39, 20], [15, 38, 20], [38, 38, 20], [23, 22, 20], [2**32 - 1, 38, 20]):
        bad = np.array(wrong, np.uint32)
        parts = [bad[:2], bad[2:]]
        crcs = np.array([crc32c.crc32c(part.tobytes()) for part in parts], np.uint32)
        unchecked = BlockChecks(checks.sizes, crcs, None)
        assert kernels.slice_blocks(buffer, bases, rows, bad, unchecked) is None
    far = 1 << 61
    for base, size in [(-1, 38), (0, -1), (0, far), (far, 38), (len(buffer) - 37, 38), (-far, far)]:
        moved = BlockChecks(np.array([size, 20]), checks.frame_crcs, None)
        assert kernels.slice_blocks(buffer, [base, bases[1]], rows, stops, moved) is None


@pytest.mark.parametrize("base", [-1, 16, 1 << 61, -(1 << 63)])
def test_a_frame_outside_names_itself(kernels, base) -> None:
    buffer, _, rows, stops, _ = laid_out(kernels, [[b"one", b"two"]])
    buffer = buffer[len(BEFORE) :]
    with pytest.raises(IndexError, match=r"frame [01] is .* not a frame in a buffer of 38 bytes"):
        kernels.slice_frames(buffer, [base], rows, stops)
    for wrong in ([15, 38], [19, 34], [19, 18], [19, 39]):
        with pytest.raises(IndexError, match=r"not a frame in a buffer of 38 bytes"):
            kernels.slice_frames(buffer, [0], rows, wrong)


def test_numbers_must_fit_together(kernels) -> None:
    buffer, bases, rows, stops, checks = laid_out(kernels)
    for bad in ([1, 2], [-1, 0, 1, 6], [3, 0, 1, 3], [2**62, 2**62, 2**62, 2**62 + 6]):
        with pytest.raises(ValueError, match="rows"):
            kernels.slice_frames(buffer, bases, bad, stops)
        with pytest.raises(ValueError, match="rows"):
            kernels.slice_blocks(buffer, bases, bad, stops, checks)
    with pytest.raises(IndexError, match="bases"):
        kernels.slice_frames(buffer, [0, 0, 0, (1 << 63) - 1], rows, stops)
    for name in COLUMNS:
        short = checks._replace(**{name: getattr(checks, name)[1:]})
        with pytest.raises(ValueError, match="one value for each block"):
            kernels.slice_blocks(buffer, bases, rows, stops, short)
