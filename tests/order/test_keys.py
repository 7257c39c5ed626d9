"""Keys, words and the generators of records."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.random import Philox

from shardio.order import _keys, record_generator
from shardio.order._keys import key, permutation, raw_words, seed_field
from tests.suites.errors import refused


def test_a_key_is_the_beginning_of_a_sha256():
    """A key is the first 16 bytes of SHA-256 over a purpose tag and fixed-width u64 fields."""
    digest = hashlib.sha256(b"shardio.order.1/window\0" + struct.pack("<3Q", 1, 2**64 - 1, 3)).digest()
    assert key("window", 1, 2**64 - 1, 3).tobytes() == digest[:16]
    assert (
        len({key(*each).tobytes() for each in [("a", 5, 7), ("a", 5, 7, 0), ("a", 7, 5), ("b", 5, 7)]}) == 4
    )


def test_words_are_those_of_philox_from_any_start():
    whole = Philox(key=key("x", 4)).random_raw(40)
    for start in range(20):
        np.testing.assert_array_equal(raw_words(key("x", 4), start, 11), whole[start : start + 11])


def philox(counter, words):
    """Return a block of Philox-4x64-10, from its definition (Salmon and others, SC 2011)."""
    a, b, c, d = counter
    left, right = words
    for _ in range(10):
        first, second = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, b, c, d = second >> 64 ^ b ^ left, second % 2**64, first >> 64 ^ d ^ right, first % 2**64
        left, right = (left + 0x9E3779B97F4A7C15) % 2**64, (right + 0xBB67AE8584CAA73B) % 2**64
    return [a, b, c, d]


def test_the_first_block_of_words_is_that_of_counter_one():
    """Words 4 i to 4 i + 3 are the block of the counter (i + 1, 0, 0, 0)."""
    made = key("window", 7)
    expected = [word for i in range(3) for word in philox((i + 1, 0, 0, 0), made.tolist())]
    assert raw_words(made, 0, 12).tolist() == expected


def test_a_permutation_is_the_stable_argsort_of_its_words():
    """Permutations come from raw words: a stable argsort."""
    raw = Philox(key=key("chunks", 1, 2)).random_raw(500)
    assert permutation(500, "chunks", 1, 2).tolist() == sorted(range(500), key=lambda i: (raw[i], i))


def test_words_that_are_equal_keep_their_places_in_a_permutation(monkeypatch):
    words = np.random.default_rng(0).integers(0, 1000, 5000, dtype=np.uint64)
    monkeypatch.setattr(_keys, "raw_words", lambda *_: words)
    assert permutation(5000, "chunks", 0).tolist() == sorted(range(5000), key=lambda i: (words[i], i))


def test_the_generator_belongs_to_the_record():
    """A record's generator is keyed by (seed, epoch, position of the record)."""
    fields = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    assert record_generator(*fields[0]).random() == record_generator(*fields[0]).random()
    made = [record_generator(*each).random() for each in fields]
    made += [record_generator(1, 2, 3, source=1).random(), record_generator(1, 2, 3, cycle=1).random()]
    assert len(set(made)) == len(made)


def test_global_randomness_is_not_touched():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002 -- the very thing that must not move
    record_generator(1, 2, 3).random()
    permutation(100, "chunks", 0)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002 -- as above


def test_seeds_are_integers_of_64_bits():
    assert seed_field(np.int64(3), "seed") == 3
    for wrong in (-1, 2**64):
        with refused(ValueError, "seed"):
            seed_field(wrong, "seed")
    others: list[object] = [1.0, True, "1", None]
    for other in others:
        with refused(TypeError, "seed"):
            seed_field(other, "seed")
