"""Streaming, lookups, writing and memory on a local disk, against what users would pick instead.

    python benchmarks/backbone.py --peers PEERS/bin/python

PEERS is an environment with `tensorflow-cpu tfrecord lmdb array_record`.  Every figure is the median of
interleaved rounds, each in a process of its own; what takes time is given in wall time and in processor time,
which tells more where a machine has other work (a peer's own threads count).  Compare within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardio.reader import DatasetReader

RECORDS = 2_000_000
SMALL = "train"


def sizes_and_bytes(count: int, low: int = 100, high: int = 500) -> list[bytes]:
    import numpy as np

    rng = np.random.default_rng(0)
    noise = rng.bytes(1 << 20)
    # Half noise, half repetition: what text and numbers compress to.
    pool = b"".join(noise[i : i + 64] + bytes(64) for i in range(0, 1 << 20, 64))
    lengths = rng.integers(low, high + 1, count)
    starts = rng.integers(0, len(pool) - high, count)
    return [pool[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]


def prepare(root: pathlib.Path, count: int) -> None:
    import shardio

    records = sizes_and_bytes(count)
    for name, compression in (("plain", None), ("zstd", "zstd"), ("gzip", "gzip")):
        with shardio.DatasetWriter(root / name, compression=compression, shard_bytes=1 << 40) as out:
            for record in records:
                out.write(record)


def shard(root: pathlib.Path, name: str) -> str:
    return next(str(path) for path in sorted((root / name / "data").iterdir()) if path.suffix != ".shardidx")


class Clock:
    """Wall and processor time of a `with` block; `us(n)` gives both in microseconds for each of n records."""

    def __enter__(self) -> Self:
        self._began = (time.perf_counter(), time.process_time())
        return self

    def __exit__(self, *_: object) -> None:
        ended = (time.perf_counter(), time.process_time())
        self.seconds = [end - begin for begin, end in zip(self._began, ended, strict=True)]

    def us(self, count: int) -> list[float]:
        """Return microseconds for each of some records, wall and processor."""
        return [seconds / count * 1e6 for seconds in self.seconds]


def loop(iterable: Iterable[Any], count: int) -> list[float]:
    with Clock() as clock:
        for _ in iterable:
            pass
    return clock.us(count)


# Contestants: each runs in a fresh process and returns one number, or wall and processor time.


def stream_shardio(root: pathlib.Path, count: int) -> list[float]:
    import shardio

    return loop(shardio.open(root / "plain"), count)


def stream_shardio_zstd(root: pathlib.Path, count: int) -> list[float]:
    import shardio

    return loop(shardio.open(root / "zstd"), count)


def stream_bare(root: pathlib.Path, count: int) -> list[float]:
    import shardio

    return loop(list(shardio.open(root / "plain")), count)


def stream_tfrecord_package(root: pathlib.Path, count: int) -> list[float]:
    from tfrecord.reader import tfrecord_iterator

    return loop(tfrecord_iterator(shard(root, "plain")), count)


def stream_tf_data_gzip(root: pathlib.Path, count: int) -> list[float]:
    import tensorflow as tf

    some = min(count, 100_000)  # it takes long
    records = tf.data.TFRecordDataset(shard(root, "gzip"), compression_type="GZIP").take(some)
    return loop(records.as_numpy_iterator(), some)


def stream_shardio_zstd_shuffled(root: pathlib.Path, count: int) -> list[float]:
    import shardio

    stream = shardio.stream(shardio.open(root / "zstd"), global_batch=1024, seed=0)
    return loop((record for batch in stream for record in batch["payload"]), count)


def array_record(root: pathlib.Path, count: int, options: str) -> Any:
    """Return a reader of the records, written by groups of 256 with zstd of level 3, as shardio's."""
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    path = str(root / "r.array_record")
    if not pathlib.Path(path).exists():
        out = ArrayRecordWriter(path, "group_size:256")
        for record in sizes_and_bytes(count):
            out.write(record)
        out.close()
    return ArrayRecordReader(path, options)


def stream_array_record(root: pathlib.Path, count: int) -> list[float]:
    # Its fastest way here, of `read()`, `read_all()` and ranges.
    reader = array_record(root, count, "readahead_buffer_size:16777216")
    ranges = ((start, min(start + 1024, count)) for start in range(0, count, 1024))
    return loop((record for some in ranges for record in reader.read(*some)), count)


def stream_array_record_shuffled(root: pathlib.Path, count: int) -> list[float]:
    import numpy as np

    some = min(count, 50_000)  # it takes long
    order = np.random.default_rng(2).permutation(count)[:some].tolist()
    # As Grain reads it: lookups, without anything ahead.
    reader = array_record(root, count, "readahead_buffer_size:0")
    batches = (order[start : start + 1024] for start in range(0, some, 1024))
    return loop((record for batch in batches for record in reader.read(batch)), some)


def positions(count: int, number: int) -> Any:
    import numpy as np

    return np.random.default_rng(1).integers(0, count, number)


def lookup_first_touch(root: pathlib.Path, count: int) -> list[float]:
    import shardio

    ds = shardio.open(root / "plain")
    ds[0]
    items = positions(count, 2000).tolist()
    with Clock() as clock:
        for item in items:
            ds[item]
    return clock.us(len(items))


def read_once(root: pathlib.Path) -> DatasetReader:
    """Return the dataset, all of which was read."""
    import shardio

    ds = shardio.open(root / "plain")
    for _ in ds:
        pass
    return ds


def lookup_single(root: pathlib.Path, count: int) -> list[float]:
    ds = read_once(root)
    items = positions(count, 200_000).tolist()
    with Clock() as clock:
        for item in items:
            ds[item]
    return clock.us(len(items))


def lookup_batched(root: pathlib.Path, count: int) -> list[float]:
    ds = read_once(root)
    items = positions(count, 256 * 400).reshape(-1, 256)
    with Clock() as clock:
        for batch in items:
            ds.read(batch)
    return clock.us(items.size)


def write_shardio(root: pathlib.Path, count: int) -> list[float]:
    import shardio

    records = sizes_and_bytes(count // 4, 300, 300)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        with shardio.DatasetWriter(
            pathlib.Path(folder) / "warm"
        ) as out:  # loads what is needed before the clock runs
            out.write(b"x")
        with Clock() as clock, shardio.DatasetWriter(pathlib.Path(folder) / "out") as out:
            for record in records:
                out.write(record)
        return clock.us(len(records))


def write_tensorflow(root: pathlib.Path, count: int) -> list[float]:
    import tensorflow as tf

    records = sizes_and_bytes(count // 4, 300, 300)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        with Clock() as clock, tf.io.TFRecordWriter(folder + "/out.tfrecord") as out:
            for record in records:
                out.write(record)
        return clock.us(len(records))


def write_lmdb(root: pathlib.Path, count: int) -> list[float]:
    import lmdb

    records = sizes_and_bytes(count // 4, 300, 300)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        with Clock() as clock, lmdb.open(folder, map_size=1 << 34) as env, env.begin(write=True) as txn:
            for number, record in enumerate(records):
                txn.put(number.to_bytes(8, "big"), record, append=True)
        return clock.us(len(records))


def resident_to_open_and_read(root: pathlib.Path, count: int) -> float:
    """MB of resident memory that opening and reading one record add, once everything is imported."""
    import psutil

    import shardio

    process = psutil.Process()
    warm = root / "warm"
    if not warm.exists():
        with shardio.DatasetWriter(warm) as out:
            out.write(b"x")
    shardio.open(warm)[0]
    before = process.memory_info().rss
    shardio.open(root / "plain")[count // 2]
    return (process.memory_info().rss - before) / 1e6


def import_over_numpy_and_fsspec(_root: pathlib.Path, _count: int) -> float:
    """Milliseconds that `import shardio` takes once NumPy and fsspec are imported."""
    import fsspec  # noqa: F401
    import numpy  # noqa: F401, ICN001

    began = time.perf_counter()
    import shardio  # noqa: F401

    return (time.perf_counter() - began) * 1e3


def import_and_open_names(_root: pathlib.Path, _count: int) -> float:
    """The same, with `shardio.open` and `shardio.DatasetWriter` looked up, which loads what they need."""
    import fsspec  # noqa: F401
    import numpy  # noqa: F401, ICN001

    began = time.perf_counter()
    import shardio

    _ = shardio.open, shardio.DatasetWriter
    return (time.perf_counter() - began) * 1e3


def private_index_memory_of_four_workers(root: pathlib.Path, count: int) -> float:
    """Most private MB of the index file's mapping in any of four forked workers that read all over it."""
    import shardio

    ds = shardio.open(root / "plain")
    ds[0]
    answers, look, leave = os.pipe(), os.pipe(), os.pipe()
    for worker in range(4):
        if os.fork() == 0:
            for item in positions(count, 20_000)[worker::4].tolist():
                ds[item]
            os.write(answers[1], b"r")
            os.read(look[0], 1)
            os.write(answers[1], f"{private_bytes('.shardidx')}\n".encode())
            os.read(leave[0], 1)
            os._exit(0)
    # Looked at while all are there and have read: a page that one process alone has mapped counts as private.
    for _ in range(4):
        os.read(answers[0], 1)
    os.write(look[1], b"gggg")
    with open(answers[0], "rb", closefd=False) as lines:
        found = [int(lines.readline()) for _ in range(4)]
    os.write(leave[1], b"gggg")
    for _ in range(4):
        os.wait()
    return max(found) / 1e6


def private_bytes(ending: str) -> int:
    total, inside = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if line[:1] in "0123456789abcdef" and "-" in line.split(" ", 1)[0]:
            inside = line.endswith(ending)
        elif inside and line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


# By rows of the table; peers behind them.
HERE = {
    "stream, plain, every block checked (with start-up)": stream_shardio,
    "a bare loop over ready bytes": stream_bare,
    "stream, zstd, every block checked": stream_shardio_zstd,
    "stream, zstd, shuffled by the default plan": stream_shardio_zstd_shuffled,
    "lookup, one at a time, blocks checked before": lookup_single,
    "lookup, 256 at a time": lookup_batched,
    "lookup, first touch of most blocks": lookup_first_touch,
    "write 300-byte records": write_shardio,
}
PEERS = {
    "the `tfrecord` package, nothing checked": stream_tfrecord_package,
    "`tf.data` on gzip": stream_tf_data_gzip,
    "ArrayRecord, groups of 256, zstd": stream_array_record,
    "ArrayRecord, groups of 256, zstd, shuffled": stream_array_record_shuffled,
    "write 300-byte records: TensorFlow": write_tensorflow,
    "write 300-byte records: LMDB": write_lmdb,
}
NUMBERS = {
    "open and read one record (MB resident)": resident_to_open_and_read,
    "`import shardio` over NumPy and fsspec (ms)": import_over_numpy_and_fsspec,
    "the same, loading reader and writer (ms)": import_and_open_names,
    "index of a forked worker, of four (MB private)": private_index_memory_of_four_workers,
}
# Ours, whom it is compared with, and how many times as fast it has to be.
RATIOS = [
    ("stream, plain, every block checked (with start-up)", "the `tfrecord` package, nothing checked", 2.5),
    ("stream, plain, every block checked (with start-up)", "a bare loop over ready bytes", 0.5),
    ("stream, zstd, every block checked", "`tf.data` on gzip", 3.0),
    ("stream, zstd, every block checked", "ArrayRecord, groups of 256, zstd", 3.0),
    ("stream, zstd, shuffled by the default plan", "ArrayRecord, groups of 256, zstd, shuffled", 3.0),
    ("write 300-byte records", "write 300-byte records: TensorFlow", 1.0),
    ("write 300-byte records", "write 300-byte records: LMDB", 1.0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="python of an environment with the peers' packages")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        function = {**HERE, **PEERS, **NUMBERS}[args.one]
        found = function(pathlib.Path(args.folder), args.records)
        print(json.dumps(found if isinstance(found, list) else [found]))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run(pathlib.Path(folder), args)


def run(root: pathlib.Path, args: argparse.Namespace) -> None:
    print(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    prepare(root, args.records)
    contestants = [(name, sys.executable) for name in [*HERE, *NUMBERS]]
    if args.peers:
        contestants += [(name, args.peers) for name in PEERS]
    found: dict[str, list[list[float]]] = {name: [] for name, _ in contestants}
    for number in range(args.rounds):
        for name, python in contestants:
            command = [python, __file__, "--one", name, "--folder", str(root), "--records", str(args.records)]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                if name not in PEERS:
                    sys.exit(f"{name}: {out.stderr}")
                print(f"not measured: {name}: {out.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            found[name].append(json.loads(out.stdout.strip().splitlines()[-1]))
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
    medians = {
        name: [statistics.median(kind) for kind in zip(*rounds, strict=True)]
        for name, rounds in found.items()
        if rounds
    }
    print("| what | us a record, wall | processor |\n|---|---|---|")
    for name, values in medians.items():
        print(f"| {name} | {' | '.join(f'{value:,.4g}' for value in values)} |")
    print("\n| times as fast as | wall | processor | wanted |\n|---|---|---|---|")
    for ours, other, wanted in RATIOS:
        if other in medians:
            wall, cpu = (b / a for a, b in zip(medians[ours], medians[other], strict=True))
            print(f"| {ours}, against {other} | {wall:.2f} | {cpu:.2f} | {wanted} |")


if __name__ == "__main__":
    main()
