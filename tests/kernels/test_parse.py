"""Batches of Example and SequenceExample: TensorFlow's files, and protobuf's rules for odd ones."""

from __future__ import annotations

import numpy as np
import pytest

from shardio.errors import FormatError, SchemaError
from shardio.kernels import FeatureRequest, Mismatch, Records
from tests.kernels.differential import plain
from tests.kernels.messages import varint


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def entry(name: bytes, feature: bytes) -> bytes:
    return field(1, field(1, name) + field(2, feature))


def ints(*values: int) -> bytes:
    return field(3, field(1, b"".join(map(varint, values))))


def floats(*values: float) -> bytes:
    return field(2, field(1, np.array(values, "<f4").tobytes()))


def byte_list(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def example(*entries: bytes) -> bytes:
    return field(1, b"".join(entries))


def only(kernels, payload: bytes, kind: str, count: int | None = None) -> list | None:
    """Parse one record and return the values of feature `a`, or None where it is missing."""
    parsed = kernels.parse_examples([payload], [FeatureRequest(b"a", kind, count)])
    assert parsed.mismatch is None
    column = parsed.columns[b"a"]
    if not column.present[0]:
        return None
    values = plain(column)["values"]
    return values if kind == "bytes" else column.values.ravel().tolist()


ODD_FORMS = {
    "the last of equal keys wins": (example(entry(b"a", ints(1)), entry(b"a", ints(2, 3))), [2, 3]),
    "also over two maps": (example(entry(b"a", ints(1))) + example(entry(b"a", ints(2))), [2]),
    "an empty feature replaces, too": (example(entry(b"a", ints(1)), entry(b"a", b"")), None),
    "a value that comes twice is merged": (
        example(field(1, field(1, b"a") + field(2, ints(1)) + field(2, ints(2)))), [1, 2],
    ),
    "the same kind continues": (example(entry(b"a", ints(1) + ints(2))), [1, 2]),
    "another kind replaces": (example(entry(b"a", ints(1) + floats(2) + ints(3))), [3]),
    "the value may be before the key": (example(field(1, field(2, ints(7)) + field(1, b"a"))), [7]),
    "the last of two keys counts": (
        example(field(1, field(1, b"b") + field(1, b"a") + field(2, ints(7)))), [7],
    ),
    "one value unpacked": (example(entry(b"a", field(3, b"\x08\x05"))), [5]),
    "packed and unpacked mixed": (
        example(entry(b"a", field(3, b"\x08\x05\x0a\x02\x06\x07\x08\x08"))), [5, 6, 7, 8],
    ),
    "no values are present and empty": (example(entry(b"a", field(3, b""))), []),
    "no kind is missing": (example(entry(b"a", b"")), None),
    "no value is missing": (example(field(1, field(1, b"a"))), None),
    "an empty record": (b"", None),
    "unknown fields are skipped": (
        b"\x18\x05"
        + example(
            b"\x1d1234", entry(b"a", b"\x21" + b"8" * 8 + field(3, b"\x0a\x01\x05\x12\x01x")), b"\x23\x24"
        ),
        [5],
    ),
    "an entry with an unknown field is none": (
        example(field(1, field(1, b"a") + field(2, ints(7)) + b"\x18\x01")), None,
    ),
    "long varints": (example(entry(b"a", field(3, field(1, varint(5, 8) + varint(6, 8))))), [5, 6]),
    "ten bytes carry 64 bits": (example(entry(b"a", field(3, field(1, b"\xff" * 9 + b"\x7f")))), [-1]),
    "the extremes": (
        example(entry(b"a", ints(-(1 << 63), (1 << 63) - 1, -1))), [-(1 << 63), (1 << 63) - 1, -1],
    ),
    "groups nest a hundred deep": (b"\x13" * 100 + b"\x14" * 100 + example(entry(b"a", ints(1))), [1]),
}  # fmt: skip


@pytest.mark.parametrize(("payload", "values"), ODD_FORMS.values(), ids=ODD_FORMS)
def test_odd_forms_mean_what_protobuf_says(kernels, payload, values) -> None:
    assert only(kernels, payload, "int64") == values


REFUSED = {
    "cut in the middle": example(entry(b"a", ints(1)))[:-1],
    "longer than the message around it": field(1, field(1, b"\x0a\x05a")),
    "a varint of eleven bytes": example(entry(b"a", field(3, field(1, b"\x80" * 10 + b"\x00")))),
    "a size of six bytes": b"\x0a" + varint(0, 5),
    "a tag of six bytes": varint(0x12, 5) + b"\x00",
    "a tag above 32 bits": varint(1 << 33 | 2) + b"\x00",
    "field number 0": b"\x02\x00",
    "wire type 6": b"\x16",
    "wire type 7": b"\x17",
    "a group that does not end": b"\x13",
    "a group that ends as another": b"\x13\x1c",
    "an end without a group": b"\x14",
    "groups deeper than a hundred": b"\x13" * 101 + b"\x14" * 101,
    "deeper inside": example(entry(b"a", field(3, b"\x13" * 97 + b"\x14" * 97))),
    "a key that is not UTF-8": example(entry(b"\xff", ints(1))),
    "a surrogate in a key": example(entry(b"\xed\xa0\x80", ints(1))),
    "a shorter form in a key": example(entry(b"\xc0\xaf", ints(1))),
    "beyond Unicode in a key": example(entry(b"\xf4\x90\x80\x80", ints(1))),
    "packed floats of five bytes": example(entry(b"a", field(2, field(1, b"12345")))),
    "damage in a feature that was not asked for": example(entry(b"other", field(3, field(1, b"\x80")))),
    "a cut float": example(entry(b"a", field(2, b"\x0d123"))),
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED)
def test_what_protobuf_refuses_is_refused_with_its_row(kernels, payload) -> None:
    """A record that is not a message is a FormatError that names the row; nothing else comes out."""
    right = example(entry(b"a", ints(1)))
    with pytest.raises(FormatError) as caught:
        kernels.parse_examples([right, payload, right], [FeatureRequest(b"a", "int64")])
    assert caught.value.row == 1
    assert caught.value.advice


def test_an_earlier_mismatch_comes_before_a_later_refusal(kernels) -> None:
    wanted = [FeatureRequest(b"a", "int64", 1)]
    bad, short = b"\x16", example(entry(b"a", ints(1, 2)))
    assert kernels.parse_examples([short, bad], wanted).mismatch == Mismatch(0, b"a", "length", 1, 2)
    with pytest.raises(FormatError):
        kernels.parse_examples([bad, short], wanted)


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        (FeatureRequest(b"b", "int64", 1, required=True), (1, b"b", "missing", None, None)),
        (FeatureRequest(b"b", "int64", required=True), (1, b"b", "missing", None, None)),
        (FeatureRequest(b"a", "float"), (0, b"a", "kind", "float", "int64")),
        (FeatureRequest(b"a", "int64", 2), (1, b"a", "length", 2, 1)),
        (FeatureRequest(b"a", "int64", 0), (0, b"a", "length", 0, 2)),
    ],
)
def test_a_record_that_does_not_fit_is_described(kernels, feature, expected) -> None:
    payloads = [example(entry(b"a", ints(1, 2)), entry(b"b", ints(1))), example(entry(b"a", ints(3)))]
    parsed = kernels.parse_examples(payloads, [FeatureRequest(b"zzz", "bytes"), feature])
    assert parsed == ({}, {}, Mismatch(*expected))
    error = parsed.mismatch.error()
    assert isinstance(error, SchemaError)
    assert repr(feature.name.decode()) in str(error)
    assert (error.row, error.expected, error.found) == (expected[0], *expected[3:])


def test_a_step_that_does_not_fit_is_described(kernels) -> None:
    def sequence(*steps: bytes) -> bytes:
        return field(2, field(1, field(1, b"s") + field(2, b"".join(field(1, step) for step in steps))))

    payloads = [
        sequence(ints(1), ints(2)),
        b"",
        sequence(ints(1), b"", ints(1, 2)),
        sequence(ints(1), floats(1)),
    ]

    def mismatch(**options):
        return kernels.parse_sequence_examples(
            payloads, [], [FeatureRequest(b"s", "int64", **options)]
        ).mismatch

    assert mismatch(count=1) == Mismatch(2, b"s", "length", 1, 0, 1)
    assert mismatch() == Mismatch(3, b"s", "kind", "int64", "float", 1)
    assert mismatch(required=True) == Mismatch(1, b"s", "missing")
    payloads = payloads[:3]
    column = kernels.parse_sequence_examples(payloads, [], [FeatureRequest(b"s", "int64")]).lists[b"s"]
    assert column.present.tolist() == [True, False, True]
    assert column.steps.tolist() == [0, 2, 2, 5]
    assert column.offsets.tolist() == [0, 1, 2, 3, 3, 5]
    assert column.values.tolist() == [1, 2, 1, 1, 2]


def test_missing_rows_hold_the_default(kernels) -> None:
    there = example(entry(b"i", ints(5, 6)), entry(b"f", floats(-0.0)), entry(b"b", byte_list(b"x", b"yz")))
    half = example(
        entry(b"i", ints(5, 6)), entry(b"i", b""), entry(b"b", byte_list(b"q", b"r")), entry(b"b", b"")
    )
    features = [
        FeatureRequest(b"i", "int64", 2, default=[7, 8]),
        FeatureRequest(b"f", "float", 1, default=[2.5]),
        FeatureRequest(b"b", "bytes", 2, default=[b"default", b""]),
        FeatureRequest(b"n", "int64", 3),
        FeatureRequest(b"e", "bytes", 1),
        FeatureRequest(b"z", "float", 0, default=[]),
    ]
    parsed = kernels.parse_examples([there, half, b""], features)
    columns = parsed.columns
    assert columns[b"i"].values.tolist() == [[5, 6], [7, 8], [7, 8]]
    assert columns[b"i"].present.tolist() == [True, False, False]
    assert columns[b"f"].values.tobytes() == np.array([-0.0, 2.5, 2.5], np.float32).tobytes()
    assert plain(columns[b"b"])["values"] == [b"x", b"yz", b"default", b"", b"default", b""]
    assert columns[b"b"].starts.shape == (3, 2)
    assert columns[b"n"].values.tolist() == [[0] * 3] * 3
    assert plain(columns[b"e"])["values"] == [b""] * 3
    assert columns[b"z"].values.shape == (3, 0)


def test_every_bit_of_a_float_survives(kernels) -> None:
    """NaN payloads, signalling or not, -0.0 and subnormals come out as they are in the record."""
    words = np.array([0x7F800001, 0xFFBFFFFF, 0x7FC12345, 0x80000000, 1, 0xFF800000], np.uint32)
    payload = example(entry(b"a", field(2, field(1, words.tobytes()))))
    for count in (None, 6):
        column = kernels.parse_examples([payload] * 3, [FeatureRequest(b"a", "float", count)]).columns[b"a"]
        assert column.values.tobytes() == words.tobytes() * 3


def test_bytes_are_spans_of_a_buffer(kernels) -> None:
    payloads = [example(entry(b"a", byte_list(b"one", b"", b"two"))), example(entry(b"a", byte_list()))]
    column = kernels.parse_examples(payloads, [FeatureRequest(b"a", "bytes")]).columns[b"a"]
    assert column.offsets.tolist() == [0, 3, 3]
    assert plain(column)["values"] == [b"one", b"", b"two"]


def test_many_values_and_many_names(kernels) -> None:
    """Columns grow while rows are read; names are found among hundreds, in any order."""
    random = np.random.default_rng(0)
    names = [f"feature {number}".encode() for number in range(300)]
    payloads, expected = [], {name: [] for name in names}
    for _ in range(20):
        entries = []
        for name in random.permutation(names).tolist():
            values = random.integers(0, 1 << 62, random.integers(0, 30)).tolist()
            expected[name].extend(values)
            entries.append(entry(name, ints(*values)))
        payloads.append(example(*entries))
    wanted = [FeatureRequest(name, "int64") for name in names[::-1]]
    columns = kernels.parse_examples(payloads, wanted).columns
    assert {name: column.values.tolist() for name, column in columns.items()} == expected


def test_records_lie_anywhere_in_a_buffer(kernels) -> None:
    first, second = example(entry(b"a", ints(1))), example(entry(b"a", byte_list(b"payload")))
    data = bytearray(b"xx" + first + b"yy" + second)
    start = 4 + len(first)
    parsed = kernels.parse_examples(
        Records(data, [start, start], [len(data)] * 2), [FeatureRequest(b"a", "bytes", 1)]
    )
    assert plain(parsed.columns[b"a"])["values"] == [b"payload"] * 2
    with pytest.raises(IndexError):
        kernels.parse_examples(Records(data, [2, 2], [4, len(data) + 1]), [])


def test_payloads_may_be_any_buffers(kernels) -> None:
    payload = example(entry(b"a", byte_list(b"12345678")))
    payload += b"\x98\x00\x00" if len(payload) % 2 else b""  # an unknown field, for an even number of bytes
    words = np.frombuffer(payload, np.uint16)
    forms = [payload, bytearray(payload), memoryview(payload), words]
    column = kernels.parse_examples(forms, [FeatureRequest(b"a", "bytes", 1, required=True)]).columns[b"a"]
    assert plain(column)["values"] == [b"12345678"] * 4
    with pytest.raises(TypeError, match="contiguous buffer"):
        kernels.parse_examples(["text"], [])


def test_no_records_give_empty_columns(kernels) -> None:
    features = [
        FeatureRequest(b"a", "int64", 2),
        FeatureRequest(b"b", "float"),
        FeatureRequest(b"c", "bytes", 1),
        FeatureRequest(b"d", "bytes"),
    ]
    columns = kernels.parse_examples([], features).columns
    assert columns[b"a"].values.shape == (0, 2)
    assert columns[b"b"].offsets.tolist() == [0]
    assert columns[b"c"].starts.shape == (0, 1)
    lists = kernels.parse_sequence_examples([], [], features).lists
    assert lists[b"a"].values.shape == (0, 2)
    assert lists[b"d"].steps.tolist() == [0]
    assert kernels.parse_examples([b"", b""], []) == ({}, {}, None)


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        (FeatureRequest(b"a", "int32"), "is of kind 'int32'"),
        (FeatureRequest("a", "int64"), "not named by bytes"),
        (FeatureRequest(b"\xff", "int64"), "not UTF-8"),
        (FeatureRequest(b"a", "int64", -1), "has -1 values"),
        (FeatureRequest(b"a", "int64", 2, default=[1]), "has 1 default values; expected 2"),
        (FeatureRequest(b"a", "int64", None, default=[1]), "has a default"),
        (FeatureRequest(b"a", "int64", 1, required=True, default=[1]), "has a default"),
        (FeatureRequest(b"a", "bytes", 1, default=b"x"), "expected a sequence of bytes"),
    ],
)
def test_a_description_that_means_nothing_is_refused(kernels, feature, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        kernels.parse_examples([], [feature])
    with pytest.raises(ValueError, match="described twice"):
        kernels.parse_examples([], [FeatureRequest(b"a", "int64")] * 2)
    with pytest.raises(ValueError, match="has a default"):
        kernels.parse_sequence_examples([], [], [FeatureRequest(b"a", "int64", 1, default=[1])])
    with pytest.raises(TypeError, match="found one payload"):
        kernels.parse_examples(b"payload", [])
