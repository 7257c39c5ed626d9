"""Open chunks on a local disk: the same records in the same order, and nothing is lost or left behind."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardio
from shardio.reader._files import BlockSource
from shardio.storage import LocalStore
from shardio.streaming import _arena
from shardio.streaming._arena import Arena
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import memory_url
from tests.suites.descriptors import open_in

ROWS, SIZE = 1500, 2000
# Windows of a third of the records do not fit in memory, but on the disk.
MEMORY, ROOM = 96 << 10, 1 << 20


PLAN = shardio.Plan(ranks=4, workers=1, chunk_rows=16, interleave=8, window=16)


def payload(number: int) -> bytes:
    return number.to_bytes(4, "little") + np.random.default_rng(number).bytes(SIZE - 4 - number % 7)


def write(url: str | Path, **options: Any) -> None:
    with shardio.DatasetWriter(url, shard_bytes=1 << 20, block_bytes=8192, **options) as out:
        for number in range(ROWS):
            out.write(payload(number))


@pytest.fixture(scope="module")
def urls() -> dict[str, str]:
    found = {name: memory_url() for name in ("plain", "zstd", "zlib")}
    write(found["plain"])
    write(found["zstd"], compression="zstd")
    write(found["zlib"], compression="zlib")
    return found


class Made(list[Arena]):
    """The arenas that were made with a folder, and how many chunks were written to their files."""

    written = 0


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found, make, put = Made(), Arena.__init__, Arena.write

    def init(self: Arena, folder: str | None = None) -> None:
        make(self, folder)
        if folder is not None:
            found.append(self)

    def counted(self: Arena, *args: Any) -> bool:
        done = put(self, *args)
        found.written += done
        return done

    monkeypatch.setattr(Arena, "__init__", init)
    monkeypatch.setattr(Arena, "write", counted)
    return found


def stream(ds: Any, folder: Path | None = None, **options: Any) -> shardio.Stream:
    how: dict[str, Any] = {"global_batch": 12, "seed": 3, "remainder": "keep", "num_threads": 0}
    how |= {"plan": PLAN, "memory_bytes": MEMORY, "scratch": folder or "auto"}
    return shardio.stream(ds, **how | options)


def numbers(batches: Any) -> list[list[int]]:
    return [[int.from_bytes(each[:4], "little") for each in batch["payload"]] for batch in batches]


def in_memory(ds: Any, **options: Any) -> shardio.Stream:
    """Return a stream of the same plan without a disk."""
    return stream(ds, scratch=False, memory_bytes=None, **options)


@functools.cache
def in_order(url: str) -> list[list[int]]:
    """Return the numbers of the records of each batch, as memory gives them."""
    return numbers(in_memory(shardio.open(url)))


def some(ds: shardio.DatasetReader) -> shardio.DatasetReader:
    return ds.select(np.flatnonzero(np.arange(ROWS) % 5 != 1))


DATA: dict[str, Callable[[dict[str, str]], Any]] = {
    "plain": lambda urls: shardio.open(urls["plain"]),
    "zstd": lambda urls: shardio.open(urls["zstd"]),
    "zlib": lambda urls: shardio.open(urls["zlib"]),
    "not compared": lambda urls: shardio.open(urls["plain"], verify=False),
    "skips": lambda urls: shardio.open(urls["zstd"], on_error="skip"),
    "some": lambda urls: some(shardio.open(urls["plain"])),
    "slice": lambda urls: shardio.open(urls["zstd"])[100:1300],
    "mixture": lambda urls: shardio.mix([(shardio.open(urls["plain"]), 2), (shardio.open(urls["zstd"]), 1)]),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.* is one compressed stream:UserWarning")
@pytest.mark.parametrize(
    ("name", "threads"), [("plain", 2), *((name, 2 * (k % 2)) for k, name in enumerate(DATA))]
)
def test_the_order_is_that_of_memory(urls: dict[str, str], made: Made, name: str, threads: int) -> None:
    ds = DATA[name](urls)
    kept = stream(ds, num_threads=threads)
    found = list(kept)
    assert made.written > 20
    for each in found:
        for record in each["payload"]:
            assert record == payload(int.from_bytes(record[:4], "little"))
    written = made.written
    assert numbers(found) == numbers(in_memory(ds))
    assert made.written == written


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_what_was_hurt_on_its_way_comes_again(
    urls: dict[str, str], made: Made, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is compared before it is written: nothing hurt is kept on disk to be delivered."""
    ds = shardio.open(urls[name])
    expected, begin, calls = in_order(urls[name]), BlockSource.begin, itertools.count()
    hurt: list[tuple[int, int]] = []

    def hurting(self: BlockSource, runs: Any, **options: Any) -> Any:
        wait = begin(self, runs, **options)
        if next(calls) % 7 or self.view is not None or options.get("cached") is False:
            return wait
        hurt.extend(runs)
        return lambda: [each._replace(data=memoryview(bytes(len(each.data)))) for each in wait()]

    monkeypatch.setattr(BlockSource, "begin", hurting)
    assert numbers(stream(ds)) == expected
    assert made.written > 20
    assert ds.stats["refetched"] == len(hurt) > 20


@pytest.mark.parametrize("step", [1, 50, 123])
def test_a_resume_goes_on_in_memory_and_on_disk(urls: dict[str, str], made: Made, step: int) -> None:
    ds = shardio.open(urls["plain"])
    whole = in_order(urls["plain"])
    begun = stream(ds)
    begun.go_to(step)
    state = json.loads(json.dumps(begun.state_dict()))
    memory = stream(ds, memory_bytes=2 << 20, scratch=False)
    memory.load_state_dict(state)
    written = made.written
    assert numbers(memory) == whole[step:]
    assert made.written == written
    memory.go_to(step)
    disk = stream(ds)
    disk.load_state_dict(memory.state_dict())
    assert numbers(disk) == whole[step:]
    assert made.written > written


def test_ranks_share_a_disk_and_the_batches(urls: dict[str, str], tmp_path: Path, made: Made) -> None:
    ds = shardio.open(urls["plain"])
    ranks = [stream(ds, tmp_path, rank=rank, world_size=4) for rank in range(4)]
    # All of them are under way at once.
    shares = [numbers(parts) for parts in zip(*ranks, strict=True)]
    assert [list(itertools.chain(*parts)) for parts in shares] == numbers(in_memory(ds))
    assert len(made) == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are told apart in /proc")
def test_the_file_has_no_name_is_bounded_and_ends_with_its_pass(
    urls: dict[str, str], tmp_path: Path, made: Made
) -> None:
    ds = shardio.open(urls["plain"])
    kept = stream(ds, tmp_path)
    batches = iter(kept)
    for _ in range(75):
        next(batches)
    assert not list(tmp_path.iterdir())
    assert len(open_in(tmp_path)) == 1
    del kept
    batches.close()
    [file] = made
    assert 0.5 * ROOM < file.scratch_bytes < 4 * ROOM
    made.clear()
    del file, batches
    assert not open_in(tmp_path)


@pytest.mark.parametrize("threads", [0, 2])
def test_what_the_disk_loses_is_fetched_again(urls: dict[str, str], made: Made, threads: int) -> None:
    ds = shardio.open(urls["plain"])
    expected = in_order(urls["plain"])
    for hurt in ("zeros", "cut"):
        made.clear()
        kept = iter(stream(ds, num_threads=threads))
        found = [next(kept) for _ in range(30)]
        [arena] = made
        if hurt == "zeros":
            os.pwrite(arena.file_number, bytes(arena.scratch_bytes), 0)
        else:
            os.ftruncate(arena.file_number, arena.scratch_bytes // 2)
        found += kept
        assert numbers(found) == expected


def test_epochs_write_over_what_was_delivered(urls: dict[str, str], made: Made) -> None:
    kept = stream(shardio.open(urls["plain"]))
    for _ in range(3):
        assert sorted(itertools.chain(*numbers(kept))) == list(range(ROWS))
    [arena] = made
    assert arena.scratch_bytes < 4 * ROOM


SCRIPT = """
import resource, sys, warnings
import shardio
from tests.streaming.test_scratch import ROWS, numbers, stream, write
write("memory://full")
{limit}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    found = []
    for batch in stream(shardio.open("memory://full"), sys.argv[1], num_threads=2):
        found += numbers([batch])[0]
        if {kill} and len(found) > 750:
            import os, signal
            print(os.listdir(sys.argv[1]), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
assert sorted(found) == list(range(ROWS))
print([str(each.message) for each in told])
"""


def run(folder: Path, *, limit: str = "", kill: bool = False) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(SCRIPT).format(limit=limit, kill=kill)
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
def test_a_disk_that_is_full_costs_memory_and_one_warning(tmp_path: Path) -> None:
    """The system refuses to make files longer than 300 KB."""
    done = run(tmp_path, limit="resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))")
    assert done.returncode == 0, done.stderr
    [told] = eval(done.stdout)
    assert os.strerror(errno.EFBIG) in told
    assert str(tmp_path) in told


@pytest.mark.slow
def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, kill=True)
    assert done.returncode == -9, done.stderr
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.iterdir())


def test_joined_records_and_their_order_are_those_of_memory(made: Made) -> None:
    sides = memory_url(), memory_url()
    for url, name in zip(sides, ("n", "other"), strict=True):
        with shardio.DatasetWriter(url, schema={name: "int64", f"raw of {name}": "bytes"}) as out:
            for number in range(600):
                out.write({name: number, f"raw of {name}": payload(number)})
    ds = shardio.join(*map(shardio.open, sides))
    on_disk, in_ram = list(stream(ds)), list(in_memory(ds))
    assert made.written
    assert [batch["n"].tolist() for batch in on_disk] == [batch["n"].tolist() for batch in in_ram]
    for batch in on_disk:
        assert batch["n"].tolist() == batch["other"].tolist()
        assert batch["raw of n"] == batch["raw of other"] == [payload(n) for n in batch["n"].tolist()]


@pytest.mark.filterwarnings("ignore:damaged records are skipped:UserWarning")
def test_damage_is_skipped_and_noted_as_in_memory(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "ds")
    shard = max((tmp_path / "ds").rglob("*"), key=lambda path: path.stat().st_size)
    with shard.open("r+b") as file:
        file.seek(300_000)
        file.write(bytes(64))
    monkeypatch.setattr(LocalStore, "is_local", False)
    found = []
    for on_disk in (True, False):
        (folder := tmp_path / str(on_disk)).mkdir()
        monkeypatch.chdir(folder)
        ds = shardio.open(tmp_path / "ds", on_error="quarantine")
        batches = numbers(stream(ds) if on_disk else in_memory(ds))
        lines = (folder / "shardio-quarantine.jsonl").read_text().splitlines()
        rows = sorted(row for line in lines for row in json.loads(line)["rows"])
        assert len(rows) == ROWS - sum(map(len, batches)) > 0
        found.append((batches, rows))
    assert found[0] == found[1]
    assert made.written > 20


def test_a_fork_in_the_middle_costs_neither_of_the_two_a_record(urls: dict[str, str], made: Made) -> None:
    ds = shardio.open(urls["plain"])
    expected = numbers(in_memory(ds))
    kept = iter(stream(ds))
    found = numbers(next(kept) for _ in range(25))
    child = os.fork()
    if not child:
        wrong = True
        try:
            with contextlib.suppress(ValueError):  # the pass belongs to its process
                next(kept)
            del kept
            wrong = numbers(stream(ds)) != expected
        finally:
            os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found + numbers(kept) == expected


def device(folder: Path) -> str:
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def in_ram(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    mounts = folder.parent / "mountinfo"
    mounts.write_text(f"36 35 {device(folder)} / /mnt rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr(_arena, "_MOUNTS", mounts)
    return "is in memory (tmpfs)"


def little_room(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=100, f_frsize=4096))
    return "free, and"


def read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    return "Read-only"


def absent(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    folder.rmdir()
    return "No such file"


@pytest.mark.parametrize("make", [in_ram, little_room, read_only, absent])
def test_a_folder_that_is_no_place_is_refused_with_ways_out(
    urls: dict[str, str], tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    ds = shardio.open(urls["plain"])
    expected = in_order(urls["plain"])
    state, folder = stream(ds).state_dict(), tmp_path / "scratch"
    folder.mkdir()
    with monkeypatch.context() as patch:
        why = make(patch, folder)
        with pytest.raises(ValueError, match="no scratch for them") as refused:
            stream(ds, folder)
        assert why in str(refused.value)
        with pytest.raises(ValueError, match="scratch=False allows no disk"):
            resumed(ds, state, False)
        least = int(str(refused.value).split("memory_bytes=")[2].split(";")[0])
        assert numbers(resumed(ds, state, False, memory_bytes=least)) == expected
    folder.mkdir(exist_ok=True)
    assert numbers(resumed(ds, state, folder)) == expected


def resumed(ds: Any, state: Any, scratch: Any, **options: Any) -> shardio.Stream:
    found = stream(ds, plan=None, **{"scratch": scratch} | options)
    found.load_state_dict(state)
    return found


def test_a_copy_goes_on_where_the_disk_is_fuller_now(
    urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes get one for each epoch."""
    kept = stream(shardio.open(urls["plain"]), tmp_path)
    told = pickle.dumps(kept)
    little_room(monkeypatch, tmp_path)
    assert numbers(pickle.loads(told)) == numbers(kept)


def test_by_default_the_disk_decides_alone_and_ranks_do_not_look(
    urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(**options: Any) -> int:
        return shardio.stream(shardio.open(urls["plain"]), global_batch=12, **options).resources.scratch_bytes

    assert planned() == planned(rank=1, world_size=4) == planned(scratch=tmp_path) == 4 << 30
    assert planned(scratch=False) == 0
    monkeypatch.setattr(_arena, "_refusal", lambda *_: "no")
    assert planned() == 0
    assert planned(rank=1, world_size=4) == 4 << 30


def test_data_in_random_order_needs_none(made: Made) -> None:
    url = memory_url()
    write(url, metadata={"shuffled": True})
    by_default = stream(shardio.open(url), scratch="auto", plan=None)
    assert sum(map(len, numbers(by_default))) == ROWS
    assert not made.written


def test_local_data_needs_none(tmp_path: Path, made: Made) -> None:
    write(tmp_path / "d")
    assert sum(map(len, numbers(stream(shardio.open(tmp_path / "d"), plan=None)))) == ROWS
    assert not made


@pytest.mark.parametrize("given", [True, 0, 1 << 20, 1.5, None, ""])
def test_what_is_no_scratch_is_refused(urls: dict[str, str], given: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="scratch"):
        stream(shardio.open(urls["plain"]), scratch=given)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_keep_chunks_on_disk_in_each_process(tmp_path: Path, workers: int) -> None:
    """Threads and worker processes; each has a file of its own."""
    url = memory_url()
    with shardio.DatasetWriter(url, schema={"n": "int64", "x": "float32[400]"}, block_bytes=8192) as out:
        for n in range(ROWS):
            out.write({"n": n, "x": np.full(400, n, np.float32)})
    dataset = StreamingDataset(
        shardio.open(url), global_batch=12, memory_bytes=MEMORY, plan=PLAN, remainder="keep"
    )
    assert dataset.stream.scratch is not None
    loader = StreamingDataLoader(dataset, **({"num_workers": workers} if workers else {"num_threads": 2}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [n for batch in loader for n in batch["n"].tolist()]
    assert sorted(found) == list(range(ROWS))


def test_the_report_tells_memory_from_disk(urls: dict[str, str]) -> None:
    ds = shardio.open(urls["plain"])
    kept, _ = shardio.plan_report(ds, global_batch=12, memory_bytes=MEMORY, plan=PLAN)
    alone, _ = shardio.plan_report(ds, global_batch=12, scratch=False, plan=PLAN)
    assert kept.scratch_bytes == pytest.approx(PLAN.lanes * 8 * 16 * (SIZE + 13), rel=0.01)
    assert kept.memory_bytes < 0.2 * alone.memory_bytes
    assert (alone.scratch_bytes, alone.scratch) == (0, None)
    assert Path(kept.scratch).is_dir()
