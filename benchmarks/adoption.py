"""How fast shards are adopted, against what people use today, in one run.

    python benchmarks/adoption.py [--folder DIR] [--tfrecord-python PYTHON] [--megabytes 256] [--repeat 5]

TFRecord: scan with both checksums of every record, against `tfrecord2idx` of the `tfrecord` package, which
follows the lengths and looks at no checksum; PYTHON is an interpreter that has the package (`pip install
tfrecord`).  JSON lines: against `json.loads` of each line.  Tar: against `getmembers()` of `tarfile`, which
reads the headers alone.  Files are in the page cache.  Prints
the best of some runs, wall clock and processor time, of one process each.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pathlib
import resource
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING

from shardio import kernels
from shardio.adoption import ScanOptions, scan_shard
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Callable

TIMED = """
import sys, time
from tfrecord.tools.tfrecord2idx import create_index
begin, cpu = time.perf_counter(), time.process_time()
create_index(sys.argv[1], sys.argv[2])
print(time.perf_counter() - begin, time.process_time() - cpu)
"""


def best(work: Callable[[], tuple[float, float]], repeat: int) -> tuple[float, float]:
    """Return the least wall clock and processor time of some runs, in seconds."""
    runs = [work() for _ in range(repeat)]
    return min(wall for wall, _ in runs), min(cpu for _, cpu in runs)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall clock and processor time of one run, in seconds."""
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - cpu


def show(
    name: str, size: int, found: tuple[float, float], other: str = "", peer: tuple[float, float] | None = None
) -> None:
    """Print a line: our rates, and how much faster than the peer."""
    wall, cpu = found
    line = f"{name:34} {size / 1e6 / wall:8,.0f} MB/s   per CPU second {size / 1e6 / cpu:8,.0f} MB"
    if peer is not None:
        line += f"   {other} {size / 1e6 / peer[0]:8,.0f} MB/s, {peer[0] / wall:5.1f} x"
        line += f" (CPU {peer[1] / cpu:5.1f} x)"
    print(line)


def write_tfrecord(path: pathlib.Path, payload: int, size: int) -> None:
    """Write a file of records of one length."""
    frames = kernels.encode_frames([os.urandom(payload) for _ in range(256)])[0]
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(frames)


def write_tar(path: pathlib.Path, size: int) -> None:
    """Write samples of an image, a label and a caption."""
    image = os.urandom(8000)
    with tarfile.open(path, "w") as archive:
        number = 0
        while number * 11_264 < size:
            for extension, content in (("jpg", image), ("cls", b"7"), ("json", b'{"caption": ""}')):
                info = tarfile.TarInfo(f"train/{number:08d}.{extension}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            number += 1


def write_lines(path: pathlib.Path, size: int) -> None:
    """Write JSON lines of text, numbers and nested values, of about 300 bytes."""
    words = [f"word{number % 97}" for number in range(40)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(size // 330):
            value = {
                "id": number,
                "text": " ".join(words),
                "score": number / 7,
                "tags": words[:3],
                "meta": {"ok": True},
            }
            file.write(json.dumps(value) + "\n")


def load_lines(path: pathlib.Path) -> None:
    """Parse each line, as Python does."""
    with path.open("rb") as file:
        for line in file:
            json.loads(line)


def list_members(path: pathlib.Path) -> list[tarfile.TarInfo]:
    """Read all headers of a tar file, as Python does."""
    with tarfile.open(path) as archive:
        return archive.getmembers()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/shardio-adoption"))
    parser.add_argument("--tfrecord-python", help="interpreter that has the package tfrecord")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    store = connect(arguments.folder)

    def scan(name: str) -> tuple[float, float]:
        return best(
            lambda: timed(lambda: scan_shard(store, name, bytes(16), ScanOptions())), arguments.repeat
        )

    def tfrecord2idx(path: pathlib.Path) -> tuple[float, float]:
        command = [arguments.tfrecord_python, "-c", TIMED, str(path), str(path) + ".peer"]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return float(out[-2]), float(out[-1])

    for payload in (4096, 300):
        path = arguments.folder / f"{payload}.tfrecord"
        write_tfrecord(path, payload, arguments.megabytes << 20)
        own = scan(path.name)
        peer = None
        if arguments.tfrecord_python:
            peer = best(lambda path=path: tfrecord2idx(path), max(1, arguments.repeat // 2))
        show(f"TFRecord, records of {payload} bytes", path.stat().st_size, own, "tfrecord2idx", peer)
        path.unlink()
    path = arguments.folder / "x.jsonl"
    write_lines(path, arguments.megabytes << 20)
    own = scan(path.name)
    peer = best(lambda path=path: timed(lambda: load_lines(path)), max(1, arguments.repeat // 2))
    show("JSON lines", path.stat().st_size, own, "json.loads", peer)
    path.unlink()
    path = arguments.folder / "x.tar"
    write_tar(path, arguments.megabytes << 20)
    own = scan(path.name)
    peer = best(lambda: timed(lambda: list_members(path)), arguments.repeat)
    show("tar, samples of 3 members", path.stat().st_size, own, "tarfile", peer)
    path.unlink()
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
