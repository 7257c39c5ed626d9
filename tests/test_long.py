"""Rare events, tried for long by the seed of the run: `make test-nightly`."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
import traceback
from pathlib import Path

import pytest

import shardio
from shardio.errors import FormatError
from tests.servers.faults import READ_FAULTS, fault_server
from tests.servers.s3 import options_for
from tests.servers.web import folder_server

pytestmark = pytest.mark.rare
# A reply that never comes is given up after seconds; the tests of stores try these by a clock of their own.
FAULTS = [each for each in READ_FAULTS if each not in {"never", "trickle", "redirect nowhere", "expired"}]


def write(folder: Path, rows: int, **options) -> Path:
    with shardio.DatasetWriter(folder, {"n": "int64", "text": "text"}, **options) as out:
        out.write_many([{"n": n, "text": f"record {n}" * (n % 9)} for n in range(rows)])
    return folder


def test_a_bucket_that_answers_one_request_in_twenty_wrongly(tmp_path, seeded):
    """P9: what is read is right, or an error."""
    with fault_server() as server:
        server.load(write(tmp_path / "ds", 3000, shard_bytes=20_000, block_bytes=500), "/bucket/ds")
        server.stale = {path: data[::-1] for path, data in server.objects.items()}
        refused = 0
        for fault in FAULTS * 10:
            server.random_faults(fault, 0.05, seed=seeded.getrandbits(32))
            rows = seeded.choices(range(3000), k=2000)
            try:
                ds = shardio.open("s3://bucket/ds", storage_options=options_for(server.url))
                assert [int(each["n"]) for each in ds.read(rows)] == rows
            except FormatError:  # now and then one of twenty is met each time that is asked again
                refused += 1
            server.log.clear()
        assert refused < len(FAULTS)


def tamper(cache: Path, dice: random.Random) -> None:
    """Damage a file of a cache, as a disk or another program may."""
    files = sorted(path for path in cache.rglob("*") if path.is_file())
    if not files:
        return
    path = dice.choice(files)
    with contextlib.suppress(FileNotFoundError):
        data = bytearray(path.read_bytes())
        way = dice.choice(["cut", "flip", "other"])
        if way == "cut":
            del data[dice.randrange(len(data) + 1) :]
        elif way == "flip" and data:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        elif way == "other":
            data[:] = dice.choice(files).read_bytes()
        half = path.with_suffix(".tampered")
        half.write_bytes(data)
        half.replace(path)


def test_processes_that_share_a_cache_which_is_tampered_with(tmp_path, seeded):
    """P10: they are killed while its files are cut and overwritten; all that they read is right."""
    write(tmp_path / "served" / "ds", 2000, block_bytes=200)
    options = shardio.CacheOptions(tmp_path / "cache", max_bytes=20_000)

    def keep_reading(url: str, seed: int, told: Path) -> None:
        dice = random.Random(seed)
        ds = shardio.open(url, cache=options)
        with told.open("ab", buffering=0) as out:
            while True:
                first = dice.randrange(1900)
                rows = [*range(first, first + 60), *dice.choices(range(2000), k=40)]
                assert [int(each["n"]) for each in ds.read(rows)] == rows
                out.write(b".")

    with folder_server(tmp_path / "served") as server:
        for number in range(20):
            told = [tmp_path / f"{number}-{k}" for k in range(3)]
            children = []
            for path in told:
                path.touch()
                seed = seeded.getrandbits(32)
                if not (child := os.fork()):
                    try:
                        keep_reading(f"{server}/ds", seed, path)
                    except BaseException:  # noqa: BLE001 - the parent is to know of it
                        path.write_text("!" + traceback.format_exc())
                    finally:
                        os._exit(0)
                children.append(child)
            # Until each has read something; how long that takes depends on the machine.
            for _ in range(600):
                time.sleep(seeded.uniform(0.02, 0.1))
                tamper(tmp_path / "cache", seeded)
                if min(path.stat().st_size for path in told) > 20:
                    break
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            assert [text for path in told if "!" in (text := path.read_text())] == []


def test_streams_that_are_begun_and_left_keep_nothing(tmp_path, seeded):
    """P14: however many there were, no descriptor, thread or memory is kept."""
    url = write(tmp_path / "ds", 500, block_bytes=200, shard_bytes=2000)

    def held() -> tuple[int, int, int]:
        return (
            len(list(Path("/proc/self/fd").iterdir())),
            threading.active_count(),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        )

    early = (0, 0, 0)
    for number in range(400):
        threads = seeded.choice([0, 1, 2])
        stream = shardio.stream(url, global_batch=10, seed=number, num_threads=threads)
        batches = iter(stream)
        for _ in range(seeded.randrange(6)):
            next(batches)
        if number == 40:
            early = held()
    assert all(late <= first * 1.5 + 20 for first, late in zip(early, held(), strict=True))
