"""Sparse, sequence and ragged forms against TensorFlow itself: the golden answers, and random records."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio import codecs
from tests.codecs._forms import FILE, RECORDS, answer
from tests.oracle.golden import answer as theirs, answers

pytestmark = pytest.mark.oracle


def test_the_golden_answers_are_tensorflows(tf) -> None:
    assert answers(tf) == json.loads(FILE.read_text())


@st.composite
def cases(draw):
    """Records of values, places and sequences, with all forms asked of them."""
    records = []
    for _ in range(draw(st.integers(1, 4))):
        values = draw(st.lists(st.integers(-9, 9), max_size=12))
        record = {"v": values}
        record["i"] = draw(st.permutations(range(20)))[: len(values)]
        record["j"] = draw(st.lists(st.integers(0, 4), min_size=len(values), max_size=len(values)))
        record["even"] = draw(st.lists(st.integers(0, 9), max_size=3)) * 2
        kept = [name for name in record if record[name] or draw(st.booleans())]
        records.append({name: np.array(record[name], np.int64) for name in kept})
    return records, {
        "ragged": ["Ragged", "int64", "v"],
        "rows": ["FixedLenSequence", [2], "int64", True, draw(st.integers(-5, 5))],
        "line": ["Sparse", "w", "w", "int64", 20],
        "plane": ["Sparse", ["x", "y"], "z", "int64", [20, 5]],
    }


@settings(max_examples=300)
@given(case=cases())
def test_random_records_are_parsed_as_tensorflow_parses_them(tf, case) -> None:
    records, features = case
    # TensorFlow wants each feature either sparse, ragged or dense.
    copies = {"w": "i", "x": "i", "y": "j", "z": "v", "rows": "even"}
    for record in records:
        record.update({name: record[of] for name, of in copies.items() if of in record})
    RECORDS["random"] = records
    try:
        found, wanted = answer(("random", features)), theirs(tf, ("random", features))
    finally:
        del RECORDS["random"]
    assert wanted is not None
    assert found == wanted


def test_an_int_is_a_shape(tf) -> None:
    record = codecs.encode_example({"v": [1, 2, 3]})
    found = codecs.parse_examples([record], {"v": codecs.FixedLen(3, "int64")})["v"]
    assert (
        found.tolist()
        == tf.io.parse_example([record], {"v": tf.io.FixedLenFeature(3, tf.int64)})["v"].numpy().tolist()
    )
