"""Sealed objects: exactly one undamaged object, or an error."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError
from shardio.kernels import crc32c
from shardio.metadata import unseal
from tests.metadata.crafted import sealed


@given(st.binary(max_size=200))
def test_what_is_sealed_is_read(payload):
    data = sealed(payload)
    assert unseal(data, what="manifest") == (payload, hashlib.sha256(data[:-40]).digest())


def test_every_flipped_bit_cut_and_added_byte_is_found():
    """A reader MUST refuse a sealed object in which any byte was changed, cut off or added, and MUST NOT
    parse it before both checks passed.
    """
    data = sealed(b"wren and robin")
    damaged = [data[:k] for k in range(len(data))]
    damaged += [data + more for more in (b"\0", b"SHRDEND1", data)]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for wrong in damaged:
        with pytest.raises(FormatError) as caught:
            unseal(wrong, what="manifest", url="u")
        assert caught.value.url == "u"


def test_both_checks_count():
    """A repaired CRC-32C does not help where the SHA-256 is wrong, nor the other way round."""
    data = sealed(b"wren")
    other = bytearray(data)
    other[16:20] = b"hawk"
    other[20:24] = struct.pack("<I", crc32c(bytes(other[:20])))
    with pytest.raises(FormatError):
        unseal(bytes(other), what="list of shards")
    other = bytearray(data)
    other[20] ^= 1
    other[24:56] = hashlib.sha256(other[:24]).digest()
    with pytest.raises(FormatError):
        unseal(bytes(other), what="list of shards")


@pytest.mark.parametrize("length", [1 << 31, 1 << 63, (1 << 64) - 1, (1 << 64) - 60])
def test_huge_lengths_are_refused(length):
    """A length MUST be checked against its limit, and against what is left, before anything is allocated."""
    body = b"SHRDMAN1" + struct.pack("<Q", length) + b"wren"
    body += struct.pack("<I", crc32c(body))
    with pytest.raises(FormatError):
        unseal(body + hashlib.sha256(body).digest() + b"SHRDEND1", what="receipt")


@given(st.binary(max_size=100))
def test_garbage_is_a_format_error(data):
    with pytest.raises(FormatError):
        unseal(data, what="receipt")
