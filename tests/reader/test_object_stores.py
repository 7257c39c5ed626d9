"""Datasets in object stores: how many requests reading takes, the cache, damage on the way, web servers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import multiprocessing
import pathlib
import pickle
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Self

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

import shardio
from shardio.catalog import Catalog, commit_receipts
from shardio.cli import main
from shardio.errors import CorruptBlockError, NotFoundError, StorageError
from shardio.metadata import Receipt, ShardTable, SplitReceipt
from shardio.order import Plan
from shardio.storage import connect
from tests.servers import s3
from tests.servers.faults import FaultServer, Request
from tests.servers.web import folder_server
from tests.streaming.datasets import flip

RECORDS = [b"record %d " % k * (k % 40) for k in range(1200)]
URL = "s3://bucket/birds"


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder of a dataset that nothing may change."""
    folder: pathlib.Path = tmp_path_factory.mktemp("bucket") / "birds"
    write(folder)
    return folder


@pytest.fixture
def server(running_server: FaultServer, birds: pathlib.Path) -> FaultServer:
    running_server.objects.clear()
    running_server.load(birds, "/bucket/birds")
    running_server.plan = lambda _: None
    running_server.log.clear()
    return running_server


def write(folder: pathlib.Path) -> None:
    with shardio.DatasetWriter(folder, shard_bytes=30_000, block_bytes=2_000) as out:
        for record in RECORDS:
            out.write(record)


def opened(server: FaultServer, engine: str | None = "fsspec", **options: object) -> shardio.DatasetReader:
    return shardio.open(URL, storage_options=s3.options_for(server.url), engine=engine, **options)


def asked(server: FaultServer) -> list[str]:
    """Return the kinds of objects that were asked for, in order, and forget them."""
    found = []
    for request, _ in server.log:
        name = request.path
        kind = "head" if name.endswith(".shardidx") and request.range and request.range[0] == 0 else "frames"
        if not name.endswith(".shardidx"):
            kind = "data" if "/data/" in name else name.split("/")[4]
        found.append(kind)
    server.log.clear()
    return found


class Rounds:
    """Lets no request have a reply before all of the round have arrived; one that is missing is a failure."""

    def __init__(self, server: FaultServer, *sizes: int) -> None:
        self._server, self._sizes, self._answer = server, sizes, server._answer
        self._arrived = 0
        self._gates = [asyncio.Event() for _ in sizes]

    def __enter__(self) -> Self:
        self._server._answer = self._wait
        return self

    def __exit__(self, *_: object) -> None:
        self._server._answer = self._answer

    async def _wait(self, *arguments: object) -> bool:
        self._arrived += 1
        ends = np.cumsum(self._sizes)
        number = int(np.searchsorted(ends, self._arrived))
        assert number < len(ends), "more requests than rounds have room for"
        if self._arrived == ends[number]:
            self._gates[number].set()
        await asyncio.wait_for(self._gates[number].wait(), 30)
        return await self._answer(*arguments)


@pytest.fixture(params=["few frames", "many frames"])
def parts(request: pytest.FixtureRequest, tuning: Callable[..., None]) -> list[str]:
    """What is asked for a run of blocks, besides the head: few frames have come with it."""
    if request.param == "few frames":
        return ["data"]
    tuning(frames_bytes=0)
    return ["data", "frames"]


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_cold_lookup_takes_two_rounds_and_one_afterwards(
    server: FaultServer, engine: str, parts: list[str]
) -> None:
    """The index head; then the block and its part of `frame_stop` together; from then on these two alone.

    Where the ends of frames have come with the head, the frame alone is fetched.
    """
    ds = opened(server, engine)
    asked(server)
    with Rounds(server, 1, len(parts)):
        assert ds[700] == RECORDS[700]
    assert sorted(asked(server)) == [*parts, "head"]
    with Rounds(server, len(parts)):
        assert ds[701] == RECORDS[701]
    assert sorted(asked(server)) == parts


def test_opening_takes_three_rounds_and_reads_each_object_once(server: FaultServer) -> None:
    """The hint; its manifest, and the one after it, which is absent; the list of shards."""
    with Rounds(server, 1, 2, 1):
        opened(server)
    assert asked(server) == ["latest", "manifests", "manifests", "lists"]
    with Rounds(server, 1, 2, 1):
        opened(server, version=1)


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("threads", [0, 4])
def test_the_index_of_a_shard_is_asked_for_once(server: FaultServer, engine: str, threads: int) -> None:
    """Whatever reads it first: threads of a stream, and of the caller's own, race for the same shards."""
    ds = opened(server, engine)
    asked(server)
    plan = Plan(ranks=1, workers=1, chunk_rows=16, interleave=16, window=16)
    stream = shardio.stream(ds, global_batch=16, seed=1, plan=plan, num_threads=threads)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        lookups = [pool.submit(ds.read, range(first, len(RECORDS), 100)) for first in (3, 50, 97)]
        assert sum(len(batch["payload"]) for batch in stream) == len(RECORDS)
        assert all(len(each.result()) == 12 for each in lookups)
    assert asked(server).count("head") == len(set(ds.source.table.key))


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_batch_takes_two_rounds_for_all_shards_together(
    server: FaultServer, engine: str, parts: list[str]
) -> None:
    ds = opened(server, engine)
    shards = ds.num_shards
    assert shards > 5
    if engine == "obstore":
        ds[0]  # the very first read finds out what reads
    last = (ds.source.stops - 1).tolist()
    cold = shards - (engine == "obstore")
    asked(server)
    with Rounds(server, cold, len(parts) * shards):
        assert ds.read(last) == [RECORDS[k] for k in last]
    assert sorted(asked(server)) == sorted(parts * shards) + ["head"] * cold
    with Rounds(server, len(parts) * shards):
        assert ds.read_batch(last)["payload"] == [RECORDS[k] for k in last]


def test_many_records_of_one_block_are_one_request(server: FaultServer, parts: list[str]) -> None:
    ds = opened(server)
    ds[5]
    asked(server)
    assert ds.read([5, 3, 4, 5, 3]) == [RECORDS[k] for k in (5, 3, 4, 5, 3)]
    assert sorted(asked(server)) == parts


@pytest.fixture
def large(server: FaultServer, birds: pathlib.Path, tmp_path: pathlib.Path) -> FaultServer:
    """10,000 shards by name; only the first ones exist, since there is no reason to look."""
    shutil.copytree(birds, tmp_path / "birds")
    catalog = Catalog(connect(str(tmp_path / "birds")))
    version = catalog.latest()
    assert version is not None
    entry = catalog.table(version)[0]
    entries = [
        replace(entry, key=entry.key.replace("-0000.tfrecord", f"-{n:04d}.tfrecord"))
        for n in range(1000, 11_000)
    ]
    receipt = Receipt(
        session="large",
        task=0,
        attempt="0",
        complete=True,
        table=ShardTable.from_entries(entries),
        splits={"train": SplitReceipt(10_000 * entry.rows, 0)},
        mode="append",
        base_version=1,
    )
    commit_receipts(catalog, [receipt], mode="append")
    server.load(tmp_path / "birds", "/bucket/birds")
    return server


def length_and_requests(ds: shardio.DatasetReader) -> int:
    return len(ds)


def test_opening_10_000_shards_reads_the_manifest_and_its_lists(large: FaultServer) -> None:
    """Opening a dataset of 10,000 shards reads the manifest, its lists and nothing else."""
    ds = opened(large)
    assert ds.num_shards > 10_000
    assert len(ds) > 1_000_000
    # The hint, the manifest it names, the next one that is not there, and the one merged list.
    assert asked(large) == ["latest", "manifests", "manifests", "lists"]
    ds[5:900_000:7].select([3, 1])
    assert asked(large) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_pool_is_told_the_version(large: FaultServer, method: str) -> None:
    """What was resolved is passed on, not looked up again: the manifest by its number, and its lists."""
    ds = opened(large)
    asked(large)
    assert len(pickle.dumps(ds)) < 2000
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(length_and_requests, ds).result() == len(ds)
    assert asked(large) == ["manifests", "lists"]


# The cache


def test_a_second_epoch_reads_nothing_remote(server: FaultServer, tmp_path: pathlib.Path, capsys) -> None:
    folder = tmp_path / "cache"
    cache = shardio.CacheOptions(folder, max_bytes=1 << 24)
    first = opened(server, cache=cache)
    assert list(first) == RECORDS
    assert first.stats["cache_hits"] == 0
    ds = opened(server, cache=cache)
    asked(server)
    for _ in range(2):
        assert list(ds) == RECORDS
        assert ds.read(range(0, 1200, 7)) == RECORDS[::7]
    stream = shardio.stream(ds, global_batch=64, seed=3, remainder="keep")
    assert sorted(record for batch in stream for record in batch["payload"]) == sorted(RECORDS)
    assert asked(server) == []
    assert ds.stats["bytes_read"] == 0
    assert main(["info", "--cache", str(folder)]) == 0
    assert "blocks" in capsys.readouterr().out
    (tmp_path / "cache" / "mine.txt").write_text("mine")
    assert main(["cache", "clear", str(folder)]) == 0
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["mine.txt"]
    assert list(ds) == RECORDS


@pytest.mark.parametrize("how", ["flip", "cut", "swap"])
def test_damaged_cache_entries_are_fetched_again(
    server: FaultServer, tmp_path: pathlib.Path, how: str
) -> None:
    """P10: the cache is only a cache: never wrong."""
    cache = shardio.CacheOptions(tmp_path / "cache", max_bytes=1 << 24)
    assert list(opened(server, cache=cache)) == RECORDS
    entries = sorted(path for path in (tmp_path / "cache").rglob("*.block"))
    assert len(entries) > 10
    contents = [path.read_bytes() for path in entries]
    for k, path in enumerate(entries):
        content = bytearray(contents[k])
        if how == "flip":
            content[len(content) // 2] ^= 4
        elif how == "cut":
            del content[len(content) // 2 :]
        else:
            content = bytearray(contents[k - 1])
        path.write_bytes(content)
    ds = opened(server, cache=cache)
    asked(server)
    assert list(ds) == RECORDS
    assert "data" in asked(server)
    assert ds.stats["cache_hits"] == 0
    assert list(ds) == RECORDS
    assert asked(server) == []


def test_a_full_disk_means_uncached_reads(server: FaultServer, tmp_path: pathlib.Path, caplog) -> None:
    """P11: a full disk never fails a read."""
    (tmp_path / "file").write_bytes(b"")
    cache = shardio.CacheOptions(tmp_path / "file", max_bytes=1 << 24)
    ds = opened(server, cache=cache)
    assert list(ds) == RECORDS
    assert ds.read([7, 3]) == [RECORDS[7], RECORDS[3]]
    assert len(caplog.records) == 1


# Damage on the way


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("what", ["data", "frames", "head"])
def test_a_damaged_reply_is_fetched_again(
    server: FaultServer, engine: str, what: str, times: int, tuning: Callable[..., None]
) -> None:
    """On damage: fetch from the source again, and a third time, then the caller's policy."""
    tuning(frames_bytes=0)
    ds = opened(server, engine)
    if what != "head":
        ds[0]
    asked(server)
    suffix = ".tfrecord" if what == "data" else ".shardidx"
    waiting = [True] * times
    server.plan = lambda r: "damaged" if r.path.endswith(suffix) and waiting and waiting.pop() else None
    assert ds.read([1, 30]) == [RECORDS[1], RECORDS[30]]
    assert ds.stats["refetched"] == times
    assert waiting == []


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_frames_that_came_with_the_head_damaged_are_fetched_once_more(
    server: FaultServer, engine: str
) -> None:
    """The head's checksum says nothing of them; those of the blocks do, when they are used."""
    ds = opened(server, engine)
    asked(server)
    waiting = [True]
    server.plan = lambda r: (
        "damaged at its end" if r.path.endswith(".shardidx") and waiting and waiting.pop() else None
    )
    last = int(ds.source.stops[0]) - 1
    assert ds.read([0, last]) == [RECORDS[0], RECORDS[last]]
    assert ds.stats["refetched"] == 1
    assert waiting == []


def rows_behind(ds: shardio.DatasetReader, position: int, end: int) -> set[int]:
    """Return the rows of all blocks that end behind byte `end` of the shard that holds a record."""
    number, _ = ds.source.shard_of(position)
    head = ds.source.pool.get(number).head
    behind = [range(*head.block_rows(k)) for k in range(head.blocks) if head.block_bounds(k)[1] > end]
    return {row for rows in behind for row in rows}


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore:damaged records are skipped")
@pytest.mark.parametrize("how", ["gone", "cut", "empty", "longer", "another"])
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_shards_that_are_gone_or_of_another_size(
    server: FaultServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, engine: str, how: str
) -> None:
    """They are damage, which policies skip, and what is missing is asked for once in a pass."""
    monkeypatch.chdir(tmp_path)
    whole = opened(server, engine)
    path = "/" + whole.locate(700).url.removeprefix("s3://")
    others = [name for name in server.objects if "/data/" in name and name.endswith(".tfrecord")]
    data = server.objects[path]
    end = {"cut": 20_000, "longer": len(data)}.get(how, 0)
    rows = rows_behind(whole, 700, end)
    _, row = whole.source.shard_of(700)
    lost = {700 - row + k for k in rows}
    changed = {"cut": data[:20_000], "empty": b"", "longer": data + b"more"}
    changed["another"] = server.objects[
        next(name for name in others if len(server.objects[name]) != len(data))
    ]
    if how == "gone":
        del server.objects[path]
    else:
        server.objects[path] = changed[how]
    if lost:
        wanted = NotFoundError if how == "gone" else CorruptBlockError
        for read in (
            list,
            lambda ds: ds.read([699, max(lost, default=700)]),
            lambda ds: list(shardio.stream(ds, global_batch=16)),
        ):
            with pytest.raises(wanted) as caught:
                read(opened(server, engine))
            place = (f"s3:/{path}", path.removeprefix("/bucket/birds/"))
            assert (caught.value.url, caught.value.shard) == place
            assert "`shardio " in caught.value.advice
    for threads in (0, 2):
        ds = opened(server, engine, on_error="quarantine")
        asked(server)
        batches = shardio.stream(
            ds, global_batch=16, seed=1, remainder="keep", positions=True, num_threads=threads
        )
        found = [
            item
            for batch in batches
            for item in zip(batch["_position"].tolist(), batch["payload"], strict=True)
        ]
        assert {k for k, _ in found} == set(range(len(RECORDS))) - lost
        assert len(found) == len(RECORDS) - len(lost)
        assert all(RECORDS[k] == payload for k, payload in found)
        assert ds.stats["records_skipped"] == len(lost)
        again = 12 if how in ("gone", "cut", "empty") else 8 + 3 * -(-len(data) // 2_000)
        assert asked(server).count("data") <= 4 * len(others) + again
    if lost:
        with (tmp_path / "shardio-quarantine.jsonl").open() as lines:
            assert {row for line in lines for row in json.loads(line)["rows"]} == rows
    assert len(list(opened(server, engine, on_error="skip"))) == len(RECORDS) - len(lost)


def picked(ds: shardio.DatasetReader) -> Iterable[bytes]:
    return ds.select(np.random.default_rng(0).permutation(len(ds)))


def in_parts(ds: shardio.DatasetReader, threads: int = 0) -> Iterable[bytes]:
    plan = Plan(ranks=1, workers=1, chunk_rows=16, interleave=4, window=16)
    given = {"plan": plan, "global_batch": 32, "seed": 1, "remainder": "keep", "num_threads": threads}
    for batch in shardio.stream(ds, **given):
        yield from batch["payload"]


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:damaged records are skipped")
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("way", [iter, picked, in_parts, lambda ds: in_parts(ds, 2)])
@pytest.mark.parametrize("how", ["no shard", "no index", "cut", "empty", "damaged"])
def test_of_a_group_only_what_failed_is_asked_for_again(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, engine: str, way, how: str, caplog
) -> None:
    """What other shards sent is not fetched twice, and what is missing is asked for once."""
    bad = "/" + opened(server).locate(700).url.removeprefix("s3://")

    def requests() -> tuple[list[bytes], list[tuple[str, str, int]]]:
        ds = opened(server, engine, on_error="skip")
        server.log.clear()
        found = list(way(ds))
        sizes = [(request.range[1] - request.range[0]) if request.range else 0 for request, _ in server.log]
        return found, [(r.path, r.method, size) for (r, _), size in zip(server.log, sizes, strict=True)]

    whole, usual = requests()
    assert len(whole) == len(RECORDS)
    data = server.objects[bad]
    if how == "no index":
        del server.objects[bad + ".shardidx"]
    elif how == "no shard":
        del server.objects[bad]
    else:
        hurt = data[:10_000] + bytes([data[10_000] ^ 1]) + data[10_001:]
        server.objects[bad] = {"cut": data[:20_000], "empty": b"", "damaged": hurt}[how]
    found, sent = requests()
    assert len(found) < len(whole)
    assert set(found) <= set(whole)

    def of_others(log: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        own = (bad, bad + ".shardidx")
        return [each for each in log if each[0] not in own and "/_shardio/" not in each[0]]

    # Where something is missing it is asked whether the version expired: the hint, and two manifests.
    looks = sum("/_shardio/" in path for path, _, _ in sent) - sum(
        "/_shardio/" in path for path, _, _ in usual
    )
    assert looks % 3 == 0
    assert (looks > 0) == how.startswith("no ")

    assert len(of_others(sent)) <= len(of_others(usual))
    assert sum(size for *_, size in of_others(sent)) <= 1.1 * sum(size for *_, size in of_others(usual))
    again = [each for each in sent if each[0] == bad]
    assert len(again) <= 12
    assert not caplog.records


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize(
    "fault", ["503", "reset", "short body, short length", "ignored range", "stale", "slowdown"]
)
def test_no_fault_reaches_the_records(server: FaultServer, engine: str, fault: str) -> None:
    """P9: a short, long, stale or mixed network reply is never returned as data."""
    server.stale = {path: bytes(len(content)) for path, content in server.objects.items()}
    ds = opened(server, engine)
    assert ds[3] == RECORDS[3]
    # Each object goes wrong once, at a random request: what lasts is another test.
    dice, hit = random.Random(1), set()

    def plan(request: Request) -> str | None:
        if "/data/" not in request.path or request.path in hit or dice.random() > 0.5:
            return None
        hit.add(request.path)
        return fault

    server.plan = plan
    for seed in range(3):
        wanted = np.random.default_rng(seed).integers(0, 1200, 50)
        assert ds.read(wanted) == [RECORDS[k] for k in wanted]
    assert list(ds[200:600]) == RECORDS[200:600]
    assert len(hit) > 5


# Web servers and other filesystems


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_web_server_serves_a_dataset(tmp_path: pathlib.Path, engine: str) -> None:
    """Opens through the hint, or with `version=` where there is none; a stale hint is followed upward."""
    write(tmp_path / "birds")
    with shardio.DatasetWriter(tmp_path / "birds", mode="append") as out:
        out.write(b"new")
    with folder_server(tmp_path) as url:
        root = f"{url}/birds"
        ds = shardio.open(root, engine=engine)
        assert (ds.version, len(ds)) == (2, 1201)
        assert ds.read([1200, 5]) == [b"new", RECORDS[5]]
        assert list(shardio.open(root, engine=engine, version=1)) == RECORDS
        stream = shardio.stream(ds, global_batch=64, seed=3, remainder="keep")
        delivered = [record for batch in stream for record in batch["payload"]]
        assert sorted(delivered) == sorted([*RECORDS, b"new"])
        report = shardio.verify(shardio.Address(root, engine=engine))
        assert (report.ok, report.good_records) == (True, 1201)
        hint = tmp_path / "birds" / "_shardio" / "latest"
        hint.write_text("1")
        assert shardio.open(root, engine=engine).version == 2
        hint.unlink()
        assert shardio.open(root, version=2, engine=engine)[1200] == b"new"
        with pytest.raises(StorageError, match="name the version"):
            shardio.open(root, engine=engine)
        with pytest.raises(StorageError, match="name the version"):
            shardio.verify(shardio.Address(root, engine=engine))
        for mode in ("create", "append", "overwrite"):
            with pytest.raises(StorageError, match="web server"):
                shardio.DatasetWriter(root, mode=mode)
        # What is wrong behind the server is found through it.
        shard = next((tmp_path / "birds" / "data").glob("*.tfrecord"))
        flip(shard, shard.stat().st_size // 2)
        report = shardio.verify(shardio.Address(root, engine=engine), version=2)
        assert {finding.kind for finding in report.findings} >= {"block"}
        assert report.findings[0].url == f"{root}/data/{shard.name}"


class Unknown(LocalFileSystem):
    protocol = ("unknownfs",)
    local_file = False


def test_an_unknown_filesystem_takes_a_single_writer(tmp_path: pathlib.Path) -> None:
    fsspec.register_implementation("unknownfs", Unknown, clobber=True)
    url = f"unknownfs://{tmp_path}/ds"
    with pytest.raises(StorageError, match="only if it is absent"):
        shardio.DatasetWriter(url)
    for mode in ("create", "append"):
        with shardio.DatasetWriter(url, mode=mode, single_writer=True) as out:
            out.write(b"wren")
    ds = shardio.open(url)
    assert (ds.version, list(ds), ds[1]) == (2, [b"wren", b"wren"], b"wren")


@pytest.mark.parametrize("size", [100, 4000])
@pytest.mark.parametrize("many", [2, 40, 300])
def test_a_batch_of_lookups_fetches_little_between_its_records(
    server: FaultServer, tmp_path: pathlib.Path, size: int, many: int
) -> None:
    """At most 1.2 times the records, or so little between two that another request's head is longer."""
    records = [bytes([k % 251]) * size for k in range(600)]
    with shardio.DatasetWriter(tmp_path / "wrens") as out:
        for record in records:
            out.write(record)
    server.load(tmp_path / "wrens", "/bucket/wrens")
    ds = shardio.open("s3://bucket/wrens", storage_options=s3.options_for(server.url), engine="fsspec")
    ds.read([0, 599])  # which brings what compares records alone
    server.log.clear()
    rows = np.random.default_rng(many).permutation(600)[:many].tolist()
    assert ds.read(rows) == [records[row] for row in rows]
    ranges = [request.range for request, _ in server.log]
    fetched = sum(stop - start for start, stop in filter(None, ranges))
    assert len(ranges) <= many
    assert fetched <= 1.2 * (size + 16) * many + (512 * many if size == 100 else 0)
    if (size, many) == (100, 300):
        assert len(ranges) < 75  # most of these neighbours are nearer than a head is long
