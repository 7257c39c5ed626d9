"""The pipeline of one pass: plan strides, fetch their windows ahead, make their batches, deliver in order.

The consumer's thread plans (arithmetic only) and delivers; threads of a pool that lives as long as the pass
fetch and make. Batches are delivered in the order of their steps whatever the threads do. With no threads
everything happens in the consumer's, when a batch is asked for. The first stride is a single step and is
made before anything else is fetched: so the first batch waits for its own chunks alone.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.order import Stride
from shardio.streaming._planned import Planned, Records

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from shardio.order import Course, Lanes, Pieces, Window
    from shardio.streaming._maker import Maker
    from shardio.streaming._planned import Batch, Made
    from shardio.streaming._windows import WindowData

__all__ = ["Pipeline", "PipelineOptions", "io_threads_for", "plan_template"]

_MOST_STEPS = 64
_MOST_STRIDES = 64
_TEMPLATE_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """How a pass runs.

    Attributes:
        rank, world_size, worker, workers: who this process is.
        threads: that fetch and make; 0 for none.
        io_threads: further threads that fetch, where fetching is waiting for a network; else 0.
        row_bytes: mean decoded bytes of a row.
        stride_rows, stride_bytes: what a stride of more than one step holds at most.
        ahead_bytes: decoded bytes that are planned ahead of the consumer.
        records: batches need to know who their rows are.
    """

    rank: int
    world_size: int
    worker: int = 0
    workers: int = 1
    threads: int
    io_threads: int = 0
    row_bytes: float
    stride_rows: int
    stride_bytes: int
    ahead_bytes: int
    records: bool


class Pipeline:
    """One pass over the rest of an epoch.

    Args:
        course: the epoch, standing at the step to begin with.
        maker: makes batches.
        load: fetches a window, given the number of its source and its pieces.
        options: see `PipelineOptions`.
    """

    def __init__(
        self,
        course: Course,
        maker: Maker,
        load: Callable[[int, Pieces], WindowData],
        options: PipelineOptions,
    ) -> None:
        self._course = course
        self._maker = maker
        self._load = load
        self._options = options
        self._steps = course.steps(worker=options.worker, workers=options.workers)
        rows = max(1, -(-course.global_batch // options.world_size))
        step_bytes = max(1.0, rows * options.row_bytes)
        wanted = min(options.stride_rows / rows, options.stride_bytes / step_bytes, _MOST_STEPS)
        self._stride = max(1, int(wanted))
        ahead = int(options.ahead_bytes / (self._stride * step_bytes))
        self._ahead = max(1, min(_MOST_STRIDES, ahead))
        # By source and lane the latest window; a lane is read forward, so older ones live as long as their
        # strides.
        self._held: dict[tuple[int, int], tuple[Window, Future[WindowData]]] = {}

    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield the batches of this process, in order.

        Raises:
            ValueError: the pass was begun by the parent of this process; its threads are not here.
        """
        if self._options.threads == 0:
            for stride in self._strides():
                yield from _delivered(self._maker.make(self._plan(stride, _run_here)))
            return
        home = os.getpid()
        makers = ThreadPoolExecutor(self._options.threads, thread_name_prefix="shardio-stream")
        pools = [makers]
        if self._options.io_threads:
            pools.append(ThreadPoolExecutor(self._options.io_threads, thread_name_prefix="shardio-fetch"))
        try:
            for batch in self._run(makers, pools[-1]):
                yield batch
                if os.getpid() != home:
                    raise ValueError(
                        "this pass was begun before the process forked, and its threads stayed with the "
                        "parent: iterate over the stream again"
                    )
        finally:
            # Threads of a parent cannot be waited for.
            if os.getpid() == home:
                for pool in pools:
                    pool.shutdown(wait=False, cancel_futures=True)
                for pool in pools:
                    pool.shutdown(wait=True)

    def _run(self, makers: ThreadPoolExecutor, fetchers: ThreadPoolExecutor) -> Iterator[Batch]:
        strides = self._strides()
        making: deque[Future[Made]] = deque()
        planned: deque[Planned] = deque()
        room = self._options.threads + 1
        # Tasks start in the order in which they were given, and a stride's windows are given before it: so a
        # thread that waits for a window never waits for one that no thread will fetch.
        stride = next(strides, None)
        if stride is None:
            return
        first = makers.submit(self._maker.make, self._plan(stride, fetchers.submit)).result()
        while True:
            # What makes is kept busy first; beyond that the lead grows by a stride with every one delivered.
            lead = 2
            while len(planned) + len(making) < self._ahead + room and (lead or len(making) < room):
                stride = next(strides, None)
                if stride is None:
                    break
                planned.append(self._plan(stride, fetchers.submit))
                if self._in_tail(stride):
                    lead = 0
                if len(making) < room:
                    making.append(makers.submit(self._maker.make, planned.popleft()))
                else:
                    lead -= bool(lead)
            yield from _delivered(first)
            if not making:
                return
            first = making.popleft().result()
            if planned:
                making.append(makers.submit(self._maker.make, planned.popleft()))

    def _strides(self) -> Iterator[Stride]:
        options = self._options
        start, count = 0, 1
        while start < len(self._steps):
            steps = [step for step in self._steps[start : start + count] if step < self._course.turns]
            # Each step of the tail draws from windows of other lanes, so what is common to several is little.
            steps = steps or [self._steps[start]]
            yield self._course.stride(steps, rank=options.rank, world_size=options.world_size)
            start, count = start + len(steps), self._stride

    def _in_tail(self, stride: Stride) -> bool:
        return stride.steps[0] >= self._course.turns

    def _plan(self, stride: Stride, submit: Callable[..., Future[WindowData]]) -> Planned:
        if self._in_tail(stride) and len(stride.parts):
            # The tail goes through all lanes in order, whosever they were; those behind it are done with.
            lane = int(stride.parts[0, 0])
            self._held = {key: held for key, held in self._held.items() if key[1] >= lane}

        def fetch(window: Window) -> Future[WindowData]:
            return self._window(window, submit)

        return _plan(self._course.lanes, stride, fetch, with_records=self._options.records)

    def _window(self, window: Window, submit: Callable[..., Future[WindowData]]) -> Future[WindowData]:
        key = (window.source, window.lane)
        held = self._held.get(key)
        if held is not None and held[0] == window:
            return held[1]
        # The pieces are found here: only this thread asks the lanes anything.
        future = submit(self._load, window.source, self._course.lanes.pieces(window))
        self._held[key] = (window, future)
        return future


def _plan(
    lanes: Lanes, stride: Stride, fetch: Callable[[Window], Future[WindowData]], *, with_records: bool
) -> Planned:
    draw = lanes.draw(stride.parts)
    records = None
    if with_records:
        records = Records(*(column[stride.turn] for column in lanes.rows(stride.parts)))
    return Planned(stride, draw, [fetch(window) for window in draw.windows], records)


def plan_template(lanes: Lanes, load: Callable[[int, Pieces], WindowData]) -> Planned:
    """Return a step of the first few records of an epoch, loaded: the pattern of a batch that has none.

    Args:
        lanes: of the epoch; no other thread may use them meanwhile.
        load: as of `Pipeline`.
    """
    lane = int(np.flatnonzero(lanes.lane_lengths)[0])
    count = min(_TEMPLATE_ROWS, int(lanes.lane_lengths[lane]))
    parts = np.array([[lane, 0, count]])
    stride = Stride([0], np.array([0, count]), [count], parts, np.arange(count))

    def fetch(window: Window) -> Future[WindowData]:
        return _run_here(load, window.source, lanes.pieces(window))

    return _plan(lanes, stride, fetch, with_records=True)


def _delivered(made: Made) -> Iterator[Batch]:
    yield from made.batches
    if made.error is not None:
        raise made.error


def _run_here(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Do at once what a pool would do later."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args))
    except Exception as error:  # noqa: BLE001 - it is raised where the result is needed, as a pool would
        future.set_exception(error)
    return future


def io_threads_for(local: Sequence[bool], threads: int) -> int:
    """Return how many threads fetch beside those that make: none where all data is local."""
    return 0 if threads == 0 or all(local) else max(8, threads)
