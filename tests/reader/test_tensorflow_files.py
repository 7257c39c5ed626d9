"""Files that TensorFlow itself wrote, plain, GZIP and ZLIB, without an index."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio import codecs
from shardio.errors import FormatError
from shardio.format import Compression

HERE = Path(__file__).parent.parent / "golden" / "tensorflow"
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
KINDS = {"plain": Compression.NONE, "gzip": Compression.GZIP, "zlib": Compression.ZLIB}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def records_of(name: str, kind: str) -> list[bytes]:
    with pytest.warns(UserWarning, match="has no index: it can only be read in order"):
        shard = shardio.open_shard(HERE / f"{name}-{kind}.tfrecord")
    records = list(shard)
    assert list(shard) == records, "it can be read again"
    return records


@EVERY_KIND
def test_raw_records(kind):
    assert records_of("raw", kind) == [base64.b64decode(text) for text in EXPECTED["raw"]]


@EVERY_KIND
def test_no_records(kind):
    assert records_of("none", kind) == []


@EVERY_KIND
def test_compressions_are_recognised(kind):
    with pytest.warns(UserWarning, match="no index"):
        facts = shardio.open_shard(HERE / f"raw-{kind}.tfrecord").facts()
    assert facts["compression"] == KINDS[kind].name.lower()


def plain(feature) -> list | None:
    """Return a decoded feature as expected.json spells it."""
    if isinstance(feature, list):
        return [base64.b64encode(value).decode() for value in feature]
    if feature.dtype == np.float32:
        return feature.view(np.uint32).tolist()
    return [str(value) for value in feature.tolist()]


@EVERY_KIND
def test_examples(kind):
    records = records_of("examples", kind)
    assert len(records) == len(EXPECTED["examples"])
    for record, wanted in zip(records, EXPECTED["examples"], strict=True):
        found = codecs.decode_example(record)
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            # A feature without a kind has no values.
            assert plain(found[name]) == ([] if value is None else next(iter(value.values())))


@EVERY_KIND
def test_sequences(kind):
    assert len(records_of("sequences", kind)) == len(EXPECTED["sequences"])
    assert records_of("sequences", kind) == records_of("sequences", "plain")


@EVERY_KIND
def test_a_file_cut_anywhere_says_so(kind, tmp_path):
    """It MUST NOT take the end of the file inside a frame for the end of the data."""
    data = (HERE / f"examples-{kind}.tfrecord").read_bytes()
    whole = records_of("examples", kind)
    target = tmp_path / "cut.tfrecord"
    ends = np.cumsum([len(record) + 16 for record in whole]).tolist()
    for size in range(1, len(data), 97):
        target.write_bytes(data[:size])
        with pytest.warns(UserWarning, match="no index"):
            shard = shardio.open_shard(target)
        if kind == "plain" and size in ends:
            continue
        with pytest.raises(FormatError) as caught:
            list(shard)
        assert caught.value.url == str(target)
