"""Read a local dataset in every way with few descriptors, and print what was held at once, and after.

    python -m tests.reader.resources URL LIMIT MOST WAY...

A new way is one line of `WAYS`. `MOST` is `max_open_shards`, or 0 for the usual one. Descriptors and maps are
counted in /proc with the garbage collector switched off, at every seventh file that is about to be opened
(odd, so that it is the index now and the shard then): a look costs more than an open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

import shardio
from shardio.reader import DatasetReader, DatasetSource

gc.disable()
EVERY = 7


class Held:
    """Counts what this process holds of the files in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self._opens = 0
        self._busy = False
        self.begin()

    def begin(self) -> None:
        self.most = [0, 0]
        self._all = 0

    def now(self) -> list[int]:
        return [self._descriptors(), self._maps()]

    def _descriptors(self) -> int:
        found = 0
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a third of the time
            with contextlib.suppress(FileNotFoundError):  # that of the listing itself
                found += os.readlink(f"/proc/self/fd/{name}").startswith(self.folder)  # noqa: PTH115
        return found

    def _maps(self) -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count(self.folder)

    def look(self, event: str = "open", args: Any = ()) -> None:
        if event != "open" or self._busy or (args and not str(args[0]).startswith(self.folder)):
            return
        self._opens += 1
        if args and self._opens % EVERY:
            return
        self._busy = True
        # Only where there are more of all kinds than ever: to tell whose they are is the dear part.
        everything = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        if everything > self._all:
            self._all = everything
            self.most[0] = max(self.most[0], self._descriptors())
        if not args or self._opens % EVERY**2 == 0:
            self.most[1] = max(self.most[1], self._maps())
        self._busy = False


def others() -> dict[str, int]:
    """Count what else is held: threads, processes, scratch, and the most memory so far."""
    return {
        "threads": threading.active_count(),
        "processes": len(psutil.Process().children()),
        "temporary files": len(list(Path(tempfile.gettempdir()).glob("shardio-*"))),
        "MiB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def reader(url: str, most: int, **options: Any) -> DatasetReader:
    found = shardio.open(url, **options)
    if not most:
        return found
    fewer = dataclasses.replace(found.source.options, max_open_shards=most)
    return DatasetReader(DatasetSource.resolve_each(url, None, fewer)[0])


def count(values: Iterable[Any]) -> int:
    return sum(1 for _ in values)


def iterate(ds: DatasetReader) -> int:
    return count(ds)


def batches(ds: DatasetReader) -> int:
    return sum(len(batch["n"]) for batch in ds.iter_batches(7))


def look_up(ds: DatasetReader) -> int:
    return count(ds[k * 37 % len(ds)] for k in range(len(ds)))


def read(ds: DatasetReader) -> int:
    return len(ds.read([k * 37 % len(ds) for k in range(len(ds))]))


def read_batch(ds: DatasetReader) -> int:
    return len(ds.read_batch(range(len(ds)))["n"])


def locate(ds: DatasetReader) -> int:
    return count(map(ds.locate, range(len(ds))))


def stream(ds: DatasetReader) -> int:
    steps = shardio.stream(ds, global_batch=10, seed=1, num_threads=2)
    return sum(len(batch["n"]) for batch in steps)


def map_dataset(ds: DatasetReader) -> int:
    import torch.utils.data

    from shardio.torch import MapDataset

    loader = torch.utils.data.DataLoader(MapDataset(ds), 10, shuffle=True, num_workers=2, collate_fn=list)
    return sum(len(batch) for batch in loader)


def loader(ds: DatasetReader) -> int:
    from shardio.torch import StreamingDataLoader, StreamingDataset

    batches = StreamingDataLoader(StreamingDataset(ds, global_batch=10, seed=1), num_workers=2)
    return sum(len(batch["n"]) for batch in batches)


def verify(ds: DatasetReader) -> int:
    report = shardio.verify(ds.source.url)
    assert report.ok, report.findings
    return report.good_records


def export(ds: DatasetReader) -> int:
    target = f"{ds.source.url}.exported.{os.getpid()}"
    return sum(shardio.export_dataset(ds.source.url, target, kind="tfrecord").records.values())


def convert(ds: DatasetReader) -> int:
    target = f"{ds.source.url}.converted.{os.getpid()}"
    shardio.convert_dataset(ds.source.url, target, workers=1)
    return len(shardio.open(target))


def filter_by_function(ds: DatasetReader) -> int:
    return len(ds.filter(lambda columns: columns["n"] >= 0, features=["n"]))


def filter_by_sql(ds: DatasetReader) -> int:
    return len(ds.filter("n >= 0"))


def to_arrow(ds: DatasetReader) -> int:
    return ds.to_arrow(["n"]).num_rows


def look_at_pages(ds: DatasetReader) -> int:
    from shardio.view import Pages

    pages = Pages(ds.source.url)
    assert pages.statistics()["unreadable"] == 0
    return sum(len(pages.records(start=k, count=100)["records"]) for k in range(0, len(ds), 100))


WAYS: dict[str, Callable[[DatasetReader], int]] = {
    each.__name__: each
    for each in (
        iterate, batches, look_up, read, read_batch, locate, stream, filter_by_function, filter_by_sql,
        to_arrow, look_at_pages, map_dataset, loader, verify, export, convert
    )
}  # fmt: skip


def main(url: str, limit: int, most: int, ways: list[str]) -> None:
    if {"map_dataset", "loader"} & set(ways):
        # Before the limit: torch alone has a thousand modules.
        import shardio.torch  # noqa: F401

    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held = Held(url)
    sys.addaudithook(held.look)
    # What conditions in SQL are evaluated in stays for the next ones: begun before anything is counted.
    if "filter_by_sql" in ways:
        filter_by_sql(reader(url, most))
    for way in ways:
        before = others()
        held.begin()
        ds = reader(url, most)
        records = WAYS[way](ds)
        held.look()
        found = held.most
        del ds
        after = held.now()
        # What queues of torch end with, a thread of each, may take a moment on a busy machine.
        for _ in range(3000):
            left = {name: count - before[name] for name, count in others().items()}
            if not left["threads"] and not left["processes"]:
                break
            time.sleep(0.02)
        print(json.dumps({"way": way, "records": records, "most": found, "after": after, "left": left}))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
