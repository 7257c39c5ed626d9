"""parse_examples is the twin of tf.io.parse_example: same values, same refusals."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from shardio import codecs
from shardio.codecs import (
    FixedLen,
    Ragged,
    RaggedColumn,
    VarLen,
    encode_example,
    encode_sequence_example,
    parse_examples,
    parse_sequence_examples,
)
from shardio.errors import CorruptRecordError, SchemaError
from tests.codecs._golden import TENSORFLOW, expected, payloads
from tests.suites.errors import refused

FEATURES = {
    "id": FixedLen([], "int64"),
    "signed": FixedLen([2, 3], "int64"),
    "floats": FixedLen([4], "float32", default=[1, 2, 3, 4]),
    "blob": FixedLen([], "bytes", default=b"missing"),
    "ragged": Ragged("int64"),
    "texts": VarLen("bytes"),
}


def _base64(values):
    return np.array([base64.b64encode(value) for value in values], "S")


def test_same_values_as_tensorflow():
    found = parse_examples(payloads("examples-plain.tfrecord"), FEATURES)
    with np.load(TENSORFLOW / "parsed.npz") as wanted:
        for name in ("id", "signed", "floats"):
            assert found[name].dtype == wanted[name].dtype
            np.testing.assert_array_equal(found[name], wanted[name])
        assert found["floats"].tobytes() == wanted["floats"].tobytes()
        assert found["blob"].shape == wanted["blob"].shape
        np.testing.assert_array_equal(_base64(found["blob"]), wanted["blob"])
        np.testing.assert_array_equal(found["ragged"].values, wanted["ragged_values"])
        np.testing.assert_array_equal(found["ragged"].offsets, wanted["ragged_splits"])
        np.testing.assert_array_equal(_base64(found["texts"].values), wanted["texts_values"])
        np.testing.assert_array_equal(found["texts"].indices, wanted["texts_indices"])
        longest = int(wanted["texts_indices"][:, 1].max()) + 1
        assert found["texts"].shape.tolist() == [41, longest]


ONE = encode_example({"n": [1, 2], "f": [1.5], "b": b"x", "none": []})


@pytest.mark.parametrize(
    ("name", "description", "complaint"),
    [
        ("absent", FixedLen((), "int64"), "'absent' is required"),
        ("none", FixedLen((), "int64"), "'none' is required"),
        ("n", FixedLen((), "float32", default=0), "'n' has the wrong kind"),
        ("n", FixedLen((), "int64"), "'n' has the wrong number"),
        ("n", FixedLen((3,), "int64", default=[1, 2, 3]), "'n' has the wrong number"),
        ("n", VarLen("bytes"), "'n' has the wrong kind"),
        ("f", Ragged("int64"), "'f' has the wrong kind"),
        ("b", FixedLen((), "int64"), "'b' has the wrong kind"),
    ],
)
def test_same_refusals(name, description, complaint):
    with pytest.raises(SchemaError, match=complaint) as caught:
        parse_examples([ONE, ONE], {name: description})
    assert caught.value.row == 0


def test_missing_where_it_may_be():
    found = parse_examples(
        [ONE, b""],
        {
            "absent": VarLen("int64"),
            "none": Ragged("bytes"),
            "n": FixedLen((2,), "int64", default=7),
            "b": FixedLen((1,), "bytes", default=b"\0q\0"),
        },
    )
    assert found["absent"].shape.tolist() == [2, 0]
    assert found["absent"].indices.shape == (0, 2)
    assert found["none"].offsets.tolist() == [0, 0, 0]
    assert found["n"].tolist() == [[1, 2], [7, 7]]
    assert found["b"].tolist() == [[b"x"], [b"\0q\0"]]


def test_no_records():
    found = parse_examples([], FEATURES)
    assert found["signed"].shape == (0, 2, 3)
    assert found["blob"].shape == (0,)
    assert len(found["ragged"]) == 0
    assert found["texts"].shape.tolist() == [0, 0]


def test_no_example_names_the_record():
    with pytest.raises(CorruptRecordError) as caught:
        parse_examples([ONE, b"\x0a"], {"n": VarLen("int64")})
    assert caught.value.row == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedLen((), "int32"),
        lambda: VarLen("string"),
        lambda: Ragged("float64"),
        lambda: FixedLen((-1,), "int64"),
        lambda: FixedLen("ab", "int64"),
        lambda: parse_examples([ONE], {"n": FixedLen((3,), "int64", default=[1, 2])}),
        lambda: parse_examples([ONE], {"b": FixedLen((), "bytes", default="x")}),
        lambda: parse_sequence_examples([b""], {"features": {}}),
        lambda: parse_sequence_examples([b""], {"feature_lists": {"a": FixedLen((), "int64", default=1)}}),
    ],
    ids=map(str, range(9)),
)
def test_descriptions_that_mean_nothing(make):
    with pytest.raises(ValueError, match=r"dtype|sizes|default|features are"):
        make()


def test_mistakes_of_type():
    with refused(TypeError, "VarLen", "Sparse", "Ragged"):
        parse_examples([ONE], {"n": "int64"})
    with pytest.raises(TypeError, match="one payload"):
        parse_examples(ONE, {"n": VarLen("int64")})


def test_tensorflows_sequences():
    records = payloads("sequences-plain.tfrecord")
    found = parse_sequence_examples(
        records,
        {
            "context": {"length": FixedLen((), "int64"), "name": FixedLen((), "bytes")},
            "feature_lists": {
                "audio": FixedLen((3,), "float32"),
                "frames": FixedLen((), "bytes"),
                "tokens": Ragged("int64"),
            },
        },
    )
    lists = found["feature_lists"]
    for row, record in enumerate(expected("sequences")):
        steps = record["feature_lists"]
        assert found["context"]["length"][row] == int(record["context"]["length"]["int64"][0])
        assert lists["audio"][row].view(np.uint32).tolist() == [step["float_bits"] for step in steps["audio"]]
        assert lists["frames"][row].tolist() == [
            base64.b64decode(step["bytes"][0]) for step in steps["frames"]
        ]
        tokens = [list(map(int, step["int64"])) for step in steps["tokens"]]
        assert [step.tolist() for step in lists["tokens"][row]] == tokens


def test_sparse_feature_lists():
    records = [
        encode_sequence_example({"feature_lists": {"t": [[1, 2], [], [3]]}}),
        encode_sequence_example({}),
        encode_sequence_example({"feature_lists": {"t": [[4]]}}),
    ]
    column = parse_sequence_examples(records, {"feature_lists": {"t": VarLen("int64")}})["feature_lists"]["t"]
    assert column.values.tolist() == [1, 2, 3, 4]
    assert column.indices.tolist() == [[0, 0, 0], [0, 0, 1], [0, 2, 0], [2, 0, 0]]
    assert column.shape.tolist() == [3, 3, 2]


@pytest.mark.parametrize(
    ("lists", "description", "complaint"),
    [
        ({}, FixedLen((), "int64"), "'t' is required"),
        ({"t": [1, [1, 2]]}, FixedLen((), "int64"), "'t', step 1 has the wrong number"),
        ({"t": [1, []]}, FixedLen((), "int64"), "'t', step 1 has the wrong number"),
        ({"t": [1, 2.5]}, Ragged("int64"), "'t', step 1 has the wrong kind"),
    ],
)
def test_refusals_of_feature_lists(lists, description, complaint):
    good = encode_sequence_example({"feature_lists": {"t": [7]}})
    bad = encode_sequence_example({"feature_lists": lists})
    with pytest.raises(SchemaError, match=complaint) as caught:
        parse_sequence_examples([good, bad], {"feature_lists": {"t": description}})
    assert caught.value.row == 1


def test_a_ragged_column_is_a_sequence():
    column = RaggedColumn(np.arange(6), np.array([0, 2, 2, 6]))
    assert len(column) == 3
    assert [row.tolist() for row in column] == [[0, 1], [], [2, 3, 4, 5]]
    assert column[-1].tolist() == [2, 3, 4, 5]
    assert column.lengths.tolist() == [2, 0, 4]
    part = column[1:]
    assert part.offsets.tolist() == [0, 0, 4]
    assert part.values.tolist() == [2, 3, 4, 5]
    assert len(column[2:1]) == 0
    with pytest.raises(IndexError):
        column[3]
    with pytest.raises(ValueError, match="steps of 1"):
        column[::2]
    shaped = RaggedColumn(np.arange(6), np.array([0, 2, 6]), np.array([[1, 2], [2, 2]]))
    assert shaped[1].tolist() == [[2, 3], [4, 5]]
    assert shaped[1:][0].tolist() == [[2, 3], [4, 5]]


@pytest.mark.parametrize("shape", [[0], [0, 2], [2, 0]])
@pytest.mark.parametrize("dtype", ["int64", "float32", "bytes"])
def test_shapes_that_hold_nothing(dtype, shape):
    """As many empty rows as records; a record that lacks the feature needs a default, as ever."""
    item = {"int64": np.empty(0, np.int64), "float32": np.empty(0, np.float32)}.get(dtype, [])
    empty, absent = codecs.encode_example({"a": 1, "x": item}), codecs.encode_example({"a": 1})
    optional = codecs.FixedLen(shape, dtype, default=[])
    mixed = [absent] * 3 if dtype == "bytes" else [absent, empty, absent]  # an empty list has no kind
    for rows in ([absent], mixed, []):
        assert codecs.parse_examples(rows, {"x": optional})["x"].shape == (len(rows), *shape)
    with refused(SchemaError, "'x'"):
        codecs.parse_examples([absent], {"x": codecs.FixedLen(shape, dtype)})
    full = codecs.encode_example({"x": {"int64": 1, "float32": 0.5, "bytes": b"x"}[dtype]})
    with refused(SchemaError, "'x'"):
        codecs.parse_examples([full], {"x": optional})


def test_padding_keeps_the_sign_of_a_zero():
    """As TensorFlow 2.21 does in a fresh process; after a call with 0.0 it takes that for -0.0."""
    records = [codecs.encode_example({"x": np.ones(n, np.float32)}) for n in (2, 1, 0)]
    asked = {"x": codecs.FixedLenSequence((), "float32", allow_missing=True, default=-0.0)}
    found = codecs.parse_examples(records, asked)["x"]
    assert np.signbit(found).tolist() == [[False, False], [False, True], [True, True]]


def test_columns_of_no_records_come_in_the_same_order():
    asked = {
        "b": codecs.FixedLen((), "float32"),
        "a": codecs.VarLen("int64"),
        "c": codecs.Ragged("int64"),
        "A": codecs.FixedLen((2,), "int64"),
    }
    record = codecs.encode_example({"b": 1.0, "A": [1, 2]})
    assert (
        list(codecs.parse_examples([], asked)) == list(codecs.parse_examples([record], asked)) == list(asked)
    )
