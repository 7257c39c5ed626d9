"""tf.train.Example and small records through shardio's public functions, against what users would do instead.

    python benchmarks/examples.py --peers PEERS/bin/python [--rounds 7] [--only small Arrow]

PEERS is an environment with `tensorflow-cpu bagz pyarrow`.  The records are Examples of five features: int64,
float[16], 200 bytes, int64[8] and a label of bytes; the small ones are 100 to 500 random bytes.  shardio and
its peers are one process each; in every round each contestant runs once, one at a time, so that what else a
machine does falls on all of them.  Figures are medians of microseconds per record; compare within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardio.kernels._features import Kind

BATCH = 1024
LIST = 200
SOME = 20_000  # records of the contestants that take long
SCHEMA = {"blob": "bytes", "id": "int64", "label": "bytes", "tokens": "int64[8]", "vector": "float32[16]"}
KINDS: dict[str, tuple[Kind, int]] = {
    "blob": ("bytes", 1),
    "id": ("int64", 1),
    "label": ("bytes", 1),
    "tokens": ("int64", 8),
    "vector": ("float", 16),
}


def values(number: int) -> Iterator[dict[str, Any]]:
    """Yield the values of the records."""
    import numpy as np

    random = np.random.default_rng(0)
    for row in range(number):
        yield {
            "blob": random.bytes(200),
            "id": row,
            "label": b"label %d" % (row % 1000),
            "tokens": random.integers(0, 50_000, 8),
            "vector": random.random(16, dtype=np.float32),
        }


def small_records(number: int) -> list[bytes]:
    """Return records of 100 to 500 bytes, the same in every process."""
    import random

    source = random.Random(0)
    return [source.randbytes(source.randrange(100, 501)) for _ in range(number)]


def shard(root: Path, name: str) -> str:
    """Return the only shard of a dataset."""
    (path,) = (root / name / "data").glob("*.tfrecord")
    return str(path)


# ------------------------------------------------------------------------------------------------ contestants
# Each is made once in its process, and then run by rounds; the pair is records per run, and the run.

Contestant = tuple[int, "Callable[[], object]"]


def make_shardio(root: Path, records: int) -> dict[str, Contestant]:
    """Write the data that all read, and return what shardio does with it."""
    import shardio

    with shardio.DatasetWriter(root / "examples", schema=SCHEMA, shard_bytes=1 << 40) as out:
        for value in values(records):
            out.write(value)
    small = small_records(records)
    with shardio.DatasetWriter(root / "small", shard_bytes=1 << 40) as out:
        for record in small:
            out.write(record)
    return _parsing(root, records) | _reading(root, records) | _encoding() | _small(root, records, small)


def _parsing(root: Path, records: int) -> dict[str, Contestant]:
    import numpy as np

    import shardio
    from shardio import codecs, kernels
    from shardio.v1 import example_pb2

    payloads = list(shardio.open(root / "examples", decode=False))
    buffer = b"".join(payloads)
    stops = np.cumsum([len(payload) for payload in payloads])
    starts = stops - [len(payload) for payload in payloads]
    dtypes = {"bytes": "bytes", "int64": "int64", "float": "float32"}
    described = {
        name: codecs.FixedLen(() if count == 1 else (count,), dtypes[kind])
        for name, (kind, count) in KINDS.items()
    }
    wanted: Any = [
        kernels.FeatureRequest(name.encode(), *rest, required=True) for name, rest in KINDS.items()
    ]
    codec = codecs.record_codec(SCHEMA)

    def in_place() -> None:
        for row in range(0, records, BATCH):
            part = slice(row, min(row + BATCH, records))
            kernels.parse_examples(kernels.Records(buffer, starts[part], stops[part]), wanted)

    def lists(parse: Callable[..., Any], *rest: Any) -> None:
        for row in range(0, records, BATCH):
            parse(payloads[row : row + BATCH], *rest)

    def protobuf_to_numpy() -> None:
        for payload in payloads[:SOME]:
            feature = example_pb2.Example.FromString(payload).features.feature
            np.array(feature["id"].int64_list.value, np.int64)
            np.array(feature["vector"].float_list.value, np.float32)
            np.array(feature["tokens"].int64_list.value, np.int64)
            _ = feature["blob"].bytes_list.value[0], feature["label"].bytes_list.value[0]

    return {
        "parse in place": (records, in_place),
        "parse_examples of lists": (records, lambda: lists(codecs.parse_examples, described)),
        "decode_batch of lists": (records, lambda: lists(codec.decode_batch)),
        "parse, protobuf to NumPy": (min(SOME, records), protobuf_to_numpy),
    }


def _reading(root: Path, records: int) -> dict[str, Contestant]:
    import numpy as np

    import shardio

    def stream(threads: int) -> None:
        examples = shardio.open(root / "examples")
        for _ in shardio.stream(
            examples, global_batch=BATCH, shuffle=False, remainder="keep", num_threads=threads
        ):
            pass

    def read_batches() -> None:
        examples = shardio.open(root / "examples")
        for row in range(0, records, BATCH):
            examples.read_batch(np.arange(row, min(row + BATCH, records)))

    def batches() -> None:
        for _ in shardio.open(root / "examples").iter_batches(BATCH):
            pass

    return {
        "disk: iter_batches": (records, batches),
        "disk: stream, no thread": (records, lambda: stream(0)),
        "disk: stream, 2 threads": (records, lambda: stream(2)),
        "disk: read_batch": (records, read_batches),
    }


def _encoding() -> dict[str, Contestant]:
    from shardio import codecs
    from shardio.v1 import example_pb2

    codec = codecs.record_codec(SCHEMA)
    few = list(values(SOME))

    def protobuf_messages() -> None:
        for value in few:
            example = example_pb2.Example()
            feature = example.features.feature
            feature["id"].int64_list.value.append(value["id"])
            feature["vector"].float_list.value.extend(value["vector"])
            feature["blob"].bytes_list.value.append(value["blob"])
            feature["tokens"].int64_list.value.extend(value["tokens"])
            feature["label"].bytes_list.value.append(value["label"])
            example.SerializeToString()

    return {
        "encode by the schema": (SOME, lambda: [codec.encode(value) for value in few]),
        "encode_example": (SOME, lambda: [codecs.encode_example(value) for value in few]),
        "encode, protobuf messages": (SOME, protobuf_messages),
    }


def _small(root: Path, records: int, small: list[bytes]) -> dict[str, Contestant]:
    import numpy as np

    import shardio

    def stream(threads: int) -> None:
        ds = shardio.open(root / "small")
        for _ in shardio.stream(ds, global_batch=LIST, shuffle=False, remainder="keep", num_threads=threads):
            pass

    def batches() -> None:
        for _ in shardio.open(root / "small").iter_batches(LIST):
            pass

    def lists() -> None:
        ds = shardio.open(root / "small")
        for row in range(0, records, LIST):
            ds.read(np.arange(row, min(row + LIST, records)))

    def one_by_one() -> None:
        for _ in shardio.open(root / "small"):
            pass

    def write() -> None:
        shutil.rmtree(root / "written", ignore_errors=True)
        with shardio.DatasetWriter(root / "written", shard_bytes=1 << 40) as out:
            add = out.write
            for record in small:
                add(record)

    return {
        "small: iter_batches": (records, batches),
        "small: stream, no thread": (records, lambda: stream(0)),
        "small: one by one": (records, one_by_one),
        "small: read lists": (records, lists),
        "write small": (records, write),
    }


def make_peers(root: Path, records: int) -> dict[str, Contestant]:
    """Return what others do with the same data; those that are not installed are left out."""
    small = small_records(records)
    made: dict[str, Contestant] = {}
    for add in (_tensorflow, _bagz, _arrow):
        try:
            made |= add(root, records, small)
        except ImportError as error:
            print(f"not measured: {error}", file=sys.stderr)
    return made


def _tensorflow(root: Path, records: int, small: list[bytes]) -> dict[str, Contestant]:
    import tensorflow as tf

    path = shard(root, "examples")
    dtypes = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
    wanted = {
        name: tf.io.FixedLenFeature([] if count == 1 else [count], dtypes[kind])
        for name, (kind, count) in KINDS.items()
    }
    batches = list(tf.data.TFRecordDataset(path).batch(BATCH))
    parse = tf.function(lambda batch: tf.io.parse_example(batch, wanted))
    parse(batches[0])

    def parse_all() -> None:
        for batch in batches:
            parse(batch)

    def from_disk() -> None:
        dataset = tf.data.TFRecordDataset(path).batch(BATCH)
        dataset = dataset.map(lambda batch: tf.io.parse_example(batch, wanted)).prefetch(2)
        for _ in dataset:
            pass

    def lists() -> None:
        for batch in tf.data.TFRecordDataset(shard(root, "small")).batch(LIST).prefetch(2):
            batch.numpy().tolist()

    def write() -> None:
        with tf.io.TFRecordWriter(str(root / "tensorflow.tfrecord")) as file:
            for record in small:
                file.write(record)

    return {
        "tf.io.parse_example": (records, parse_all),
        "tf.data batch and parse": (records, from_disk),
        "tf.data lists": (records, lists),
        "tf.io.TFRecordWriter": (records, write),
    }


def _bagz(root: Path, records: int, small: list[bytes]) -> dict[str, Contestant]:
    import bagz  # type: ignore[import-not-found] # lives in the interpreter of the peers

    path = root / "small.bagz"
    with bagz.Writer(path) as file:
        for record in small:
            file.write(record)

    def lists() -> None:
        reader = bagz.Reader(path)
        for row in range(0, records, LIST):
            reader.read_range(row, min(LIST, records - row))

    return {"bagz lists, not verified": (records, lists)}


def _arrow(root: Path, records: int, small: list[bytes]) -> dict[str, Contestant]:
    import pyarrow as pa

    path = str(root / "small.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, pa.schema([("r", pa.binary())])) as file:
        for row in range(0, records, LIST):
            file.write(pa.record_batch([pa.array(small[row : row + LIST], pa.binary())], names=["r"]))

    def lists() -> None:
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                reader.get_batch(number).column(0).to_pylist()

    return {"Arrow lists, not verified": (records, lists)}


# Rows of the table in .build/bench/results.md: what is done, by whom of ours; the peer's name there and
# here; how many times as fast it has to be.
CLAIMS = (
    ("parse a batch in place, `kernels.parse_examples`", "parse in place", "`tf.io.parse_example`", "", 4.0),
    ("the same", "parse in place", "protobuf to NumPy", "parse, protobuf to NumPy", 50.0),
    (
        "parse a list of `bytes` to columns with `bytes` objects, `codecs.parse_examples`",
        "parse_examples of lists",
        "`tf.io.parse_example`",
        "",
        None,
    ),
    (
        "read, verify and parse from disk, `iter_batches`",
        "disk: iter_batches",
        "`tf.data` batch and parse",
        "",
        3.0,
    ),
    (
        "`shardio.stream(shuffle=False)` without threads",
        "disk: stream, no thread",
        "`tf.data` batch and parse",
        "",
        3.0,
    ),
    ("the same with two threads", "disk: stream, 2 threads", "`tf.data` batch and parse", "", 3.0),
    ("`read_batch` of consecutive positions", "disk: read_batch", "`tf.data` batch and parse", "", 3.0),
    ("encode by a schema", "encode by the schema", "protobuf messages", "encode, protobuf messages", 3.0),
    ("`codecs.encode_example`", "encode_example", "protobuf messages", "encode, protobuf messages", 3.0),
    *(
        (row, who, whom, "", wanted)
        for row, who, least in (
            ("small records, verified, `iter_batches` of 200", "small: iter_batches", 1.2),
            ("small records, verified, iterated one by one", "small: one by one", None),
            (
                "small records, verified, `stream` in lists of 200, without threads",
                "small: stream, no thread",
                None,
            ),
            ("small records, verified, `read` of 200 positions", "small: read lists", None),
        )
        for whom, wanted in (
            ("bagz lists, not verified", least),
            ("Arrow lists, not verified", least),
            ("`tf.data` lists", None),
        )
    ),
    ("write small records, `DatasetWriter`", "write small", "`TFRecordWriter`", "tf.io.TFRecordWriter", 1.5),
)


# ------------------------------------------------------------------------------------------------ around them


def serve(side: str, root: Path, records: int) -> None:
    """Be one process: say who is here, then run whoever is named on a line, and say how long it took."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    made = {"shardio": make_shardio, "peers": make_peers}[side](root, records)
    print(json.dumps(list(made)), file=answers)
    for line in sys.stdin:
        number, run = made[line.strip()]
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        taken = (time.perf_counter() - wall, time.process_time() - cpu)
        print(json.dumps([seconds / number * 1e6 for seconds in taken]), file=answers)


class Side:
    """A process of contestants."""

    def __init__(self, python: str, side: str, root: Path, records: int) -> None:
        command = [python, __file__, "--serve", side, "--root", str(root), "--records", str(records)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        self.names: list[str] = self._answer()

    def run(self, name: str) -> list[float]:
        """Run one contestant; return wall and processor time, in microseconds per record."""
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        answer: list[float] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a process of contestants has ended; what it said is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(peers: str | None, records: int, rounds: int, only: list[str] | None) -> dict[str, list[float]]:
    """Return the median wall and processor time of each contestant, in microseconds per record."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sides = [Side(sys.executable, "shardio", root, records)]
        if peers:
            sides.append(Side(peers, "peers", root, records))
        taken: dict[str, list[list[float]]] = {}
        for number in range(rounds):
            for side in sides:
                for name in side.names:
                    if only and not any(part in name for part in only):
                        continue
                    taken.setdefault(name, []).append(side.run(name))
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for side in sides:
            side.close()
    return {
        name: [statistics.median(kind) for kind in zip(*runs, strict=True)] for name, runs in taken.items()
    }


def main() -> None:
    """Measure and print, or be one of the processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", help="an interpreter with tensorflow, bagz, pyarrow")
    parser.add_argument("--only", nargs="*", metavar="TEXT", help="contestants whose names hold one of these")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=("shardio", "peers"), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.root, options.records)
        return
    medians = measure(options.peers, options.records, options.rounds, options.only)
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    print("microseconds per record, median  cpu     wall")
    for name, (wall, cpu) in medians.items():
        print(f"{name:32}{cpu:8.3f} {wall:8.3f}")
    print("\n| work | shardio | peer | ratio of processor time | of wall time | wanted |")
    print("|---|---|---|---|---|---|")
    for row, who, peer, name, wanted in CLAIMS:
        whom = name or peer.replace("`", "")
        if who in medians and whom in medians:
            (wall, cpu), (their_wall, their_cpu) = medians[who], medians[whom]
            found = f"{their_cpu / cpu:.2f} | {their_wall / wall:.2f} | {wanted or ''}"
            print(f"| {row} | {cpu:.3f} | {peer} {their_cpu:.3f} | {found} |")


if __name__ == "__main__":
    main()
