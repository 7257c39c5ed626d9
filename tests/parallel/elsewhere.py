"""Long operations that take `executor=`, each with what it leaves behind, and executors whose workers die."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import shardio
from tests.parallel import jobs
from tests.servers.web import folder_server

COUNT = 200
Operation: TypeAlias = Callable[[Path, Executor], object]


class Dying(Executor):
    """Lets another executor's worker die once: when it has done the first job, and before it says so."""

    def __init__(self, executor: Any, flag: Path) -> None:
        self._executor, self.flag = executor, flag

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(do_and_die_once, str(self.flag), fn, args, kwargs)
        return future


def do_and_die_once(flag: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = fn(*args, **kwargs)
    try:
        Path(flag).touch(exist_ok=False)
    except FileExistsError:
        return result
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def left_behind(name: str, folder: Path, executor: Executor) -> tuple[object, object]:
    """Return what an operation leaves behind, in a thread of this process and on an executor."""
    with ThreadPoolExecutor(1) as thread:
        places = {folder / "here": thread, folder / "there": executor}
        for place in places:
            place.mkdir()
        here, there = (OPERATIONS[name](place, workers) for place, workers in places.items())
    return here, there


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
    shardio.delete(_dataset(folder), positions=range(0, COUNT, 7), erase=True, executor=executor)
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


def _fill(folder: Path, executor: Executor) -> object:
    _dataset(folder)
    cache = shardio.CacheOptions(folder / "cache", 1 << 24)
    with folder_server(folder) as url:
        shardio.fill_cache(f"{url}/ds", cache, executor=executor)
        assert shardio.fill_cache(f"{url}/ds", cache).fetched_bytes == 0, "it is all there"
        return [int(value["n"]) for value in shardio.open(f"{url}/ds", cache=cache)]


OPERATIONS: dict[str, Operation] = {
    "write_dataset": _write, "adopt": _adopt, "convert_dataset": _convert, "compact": _compact,
    "delete": _erase, "build_table": _table, "build_keys": _keys, "verify": _verify, "repair": _repair,
    "fill_cache": _fill,
}  # fmt: skip
