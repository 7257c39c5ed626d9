"""Sparse, sequence and ragged forms: the results and refusals of TensorFlow, as it wrote them down."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shardio.codecs import (
    FixedLen,
    FixedLenSequence,
    Ragged,
    Sparse,
    VarLen,
    encode_example,
    parse_examples,
    parse_sequence_examples,
)
from shardio.errors import SchemaError
from tests.codecs._forms import CASES, FILE, STRICTER, answer
from tests.suites.errors import refused


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text())


def test_every_case_has_an_answer(golden):
    assert set(golden) == {*CASES, *STRICTER}


@pytest.mark.parametrize("name", CASES)
def test_tensorflows_results_and_refusals(golden, name):
    assert answer(CASES[name]) == golden[name]


@pytest.mark.parametrize("name", STRICTER)
def test_what_moves_values_is_refused(golden, name):
    """TensorFlow lets these pass; values would then be outside the array, or in another record."""
    assert golden[name] is not None
    assert answer(STRICTER[name]) is None


PARTED = encode_example({"v": [1, 2, 3], "n": [1, 2]})


@pytest.mark.parametrize(
    ("description", "complaint"),
    [
        (Ragged("float32", "v"), "'v' has the wrong kind"),
        (Sparse("n", "v", "int64", 9), "'n' and 'v' differ in their number of values"),
        (Sparse("v", "v", "int64", 3), "a place in 'v' is outside the array"),
    ],
)
def test_refusals_name_feature_and_record(description, complaint):
    good = encode_example({})
    with pytest.raises(SchemaError, match=complaint) as caught:
        parse_examples([good, PARTED], {"x": description})
    assert caught.value.row == 1


def test_a_missing_feature_is_mended_by_the_advice():
    """What the message says to do works, in examples and in feature lists."""
    empty = encode_example({})
    with pytest.raises(SchemaError):
        parse_examples([empty], {"n": FixedLen((), "int64")})
    for description in (FixedLen((), "int64", default=0), Ragged("int64"), VarLen("int64")):
        parse_examples([empty], {"n": description})
    with refused(SchemaError, "allow_missing="):
        parse_sequence_examples([empty], {"feature_lists": {"n": FixedLen((), "int64")}})
    for description in (
        FixedLenSequence((), "int64", allow_missing=True),
        Ragged("int64"),
        VarLen("int64"),
    ):
        parse_sequence_examples([empty], {"feature_lists": {"n": description}})


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: FixedLenSequence(0, "int64"), "sizes are ints of at least 1"),
        (lambda: FixedLen(True, "int64"), "sizes are ints"),
        (lambda: FixedLen(None, "int64"), "sizes are ints"),
        (lambda: Sparse("i", "v", "int64", [3]), "one size for each key"),
        (lambda: Sparse(["i", "j"], "v", "int64", [3]), "one size for each key"),
        (lambda: Sparse(["i"], "v", "int64", 3), "one size for each key"),
        (lambda: Sparse("i", "v", "int64", -1), "sizes are ints"),
        (lambda: Sparse("", "v", "int64", 1), "names of features"),
        (lambda: Sparse([], "v", "int64", []), "names of features"),
        (lambda: Ragged("int64", ""), "value_key"),
        (lambda: parse_examples([], {"n": FixedLenSequence((), "int64")}), "needs allow_missing=True"),
        (
            lambda: parse_examples([], {"n": FixedLenSequence((), "int64", True, [1, 2])}),
            "default",
        ),
        (
            lambda: parse_examples([], {"n": FixedLen((), "int64"), "s": Sparse("n", "v", "int64", 3)}),
            "asked for twice, as int64 of 1 values and, for 's', as int64 of any length",
        ),
        (
            lambda: parse_sequence_examples(
                [], {"feature_lists": {"n": FixedLenSequence((), "int64", True, 1)}}
            ),
            "a step has no default",
        ),
    ],
    ids=map(str, range(14)),
)
def test_descriptions_that_mean_nothing(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: parse_sequence_examples([], {"context": {"n": FixedLenSequence((), "int64")}}),
        lambda: parse_sequence_examples([], {"feature_lists": {"n": Sparse("i", "v", "int64", 1)}}),
    ],
    ids=map(str, range(2)),
)
def test_mistakes_of_type(make):
    with pytest.raises(TypeError, match="described by"):
        make()


def test_a_size_is_a_shape():
    record = encode_example({"v": [1, 2, 3]})
    pairs = parse_examples(
        [record],
        {"n": FixedLenSequence(np.int64(3), "int64", allow_missing=True)} | {"v": FixedLen(3, "int64")},
    )
    assert pairs["v"].tolist() == [[1, 2, 3]]
