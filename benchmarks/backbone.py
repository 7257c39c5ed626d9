"""Streaming, lookups, writing and memory on a local disk, against what users would pick instead.

    python benchmarks/backbone.py --peers PEERS/bin/python

PEERS is an environment with `tensorflow-cpu tfrecord lmdb`.  Every figure is the median of interleaved
rounds, each in a process of its own; compare within one run only.
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def rate(iterable: Iterable[Any], count: int) -> float:
    began = time.perf_counter()
    for _ in iterable:
        pass
    return count / (time.perf_counter() - began)


# Contestants: each runs in a fresh process and returns one number.


def stream_shardio(root: pathlib.Path, count: int) -> float:
    import shardio

    return rate(shardio.open(root / "plain"), count)


def stream_shardio_zstd(root: pathlib.Path, count: int) -> float:
    import shardio

    return rate(shardio.open(root / "zstd"), count)


def stream_bare(root: pathlib.Path, count: int) -> float:
    import shardio

    return rate(list(shardio.open(root / "plain")), count)


def stream_tfrecord_package(root: pathlib.Path, count: int) -> float:
    from tfrecord.reader import tfrecord_iterator

    return rate(tfrecord_iterator(shard(root, "plain")), count)


def stream_tf_data_gzip(root: pathlib.Path, count: int) -> float:
    import tensorflow as tf

    return rate(
        tf.data.TFRecordDataset(shard(root, "gzip"), compression_type="GZIP").as_numpy_iterator(), count
    )


def positions(count: int, number: int) -> Any:
    import numpy as np

    return np.random.default_rng(1).integers(0, count, number)


def lookup_first_touch(root: pathlib.Path, count: int) -> float:
    import shardio

    ds = shardio.open(root / "plain")
    ds[0]
    items = positions(count, 2000).tolist()
    began = time.perf_counter()
    for item in items:
        ds[item]
    return (time.perf_counter() - began) / len(items) * 1e6


def lookup_single(root: pathlib.Path, count: int) -> float:
    import shardio

    ds = shardio.open(root / "plain")
    for _ in ds:
        pass
    items = positions(count, 200_000).tolist()
    began = time.perf_counter()
    for item in items:
        ds[item]
    return (time.perf_counter() - began) / len(items) * 1e6


def lookup_batched(root: pathlib.Path, count: int) -> float:
    import shardio

    ds = shardio.open(root / "plain")
    for _ in ds:
        pass
    items = positions(count, 256 * 400).reshape(-1, 256)
    began = time.perf_counter()
    for batch in items:
        ds.read(batch)
    return (time.perf_counter() - began) / items.size * 1e6


def write_shardio(root: pathlib.Path, count: int) -> float:
    import shardio

    records = sizes_and_bytes(count // 4, 300, 300)
    _ = shardio.DatasetWriter  # loaded before the clock runs
    with tempfile.TemporaryDirectory(dir=root) as folder:
        began = time.perf_counter()
        with shardio.DatasetWriter(pathlib.Path(folder) / "out") as out:
            for record in records:
                out.write(record)
        return (time.perf_counter() - began) / len(records) * 1e6


def write_tensorflow(root: pathlib.Path, count: int) -> float:
    import tensorflow as tf

    records = sizes_and_bytes(count // 4, 300, 300)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        began = time.perf_counter()
        with tf.io.TFRecordWriter(folder + "/out.tfrecord") as out:
            for record in records:
                out.write(record)
        return (time.perf_counter() - began) / len(records) * 1e6


def write_lmdb(root: pathlib.Path, count: int) -> float:
    import lmdb

    records = sizes_and_bytes(count // 4, 300, 300)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        began = time.perf_counter()
        with lmdb.open(folder, map_size=1 << 34) as env, env.begin(write=True) as txn:
            for number, record in enumerate(records):
                txn.put(number.to_bytes(8, "big"), record, append=True)
        return (time.perf_counter() - began) / len(records) * 1e6


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
    worst = 0.0
    for worker in range(4):
        read, write = os.pipe()
        if os.fork() == 0:
            for item in positions(count, 20_000)[worker::4].tolist():
                ds[item]
            os.write(write, json.dumps(private_bytes(".shardidx")).encode())
            os._exit(0)
        os.wait()
        worst = max(worst, json.loads(os.read(read, 100)) / 1e6)
    return worst


def private_bytes(ending: str) -> int:
    total, inside = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if line[:1] in "0123456789abcdef" and "-" in line.split(" ", 1)[0]:
            inside = line.endswith(ending)
        elif inside and line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


HERE = {
    "stream, plain: shardio, every block checked (records/s)": stream_shardio,
    "stream, zstd: shardio, every block checked (records/s)": stream_shardio_zstd,
    "stream: bare loop over ready bytes (records/s)": stream_bare,
    "lookup, one at a time, first touch of most blocks (us)": lookup_first_touch,
    "lookup, one at a time, blocks checked before (us)": lookup_single,
    "lookup, 256 at a time, blocks checked before (us a record)": lookup_batched,
    "write 300-byte records: shardio (us a record)": write_shardio,
    "open 2 M records and read one (MB resident)": resident_to_open_and_read,
    "import shardio (ms over numpy and fsspec)": import_over_numpy_and_fsspec,
    "import shardio, and its reader and writer (ms over numpy and fsspec)": import_and_open_names,
    "index of a forked worker, of four (MB private)": private_index_memory_of_four_workers,
}
PEERS = {
    "stream, plain: tfrecord package, nothing checked (records/s)": stream_tfrecord_package,
    "stream, gzip: tf.data (records/s)": stream_tf_data_gzip,
    "write 300-byte records: TensorFlow (us a record)": write_tensorflow,
    "write 300-byte records: LMDB (us a record)": write_lmdb,
}
_HERE, _PEERS = list(HERE), list(PEERS)
RATIOS = [
    ("stream, plain: shardio", "tfrecord package", _HERE[0], _PEERS[0], 2.5),
    ("stream, plain: shardio", "bare loop", _HERE[0], _HERE[2], 0.5),
    ("stream, zstd: shardio", "tf.data on gzip", _HERE[1], _PEERS[1], 3.0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="python of an environment with tensorflow-cpu, tfrecord and lmdb")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        function = {**HERE, **PEERS}[args.one]
        print(function(pathlib.Path(args.folder), args.records))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run(pathlib.Path(folder), args)


def run(root: pathlib.Path, args: argparse.Namespace) -> None:
    print(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    prepare(root, args.records)
    contestants = [(name, sys.executable) for name in HERE]
    if args.peers:
        contestants += [(name, args.peers) for name in PEERS]
    found = {name: [] for name, _ in contestants}
    for _ in range(args.rounds):
        for name, python in contestants:
            command = [python, __file__, "--one", name, "--folder", str(root), "--records", str(args.records)]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                sys.exit(f"{name}: {out.stderr}")
            found[name].append(float(out.stdout.strip().splitlines()[-1]))
    medians = {name: statistics.median(values) for name, values in found.items()}
    print("| what | median | least | most |\n|---|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {medians[name]:,.4g} | {min(values):,.4g} | {max(values):,.4g} |")
    for what, other, a, b, wanted in RATIOS:
        if b in medians:
            print(f"- {what} / {other}: {medians[a] / medians[b]:.2f} (wanted {wanted})")


if __name__ == "__main__":
    main()
