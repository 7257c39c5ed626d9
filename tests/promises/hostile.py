"""Runs in a process of its own: opens what an attacker wrote, watched and with little memory.

    python hostile.py ROOT...

Prints one line a root: how it was refused, or what was read.  Anything but a `ShardioError`, a look at a file
outside the root, a connection, a process or a gigabyte ends with a traceback.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import shardio
from shardio.errors import ShardioError

FORBIDDEN = {
    "socket.connect",
    "socket.bind",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "exec",
    "compile",
}
FILES = {"open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.link", "os.mkdir", "os.truncate"}

_allowed: list[str] = []


def watch(event: str, arguments: tuple) -> None:
    if not _allowed:
        return
    if event in FORBIDDEN:
        raise SystemExit(f"forbidden: {event} {arguments}")
    if event in FILES and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path != _allowed[0] and not path.startswith(_allowed[0] + os.sep):
            raise SystemExit(f"outside the root: {event} {path}")


@contextmanager
def confined(root: str) -> Iterator[None]:
    _allowed.append(os.path.realpath(root))
    try:
        yield
    finally:
        _allowed.clear()


def everything(root: str) -> list[str]:
    """Do to a dataset whatever reads; return what happened each time."""

    def sample(ds: shardio.DatasetReader) -> str:
        found = [len(ds[k]) for k in sorted({0, len(ds) // 2, len(ds) - 1}) if 0 <= k < len(ds)]
        return f"{len(ds)} records, {len(ds.read(range(min(9, len(ds)))))} read, {found}"

    ways: list[Callable[[], object]] = [
        lambda: sample(shardio.open(root, "all", decode=False)),
        lambda: sum(1 for _ in shardio.open(root, "all", decode=False)),
        lambda: shardio.open(root, "all", version=1, decode=False)[0],
        lambda: len(shardio.log(root)),
        lambda: shardio.gc(root, keep=1),
        lambda: shardio.commit(root, session="run", tasks=1),
    ]
    shard = Path(root, "alone.tfrecord")
    if shard.exists():
        ways += [lambda: sum(1 for _ in shardio.open_shard(shard)), lambda: shardio.open_shard(shard)[0]]
    said = []
    for way in ways:
        try:
            said.append(str(way()))
        except ShardioError as error:
            said.append(f"{type(error).__name__}: {error.what}")
        except (ValueError, IndexError, TypeError) as error:
            # The caller's own mistakes, such as a session that is part of a version.
            said.append(f"{type(error).__name__}: {error}")
    return said


def main() -> None:
    warnings.simplefilter("ignore")
    roots = sys.argv[1:]
    everything(roots[0])  # everything is imported now, but for what decodes gzip
    importlib.import_module("isal.isal_zlib")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (160 << 20),) * 2)
    sys.addaudithook(watch)
    for root in roots:
        with confined(root):
            said = everything(root)
        print(Path(root).name, "|", " | ".join(said))


if __name__ == "__main__":
    main()
