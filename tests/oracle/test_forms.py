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

KINDS = ("RowSplits", "RowLengths", "RowStarts", "RowLimits", "ValueRowIds")


def test_the_golden_answers_are_tensorflows(tf) -> None:
    assert answers(tf) == json.loads(FILE.read_text())


def numbers(kind: str, lengths: list[int]) -> list[int]:
    """Return the partition of rows of these lengths; row ids cannot tell of empty rows at the end."""
    splits = np.cumsum([0, *lengths]).tolist()
    return {
        "RowSplits": splits if lengths else [],
        "RowLengths": lengths,
        "RowStarts": splits[:-1],
        "RowLimits": splits[1:],
        "ValueRowIds": np.repeat(np.arange(len(lengths)), lengths).tolist(),
    }[kind]


@st.composite
def cases(draw):
    """Records of rows of two levels, places and sequences, with all forms asked of them."""
    inner, outer = draw(st.sampled_from(KINDS)), draw(st.sampled_from(KINDS))
    records = []
    for _ in range(draw(st.integers(1, 4))):
        lengths = draw(st.lists(st.integers(0, 3), max_size=5))
        if inner == "ValueRowIds":
            while lengths and not lengths[-1]:
                lengths.pop()
        groups, left = [], len(lengths)
        while left:
            groups.append(draw(st.integers(0 if outer != "ValueRowIds" else 1, left)))
            left -= groups[-1]
        values = draw(st.lists(st.integers(-9, 9), min_size=sum(lengths), max_size=sum(lengths)))
        record = {"v": values, "inner": numbers(inner, lengths), "outer": numbers(outer, groups)}
        record["i"] = draw(st.permutations(range(20)))[: len(values)]
        record["j"] = draw(st.lists(st.integers(0, 4), min_size=len(values), max_size=len(values)))
        record["even"] = draw(st.lists(st.integers(0, 9), max_size=3)) * 2
        kept = [name for name in record if record[name] or draw(st.booleans())]
        records.append({name: np.array(record[name], np.int64) for name in kept})
    partitions = [[outer, "outer"], [inner, "inner"]]
    return records, {
        "one": ["Ragged", "int64", "v", partitions[1:]],
        "two": ["Ragged", "int64", "v", partitions],
        "pairs": ["Ragged", "int64", "even", [["UniformRowLength", 2]]],
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
