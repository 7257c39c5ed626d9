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
    encode_sequence_example,
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


PARTED = encode_example({"v": [1, 2, 3], "n": [1, 2], "bad": [1, 1], "ids": [0, 1, 1 << 40], "f": [1.5]})


@pytest.mark.parametrize(
    ("description", "complaint"),
    [
        (Ragged("int64", "v", [Ragged.RowLengths("bad")]), r"'x': its values do not fit RowLengths\('bad'\)"),
        (Ragged("int64", "v", [Ragged.UniformRowLength(2)]), r"do not fit UniformRowLength\(2\)"),
        (Ragged("int64", "v", [Ragged.ValueRowIds("n")]), r"do not fit ValueRowIds\('n'\).*3 values"),
        (Ragged("int64", "v", [Ragged.ValueRowIds("ids")]), "at most 16777216 empty ones"),
        (Ragged("int64", "v", [Ragged.RowLengths("f")]), "'f' has the wrong kind"),
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


def test_refusals_of_steps_name_the_record():
    good = encode_sequence_example({"feature_lists": {"v": [1, 1], "n": [1, 1]}})
    bad = encode_sequence_example({"feature_lists": {"v": [1, [1, 2]], "n": [1, 1]}})
    asked = {"feature_lists": {"v": Ragged("int64", None, [Ragged.RowLengths("n")])}}
    with refused(SchemaError, "'v'") as caught:
        parse_sequence_examples([good, bad], asked)
    assert caught.value.row == 1
    short = encode_sequence_example({"feature_lists": {"v": [1, 1], "n": [1]}})
    with refused(SchemaError, "'v'", "'n'") as caught:
        parse_sequence_examples([good, short], asked)
    assert caught.value.row == 1


def test_partitions_of_the_context():
    record = encode_sequence_example({"context": {"v": [1, 2, 3], "n": [1, 2]}})
    asked = {"context": {"x": Ragged("int64", "v", [Ragged.RowLengths("n")])}}
    column = parse_sequence_examples([record], asked)["context"]["x"]
    assert [row.tolist() for row in column[0]] == [[1], [2, 3]]


def test_many_empty_rows_of_many_records_are_refused():
    record = encode_example({"v": [1], "ids": [(1 << 24) - 1]})
    column = Ragged("int64", "v", [Ragged.ValueRowIds("ids")])
    with pytest.raises(SchemaError) as caught:
        parse_examples([record] * 3, {"x": column})
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
        (lambda: Ragged.RowLengths(""), "key ''"),
        (lambda: Ragged.UniformRowLength(0), "length 0"),
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
    ids=map(str, range(16)),
)
def test_descriptions_that_mean_nothing(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ragged("int64", None, Ragged.RowLengths("n")),
        lambda: Ragged("int64", None, ["n"]),
        lambda: parse_sequence_examples([], {"context": {"n": FixedLenSequence((), "int64")}}),
        lambda: parse_sequence_examples([], {"feature_lists": {"n": Sparse("i", "v", "int64", 1)}}),
    ],
    ids=map(str, range(4)),
)
def test_mistakes_of_type(make):
    with pytest.raises(TypeError, match=r"partition|described by"):
        make()


def test_rows_of_rows_are_sequences():
    record = encode_example({"v": [1, 2, 3], "inner": [1, 2, 0], "outer": [2, 1]})
    rows = Ragged("int64", "v", [Ragged.RowLengths("outer"), Ragged.RowLengths("inner")])
    column = parse_examples([record, record], {"x": rows})["x"]
    assert [[row.tolist() for row in rows] for rows in column[1]] == [[[1], [2, 3]], [[]]]
    pairs = parse_examples(
        [record],
        {"n": FixedLenSequence(np.int64(3), "int64", allow_missing=True)} | {"v": FixedLen(3, "int64")},
    )
    assert pairs["v"].tolist() == [[1, 2, 3]]
