"""What the main loops cost, in steps of the interpreter and in memory: a guard against slow growth.

The law: a record, a batch, a call or an opening takes at most so many of the interpreter's instructions, at
most so many bytes at its peak, and leaves nothing behind. No clock is asked, and one thread does all the
work, so that two runs give the same counts on a busy machine and on a quiet one. Compiled kernels count as
one step each; what they take is measured by `benchmarks/kernels.py`. A second law binds single calls: through
so many files, and between them so often, goes who follows one.

`python -m tests.test_counts` prints what is found now. The limits are a seventh above what Python 3.11
counts, of memory a quarter; other versions cut the same code into other instructions, and may take half as
many again. Where work is saved, the limits come down with it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import shardio
from shardio import codecs, kernels
from shardio.order import Budget, Identity, ShardSizes, Source, make_order, report
from shardio.storage import connect
from shardio_indexer import ScanOptions
from shardio_indexer._scan import scan_shard
from tests.suites.once import made_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARDIO = str(Path(shardio.__file__).parent)
ROWS = 4096
SCHEMA = {"x": "float32[16]", "label": "int64", "name": "bytes"}
PAYLOADS = [bytes([row % 256]) * (80 + row % 41) for row in range(ROWS)]


class Loop(NamedTuple):
    """A loop, how often it does what is counted, and what that may cost.

    Attributes:
        make: given a folder, makes the loop that is counted.
        units: records, batches or calls in it.
        steps: of the interpreter, for each unit.
        peak: bytes beyond those before it, for all of it.
    """

    make: Callable[[Path], Callable[[], object]]
    units: int
    steps: float
    peak: int


def exhaust(items: Any) -> None:
    for _ in items:
        pass


def bytes_dataset(url: Any, **options: Any) -> Any:
    with shardio.DatasetWriter(url, **options) as out:
        exhaust(map(out.write, PAYLOADS))
    return shardio.open(url)


def examples_dataset(url: Any) -> Any:
    with shardio.DatasetWriter(url, schema=SCHEMA) as out:
        for row in range(ROWS):
            out.write({"x": np.full(16, row, np.float32), "label": row, "name": b"wren"})
    return shardio.open(url)


def streamed(ds: Any) -> Callable[[], object]:
    def run() -> None:
        stream = shardio.stream(ds, global_batch=64, seed=0, num_threads=0)
        exhaust(stream)

    return run


def local_stream(folder: Path) -> Callable[[], object]:
    return streamed(bytes_dataset(folder / "ds"))


def zstd_stream(folder: Path) -> Callable[[], object]:
    return streamed(bytes_dataset(folder / "ds", compression="zstd"))


def bucket_stream(folder: Path) -> Callable[[], object]:
    """What is not mapped is fetched by ranges; the objects are in this process, so that no thread fetches."""
    return streamed(bytes_dataset(f"memory://counts/{folder.name}"))


def parted_stream(folder: Path) -> Callable[[], object]:
    """Records of 8 KB from a bucket, whose windows are freed in parts as they are delivered."""
    url = f"memory://counts/{folder.name}"
    with shardio.DatasetWriter(url) as out:
        exhaust(map(out.write, [bytes([row % 256]) * 8192 for row in range(1024)]))
    ds = shardio.open(url)
    plan = shardio.Plan(ranks=4, chunk_rows=64, interleave=2, window=64)
    return lambda: exhaust(shardio.stream(ds, global_batch=64, num_threads=0, plan=plan))


def many_shards(count: int) -> Any:
    """Return an order of so many shards of 16 records of 8 KB, as one reads them from a local disk."""
    rows = np.full(count, 16)
    sizes = ShardSizes(rows, rows * 8208, rows * 8192, rows // 8)
    return make_order([Source(sizes, Identity("", 1, "", ""))], global_batch=4096, budget=Budget(local=True))


def ordered(folder: Path) -> Callable[[], object]:
    del folder
    schedule = many_shards(50_000).schedule(0, 4096)
    return lambda: [schedule.batch(step) for step in range(64, 128)]


def planned(folder: Path) -> Callable[[], object]:
    del folder
    return lambda: report(many_shards(100_000), global_batch=4096, world_size=64, mapped=True)


def example_stream(folder: Path) -> Callable[[], object]:
    return streamed(examples_dataset(folder / "ds"))


def iteration(folder: Path) -> Callable[[], object]:
    ds = bytes_dataset(folder / "ds")
    return lambda: exhaust(ds)


def batches_of_bytes(folder: Path) -> Callable[[], object]:
    ds = bytes_dataset(folder / "ds")
    return lambda: exhaust(ds.iter_batches(256))


def lookups(folder: Path) -> Callable[[], object]:
    ds = bytes_dataset(folder / "ds")
    positions = np.random.default_rng(0).integers(0, ROWS, 512).tolist()
    return lambda: [ds[position] for position in positions]


def batched_lookups(folder: Path) -> Callable[[], object]:
    ds = bytes_dataset(folder / "ds")
    positions = np.random.default_rng(0).integers(0, ROWS, (16, 256)).tolist()
    return lambda: [ds.read(some) for some in positions]


def batches_of_examples(folder: Path) -> Callable[[], object]:
    ds = examples_dataset(folder / "ds")
    return lambda: exhaust(ds.iter_batches(256))


def single_examples(folder: Path) -> Callable[[], object]:
    del folder
    payload = codecs.encode_example({"x": np.zeros(16, np.float32), "label": 3, "name": b"wren"})
    return lambda: [codecs.decode_example(payload) for _ in range(512)]


def written(folder: Path) -> Callable[[], object]:
    def run() -> None:
        with shardio.DatasetWriter(folder / "ds", mode="overwrite", shard_bytes=1 << 30) as out:
            exhaust(map(out.write, PAYLOADS * 4))

    return run


def opened(folder: Path) -> Callable[[], object]:
    bytes_dataset(folder / "ds")
    return lambda: [shardio.open(folder / "ds")[7] for _ in range(8)]


def adopted(folder: Path) -> Callable[[], object]:
    (folder / "x.tfrecord").write_bytes(kernels.encode_frames(PAYLOADS * 16)[0])
    store = connect(folder)

    def run() -> None:
        scan_shard(store, "x.tfrecord", bytes(16), ScanOptions()).index.discard()

    return run


LOOPS = {
    "a batch of 64, streamed": Loop(local_stream, ROWS // 64, 1_400, 1_800_000),
    "a batch of 64, streamed from zstd": Loop(zstd_stream, ROWS // 64, 1_500, 2_400_000),
    "a batch of 64, streamed from a bucket": Loop(bucket_stream, ROWS // 64, 1_500, 1_800_000),
    "a batch of 64 of 8 KB, streamed from a bucket": Loop(parted_stream, 16, 10_800, 10_800_000),
    "a batch of 64 Examples, streamed": Loop(example_stream, ROWS // 64, 1_600, 1_900_000),
    "the order of a batch of 4,096": Loop(ordered, 64, 750, 8_500_000),
    "a plan of 100,000 shards": Loop(planned, 1, 158_000, 13_300_000),
    "a record, iterated": Loop(iteration, ROWS, 3.7, 730_000),
    "a batch of 256, iterated": Loop(batches_of_bytes, ROWS // 256, 139, 94_000),
    "a record, looked up": Loop(lookups, 512, 95, 200_000),
    "256 records, looked up": Loop(batched_lookups, 16, 420, 740_000),
    "a batch of 256 Examples": Loop(batches_of_examples, ROWS // 256, 1_400, 220_000),
    "an Example, decoded": Loop(single_examples, 512, 300, 460_000),
    "a record, written": Loop(written, 4 * ROWS, 43, 1_200_000),
    "an opening with its first record": Loop(opened, 8, 28_000, 100_000),
    "a shard of 65,536 records, adopted": Loop(adopted, 1, 38_500, 10_300_000),
}


class Walk(NamedTuple):
    """One call of a user, once it is warm, and how far a reader of the sources has to walk to follow it.

    Attributes:
        make: given a folder, makes what is called upon; twice before, so that nothing is imported late.
        call: what is counted, in functions of `shardio` alone.
        files: that it passes through.
        switches: from one file to another.
        calls: of Python functions.
        c_calls: of C functions.
    """

    make: Callable[[Path], Any]
    call: Callable[[Any], object]
    files: int
    switches: int
    calls: int
    c_calls: int


def stored(folder: Path, **options: Any) -> Path:
    if not (folder / "ds").exists():
        bytes_dataset(folder / "ds", **options)
    return folder / "ds"


def stored_zstd(folder: Path) -> Any:
    return shardio.open(stored(folder, compression="zstd"))


def reader(folder: Path) -> Any:
    return shardio.open(stored(folder))


def used_reader(folder: Path) -> Any:
    ds = reader(folder)
    ds.read([7, 8])
    return ds


def used_zstd(folder: Path) -> Any:
    ds = stored_zstd(folder)
    ds.read([7, 8])
    return ds


def begun_stream(folder: Path) -> Any:
    return iter(shardio.stream(reader(folder), global_batch=64, seed=0, num_threads=0))


def steady_stream(folder: Path) -> Any:
    batches = begun_stream(folder)
    for _ in range(3):
        next(batches)
    return batches


def first_of_iteration(ds: Any) -> object:
    return next(ds.iter_batches(64))


def looked_up(ds: Any) -> object:
    return ds[9]


def looked_up_together(ds: Any) -> object:
    return ds.read([4, 2, 9])


WALKS = {
    "open": Walk(stored, shardio.open, 23, 186, 350, 478),
    "the first lookup": Walk(reader, looked_up, 15, 67, 160, 162),
    "a later lookup": Walk(used_reader, looked_up, 3, 3, 3, 3),
    "a later lookup in zstd": Walk(used_zstd, looked_up, 4, 5, 11, 12),
    "a later read of three": Walk(used_reader, looked_up_together, 7, 11, 15, 19),
    "a later read of three in zstd": Walk(used_zstd, looked_up_together, 12, 33, 55, 55),
    "the first batch, iterated": Walk(reader, first_of_iteration, 17, 73, 168, 169),
    "the first batch, streamed": Walk(begun_stream, next, 41, 258, 644, 629),
    "a later batch, streamed": Walk(steady_stream, next, 4, 7, 22, 23),
    "verify": Walk(stored, shardio.verify, 29, 430, 886, 835),
}


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """What the collector finds is finished at no moment of its own choice."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_steps(run: Callable[[], object]) -> int:
    """Return how many instructions of the interpreter this thread takes."""
    steps = 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal steps
        del arg
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    with without_collector():
        sys.settrace(trace)
        try:
            run()
        finally:
            sys.settrace(before)
    return steps


def measure_memory(run: Callable[[], object]) -> tuple[int, int]:
    """Return the most bytes beyond those before, and how many memory blocks are left behind."""
    tracemalloc.start()
    try:
        with without_collector():
            begin = tracemalloc.get_traced_memory()[0]
            run()
            peak = tracemalloc.get_traced_memory()[1] - begin
    finally:
        tracemalloc.stop()
    return peak, min(_left_behind(run) for _ in range(3))


def _left_behind(run: Callable[[], object]) -> int:
    gc.collect()
    blocks = sys.getallocatedblocks()
    run()
    gc.collect()
    return sys.getallocatedblocks() - blocks


def measure(loop: Loop, folder: Path) -> tuple[float, int, int]:
    """Return steps for each unit, the peak, and the blocks left; after two runs that load what comes late."""
    run = loop.make(folder)
    run()
    run()
    return count_steps(run) / loop.units, *measure_memory(run)


def follow(walk: Walk, folder: Path) -> tuple[int, int, int, int]:
    """Return what this thread does in `shardio`: files, switches of file, Python calls and C calls."""
    for _ in range(2):
        walk.call(walk.make(folder))
    subject = walk.make(folder)
    places: list[str] = []
    c_calls = 0

    def count(frame: Any, event: str, arg: object) -> None:
        nonlocal c_calls
        del arg
        if frame.f_code.co_filename.startswith(SHARDIO):
            c_calls += event == "c_call"
            if event == "call":
                places.append(frame.f_code.co_filename)

    before = sys.getprofile()
    with without_collector():
        sys.setprofile(count)
        try:
            walk.call(subject)
        finally:
            sys.setprofile(before)
    switches = 1 + sum(place != last for last, place in itertools.pairwise(places))
    return len(set(places)), switches, len(places), c_calls


@pytest.mark.skipif(
    kernels.IMPLEMENTATION != "compiled" or bool(kernels.MISSING), reason="the reference kernels are Python"
)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_costs_no_more_than_it_did(name, found) -> None:
    loop = LOOPS[name]
    steps, peak, left = found[name]
    advice = "make it cheap again, or raise the limit and say why in docs/design/performance-log.md"
    limit = loop.steps * (1 if sys.version_info[:2] == (3, 11) else 1.5)
    assert steps <= limit, f"{name}: {steps:,.1f} steps, at most {limit:,.1f} before; {advice}"
    assert peak <= loop.peak, f"{name}: {peak:,} bytes at its peak, at most {loop.peak:,} before; {advice}"
    assert left <= 100, f"{name}: {left} blocks of memory are left behind"


@pytest.mark.skipif(
    kernels.IMPLEMENTATION != "compiled" or bool(kernels.MISSING), reason="the reference kernels are Python"
)
@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_no_longer_than_it_was(name, found) -> None:
    slack = 1 if sys.version_info[:2] == (3, 11) else 1.2
    for what, limit, count in zip(Walk._fields[2:], WALKS[name][2:], found[name], strict=True):
        assert count <= limit * slack, f"{name}: {count} {what}, at most {limit * slack:.0f} before"


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, tuple[float, ...]]:
    """In a process of its own: threads and caches of other tests would count."""

    def count() -> dict[str, list[float]]:
        command = [sys.executable, "-m", "tests.test_counts", "--json"]
        root = Path(__file__).parents[1]
        out = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        return json.loads(out)

    return {name: tuple(values) for name, values in made_once(tmp_path_factory, "counts", count).items()}


def main() -> None:
    """Print what is found now."""
    loops, walks = {}, {}
    for name, loop in LOOPS.items():
        with tempfile.TemporaryDirectory() as folder:
            loops[name] = measure(loop, Path(folder))
    for name, walk in WALKS.items():
        with tempfile.TemporaryDirectory() as folder:
            walks[name] = follow(walk, Path(folder))
    if "--json" in sys.argv:
        print(json.dumps({**loops, **walks}))
        return
    for name, (files, switches, calls, c_calls) in walks.items():
        print(f"{name:40} {files:4} files  {switches:4} switches  {calls:4} calls  {c_calls:4} C calls")
    for name, (steps, peak, left) in loops.items():
        print(f"{name:40} {steps:12,.2f} steps  {peak:12,} bytes  {left:4} blocks left")


if __name__ == "__main__":
    main()
