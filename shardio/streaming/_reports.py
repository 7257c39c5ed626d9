"""Reports about a stream: the records of a step, and estimates of a run."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import checked_options
from shardio.order import Mixing, Plan, ShardSizes, audit as audit_order, measured_mixing
from shardio.reader import DatasetReader
from shardio.redact import redact
from shardio.reports import Report
from shardio.streaming._components import Component, Mix, components_of
from shardio.streaming._options import TUNING
from shardio.streaming._plans import advice, mixing_advice, open_bytes
from shardio.streaming._stream import Stream, stream

_AHEAD = 6  # steps or windows for which a process fetches before it needs them

_READ_ROWS = 1024
# Of records that are read at once, as far as their average tells: pixels are ten times as many.
_READ_BYTES = 16 << 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class AuditedRecord(NamedTuple):
    """One record of a step.

    Attributes:
        source: number of its dataset in the mixture; 0 without one.
        position: in its dataset, as the stream was given it: `ds[position]` is the record.
        shard: key of its shard.
        row: within the shard.
        valid: False where `remainder="pad"` filled the step up.
        url: of the shard's file, which for adopted shards may be outside of the dataset's folder.
    """

    source: int
    position: int
    shard: str
    row: int
    valid: bool
    url: str


@checked_options
def audit(
    ds: DatasetReader | Mix, state: Mapping[str, Any], step: int, *, rank: int = 0, world_size: int = 1
) -> list[AuditedRecord]:
    """Return which records a rank got, or will get, in a step of the state's epoch, in order.

    Reads no shard. Earlier steps went through the batches of the state; later ones continue with its last.

    Raises:
        ResumeError: the state is damaged or belongs to another dataset.
        IndexError: the epoch has no such step.
    """
    components = components_of(ds)
    sources = [component.order for component in components]
    batch = audit_order(state, sources, step, rank=rank, world_size=world_size)
    records = []
    rows = zip(batch.sources.tolist(), batch.positions.tolist(), batch.valid.tolist(), strict=True)
    for number, local, valid in rows:
        component = components[number]
        source = component.source
        shard, row = source.shard_of(component.position(local))
        where = (source.table.key[shard], row, valid, source.pool.url_of(shard))
        records.append(AuditedRecord(number, local, *where))
    return records


@dataclass(frozen=True)
class PlanReport(Report):
    """Estimates of an epoch for given ranks and workers; bytes are stored bytes if not said otherwise.

    Counts of records and steps are exact, mixing is measured, requests are within a fifth of what is sent.

    Attributes:
        records, steps: of the epoch.
        requests: for data, of all processes; 0 for local files. Parts of the index take as many again at
            most.
        epoch_bytes: of the records.
        fetched_bytes: what all processes fetch. It is more than `epoch_bytes` where several fetch a chunk,
            and where blocks are on both sides of a seam between chunks.
        memory_bytes: decoded bytes of the open chunks of one process and of what it fetches ahead, a bound.
        scratch_bytes: decoded bytes of open chunks that one process keeps on a local disk.
        scratch: the folder of the file with these; None if open chunks stay in memory.
        shuffle_radius: records among which a record is shuffled.
        mixing: how batches compare with random ones, in the whole job.
        rank_mixing: the same for the batches of rank 0.
    """

    records: int
    steps: int
    requests: int
    epoch_bytes: int
    fetched_bytes: int
    memory_bytes: int
    scratch_bytes: int
    scratch: str | None
    shuffle_radius: int
    mixing: Mixing
    rank_mixing: Mixing


def plan_report(
    ds: DatasetReader | Mix, *, global_batch: int, world_size: int = 1, workers: int = 0, **options: Any
) -> tuple[PlanReport, list[str]]:
    """Return estimates of an epoch for given ranks and loader workers, and what is worth a warning.

    Args:
        ds: from `shardio.open`, a part of it, or `shardio.mix`.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank; 0 for threads.
        options: further options of `stream` that decide the order: `shuffle`, `seed`, `remainder`, `plan`,
            `memory_bytes`, `scratch`, `mixing`.
    """
    made = stream(ds, global_batch=global_batch, world_size=world_size, **options)
    order, resources = made.order, made.resources
    urls = [component.order.identity.url or component.source.url for component in made.components]
    shuffled = [component.is_shuffled for component in made.components]
    mixing = mixing_advice(order, resources, urls, shuffled=shuffled, parts=world_size)
    others = advice(order, resources, global_batch=global_batch, world_size=world_size, workers=workers)
    return _estimate(made, world_size, workers), [*others, *([] if mixing is None else [mixing])]


def _estimate(made: Stream, world_size: int, workers: int) -> PlanReport:
    order, global_batch = made.order, made.global_batch
    schedule = order.schedule(0, global_batch)
    sizes = [_selected_sizes(component) for component in made.components]
    is_local = all(component.source.is_local for component in made.components)
    shares = [1.0] if order.mixture is None else [n / order.mixture.period for n in order.mixture.counts]
    passes = [
        schedule.rows * share / max(1, each.total_rows) for each, share in zip(sizes, shares, strict=True)
    ]
    epoch_bytes = sum(times * each.total_stored_bytes for times, each in zip(passes, sizes, strict=True))
    copies = order.readers_per_window(global_batch, world_size, workers)
    place = {"global_batch": global_batch, "world_size": world_size, "workers": workers}
    windows = order.open_windows(global_batch)
    requests, fetched = 0.0, copies * epoch_bytes
    if not is_local:
        if sum(each.total_decoded_bytes for each in sizes) > TUNING.first_bytes:
            # The first batch waits for its records alone.
            requests = min(global_batch, sum(each.total_blocks for each in sizes))
        fetched += requests * max(each.block_stored_bytes for each in sizes)
        for times, plan, each in zip(passes, order.plans, sizes, strict=True):
            own = copies * times * _requests(plan, each, world_size * max(1, workers))
            # Of n rows in a block, n - 1 ends are not the block's: a seam there has the block fetched twice.
            seams = max(0.0, own - len(each)) * max(0.0, 1 - each.total_blocks / max(1, each.total_rows))
            requests, fetched = requests + own, fetched + seams * each.block_stored_bytes
    held = open_bytes(order, made.row_bytes, **place)
    decoded = [each.row_decoded_bytes for each in sizes]
    step_bytes = min(global_batch, schedule.rows) / world_size * max(decoded)
    largest = max(step_bytes, *(each.rows * row for each, row in zip(windows, made.row_bytes, strict=True)))
    memory = math.ceil(held + _AHEAD * largest)
    if order.mixture is None:
        # Nothing is held twice, so windows that are the whole dataset leave nothing to fetch ahead.
        memory = min(memory, max(held, sizes[0].total_decoded_bytes))
    kept = [0.0 if each.source.is_local else row for each, row in zip(made.components, decoded, strict=True)]
    mixing, rank_mixing = measured_mixing(order, schedule, world_size)
    return PlanReport(
        records=schedule.rows,
        steps=schedule.stop,
        requests=round(requests),
        epoch_bytes=round(epoch_bytes),
        fetched_bytes=round(fetched),
        memory_bytes=memory,
        scratch_bytes=0 if made.scratch is None else open_bytes(order, kept, **place),
        scratch=made.scratch,
        shuffle_radius=min(schedule.rows, sum(plan.open_windows * plan.window for plan in order.plans)),
        mixing=mixing,
        rank_mixing=rank_mixing,
    )


def _requests(plan: Plan, sizes: ShardSizes, processes: int) -> float:
    """Estimate the requests of one pass over a dataset in a bucket.

    Args:
        plan, sizes: of the dataset.
        processes: that read it.
    """
    rows, shards, stored = max(1, sizes.total_rows), len(sizes), sizes.total_stored_bytes
    chunks = -(-rows // plan.chunk_rows)
    if chunks == 1:
        # All is opened at once, by calls that read what lies side by side.
        return max(math.ceil(stored / TUNING.task_bytes), processes) + shards - 1
    # A strand begins inside of a window, and most of its ends come with the beginning of the next one.
    windows = chunks * -(-plan.chunk_rows // plan.window) + round(plan.open_windows * (1 - 1 / plan.window))
    if 3 * plan.open_windows * plan.window >= 2 * rows:
        # Windows of one chunk come by one request.
        windows = min(windows, max(math.ceil(stored / TUNING.run_bytes), chunks))
    return min(rows, windows + shards)


def _selected_sizes(component: Component) -> ShardSizes:
    """Return the sizes of what is read of a dataset: of a selection the blocks that hold its records.

    Its records are taken to be anywhere.
    """
    sizes, live = component.order.sizes, len(component.source)
    if component.is_slice or not sizes.total_rows:
        return sizes
    chosen = sizes.total_rows / live
    touched = 1 - (1 - chosen) ** max(1.0, live / max(1, sizes.total_blocks))
    return ShardSizes(
        sizes.rows,
        _scaled(sizes.stored_bytes, touched),
        _scaled(sizes.decoded_bytes, chosen),
        np.maximum(_scaled(sizes.blocks, touched), np.asarray(sizes.rows) > 0),
    )


def _scaled(column: ArrayLike, share: float) -> NDArray[np.int64]:
    return np.ceil(np.asarray(column) * share).astype(np.int64)


# "read", "verify" and "decode" do what the stage before does and something more, over the same records and in
# the caller's thread, so differences of their times are the times of what is added. The first pass warms the
# caches and is a stage of its own.


@dataclass(frozen=True)
class BenchStage(Report):
    """One way of reading.

    Attributes:
        name: "first" is the first pass over the records, with checks. "read" reads without checks, "verify"
            with them, and "decode" decodes too. Then "batch" is a shuffled stream in the caller's thread, and
            "stream" the same by threads. In "lookup", records are read at positions without an order.
        records, record_bytes: read; bytes before decoding, after "verify" by the mean of the sample.
        seconds: that it took.
    """

    _computed: ClassVar[tuple[str, ...]] = ("records_per_second", "bytes_per_second")

    name: str
    records: int
    record_bytes: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        """Records in a second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes of records in a second."""
        return self.record_bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class BenchReport(Report):
    """How fast a dataset is read on this machine.

    Attributes:
        url, version, digest, split: what was read.
        records: of the split.
        sample: records that the stages in order were measured on.
        global_batch, num_threads: of the streams.
        stages: in the order in which they ran.
    """

    _computed: ClassVar[tuple[str, ...]] = ("microseconds",)

    url: str
    version: int
    digest: str
    split: str
    records: int
    sample: int
    global_batch: int
    num_threads: int
    stages: tuple[BenchStage, ...]

    #: What each stage adds to the one before it.
    STEPS: ClassVar[tuple[tuple[str, str, str | None], ...]] = (
        ("reading", "read", None),
        ("verifying", "verify", "read"),
        ("decoding", "decode", "verify"),
        ("batching", "batch", "decode"),
    )

    def stage(self, name: str) -> BenchStage:
        """Return the stage of a name; KeyError if there is none."""
        return {each.name: each for each in self.stages}[name]

    @property
    def microseconds(self) -> dict[str, float]:
        """What reading, verifying, decoding and batching cost a record, in microseconds of one thread.

        A step that took no longer than the one before it costs 0: measurements vary.
        """
        cost = {each.name: 1e6 * each.seconds / max(1, each.records) for each in self.stages}
        return {
            name: max(0.0, cost[stage] - (cost[before] if before else 0.0))
            for name, stage, before in self.STEPS
        }


@checked_options
def bench(
    ds: DatasetReader, *, global_batch: int = 256, seconds: float = 10.0, num_threads: int = 2
) -> BenchReport:
    """Measure how fast a dataset is read on this machine, and where the time goes.

    Of a large dataset the first records are read, as many as the time allows; a shuffled stream and lookups
    read from anywhere. What the machine's page cache holds is fast: the first pass tells whether it did.

    Args:
        ds: a dataset, with `decode=` and `features=` as training will have them.
        global_batch: records of a batch.
        seconds: for all stages together, about. The batch under way is finished.
        num_threads: of the stream that is measured with threads.

    Returns:
        A `BenchReport`.

    Raises:
        ValueError: the dataset is empty, or an option makes no sense.
        CorruptBlockError, FormatError, StorageError: with the address of what cannot be read.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> ds = shardio.from_generator(({"n": n} for n in range(1000)), url)
        >>> report = shardio.bench(ds, global_batch=100, seconds=0.5)
        >>> report.sample, [stage.name for stage in report.stages]
        (1000, ['first', 'read', 'verify', 'decode', 'batch', 'stream', 'lookup'])
    """
    if not seconds > 0:
        raise ValueError(f"seconds={seconds!r} must be greater than 0")
    if not len(ds):
        raise ValueError(
            f"{redact(ds.source.url)} has no records in split {ds.split!r}: there is nothing to measure"
        )
    share = seconds / 7
    payloads, unchecked = _variant(ds, verify=True), _variant(ds, verify=False)
    batch = min(global_batch, len(ds))
    table = ds.source.table
    rows = max(
        1, min(_READ_ROWS, _READ_BYTES * int(table.rows.sum()) // max(1, int(table.decoded_bytes.sum())))
    )
    first = _timed("first", _sizes(payloads, rows), share)
    sample = first.records
    mean = first.record_bytes / first.records
    stages = [
        first,
        _timed("read", _sizes(unchecked[:sample], rows), share),
        _timed("verify", _sizes(payloads[:sample], rows), share),
        _timed("decode", _counted(ds[:sample].iter_batches(rows), mean), share),
    ]
    for name, threads in (("batch", 0), ("stream", num_threads)):
        made = stream(ds, global_batch=batch, seed=0, num_threads=threads)
        stages.append(_timed(name, _batches(made, batch, mean), share))
    stages.append(_timed("lookup", _lookups(ds, batch, mean), share))
    return BenchReport(
        ds.source.url, ds.version, ds.digest, ds.split, len(ds), sample, batch, num_threads, tuple(stages)
    )


def _variant(ds: DatasetReader, *, verify: bool) -> DatasetReader:
    """Return a reader of the same open shards whose records are bytes."""
    source = copy.copy(ds.source)
    source.options = replace(source.options, decode=False, features=None, verify=verify)
    source.__dict__.pop("codec", None)
    return type(ds)(source, ds.selection)


def _sizes(ds: DatasetReader, rows: int) -> Generator[tuple[int, float]]:
    for payloads in ds.iter_batches(rows):
        yield len(payloads), sum(map(len, payloads))


def _counted(batches: Iterable[Any], mean: float) -> Generator[tuple[int, float]]:
    for batch in batches:
        rows = _rows(batch)
        yield rows, rows * mean


def _rows(batch: Any) -> int:
    """Return the records of a batch: those of sequence examples are columns two dicts deep."""
    while isinstance(batch, dict):
        batch = next(each for each in batch.values() if not isinstance(each, dict) or each)
    return len(batch)


def _batches(made: Stream, batch: int, mean: float) -> Generator[tuple[int, float]]:
    # A first batch that waits for its windows is part of what it measures.
    with contextlib.closing(iter(made)) as batches:
        for _ in batches:
            yield batch, batch * mean


def _lookups(ds: DatasetReader, batch: int, mean: float) -> Generator[tuple[int, float]]:
    # Multiples of the golden ratio spread evenly, and no two near each other follow.
    for start in range(0, len(ds), batch):
        numbers = np.arange(start, start + batch, dtype=np.uint64) * _GOLDEN >> np.uint64(11)
        ds.read_batch((numbers % np.uint64(len(ds))).astype(np.int64))
        yield batch, batch * mean


def _timed(name: str, work: Generator[tuple[int, float]], seconds: float) -> BenchStage:
    """Do work until it or the time is over."""
    records, size = 0, 0.0
    began = time.perf_counter()
    for rows, held in work:
        records += rows
        size += held
        if time.perf_counter() - began >= seconds:
            break
    passed = time.perf_counter() - began
    work.close()
    return BenchStage(name, records, round(size), passed)
