"""Processes that read or stream a version which stays, while another one changes the dataset."""

from __future__ import annotations

import multiprocessing
import traceback
from typing import Any

import pytest

import shardio
from shardio.errors import CommitConflictError, NotFoundError
from tests.servers import s3 as servers_s3
from tests.suites.datasets import numbers

RECORDS = 60
STREAM = {"global_batch": 5, "seed": 3}
SMALL = {"block_bytes": 128, "shard_bytes": 300}


def read(url: str, options: Any, parent: Any) -> None:
    """Read all and single records of the version, by an old reader and new ones, until told to stop."""
    try:
        first = shardio.open(url, version="run", storage_options=options)
        parent.send("ready")
        passes = 0
        while not (passes and parent.poll(0.05)):  # others need the processors, too
            for ds in (first, shardio.open(url, version="run", storage_options=options)):
                assert numbers(ds) == list(range(RECORDS))
                assert numbers(ds.read([passes % RECORDS, 7])) == [passes % RECORDS, 7]
            passes += 1
        parent.send(passes)
    except BaseException:  # noqa: BLE001 - the other process shows it
        parent.send(traceback.format_exc())


def stream(url: str, options: Any, parent: Any) -> None:
    """Take a step each time that it is told to."""
    try:
        steps = shardio.stream(shardio.open(url, version="run", storage_options=options), **STREAM)
        parent.send("ready")
        for batch in steps:
            parent.recv()
            parent.send((batch["n"].tolist(), steps.state_dict()))
    except BaseException:  # noqa: BLE001 - the other process shows it
        parent.send(traceback.format_exc())


@pytest.fixture(scope="module")
def bucket():
    with servers_s3.moto() as endpoint:
        yield servers_s3.make_bucket(endpoint), servers_s3.options_for(endpoint)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", ["local", "s3"])
def test_readers_and_streams_in_mid_epoch_notice_nothing(place, tmp_path, request) -> None:
    """Others append, delete, erase, compact, build tables and keys, restore, and collect meanwhile."""
    url, options = str(tmp_path / "ds"), None
    if place == "s3":
        name, options = request.getfixturevalue("bucket")
        url = f"s3://{name}/processes"
    how: dict[str, Any] = {"storage_options": options}

    def append(first: int, count: int) -> None:
        with shardio.DatasetWriter(url, {"n": "int64"}, mode="append", **SMALL, **how) as out:
            for n in range(first, first + count):
                out.write({"n": n})

    for day in range(3):
        append(20 * day, 20)
    shardio.tag(shardio.Address(url, **how), "run")
    whole = [
        batch["n"].tolist() for batch in shardio.stream(shardio.open(url, version="run", **how), **STREAM)
    ]
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for target in (read, stream):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=target, args=(url, options, theirs), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    reader, streamer = pipes

    def told(pipe: Any) -> Any:
        assert pipe.poll(120), "nothing comes"
        answer = pipe.recv()
        assert not isinstance(answer, str) or answer == "ready", answer
        return answer

    def expire() -> None:
        shardio.gc(shardio.Address(url, **how), keep=1, dry_run=False)

    def erase_of_what_is_tagged() -> None:
        # Erasing would expire the version with the tag.
        with pytest.raises(CommitConflictError):
            shardio.erase(shardio.Address(url, **how), [0])

    deeds = [
        lambda: append(100, 10),
        lambda: shardio.delete(shardio.Address(url, **how), [3, 9, 30]),
        expire,
        lambda: shardio.delete(shardio.Address(url, **how), [60]),
        lambda: shardio.compact(shardio.Address(url, **how), compression="zstd", workers=1),
        lambda: shardio.build_keys(shardio.Address(url, **how), "n", workers=1),
        expire,
        erase_of_what_is_tagged,
        lambda: shardio.build_table(shardio.Address(url, **how), ["n"], workers=1),
        expire,
        lambda: shardio.restore(shardio.Address(url, **how), "run"),
        expire,
    ]
    try:
        for pipe in pipes:
            told(pipe)
        assert len(whole) == len(deeds)
        found = []
        for deed in deeds:
            deed()
            streamer.send("go on")
            found.append(told(streamer))
        assert [batch for batch, _ in found] == whole
        reader.send("stop")
        assert told(reader) >= 1
    finally:
        for process in processes:
            process.kill()
            process.join()
    # Whatever was done: states of before continue, by the tag alone.
    again = shardio.stream(shardio.open(url, version="run", **how), **STREAM)
    again.load_state_dict(found[4][1])
    assert [batch["n"].tolist() for batch in again] == whole[5:]
    with pytest.raises(NotFoundError):
        shardio.open(url, version=5, **how)
    assert numbers(shardio.open(url, **how)) == list(range(RECORDS))
    assert shardio.verify(shardio.Address(url, **how)).ok
