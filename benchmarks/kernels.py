"""Measure the kernels against what users would do without them, in one run, on one core.

    python benchmarks/kernels.py [--records 500000] [--peers PYTHON] [--json]

The records are Examples of five features: int64, float[16], 200 bytes, int64[8] and a label of bytes.
`--peers` names an interpreter in which tensorflow, bagz and pyarrow are installed (any may be missing); it
runs this same file on the same data.  Each figure is the best of several rounds, in processor time, so that
what else a machine does counts little; threads of a peer count as its own.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio import kernels

BATCH = 1024
BLOCK = 1 << 16
Kind = Literal["bytes", "float", "int64"]
KINDS: dict[str, tuple[Kind, int]] = {
    "id": ("int64", 1),
    "vector": ("float", 16),
    "blob": ("bytes", 1),
    "tokens": ("int64", 8),
    "label": ("bytes", 1),
}


def best(work: Callable[[], Any], records: int, rounds: int = 3) -> float:
    """Return microseconds of processor time per record of the best of some rounds."""
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times) / records * 1e6


# -- shardio


def make(folder: Path, records: int) -> dict[str, float]:
    """Write the data that everybody reads, and measure encoding and writing on the way."""
    import numpy as np

    from shardio import kernels
    from shardio.v1 import example_pb2

    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "id": np.arange(records),
        "vector": random.random((records, 16), dtype=np.float32),
        "blob": [random.bytes(200) for _ in range(records)],
        "tokens": random.integers(0, 50_000, (records, 8)),
        "label": [b"label %d" % (number % 1000) for number in range(records)],
    }

    def encode(count: int) -> list[bytes]:
        return [
            kernels.encode_example(
                {name: values[row] if name != "id" else row for name, values in columns.items()}
            )
            for row in range(count)
        ]

    few = min(records, 20_000)

    def encode_messages() -> None:
        for row in range(few):
            example = example_pb2.Example()
            features = example.features.feature
            features["id"].int64_list.value.append(row)
            features["vector"].float_list.value.extend(columns["vector"][row])
            features["blob"].bytes_list.value.append(columns["blob"][row])
            features["tokens"].int64_list.value.extend(columns["tokens"][row])
            features["label"].bytes_list.value.append(columns["label"][row])
            example.SerializeToString()

    payloads = encode(records)

    def write() -> None:
        with (folder / "examples.tfrecord").open("wb") as file:
            for start in range(0, records, BATCH):
                file.write(kernels.encode_frames(payloads[start : start + BATCH])[0])

    small = [random.bytes(int(size)) for size in random.integers(100, 500, records)]

    def write_small() -> None:
        with (folder / "small.tfrecord").open("wb") as file:
            for start in range(0, records, 200):
                file.write(kernels.encode_frames(small[start : start + 200])[0])

    return {
        "encode": best(lambda: encode(few), few),
        "encode, protobuf messages": best(encode_messages, few, 2),
        "write frames (and data)": best(write, records),
        "write small records": best(write_small, records),
    }


def measure_shardio(folder: Path, records: int) -> dict[str, float]:
    """Parse and read."""
    import numpy as np

    from shardio import kernels
    from shardio.v1 import example_pb2

    features = [
        kernels.FeatureRequest(name.encode(), kind, count, required=True)
        for name, (kind, count) in KINDS.items()
    ]
    data = (folder / "examples.tfrecord").read_bytes()
    stops = kernels.scan_frames(data).frame_stops
    starts = np.concatenate([[0], stops[:-1]]) + 12
    stops = stops - 4

    def parse() -> None:
        for row in range(0, records, BATCH):
            part = slice(row, min(row + BATCH, records))
            kernels.parse_examples(kernels.Records(data, starts[part], stops[part]), features)

    few = min(records, 20_000)
    payloads = kernels.slice_records(data, starts, stops)

    def parse_messages() -> None:
        for payload in payloads[:few]:
            values = example_pb2.Example.FromString(payload).features.feature
            np.array(values["id"].int64_list.value, np.int64)
            np.array(values["vector"].float_list.value, np.float32)
            np.array(values["tokens"].int64_list.value, np.int64)
            _ = values["blob"].bytes_list.value[0], values["label"].bytes_list.value[0]

    def parse_lists() -> None:
        for row in range(0, records, BATCH):
            kernels.parse_examples(payloads[row : row + BATCH], features)

    def from_disk() -> None:
        """Read, verify both CRCs of every record, parse into columns."""
        rest = b""
        with (folder / "examples.tfrecord").open("rb") as file:
            while chunk := file.read(BATCH * 352):
                chunk = rest + chunk if rest else chunk
                scan = kernels.scan_frames(chunk)
                assert scan.problem is None
                begins = np.concatenate([[0], scan.frame_stops[:-1]]) + 12
                kernels.parse_examples(kernels.Records(chunk, begins, scan.frame_stops - 4), features)
                rest = chunk[scan.stopped :]
        assert not rest

    return {
        "parse": best(parse, records),
        "parse lists of bytes": best(parse_lists, records),
        "parse, protobuf to NumPy": best(parse_messages, few, 2),
        "read, verify, parse from disk": best(from_disk, records),
    }


def measure_lists(folder: Path, records: int) -> dict[str, float]:
    """Take small records as lists out of a mapped file, block by block, and verify them."""
    import crc32c
    import numpy as np

    from shardio import kernels

    with (folder / "small.tfrecord").open("rb") as file:
        small = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(small)
    ends = kernels.scan_frames(small).frame_stops
    rows = np.searchsorted(ends, np.arange(BLOCK, ends[-1] + BLOCK, BLOCK), "right")
    seams = np.concatenate([[0], np.minimum(rows, ends.size)])
    begins = np.concatenate([[0], ends[:-1]])

    spans = [
        (first, last)
        for first, last in zip(seams[:-1].tolist(), seams[1:].tolist(), strict=True)
        if first < last
    ]

    index = index_of(view, begins, ends, spans)

    def in_order() -> None:
        for first, last in spans:
            assert index.read_rows(first, last, view, int(begins[first]), as_bytes=True) is not None

    def lists(check: str) -> None:
        for first, last in zip(seams[:-1].tolist(), seams[1:].tolist(), strict=True):
            if first == last:
                continue
            base = int(begins[first])
            block = view[base : int(ends[last - 1])]
            low, high = begins[first:last] - base, ends[first:last] - base
            if check == "block":
                crc32c.crc32c(block)
            else:
                assert kernels.check_frames(block, low, high) == -1
            kernels.slice_records(block, low + 12, high - 4)

    return {
        "lists of small records, CRC of each": best(lambda: lists("record"), records),
        "lists of small records, blocks checked and cut": best(in_order, records),
        "lists of small records, CRC of blocks": best(lambda: lists("block"), records),
    }


def index_of(view: memoryview, begins: Any, ends: Any, spans: list[tuple[int, int]]) -> kernels.ShardIndex:
    """Return the index of a shard whose blocks hold the records `first .. last - 1` each."""
    import numpy as np

    from shardio import kernels

    stops = [(ends[first:last] - begins[first]).astype(np.uint32) for first, last in spans]
    sizes = np.array([part[-1] for part in stops], np.uint32)
    bases = begins[[first for first, _ in spans]].astype(np.int64)
    return kernels.ShardIndex(
        (bases + sizes).astype(np.uint64),
        np.array([last for _, last in spans], np.uint64),
        sizes,
        np.array([kernels.crc32c(part) for part in stops], np.uint32),
        frame_stops=np.concatenate(stops),
        block_crcs=kernels.crc32c_many(view, bases, bases + sizes),
    )


# -- peers, in an interpreter of their own


def measure_tensorflow(folder: Path, records: int) -> dict[str, float]:
    """Do the same with tf.data and tf.io."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    path = str(folder / "examples.tfrecord")
    dtypes = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
    wanted = {
        name: tf.io.FixedLenFeature([] if count == 1 else [count], dtypes[kind])
        for name, (kind, count) in KINDS.items()
    }
    batches = list(tf.data.TFRecordDataset(path).batch(BATCH))
    function = tf.function(lambda batch: tf.io.parse_example(batch, wanted))
    function(batches[0])

    def parse() -> None:
        for batch in batches:
            function(batch)

    def from_disk() -> None:
        dataset = (
            tf.data.TFRecordDataset(path).batch(BATCH).map(lambda batch: tf.io.parse_example(batch, wanted))
        )
        for _ in dataset.prefetch(2):
            pass

    small = [bytes(item.numpy()) for item in tf.data.TFRecordDataset(str(folder / "small.tfrecord"))]

    def write() -> None:
        with tf.io.TFRecordWriter(str(folder / "tensorflow.tfrecord")) as file:
            for record in small:
                file.write(record)

    def lists() -> None:
        for batch in tf.data.TFRecordDataset(str(folder / "small.tfrecord")).batch(200).prefetch(2):
            batch.numpy().tolist()

    return {
        "tf.io.parse_example": best(parse, records),
        "tf.data batch and parse": best(from_disk, records),
        "tf.data lists of small records": best(lists, records),
        "tf.io.TFRecordWriter small records": best(write, records),
    }


def small_records(folder: Path) -> list[bytes]:
    """Read the small records without shardio's help."""
    data = (folder / "small.tfrecord").read_bytes()
    place, found = 0, []
    while place < len(data):
        length = int.from_bytes(data[place : place + 8], "little")
        found.append(data[place + 12 : place + 12 + length])
        place += length + 16
    return found


def measure_bagz(folder: Path, records: int) -> dict[str, float]:
    """Read small records in batches from a bag, which verifies nothing."""
    import bagz  # type: ignore[import-not-found] # lives in the interpreter of the peers

    path = folder / "small.bagz"
    small = small_records(folder)

    def write() -> None:
        with bagz.Writer(path) as file:
            for record in small:
                file.write(record)

    written = best(write, records, 1)

    def lists() -> None:
        reader = bagz.Reader(path)
        for row in range(0, records, 200):
            reader.read_range(row, min(200, records - row))

    return {"bagz lists of small records": best(lists, records), "bagz write small records": written}


def measure_arrow(folder: Path, records: int) -> dict[str, float]:
    """Read small records in batches from a mapped Arrow file, which verifies nothing."""
    import pyarrow as pa

    path = str(folder / "small.arrow")
    small = small_records(folder)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, pa.schema([("r", pa.binary())])) as file:
        for row in range(0, records, 200):
            file.write(pa.record_batch([pa.array(small[row : row + 200], pa.binary())], names=["r"]))

    def lists() -> None:
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                reader.get_batch(number).column(0).to_pylist()

    return {"Arrow lists of small records": best(lists, records)}


PEERS = {"tensorflow": measure_tensorflow, "bagz": measure_bagz, "arrow": measure_arrow}


def main() -> None:
    """Measure shardio, then the peers on what shardio wrote."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--peers", help="an interpreter with tensorflow, bagz, pyarrow")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(PEERS[options.peer](options.folder, options.records)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = make(folder, options.records) | measure_shardio(folder, options.records)
        figures |= measure_lists(folder, options.records)
        for peer in PEERS if options.peers else ():
            command = [
                options.peers,
                __file__,
                "--peer",
                peer,
                "--folder",
                name,
                "--records",
                str(options.records),
            ]
            environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if done.returncode:
                print(
                    f"{peer} could not be measured: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr
                )
            else:
                figures |= json.loads(done.stdout.splitlines()[-1])
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for what, microseconds in figures.items():
        print(f"{what:42} {microseconds:9.3f} us/record {1000 / microseconds:11,.0f} k/s")


if __name__ == "__main__":
    main()
