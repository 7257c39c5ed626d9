"""Runs in a process of its own, with 200 MiB to spare: looks at what unpacks to a gigabyte and more.

    python bombs.py WARM FOLDER...

Prints a line of JSON for each folder: what each way of looking at it ended with.  A `MemoryError` is named as
such, so running this shows it.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import shardio
import shardio_indexer
from shardio.errors import ShardioError

SPARE = 200 << 20


def everything(folder: Path) -> dict[str, str]:
    """Do whatever decodes; return how each ended."""
    (shard,) = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".shardidx"]

    def count(url: Path) -> int:
        return sum(1 for _ in shardio.open_shard(url))

    def verify() -> str:
        report = shardio.verify(shard)
        return " & ".join(str(finding) for finding in report.findings) or f"ok, {report.good_records}"

    def adopt() -> str:
        report = shardio_indexer.adopt(shard, into=folder / "adopted")
        refused = " & ".join(f"{type(each.error).__name__}: {each.error}" for each in report.refused)
        return f"{report.ok}, {sum(report.splits.values())}" + (f", {refused}" if refused else "")

    def salvage() -> str:
        report = shardio_indexer.adopt(shard, into=folder / "salvaged", salvage=True)
        return f"{report.ok}, {sum(report.splits.values())}, {len(report.skipped)} left out"

    def convert() -> str:
        kind = "webdataset" if ".tar" in shard.name else "jsonl"
        return str(shardio.convert_dataset(shard, folder / "converted", kind=kind, workers=1).records)

    # What is not adopted has no index, and is taken in alone.
    ways: dict[str, Callable[[], object]] = {"adopt": adopt, "salvage": salvage, "convert": convert}
    if not folder.name.startswith("taken-in"):
        ways = {"verify": verify, "read": lambda: count(shard)}
        if "adopt" in folder.name:
            ways["adopt"] = adopt
    said = {}
    for name, way in ways.items():
        try:
            said[name] = str(way())
        except ShardioError as error:
            said[name] = f"{type(error).__name__}: {error}"
        except MemoryError:
            said[name] = "MemoryError"
    return said


def main() -> None:
    warnings.simplefilter("ignore")
    for folder in Path(sys.argv[1]).iterdir():
        everything(folder)  # everything is imported now
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE,) * 2)
    for folder in map(Path, sys.argv[2:]):
        print(json.dumps({folder.name: everything(folder)}), flush=True)


if __name__ == "__main__":
    main()
