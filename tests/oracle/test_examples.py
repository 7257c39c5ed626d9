"""Parsing by the batch against TensorFlow on random records: same values, same refusals.

Both get the same messages, made by protobuf in forms that TensorFlow's own writer does not use either: a
feature without a kind, empty lists, unpacked numbers, map keys twice.  What TensorFlow refuses has to be
refused, and what it accepts has to come out bit for bit.

Two habits of TensorFlow 2.21 are kept out of its way.  It writes past the end of its buffer when there are
more unpacked floats than a fixed shape holds, and aborts at some later time.  And of entries with one name it
passes over those without a kind, where protobuf, its own messages included, says that the last one wins;
there shardio is with protobuf.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio import codecs
from shardio.errors import FormatError, SchemaError
from shardio.v1 import example_pb2

pytestmark = pytest.mark.oracle

NAMES = ("a", "b", "ü")
DTYPES = ("int64", "float32", "bytes")
LISTS = {"int64": "int64_list", "float32": "float_list", "bytes": "bytes_list"}
VALUES = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "bytes": st.binary(max_size=5),
}
SHAPES = ((), (1,), (2,), (2, 2))


@st.composite
def features(draw, dtype: str | None = None) -> example_pb2.Feature:
    """A feature: mostly of a kind, with a few values; sometimes without a kind."""
    feature = example_pb2.Feature()
    if draw(st.integers(0, 9)) == 0:
        return feature
    kind = dtype if dtype is not None and draw(st.integers(0, 19)) else draw(st.sampled_from(DTYPES))
    values = getattr(feature, LISTS[kind])
    values.SetInParent()
    values.value.extend(draw(st.lists(VALUES[kind], max_size=4)))
    return feature


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _unpacked(feature: example_pb2.Feature) -> bytes:
    """Return the same feature with each number in a field of its own, as old writers made them.

    Not several floats, see above.
    """
    kind = feature.WhichOneof("kind")
    if kind == "int64_list":
        numbers = (number % 2**64 for number in feature.int64_list.value)
        return _field(3, b"".join(b"\x08" + _varint(number) for number in numbers))
    if kind == "float_list" and len(feature.float_list.value) < 2:
        raw = np.array(feature.float_list.value, "<f4")
        return _field(2, b"".join(b"\x0d" + value.tobytes() for value in raw))
    return feature.SerializeToString()


@st.composite
def maps(draw, dtypes: dict[str, str]) -> bytes:
    """The bytes of a Features message: entries in any order, a name perhaps twice, unpacked or packed."""
    entries: list[bytes] = []
    seen: set[str] = set()
    for name in draw(st.permutations([*NAMES, draw(st.sampled_from([*NAMES, "other"]))])):
        if draw(st.integers(0, 9)) == 0:
            continue
        feature = draw(features(dtypes.get(name)))
        if name in seen and feature.WhichOneof("kind") is None:
            continue
        seen.add(name)
        content = _unpacked(feature) if draw(st.booleans()) else feature.SerializeToString()
        entries.append(_field(1, _field(1, name.encode()) + _field(2, content)))
    return b"".join(entries)


@st.composite
def asked(draw, dtypes: dict[str, str]) -> dict[str, Any]:
    """What to look for: a description by name."""
    wanted: dict[str, Any] = {}
    for name in NAMES:
        dtype = dtypes[name]
        form = draw(st.sampled_from(["fixed", "default", "var", "ragged", "nothing"]))
        shape = draw(st.sampled_from(SHAPES))
        if form == "fixed":
            wanted[name] = codecs.FixedLen(shape, dtype)
        elif form == "default":
            wanted[name] = codecs.FixedLen(shape, dtype, default=draw(VALUES[dtype]))
        elif form == "var":
            wanted[name] = codecs.VarLen(dtype)
        elif form == "ragged":
            wanted[name] = codecs.Ragged(dtype)
    return wanted


@st.composite
def batches(draw) -> tuple[list[bytes], dict[str, Any]]:
    """Records, and what to look for in them."""
    dtypes = {name: draw(st.sampled_from(DTYPES)) for name in NAMES}
    records = [_field(1, content) for content in draw(st.lists(maps(dtypes), min_size=1, max_size=4))]
    return records, draw(asked(dtypes))


@st.composite
def sequences(draw) -> tuple[list[bytes], dict[str, dict[str, Any]]]:
    """Sequence examples, and what to look for in them."""
    dtypes, steps = ({name: draw(st.sampled_from(DTYPES)) for name in NAMES} for _ in range(2))
    records = []
    for _ in range(draw(st.integers(1, 3))):
        lists = b""
        for name in NAMES:
            if draw(st.integers(0, 4)) == 0:
                continue
            content = draw(st.lists(features(steps[name]), max_size=3))
            listed = b"".join(_field(1, feature.SerializeToString()) for feature in content)
            lists += _field(1, _field(1, name.encode()) + _field(2, listed))
        records.append(_field(1, draw(maps(dtypes))) + _field(2, lists))
    wanted = {"context": draw(asked(dtypes)), "feature_lists": draw(asked(steps))}
    # A step has no default: TensorFlow's FixedLenSequenceFeature may be missing as a whole instead, which is
    # what Ragged is for.
    wanted["feature_lists"] = {
        name: codecs.FixedLen(one.shape, one.dtype) if isinstance(one, codecs.FixedLen) else one
        for name, one in wanted["feature_lists"].items()
    }
    return records, wanted


def translated(tf, wanted: dict[str, Any], *, listed: bool = False) -> dict[str, Any]:
    """Say the same to TensorFlow."""
    dtypes = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}
    theirs: dict[str, Any] = {}
    for name, one in wanted.items():
        dtype = dtypes[one.dtype]
        if isinstance(one, codecs.VarLen):
            theirs[name] = tf.io.VarLenFeature(dtype)
        elif isinstance(one, codecs.Ragged):
            theirs[name] = tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
        elif listed:
            theirs[name] = tf.io.FixedLenSequenceFeature(one.shape, dtype)
        else:
            default = None if one.default is None else np.full(one.shape, one.default, object).tolist()
            theirs[name] = tf.io.FixedLenFeature(one.shape, dtype, default)
    return theirs


def same(found: Any, wanted: Any) -> None:
    """Compare arrays bit for bit; floats as bits, because a NaN is a value too."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype or {found.dtype.kind, wanted.dtype.kind} == {"O"} or not found.size
    if found.dtype == np.float32:
        found, wanted = found.view(np.uint32), wanted.view(np.uint32)
    assert found.tolist() == wanted.tolist()


def same_sparse(column: codecs.VarLenColumn, tensor: Any) -> None:
    """Compare a column with a sparse tensor."""
    same(column.values, tensor.values.numpy())
    same(column.indices, tensor.indices.numpy())
    same(column.shape, tensor.dense_shape.numpy())


def compare(columns: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare a dict of columns with TensorFlow's tensors."""
    assert columns.keys() == theirs.keys()
    for name, column in columns.items():
        tensor = theirs[name]
        if isinstance(column, codecs.VarLenColumn):
            same_sparse(column, tensor)
        elif isinstance(column, codecs.RaggedColumn):
            same(column.values, tensor.values.numpy())
            same(column.offsets, tensor.row_splits.numpy())
        else:
            same(column, tensor.numpy())


def compare_lists(columns: dict[str, Any], theirs: dict[str, Any], lengths: dict[str, Any]) -> None:
    """Compare feature lists: TensorFlow pads steps of fixed shape and says how many there are."""
    assert columns.keys() == theirs.keys()
    for name, column in columns.items():
        tensor = theirs[name]
        if isinstance(column, codecs.VarLenColumn):
            same_sparse(column, tensor)
        elif isinstance(column.values, codecs.RaggedColumn):
            same(column.offsets, tensor.row_splits.numpy())
            same(column.values.offsets, tensor.values.row_splits.numpy())
            same(column.values.values, tensor.values.values.numpy())
        else:
            same(column.lengths, lengths[name].numpy())
            for row, padded in zip(column, tensor.numpy(), strict=True):
                same(row, padded[: len(row)])


def ours_or_none(parse, *arguments: Any) -> Any:
    """Return our columns, or None where we refuse."""
    try:
        return parse(*arguments)
    except (SchemaError, FormatError):
        return None


def theirs_or_none(tf, parse, *arguments: Any) -> tuple[Any, str]:
    """Return TensorFlow's tensors, or None where it refuses, and what it says then."""
    try:
        return parse(*arguments), "accepted"
    except tf.errors.InvalidArgumentError as error:
        return None, error.message


@settings(max_examples=600)
@given(batch=batches())
def test_examples_are_parsed_as_tensorflow_parses_them(tf, batch) -> None:
    """`parse_examples` is the twin of `tf.io.parse_example`: same values and same refusals."""
    records, wanted = batch
    if not wanted:
        return
    found = ours_or_none(codecs.parse_examples, records, wanted)
    theirs, complaint = theirs_or_none(tf, tf.io.parse_example, records, translated(tf, wanted))
    assert (found is None) == (theirs is None), complaint
    if found is not None:
        compare(found, theirs)


@settings(max_examples=400)
@given(batch=sequences())
def test_sequence_examples_are_parsed_as_tensorflow_parses_them(tf, batch) -> None:
    """`parse_sequence_examples` likewise: context and feature lists, ragged by step."""
    records, wanted = batch
    if not (wanted["context"] or wanted["feature_lists"]):
        return
    found = ours_or_none(codecs.parse_sequence_examples, records, wanted)
    context, lists = (
        translated(tf, wanted["context"]),
        translated(tf, wanted["feature_lists"], listed=True),
    )
    theirs, complaint = theirs_or_none(tf, tf.io.parse_sequence_example, records, context, lists)
    assert (found is None) == (theirs is None), complaint
    if found is not None:
        compare(found["context"], theirs[0])
        compare_lists(found["feature_lists"], theirs[1], theirs[2])


@settings(max_examples=200)
@given(
    value=st.dictionaries(
        st.text("abcü/", min_size=1, max_size=3),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: st.lists(VALUES[dtype], max_size=4).map(
                lambda items: items if dtype == "bytes" else np.array(items, dtype)
            )
        ),
        max_size=4,
    )
)
def test_tensorflow_reads_what_is_encoded(tf, value) -> None:
    """`encode_example` writes what TensorFlow's messages and its parser read, value for value."""
    payload = codecs.encode_example(value)
    theirs = tf.train.Example.FromString(payload).features.feature
    assert set(theirs) == set(value)
    wanted = {}
    for name, items in value.items():
        kind = theirs[name].WhichOneof("kind")
        if isinstance(items, list) and not items:
            assert kind is None
            continue
        dtype = tf.string if isinstance(items, list) else tf.as_dtype(items.dtype)
        assert kind == LISTS["bytes" if isinstance(items, list) else str(items.dtype)]
        wanted[name] = tf.io.VarLenFeature(dtype)
    if wanted:
        parsed = tf.io.parse_example([payload], wanted)
        for name, tensor in parsed.items():
            items = value[name]
            same(np.array(items, object) if isinstance(items, list) else items, tensor.values.numpy())
