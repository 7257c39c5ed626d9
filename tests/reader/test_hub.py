"""`hf://` from end to end: the client of the Hub, before a server that answers as the Hub does."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardio
import shardio_indexer
from shardio.errors import NotFoundError, StorageError
from tests.servers.hub import hub

ROOT = "hf://datasets/owner/name"


@pytest.fixture(scope="module")
def place(served):
    (served / "files").mkdir()
    for shard in (served / "made" / "data").glob("*.tfrecord"):
        shutil.copy(shard, served / "files")
    pq.write_table(pa.table({"n": range(20)}), served / "n.parquet")
    with hub(served, "owner/name") as endpoint:
        yield {"endpoint": endpoint, "token": False}


def test_a_dataset_on_the_hub_is_read(place):
    reader = shardio.open(f"{ROOT}/made", "train", storage_options=place)
    assert [record["n"] for record in reader] == list(range(20))
    assert reader.read_batch([3, 1])["n"].tolist() == [3, 1]
    stream = shardio.stream(reader, global_batch=10, seed=0)
    assert sorted(n for batch in stream for n in batch["n"].tolist()) == list(range(20))
    assert shardio.verify(shardio.Address(f"{ROOT}/made", storage_options=place)).ok
    assert len(shardio.open(f"{ROOT}@main/made", "train", storage_options=place)) == 20


def test_files_on_the_hub_are_adopted_and_converted(place, tmp_path):
    adopted = shardio_indexer.adopt(
        f"{ROOT}/files/*.tfrecord", into=tmp_path / "adopted", storage_options=place
    )
    assert adopted.records == 20
    reader = shardio.open(tmp_path / "adopted", allow_roots={f"{ROOT}/files": place})
    assert [record["n"] for record in reader] == list(range(20))
    shardio.convert_dataset(f"{ROOT}/*.parquet", tmp_path / "converted", source_options=place)
    assert [record["n"] for record in shardio.open(tmp_path / "converted")] == list(range(20))


@pytest.mark.parametrize("name", ["owner/none/made", "owner/name@none/made", "owner/name/none"])
def test_what_is_not_on_the_hub_is_named(place, name):
    with pytest.raises(NotFoundError, match=f"no shardio dataset here.*hf://datasets/{name}"):
        shardio.open(f"hf://datasets/{name}", storage_options=place)


def test_a_dataset_on_the_hub_is_not_written(place):
    with pytest.raises(StorageError, match="cannot be written"):
        shardio.DatasetWriter(f"{ROOT}/made", mode="append", storage_options=place).write({"n": 1})
