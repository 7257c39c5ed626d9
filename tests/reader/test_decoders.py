"""One law for all ways from a payload to a value: the same values, and the same refusals.

A record is decoded by itself, in a list, or in a batch of columns, which is other code; payloads come as
bytes or as places in one buffer.
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio.codecs import RecordCodec, encode_example, record_codec
from shardio.errors import FormatError, SchemaError, ShardioError
from shardio.format import Framing
from shardio.metadata import Feature, Schema
from shardio.reader import value_codec
from tests.codecs._values import rows_of

SCHEMA = {
    "i": "int64",
    "f": "float32[2]",
    "r": "int32[?]",
    "m": "uint8[?,?]",
    "t": "text",
    "j": "json",
    "l": "text[2]",
    "o": Feature("int16[2]", default=[1, 2]),
    "n": Feature("int64", default=-1),
}
GOOD = [
    {"i": 3, "f": [1, 2], "r": [1, 2, 3], "m": np.zeros((2, 1), np.uint8), "t": "x", "j": {"a": [1]},
     "l": ["a", "b"],
     "o": [3, 4], "n": 5},
    {"i": -1, "f": [0, np.inf], "r": [], "m": np.zeros((0, 3), np.uint8), "t": "", "j": None, "l": ["", "ü"]},
]  # fmt: skip


def tar_sample(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"k.{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        size = tar.offset  # what follows is the end of an archive
    return file.getvalue()[:size]


def written(encoding: str) -> tuple[RecordCodec, list[bytes]]:
    schema: Any = {"context": SCHEMA, "feature_lists": {"x": "uint8[2]", "s": "text"}}
    values: Any = [
        {"context": value, "feature_lists": {"x": [[1, 2]] * 3, "s": ["a", "b", "c"]}} for value in GOOD
    ]
    if encoding != "sequence_example":
        schema, values = SCHEMA, GOOD
    if encoding == "array":
        schema, values = {"x": "bool[3]"}, [[True, False, True], [False] * 3]
    if encoding == "bytes":
        schema, values = {"x": "json"}, [{"a": 1}, [None]]
    codec = record_codec(schema, encoding=encoding)
    return codec, [codec.encode(value) for value in values]


STORED = {
    "i": 3, "f": np.float32([1, 2]), "r": b"\0" * 12, "m": b"\0" * 2, "m/shape": [2, 1], "t": "x", "j": "{}",
    "l": ["a", "b"], "o": b"\0" * 4, "n": 5,
}  # fmt: skip
CHANGES: list[dict[str, Any]] = [
    {"i": []}, {"i": 1.5}, {"i": [1, 2]}, {"f": [1.0]}, {"r": b"123"}, {"m/shape": [3, 1]}, {"m/shape": []},
    {"m/shape": [-1, -2]}, {"t": b"\xff"}, {"t": []}, {"j": b"{"}, {"j": b"NaN"}, {"j": b'{"a": 1, "a": 2}'},
    {"l": ["a"]}, {"l": ["a", b"\xff"]}, {"o": b"123"}, {"n": [1, 2]},
]  # fmt: skip
TAR = value_codec(
    [Framing.TAR_SAMPLE], Schema.parse({"txt": "text", "json": "json", "cls": "int64", "bin": "bytes"})
)
LINES = value_codec([Framing.LINES], Schema.parse({"x": "json"}, encoding="bytes"))
MEMBERS = {"txt": b"wren", "json": b'{"a": 1}', "cls": b"7", "bin": b"\0"}
CODECS: dict[str, tuple[RecordCodec, list[bytes]]] = {
    **{name: written(name) for name in ("example", "sequence_example", "tensors", "array", "bytes")},
    "tar": (TAR, [tar_sample(**MEMBERS), tar_sample(**{**MEMBERS, "more": b"x"})]),
    "lines": (LINES, [b'{"a": 1}', b"[]"]),
    "text": (value_codec([Framing.LINES], None), [b"wren", b""]),
}
BAD: list[tuple[str, bytes]] = [
    *(("example", encode_example({**STORED, **change})) for change in CHANGES),
    ("example", b"\xff"),
    ("sequence_example", b"\x0a\x05abc"),
    ("tensors", b"\x0a\x05abc"),
    ("array", b"\x01\x00"),
    ("array", b"\x01\x00\x07"),
    ("bytes", b"{"),
    ("bytes", b"\xff"),
    *(("tar", tar_sample(**{**MEMBERS, name: content})) for name, content in (
        ("txt", b"\xff"), ("json", b"{"), ("json", b"[" * 100_000), ("cls", b"x"), ("cls", b""))),
    ("tar", tar_sample(txt=b"wren")),
    ("tar", b"x" * 600),
    ("lines", b"{"),
    ("lines", b'{"a": 1, "a": 2}'),
    ("lines", b"\xff"),
    ("text", b"\xff"),
]  # fmt: skip


def placed(payloads: list[bytes]) -> tuple[Any, Any, Any]:
    """The payloads in one buffer, with something between them."""
    stops = np.cumsum([len(payload) + 3 for payload in payloads])
    starts = stops - [len(payload) for payload in payloads]
    return b"".join(b"..." + payload for payload in payloads), starts.astype(np.int64), stops.astype(np.int64)


def values(columns: dict[str, Any], count: int) -> list[str]:
    """What each record is by a batch; features in the order of their names."""
    if set(columns) == {"context", "feature_lists"}:
        parts = {name: values(part, count) for name, part in columns.items()}
        return [str({name: part[k] for name, part in parts.items()}) for k in range(count)]
    rows = {name: rows_of(column) for name, column in columns.items()}
    return [repr({name: rows[name][k] for name in sorted(rows)}) for k in range(count)]


def alone(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"context", "feature_lists"}:
        return str({name: alone(part) for name, part in value.items()})
    return repr({name: value[name] for name in sorted(value)}) if isinstance(value, dict) else repr(value)


def said(error: ShardioError) -> tuple[Any, ...]:
    return type(error), error.what, error.fields().get("expected"), error.fields().get("found"), error.advice


@pytest.mark.parametrize("name", CODECS)
def test_all_ways_give_the_same_values(name):
    codec, payloads = CODECS[name]
    one = [alone(codec.decode(payload)) for payload in payloads]
    for given_payloads in (payloads, placed(payloads)):
        assert [alone(value) for value in codec.decode_many(given_payloads)] == one


@pytest.mark.parametrize("name", ["example", "tensors"])
def test_a_batch_gives_the_same_values(name):
    codec, payloads = CODECS[name]
    for given_payloads in (payloads, placed(payloads)):
        assert values(codec.decode_batch(given_payloads), 2) == [
            alone(codec.decode(payload)) for payload in payloads
        ]


@pytest.mark.parametrize(("name", "bad"), BAD, ids=[f"{k}-{name}" for k, (name, _) in enumerate(BAD)])
def test_all_ways_refuse_the_same_with_the_same_words(name, bad):
    codec, (good, _) = CODECS[name]
    with pytest.raises(ShardioError) as caught:
        codec.decode(bad)
    assert caught.value.row is None
    expected = said(caught.value)
    for payloads in ([good, bad], placed([good, bad]), [good, bad, bad], [good, bad, good]):
        for read in (codec.decode_many, codec.decode_batch):
            with pytest.raises(ShardioError) as caught:
                read(payloads)
            assert said(caught.value) == expected
            assert caught.value.row == 1


def outcome(read: Any, payload: bytes) -> Any:
    try:
        return read(payload)
    except (SchemaError, FormatError) as error:
        assert error.row in (None, 0)  # noqa: PT017 - an error is one of two right outcomes
        return None


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(data=st.data())
def test_what_is_damaged_is_read_or_refused_by_all(name, data):
    """Of several faults each way may find its own first; but all of them find one, or none does."""
    codec, payloads = CODECS[name]
    payload = bytearray(data.draw(st.sampled_from(payloads)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(payload)))
        payload[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    one = outcome(lambda each: alone(codec.decode(each)), bytes(payload))
    many = outcome(lambda each: alone(codec.decode_many(placed([each]))[0]), bytes(payload))
    batch = outcome(lambda each: codec.decode_batch([each]), bytes(payload))
    in_buffer = outcome(lambda each: codec.decode_batch(placed([each])), bytes(payload))
    assert one == many
    assert (one is None) == (batch is None) == (in_buffer is None)
    if batch is not None:
        assert repr(batch) == repr(in_buffer)
        if name in ("example", "tensors"):
            assert values(batch, 1) == [one]


def test_all_ways_through_a_reader_say_the_same(tmp_path):
    """Row and shard, too, whatever the way: by number, in order, by columns, as a stream."""
    good = CODECS["example"][1][0]
    for number, change in enumerate(CHANGES):
        url = tmp_path / str(number)
        with shardio.DatasetWriter(url, SCHEMA) as out:
            for payload in (good, encode_example({**STORED, **change}), good):
                out.write_encoded(payload)
        ds = shardio.open(url)
        ways = [
            lambda ds: ds[1],
            list,
            lambda ds: ds.read([0, 1]),
            lambda ds: ds.read_batch([0, 1]),
            lambda ds: list(ds.iter_batches(2)),
            lambda ds: ds[1:].read_batch([0]),
            lambda ds: list(shardio.stream(ds, global_batch=3, shuffle=False)),
        ]
        found = []
        for way in ways:
            with pytest.raises(ShardioError) as caught:
                way(ds)
            found.append((said(caught.value), caught.value.row, caught.value.shard, caught.value.url))
        assert found == [found[0]] * len(ways), json.dumps(change, default=repr)
        assert found[0][1] == 1
        with pytest.warns(UserWarning, match="damaged records are skipped"):
            assert len(list(shardio.open(url, on_error="skip"))) == 2
