"""The generators of records, and seeds."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from shardio.order import Permutation, record_generator
from tests.order.reference import words
from tests.suites.errors import refused


def test_the_generator_belongs_to_the_record():
    """A record's generator is keyed by (seed, epoch, position of the record)."""
    fields = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    assert record_generator(*fields[0]).random() == record_generator(*fields[0]).random()
    assert record_generator(1, 2, 3).random() == Generator(words("record", 1, 2, 0, 0, 3)).random()
    made = [record_generator(*each).random() for each in fields]
    made += [record_generator(1, 2, 3, source=1).random(), record_generator(1, 2, 3, cycle=1).random()]
    assert len(set(made)) == len(made)


def test_global_randomness_is_not_touched():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002 -- the very thing that must not move
    record_generator(1, 2, 3).random()
    Permutation(100, 0)[range(100)]
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002 -- as above


def test_seeds_are_integers_of_64_bits():
    assert record_generator(np.int64(3), 0, 0).random() == record_generator(3, 0, 0).random()
    for wrong in (-1, 2**64):
        with refused(ValueError, "seed"):
            Permutation(9, wrong)
    others: list[object] = [1.0, True, "1", None]
    for other in others:
        with refused(TypeError, "seed"):
            Permutation(9, other)
