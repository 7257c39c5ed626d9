"""What TensorFlow says about our files and our messages; it has an environment of its own (`make oracle`)."""

from __future__ import annotations

import random

import numpy as np
import pytest

import shardio
from shardio import codecs

pytestmark = pytest.mark.oracle


@pytest.fixture
def payloads() -> list[bytes]:
    source = random.Random(7)
    return [source.randbytes(source.choice([0, 1, 300, 70_000])) for _ in range(500)]


def _files(folder, ending: str) -> list[str]:
    return sorted(str(path) for path in (folder / "data").rglob(f"*{ending}"))


@pytest.mark.parametrize(
    ("compression", "ending", "name"),
    [(None, ".tfrecord", ""), ("gzip", ".gz", "GZIP"), ("zlib", ".zz", "ZLIB")],
)
def test_tensorflow_reads_what_shardio_wrote(tf, tmp_path, payloads, compression, ending, name) -> None:
    """Every shard is a file that tools which have never heard of shardio already read."""
    with shardio.DatasetWriter(tmp_path, compression=compression, shard_bytes=1 << 20) as out:
        for payload in payloads:
            out.write(payload, split="train")
    files = _files(tmp_path, ending)
    assert len(files) > 1
    found = [record.numpy() for record in tf.data.TFRecordDataset(files, compression_type=name)]
    assert found == payloads


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_shardio_reads_what_tensorflow_wrote(tf, tmp_path, payloads, compression) -> None:
    path = str(tmp_path / "foreign.tfrecord") + {"": "", "GZIP": ".gz", "ZLIB": ".zz"}[compression]
    with tf.io.TFRecordWriter(path, options=compression) as out:
        for payload in payloads:
            out.write(payload)
    with pytest.warns(UserWarning, match="has no index"):
        shard = shardio.open_shard(path)
    assert list(shard) == payloads


def test_examples_are_examples(tf) -> None:
    """Wire-compatible, and no clash when TensorFlow is imported too."""
    from shardio.v1 import example_pb2

    value = {"label": 3, "weights": np.array([0.5, -1, np.inf], np.float32), "image": b"\x00\xff", "none": []}
    payload = codecs.encode_example(value)
    theirs = tf.train.Example.FromString(payload)
    assert theirs.features.feature["label"].int64_list.value == [3]
    assert theirs.features.feature["image"].bytes_list.value == [b"\x00\xff"]
    np.testing.assert_array_equal(theirs.features.feature["weights"].float_list.value, value["weights"])
    ours = example_pb2.Example.FromString(theirs.SerializeToString())
    assert ours == example_pb2.Example.FromString(payload)


def test_batches_are_what_tensorflow_parses(tf) -> None:
    """`parse_examples` is the twin of `tf.io.parse_example`."""
    source = np.random.default_rng(3)
    payloads = [
        codecs.encode_example(
            {
                "label": int(source.integers(-(2**62), 2**62)),
                "box": source.random(4, np.float32),
                "tags": [source.bytes(3) for _ in range(source.integers(0, 5))],
            }
        )
        for _ in range(200)
    ]
    ours = codecs.parse_examples(
        payloads,
        {
            "label": codecs.FixedLen((), "int64"),
            "box": codecs.FixedLen((4,), "float32"),
            "tags": codecs.Ragged("bytes"),
        },
    )
    theirs = tf.io.parse_example(
        payloads,
        {
            "label": tf.io.FixedLenFeature([], tf.int64),
            "box": tf.io.FixedLenFeature([4], tf.float32),
            "tags": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
        },
    )
    np.testing.assert_array_equal(ours["label"], theirs["label"].numpy())
    np.testing.assert_array_equal(ours["box"], theirs["box"].numpy())
    assert list(ours["tags"].values) == list(theirs["tags"].values.numpy())
    np.testing.assert_array_equal(ours["tags"].offsets, theirs["tags"].row_splits.numpy())
