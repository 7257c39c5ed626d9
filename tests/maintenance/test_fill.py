"""A cache that is filled before a run: whole, each block fetched once, by one process or by several."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from aiohttp import web

import shardio
from shardio.cli import main
from shardio.storage import BlockCache
from tests.maintenance.made import make_dataset, payloads, shards
from tests.servers.web import serving

FILL = (
    "import json, shardio, sys; cache = shardio.CacheOptions(sys.argv[2], 1 << 24); "
    "print(json.dumps(shardio.fill_cache(sys.argv[1], cache).to_dict()))"
)


class Bucket:
    """Files of a folder behind a server that counts what it sends of shards."""

    def __init__(self, folder: Path) -> None:
        self.sent = 0
        self.app = web.Application(middlewares=[self._count])
        self.app.router.add_static("/", folder)

    @web.middleware
    async def _count(self, request, handler):
        response = await handler(request)
        if request.method == "GET" and request.path.endswith((".tfrecord", ".tfrecord.zst")):
            first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
            self.sent += int(last) - int(first) + 1
        return response


@pytest.fixture(params=[None, "zstd"], ids=["plain", "zstd"])
def dataset(tmp_path, request) -> Path:
    return make_dataset(
        tmp_path / "ds", {"train": payloads(4000)}, shard_bytes=20_000, compression=request.param
    )


def _stored(dataset: Path) -> int:
    return sum(path.stat().st_size for path in shards(dataset))


def test_a_filled_cache_is_all_that_a_run_needs(dataset, tmp_path) -> None:
    bucket, cache = Bucket(dataset), shardio.CacheOptions(tmp_path / "cache", 1 << 24)
    seen = []
    with serving(bucket.app) as url:
        assert shardio.fill_cache(url, cache, dry_run=True).stored_bytes == _stored(dataset)
        assert bucket.sent == 0
        report = shardio.fill_cache(url, cache, progress=seen.append)
        assert bucket.sent == _stored(dataset)
        assert (report.stored_bytes, report.left_out_shards) == (_stored(dataset), 0)
        assert seen[-1].done == seen[-1].total == report.stored_bytes
        assert shardio.fill_cache(url, cache).fetched_bytes == 0
        assert list(shardio.open(url, cache=cache)) == payloads(4000)
        assert bucket.sent == _stored(dataset), "each block crossed the network once"


def test_a_cache_without_room_takes_the_first_shards_and_says_so(dataset, tmp_path) -> None:
    sizes = [path.stat().st_size for path in shards(dataset)]
    with serving(Bucket(dataset).app) as url:
        report = shardio.fill_cache(
            url, shardio.CacheOptions(tmp_path / "cache", sum(sizes[:2]) * 8 // 7 + 8)
        )
    assert (report.shards, report.left_out_shards) == (2, len(sizes) - 2)
    assert report.left_out_bytes == sum(sizes[2:])


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_four_processes_fetch_each_block_once(dataset, tmp_path) -> None:
    """The server is asked for every block once by all of them together; also by a pool."""
    bucket = Bucket(dataset)
    with serving(bucket.app) as url:
        command = [sys.executable, "-c", FILL, url, str(tmp_path / "cache")]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
        reports = [json.loads(process.communicate()[0]) for process in running]
        assert bucket.sent == _stored(dataset)
        assert {report["stored_bytes"] for report in reports} == {_stored(dataset)}
        cache = shardio.CacheOptions(tmp_path / "cache", 1 << 24)
        with ProcessPoolExecutor(1, get_context("spawn")) as executor:
            assert shardio.fill_cache(url, cache, executor=executor).fetched_bytes == 0
    BlockCache(cache).clear()
    assert not list((tmp_path / "cache").iterdir()), "locks go too"


def test_a_fill_that_was_killed_goes_on(dataset, tmp_path) -> None:
    bucket, cache = Bucket(dataset), shardio.CacheOptions(tmp_path / "cache", 1 << 24)

    class KilledError(Exception):
        pass

    def die(state) -> None:
        if state.done > state.total // 2:
            raise KilledError

    with serving(bucket.app) as url:
        with pytest.raises(KilledError):
            shardio.fill_cache(url, cache, progress=die)
        assert 0 < bucket.sent < _stored(dataset)
        shardio.fill_cache(url, cache)
        assert bucket.sent == _stored(dataset)


def test_damage_is_said_and_not_kept(dataset, tmp_path) -> None:
    path = shards(dataset)[1]
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with (
        serving(Bucket(dataset).app) as url,
        pytest.raises(shardio.errors.CorruptBlockError, match=path.name),
    ):
        shardio.fill_cache(url, shardio.CacheOptions(tmp_path / "cache", 1 << 24))


def test_a_dataset_on_disk_needs_no_cache(dataset, tmp_path) -> None:
    with pytest.raises(ValueError, match="is on a local disk"):
        shardio.fill_cache(dataset, shardio.CacheOptions(tmp_path / "cache", 1 << 24))


def test_the_command(dataset, tmp_path, capsys) -> None:
    with serving(Bucket(dataset).app) as url:
        arguments = ["--split", "train", "--max-bytes", "1000000", "--dir", str(tmp_path / "cache")]
        assert main(["cache", "fill", url, *arguments]) == 0
        said = capsys.readouterr()
        assert f"{tmp_path}/cache" in said.out
        assert "cache=shardio.CacheOptions(" in said.err
        assert main(["cache", "fill", url, *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["fetched_bytes"] == 0
    assert main(["cache", "clear", str(tmp_path / "cache")]) == 0
