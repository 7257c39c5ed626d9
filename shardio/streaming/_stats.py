"""What a stream has done, for people and dashboards: rates, time waited, and where the time went.

Threads add up their seconds, and worker processes send theirs along with each batch, so the figures are those
of all of them together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple

from shardio.reports import Report
from shardio.streaming._components import Component

_KEEPS_UP = 0.05  # share of waiting below which there is nothing to be won
_BUSY = ("fetch_seconds", "decode_seconds", "transform_seconds")


@dataclass(frozen=True, kw_only=True)
class LoaderStats(Report):
    """Statistics of a time span.

    Attributes:
        seconds: from the beginning of the span until now, or until the pass ended.
        steps, records: delivered.
        records_dropped: skipped because a transform returned None, with `drop_none=True`; includes prefetched
            batches.
        record_bytes: of the records that were built, before decoding, from wherever they came.
        bytes_read: read from files and buckets, without memory-mapped files.
        requests, retries: sent to object stores, and how many of them were retries.
        cache_hits: blocks found in the cache on local disk.
        wait_seconds: that the consumer waited for batches.
        fetch_seconds, decode_seconds, transform_seconds: spent in reading and checking windows, in decoding
            records, and in functions of the caller's with what collates; summed over threads and processes.
    """

    _computed: ClassVar[tuple[str, ...]] = ("records_per_second", "wait_share")

    seconds: float = 0.0
    steps: int = 0
    records: int = 0
    records_dropped: int = 0
    record_bytes: int = 0
    bytes_read: int = 0
    requests: int = 0
    retries: int = 0
    cache_hits: int = 0
    wait_seconds: float = 0.0
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    transform_seconds: float = 0.0

    @property
    def records_per_second(self) -> float:
        """Records delivered in a second of the span."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the span that the consumer waited for batches, 0 to 1."""
        return min(1.0, self.wait_seconds / self.seconds) if self.seconds else 0.0

    @property
    def advice(self) -> str:
        """One line: whether the loader or the model is the bottleneck, and which option to change."""
        if not self.steps:
            return "no batch was delivered yet"
        said = f"{self.wait_share:.0%} of the time was spent waiting for data"
        if self.wait_share < _KEEPS_UP:
            return f"{said}: the loader keeps up, the model is the bottleneck"
        slowest = max(_BUSY, key=lambda name: float(getattr(self, name)))
        knob = {
            "fetch_seconds": "mostly reading: more num_threads=, larger ahead_bytes=, or cache= of open",
            "decode_seconds": "mostly decoding: more num_threads=, fewer features= of open",
            "transform_seconds": "mostly transforms: more num_threads=, or num_workers= for pure Python",
        }[slowest]
        return f"{said}: the loader is the bottleneck, {knob}"

    def __sub__(self, other: LoaderStats) -> LoaderStats:
        return LoaderStats(
            **{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)}
        )

    def __str__(self) -> str:
        return f"{self.steps:,} steps, {self.records_per_second:,.0f} records/s; {self.advice}"


class Counters:
    """What the threads of a process add to.

    Args:
        components: the datasets, whose own counters tell of reading.
    """

    def __init__(self, components: list[Component]) -> None:
        self._sources = list({id(each.source): each.source for each in components}.values())
        # By thread, each of which adds to its own: there is no lock to be held during a fork.
        self._sums: dict[int, dict[str, float]] = {}
        self._here = self._read()
        self._began = self._ended = 0.0

    def add(self, **amounts: float) -> None:
        """Add to counters of these names."""
        sums = self._sums.setdefault(threading.get_ident(), {})
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0) + amount

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that a block lasts."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{name: time.perf_counter() - began})

    def begin(self) -> None:
        """Note that a span begins now."""
        self._began, self._ended = time.monotonic(), 0.0
        self._sums = {}
        self._here = self._read()

    def end(self) -> None:
        """Note that the pass ended: its seconds stand still."""
        self._ended = time.monotonic()

    def figures(self) -> LoaderStats:
        """Return what was counted since the span began."""
        now = self._read()
        sums: dict[str, Any] = {}  # counts stay integers
        for own in list(self._sums.values()):
            for name, value in list(own.items()):
                sums[name] = sums.get(name, 0) + value
        for name, value in now.items():
            sums[name] = sums.get(name, 0) + value - self._here[name]
        seconds = (self._ended or time.monotonic()) - self._began if self._began else 0.0
        return LoaderStats(**sums, seconds=seconds)

    def work(self) -> dict[str, float]:
        """Return and forget what a worker process has done, but for what its parent counts itself."""
        figures = asdict(self.figures())
        self.begin()
        return {
            name: value
            for name, value in figures.items()
            if value and name not in ("seconds", "wait_seconds")
        }

    def _read(self) -> dict[str, int]:
        out = dict.fromkeys(("bytes_read", "cache_hits", "requests", "retries"), 0)
        for source in self._sources:
            out["bytes_read"] += source.stats.bytes_read
            out["cache_hits"] += source.stats.cache_hits
            requests, retries = source.pool.requests()
            out["requests"] += requests
            out["retries"] += retries
        return out


class StreamProgress(NamedTuple):
    """How far an epoch has come on this rank.

    Attributes:
        done, total: steps delivered, and all of the epoch.
        records: delivered in this pass.
    """

    done: int
    total: int
    records: int

    @property
    def unit(self) -> str:
        """What is counted."""
        return "steps"

    @property
    def amounts(self) -> tuple[tuple[int, str], ...]:
        """Records delivered."""
        return ((self.records, "records"),)


class StreamStats:
    """Figures of a stream or loader: of the epoch, since the last look, and every so many steps.

    A pass begins them again. They are those of this rank.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._last = LoaderStats()
        self._callbacks: list[tuple[int, Callable[[LoaderStats, int], Any], list[LoaderStats]]] = []

    @property
    def epoch(self) -> LoaderStats:
        """Figures of the pass under way, or of the last one."""
        return self._counters.figures()

    def since_last(self) -> LoaderStats:
        """Return the figures since this was called before, or since the pass began."""
        now = self._counters.figures()
        before, self._last = self._last, now
        return now - before

    def every(self, steps: int, function: Callable[[LoaderStats, int], Any]) -> None:
        """Call `function(stats, step)` each so many steps, in the consumer's thread.

        Args:
            steps: 1 or more.
            function: is given the figures since it was called last, and the number of the next step.

        Raises:
            ValueError: `steps` is below 1.
        """
        if steps < 1:
            raise ValueError(f"steps={steps} must be 1 or more")
        self._callbacks.append((steps, function, [LoaderStats()]))

    def begin(self) -> None:
        """Note that a pass begins."""
        self._counters.begin()
        self._last = LoaderStats()
        for _, _, last in self._callbacks:
            last[0] = LoaderStats()

    def delivered(self, rows: int, step: int) -> None:
        """Note that a batch reached its consumer, before step `step`."""
        self._counters.add(steps=1, records=rows)
        for steps, function, last in self._callbacks:
            if step % steps == 0:
                now = self._counters.figures()
                before, last[0] = last[0], now
                function(now - before, step)

    def end(self) -> None:
        """Note that the pass ended."""
        self._counters.end()

    def waiting(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield from an iterator, and count the time that it takes."""
        while True:
            with self._counters.timed("wait_seconds"):
                batch = next(batches, self)
            if batch is self:
                return
            yield batch
