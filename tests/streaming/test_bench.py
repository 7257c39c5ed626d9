"""What `bench` says is what was done: every stage reads what it says, damage is found, time is bounded."""

from __future__ import annotations

import pytest

import shardio
from shardio.errors import CorruptBlockError
from shardio.streaming import BenchReport, BenchStage
from tests.streaming.datasets import flip


@pytest.fixture
def dataset(tmp_path):
    with shardio.DatasetWriter(tmp_path / "data", schema={"n": "int64", "text": "text"}) as out:
        for n in range(500):
            out.write({"n": n, "text": "x" * 100}, split="train")
    return tmp_path / "data"


@pytest.mark.parametrize("decode", [True, False])
def test_stages_read_what_they_say(dataset, decode) -> None:
    reader = shardio.open(dataset, decode=decode)
    before = sum(map(len, shardio.open(dataset, decode=False)))
    report = shardio.bench(reader, global_batch=100, seconds=1000)
    assert [stage.name for stage in report.stages] == [
        "first", "read", "verify", "decode", "batch", "stream", "lookup",
    ]  # fmt: skip
    for stage in report.stages[:4]:
        assert (stage.records, stage.record_bytes) == (500, before)
    assert report.stage("batch").records == report.stage("stream").records == 500
    assert report.stage("lookup").records == 500
    assert report.sample == len(reader) == report.records
    assert report.to_dict()["stages"][0]["records"] == 500


@pytest.mark.parametrize("context", [{"id": "int64"}, {}])
def test_sequence_examples_are_counted_as_records(tmp_path, context) -> None:
    schema = {"context": context, "feature_lists": {"box": "float32[4]"}}
    with shardio.DatasetWriter(tmp_path / "data", schema, encoding="sequence_example") as out:
        for n in range(50):
            value = dict.fromkeys(context, n)
            out.write({"context": value, "feature_lists": {"box": [[0, 0, 1, n]] * (n % 3)}})
    report = shardio.bench(shardio.open(tmp_path / "data"), global_batch=10, seconds=1000)
    assert [stage.records for stage in report.stages] == [50] * 7


def test_costs_are_differences_of_stages() -> None:
    seconds = {"read": 1.0, "verify": 3.0, "decode": 2.0, "batch": 5.0}
    stages = tuple(BenchStage(name, 1_000_000, 0, value) for name, value in seconds.items())
    report = BenchReport("u", 1, "d", "train", 1, 1, 1, 1, stages)
    assert report.microseconds == {"reading": 1.0, "verifying": 2.0, "decoding": 0.0, "batching": 3.0}


def test_what_cannot_be_measured_is_refused(dataset) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        shardio.bench(shardio.open(dataset), seconds=0)
    with pytest.raises(ValueError, match="no records"):
        shardio.bench(shardio.open(dataset)[:0])
    shard = next((dataset / "data").glob("*.tfrecord"))
    flip(shard, shard.stat().st_size // 2)
    with pytest.raises(CorruptBlockError):
        shardio.bench(shardio.open(dataset), seconds=0.7)
