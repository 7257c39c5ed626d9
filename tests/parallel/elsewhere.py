"""Long operations that take `executor=`, each with what it leaves behind, and executors whose workers die."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import shardio
from tests.parallel import jobs
from tests.servers.web import folder_server

COUNT = 200
Operation: TypeAlias = Callable[[Path, Executor], object]
_FILE_EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "socket.connect"}


class Counting(ThreadPoolExecutor):
    """A thread of this process, which counts its jobs."""

    jobs = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        return super().submit(fn, *args, **kwargs)


@dataclass
class Dying(Executor):
    """Lets another executor's worker die once, in one of the jobs: at a file, or after the last of them."""

    executor: Any
    flag: Path
    job: int
    file: int

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job, self.job = self.job, self.job - 1
        if job:
            return cast("Future[Any]", self.executor.submit(fn, *args, **kwargs))
        point = (str(self.flag), self.file)
        return cast("Future[Any]", self.executor.submit(do_and_die_once, *point, fn, args, kwargs))


def do_and_die_once(flag: str, file: int, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        Path(flag).touch(exist_ok=False)
    except FileExistsError:
        return fn(*args, **kwargs)
    files = itertools.count()

    def look(event: str, _: object) -> None:
        if event in _FILE_EVENTS and next(files) == file:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    fn(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def hold(name: str, folder: Path, executor: Any, seeded: random.Random) -> None:
    """Hold an operation to the law: what it leaves behind is the same, wherever a worker dies."""
    for place in ("here", "there"):
        (folder / place).mkdir()
    with Counting(1) as thread:
        here = OPERATIONS[name](folder / "here", thread)
    dying = Dying(executor, folder / "died", seeded.randrange(thread.jobs), seeded.randrange(20))
    told = f"job {dying.job} of {thread.jobs}, file {dying.file}"
    assert OPERATIONS[name](folder / "there", dying) == here, told
    assert dying.flag.exists(), told


def _dataset(folder: Path) -> str:
    with shardio.DatasetWriter(folder / "ds", jobs.SCHEMA, shard_bytes=1500, block_bytes=500) as out:
        out.write_many({"n": n} for n in range(COUNT))
    return str(folder / "ds")


def _numbers(url: str | Path) -> list[int]:
    assert shardio.verify(url).ok
    return [int(value["n"]) for value in shardio.open(url)]


def _write(folder: Path, executor: Executor) -> object:
    options: dict[str, Any] = {"schema": jobs.SCHEMA, "tasks": 6}
    shardio.write_dataset(folder / "ds", range(COUNT), jobs.number, executor=executor, **options)
    return _numbers(folder / "ds")


def _adopt(folder: Path, executor: Executor) -> object:
    (folder / "theirs").mkdir()
    for number, shard in enumerate(sorted(Path(_dataset(folder)).rglob("*.tfrecord"))):
        shutil.copy(shard, folder / "theirs" / f"train-{number:05d}.tfrecord")
    assert shardio.adopt(folder / "theirs", executor=executor).ok
    return _numbers(folder / "theirs")


def _convert(folder: Path, executor: Executor) -> object:
    (folder / "lines").mkdir()
    for part in range(4):
        lines = [json.dumps({"n": n}) for n in range(part, COUNT, 4)]
        (folder / "lines" / f"train-{part}.jsonl").write_text("\n".join(lines))
    shardio.convert_dataset(folder / "lines", folder / "ds", executor=executor)
    return _numbers(folder / "ds")


def _compact(folder: Path, executor: Executor) -> object:
    report = shardio.compact(_dataset(folder), shard_bytes=4000, executor=executor)
    return report.shards_after, _numbers(folder / "ds")


def _erase(folder: Path, executor: Executor) -> object:
    shardio.erase(_dataset(folder), rows=range(0, COUNT, 7), executor=executor)
    return _numbers(folder / "ds")


def _table(folder: Path, executor: Executor) -> object:
    shardio.build_table(_dataset(folder), ["n"], executor=executor)
    return list(shardio.open(folder / "ds").filter("n % 9 = 4").selection), _numbers(folder / "ds")


def _keys(folder: Path, executor: Executor) -> object:
    shardio.build_keys(_dataset(folder), "n", executor=executor)
    return shardio.open(folder / "ds").find([150, 3, 77]).tolist(), _numbers(folder / "ds")


def _verify(folder: Path, executor: Executor) -> object:
    report = shardio.verify(_dataset(folder), executor=executor)
    return report.ok, report.records


def _repair(folder: Path, executor: Executor) -> object:
    for index in list(Path(_dataset(folder)).rglob("*.shardidx"))[::2]:
        index.unlink()
    shardio.repair(folder / "ds", dry_run=False, executor=executor)
    return _numbers(folder / "ds")


def _export(folder: Path, executor: Executor) -> object:
    options: dict[str, Any] = {"kind": "mds", "shard_bytes": 1500}
    report = shardio.export_dataset(_dataset(folder), folder / "mds", executor=executor, **options)
    assert sorted(report.files) == sorted(
        path.relative_to(folder / "mds").as_posix() for path in (folder / "mds").rglob("*.*")
    )
    shardio.convert_dataset(folder / "mds", folder / "back", kind="mds")
    return report.records, _numbers(folder / "back"), sorted(path.name for path in folder.iterdir())


def _pack(folder: Path, executor: Executor) -> object:
    with shardio.DatasetWriter(folder / "ds", schema={"x": "int32[?]"}) as out:
        for n in range(COUNT):
            out.write({"x": range(n % 7 + 1)}, split=f"s{n % 3}")
    report = shardio.pack_dataset(folder / "ds", folder / "rows", 9, executor=executor)
    rows = shardio.open(folder / "rows", "all")
    return report.splits, rows.read_batch(range(len(rows)))["x"].tolist()


def _fill(folder: Path, executor: Executor) -> object:
    _dataset(folder)
    cache = shardio.CacheOptions(folder / "cache", 1 << 24)
    with folder_server(folder) as url:
        shardio.fill_cache(f"{url}/ds", cache, executor=executor)
        assert shardio.fill_cache(f"{url}/ds", cache).fetched_bytes == 0, "it is all there"
        return [int(value["n"]) for value in shardio.open(f"{url}/ds", cache=cache)]


OPERATIONS: dict[str, Operation] = {
    "write_dataset": _write, "adopt": _adopt, "convert_dataset": _convert, "compact": _compact,
    "erase": _erase, "build_table": _table, "build_keys": _keys, "verify": _verify, "repair": _repair,
    "export_dataset": _export, "pack_dataset": _pack, "fill_cache": _fill,
}  # fmt: skip
