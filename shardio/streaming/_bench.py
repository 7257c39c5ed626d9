"""How fast a dataset is read here: records without checks, with them, decoded, as batches, and by position.

"read", "verify" and "decode" do what the stage before does and something more, over the same records and
in the caller's thread, so differences of their times are the times of what is added. The first pass warms
the caches and is a stage of its own.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from shardio.arguments import checked_options
from shardio.reader import DatasetReader
from shardio.redact import redact
from shardio.reports import Report
from shardio.streaming._stream import Stream, stream

_ROWS = 1024
# Of records that are read at once, as far as their average tells: pixels are ten times as many.
_BYTES = 16 << 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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
    rows = max(1, min(_ROWS, _BYTES * int(table.rows.sum()) // max(1, int(table.decoded_bytes.sum()))))
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
