"""Schemas are inferred from Examples and from values; what both can hold is inferred alike, whichever way in.

The ways: `codecs.infer_schema` over payloads, a look at values as converters of JSON, MDS and tar take it,
conversion of a TFRecord file, and adoption of one.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings, strategies as st

import shardio
import shardio_indexer
from shardio import codecs
from shardio.errors import SchemaError
from shardio.metadata import Schema
from shardio.v1 import example_pb2
from tests.indexer.shards import tar, tfrecord

HEADS = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*", b"GIF87a", b"GIF89a", b"BM",
    b"RIFF\0\0\0\0WEBP",
)  # fmt: skip
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(width=32, allow_nan=False)
# No text: a schema of Examples never says by itself that bytes are text.
BYTES = st.sampled_from((*HEADS, b"\xfe")).flatmap(lambda head: st.just(head + b"\0" * 16))


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(value))
    return file.getvalue()


def shown(value: dict[str, Any]) -> dict[str, str]:
    """Types and dtypes count, the order of the features does not."""
    return {name: repr(item) for name, item in value.items()}


# Of one feature, the items of each record that has it; None where a record lacks it.
Items = list[list[Any] | None]


def records_of(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Items]:
    sizes = st.sampled_from([(1, 1), (2, 2), (0, 3)])
    lists = sizes.flatmap(
        lambda size: st.lists(
            st.none() | st.lists(items, min_size=size[0], max_size=size[1]), min_size=1, max_size=6
        )
    )
    # Without an item a value does not say what it would hold; an Example's kind does.
    return lists.filter(any)


RECORDS = st.one_of(map(records_of, (INTEGERS, FLOATS, BYTES)))


def values_of(records: Items) -> list[dict[str, Any]]:
    """The records as a converter has them: one item is itself, numbers are arrays of what Examples hold."""
    single = all(items is None or len(items) == 1 for items in records)
    values = []
    for items in records:
        value: Any = items
        if items and isinstance(items[0], int | float):
            value = np.array(items, np.int64 if isinstance(items[0], int) else np.float32)
        values.append({"n": 0} if items is None else {"n": 0, "x": value[0] if single else value})
    return values


def payloads_of(records: Items) -> list[bytes]:
    """The records as Examples; a list without items has its kind all the same."""
    (kind,) = {
        {int: "int64_list", float: "float_list", bytes: "bytes_list"}[type(item)]
        for items in records
        for item in items or ()
    }
    payloads = []
    for items in records:
        example = example_pb2.Example()
        example.features.feature["n"].int64_list.value.append(0)
        if items is not None:
            held = getattr(example.features.feature["x"], kind)
            held.SetInParent()
            held.value.extend(items)
        payloads.append(example.SerializeToString())
    return payloads


def from_payloads(_: Items, payloads: list[bytes]) -> Schema | None:
    return codecs.infer_schema(payloads)[0]


def by_converting(_: Items, payloads: list[bytes]) -> Schema | None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.tfrecord").write_bytes(tfrecord(payloads))
        return shardio.convert_dataset(f"{folder}/a.tfrecord", f"{folder}/out", workers=1).schema


def by_adopting(_: Items, payloads: list[bytes]) -> Schema | None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.tfrecord").write_bytes(tfrecord(payloads))
        shardio_indexer.adopt([folder], workers=1)
        return shardio.open(folder).schema


def agree(records: Items, *ways: Any) -> None:
    payloads = payloads_of(records)
    found = {way.__name__: way(records, payloads) for way in ways}
    assert len(set(found.values())) == 1, found
    assert "x" in next(iter(found.values()))


@settings(max_examples=max(12, settings().max_examples // 10), deadline=None)
@given(RECORDS)
def test_each_way_in_infers_the_same(records: Items) -> None:
    agree(records, from_payloads, by_converting, by_adopting)


def refusal(function: Any, *args: Any, **options: Any) -> str | None:
    """Return why a schema cannot be inferred; None where it can."""
    try:
        function(*args, **options)
    except SchemaError as error:
        return error.what
    return None


WORDS = st.sampled_from(["", "wren", "\u00fc", "7"])
JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), WORDS,
    st.lists(st.integers(0, 9), max_size=3), st.lists(WORDS, max_size=2), st.just({"$base64": "/9j/"}),
    st.just({"a": [1, None]}), st.just([[1, 2], [3, 4]]), st.just({"$float": "NaN"}),
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "label", "\u00fc"]), JSON_VALUES, max_size=4)
MEMBERS = st.dictionaries(
    st.sampled_from(["txt", "json", "cls", "id", "jpg", "seg.png", "x.npy", "bin"]),
    st.sampled_from(
        [b"", b"7", b"-1", b"007", b"wren", b"\xff", b'{"a": 1}', HEADS[0] + b"x", HEADS[1],
         npy([1, 2]), npy(0.5), b"9223372036854775807", b"9223372036854775808",
         b"-9223372036854775808", b"18446744073709551616"]
    ),
    min_size=1,
)  # fmt: skip


@settings(max_examples=max(12, settings().max_examples // 10), deadline=None)
@given(st.lists(OBJECTS | JSON_VALUES, min_size=1, max_size=5), st.lists(MEMBERS, min_size=1, max_size=5))
@example([{"n": 1 << 63}, {"n": 7}], [{"id": b"%d" % ((1 << 63) - 1), "cls": b"%d" % (1 << 63)}])
def test_adopted_lines_and_samples_are_what_conversion_makes_of_them(lines: Any, samples: Any) -> None:
    """Adoption and conversion give the same schema and the same values, or the same refusal."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    members = [(f"{n}.{name}", item) for n, sample in enumerate(samples) for name, item in sample.items()]
    for name, data in (("a.jsonl", text.encode()), ("a.tar", tar(members))):
        with tempfile.TemporaryDirectory() as around:
            folder, out = f"{around}/in", f"{around}/out"
            Path(folder).mkdir()
            (Path(folder) / name).write_bytes(data)
            unchecked = {"check_images": False} if name == "a.tar" else None
            refusals = [
                refusal(shardio_indexer.adopt, [folder], into=f"{around}/dry", workers=1),
                refusal(shardio.convert_dataset, f"{folder}/{name}", out, dry_run=True, options=unchecked),
            ]
            assert refusals[0] == refusals[1]
            if refusals[0] is not None:
                continue
            report = shardio_indexer.adopt([folder], workers=1)
            assert report.ok
            try:
                made = shardio.convert_dataset(f"{folder}/{name}", out, workers=1, options=unchecked)
            except SchemaError:
                continue
            assert report.schema == made.schema
            adopted, converted = shardio.open(folder), shardio.open(out)
            assert [shown(value) for value in adopted] == [shown(value) for value in converted]
            assert shown(adopted[len(adopted) - 1]) == shown(converted[len(adopted) - 1])
