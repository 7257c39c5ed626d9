"""Keys with what URLs and shells take for something else."""

from __future__ import annotations

import pytest

import shardio
import shardio_indexer
from tests.indexer.shards import tfrecord

NAMES = ["a::b/xy::z.tfrecord", "a\tb.tfrecord", "simplecache::s3://x.tfrecord", "a b%20c#d?e.tfrecord"]


@pytest.mark.parametrize("name", NAMES)
def test_on_a_local_disk(tmp_path, name) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(tfrecord([b"a"]))
    assert shardio_indexer.adopt(tmp_path).ok
    assert list(shardio.open(tmp_path)) == [b"a"]
    assert shardio.verify(tmp_path).ok
