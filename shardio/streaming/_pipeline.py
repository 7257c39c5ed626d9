"""The pipeline of one pass: plan groups of steps, fetch their windows ahead, build and deliver their batches.

A planner thread does the arithmetic, other threads fetch and build, the consumer's thread only takes what is
ready. Batches are delivered in the order of their steps whatever the threads do. With `threads=0` everything
happens in the consumer's thread, when a batch is asked for. The first group is a single step and is built
before anything else is fetched, so the first batch waits for its own chunks alone.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.order import (
    Budget,
    SourceReading,
    StepGroup,
    check_memory,
    decoded_memory,
    process_memory,
    reading_of,
    reads_alone,
    remaining_rows,
    select_rows,
)
from shardio.reader import JoinedSource
from shardio.streaming._batches import PlannedSteps, RowIdentities

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from shardio.order import Lanes, Order, Pieces, Schedule, ShardSizes, Windows
    from shardio.streaming._batches import Batch, BatchBuilder, PendingWindow
    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions
    from shardio.streaming._windows import WindowData

    Load: TypeAlias = Callable[..., Any]

_MOST_STEPS = 64
_MOST_GROUPS = 64
_TEMPLATE_ROWS = 16
# Rows of a group: enough that NumPy's overhead is small, few enough that the first batches come soon.
_GROUP_ROWS = 4096
_GROUP_BYTES = 8 << 20
# Where windows hold nothing there is room for larger ones, which cost half as much Python.
_UNREAD_GROUP_BYTES = 16 << 20
# What is ahead evens out how long requests take; local files need little of that.
_AHEAD_BYTES = 32 << 20
_MOST_AHEAD_BYTES = 128 << 20
_LOCAL_AHEAD_BYTES = 16 << 20
_UNREAD_AHEAD_BYTES = 64 << 20
# A second of requests that are under way brings so many bytes, which is what two processors take; half of
# what is ahead is under way, the other half is built.
_BYTES_PER_SECOND = 600 << 20
_UNDER_WAY = 0.5
# Groups of rows that are fetched in parts are planned so many at once: Python and NumPy cost a third less.
_PLANNED_TOGETHER = 2
# Groups that are built, or wait to be taken, have so many bytes together, or are two.
_BUILT_BYTES = 256 << 20
# Where each row costs a call of the caller's function or an image, that overhead is small anyway.
_GROUP_ROWS_BY_VALUE = 256
# Windows of local files that are not mapped are read together up to so many bytes, by threads side by side;
# what is mapped or fetched comes by the group, which is how it is needed.
_READ_BYTES = 2 << 20
# Windows that hold no records are found together up to so many rows, each of which takes 32 bytes.
_UNREAD_ROWS = 16_384
# Windows whose rows are copied or decoded are held in so many parts; what finds the rows of a part costs more
# than small records take.
_PARTS = 4
_PART_ROW_BYTES = 512
_LOCAL_PART_ROW_BYTES = 1024
# Windows and batches of two steps this large would take more than a process may hold.
_LARGE_STEP_BYTES = 128 << 20
_FOREVER = 1 << 62
# Records of the first batch that one call fetches from a bucket, all at once.
_FIRST_ROWS = 64
# The number of a window is below this, so that it and the cycle make one number.
_CYCLES = 1 << 41
# Threads that fetch from a network, where most of the time is waiting: each has a group under way.
_IO_THREADS = 4
_MOST_IO_THREADS = 16
# Threads end with the record, block or request that they are at; one that hangs is left behind.
_ENDING_SECONDS = 5.0
# So long Ctrl-C waits for them: it must not seem to do nothing where one of them hangs.
_INTERRUPTED_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """How a pass runs.

    Attributes:
        rank, world_size, worker, workers: which share of the batches this process delivers.
        threads: that build, and fetch where data is local; 0 for none.
        io_threads: further threads that fetch, where fetching is waiting for a network; else 0.
        row_bytes: mean decoded bytes of a row.
        group_rows, group_bytes: what a group of more than one step holds at most.
        ahead_bytes: decoded bytes that are planned ahead of the consumer.
        fetch_bytes: decoded bytes of the windows that one call fetches, or finds, if they are small.
        slow: each row costs a call of the caller's function, or an image.
        identities: batches need to know which records their rows are.
        unread: windows hold no records.
        records_first: the first batch waits for its own records only, not for whole windows, where those
            would be more megabytes from a bucket.
        exact: of each source, whether rows that are apart are fetched as cheaply as those between them, too.
        in_parts: of each source, whether its windows are fetched in parts, which are freed one by one.
        sizes: of each source, its shards.
    """

    rank: int
    world_size: int
    worker: int
    workers: int
    threads: int
    io_threads: int
    row_bytes: float
    group_rows: int
    group_bytes: int
    ahead_bytes: int
    fetch_bytes: int
    identities: bool
    unread: bool = False
    slow: bool = False
    records_first: bool = False
    exact: tuple[bool, ...] = ()
    in_parts: tuple[bool, ...] = ()
    sizes: tuple[ShardSizes, ...] = ()

    @classmethod
    def of(  # noqa: PLR0913 - made in one place
        cls,
        options: StreamOptions,
        components: list[Component],
        order: Order,
        *,
        global_batch: int,
        worker: int,
        workers: int,
        threads: int,
        by_value: bool,
        unread: bool = False,
    ) -> PipelineOptions:
        """Return what the options of a stream make of a pass.

        Args:
            options: of the stream.
            components: its datasets.
            order: its order.
            global_batch: rows of a global batch, now.
            worker, workers: this is loader worker w of W.
            threads: that build.
            by_value: whether a function of the caller's sees every record.
            unread: windows hold no records, so that many are planned ahead.
        """
        rank, world_size = options.place
        sizes = [component.order.sizes for component in components]
        local = all(component.source.is_local for component in components)
        mapped = all(component.source.is_mapped for component in components)
        images = components[0].source.options.images
        slow = by_value or images is not None
        least = _LOCAL_PART_ROW_BYTES if local else _PART_ROW_BYTES
        # A row takes its payload and the image that is made of it; one image is what most records hold.
        row_bytes = sum(s.total_decoded_bytes for s in sizes) / sum(s.total_rows for s in sizes)
        row_bytes += 0 if images is None else images.bytes_each
        usual = _UNREAD_AHEAD_BYTES if unread else _LOCAL_AHEAD_BYTES if local else _ahead_bytes(components)
        ahead_bytes = options.ahead_bytes or usual
        # Each thread has a group, and others are ahead: few bytes ahead are small groups, too. Shards whose
        # records are copied one by one are visited once a group, so groups of half the size cost twice as
        # many visits; of whatever is fetched or decoded by the block larger groups only hold more.
        groups_ahead = 2 if mapped and not reads_by_block(components) else 4
        most = _UNREAD_GROUP_BYTES if unread else _GROUP_BYTES
        group_bytes = min(most, -(-ahead_bytes // groups_ahead))
        if options.memory_bytes is not None:
            read = [SourceReading(each, exact=False, unread=unread) for each in sizes]
            windows = process_memory(order, global_batch=global_batch, world_size=world_size, read=read)
            left = options.memory_bytes - windows.held_bytes
            # A quarter for what is ahead, one for the windows of the groups that are being built and
            # delivered, one for the batches that are gathered from them, one for blocks that are decoded.
            group_bytes = max(1, min(group_bytes, left // (4 * (threads + 2))))
            ahead_bytes = max(1, min(ahead_bytes, left // 4))
        io_threads = max(_IO_THREADS, threads, min(_MOST_IO_THREADS, ahead_bytes // group_bytes))
        if threads == 0 or local:
            io_threads = 0
        fetch_bytes = group_bytes if mapped or not local else min(group_bytes, _READ_BYTES)
        if unread:
            fetch_bytes = int(_UNREAD_ROWS * row_bytes)
        return cls(
            rank=rank,
            world_size=world_size,
            worker=worker,
            workers=workers,
            threads=threads,
            io_threads=io_threads,
            row_bytes=row_bytes,
            group_rows=_GROUP_ROWS_BY_VALUE if slow else _GROUP_ROWS,
            group_bytes=group_bytes,
            ahead_bytes=ahead_bytes,
            fetch_bytes=fetch_bytes,
            identities=options.positions
            or options.random_transform is not None
            or any(isinstance(component.source, JoinedSource) for component in components)
            or bool(images and images.random),
            unread=unread,
            slow=slow,
            records_first=reads_alone(order.plans) and not mapped,
            sizes=tuple(sizes),
            exact=tuple(component.source.is_mapped and component.is_slice for component in components),
            in_parts=tuple(
                plan.interleaved and not component.source.is_mapped and row_bytes >= least
                for plan, component in zip(order.plans, components, strict=True)
            ),
        )


def _ahead_bytes(components: Sequence[Component]) -> int:
    """Return what is ahead by default where data is remote: the farther the store, the more."""
    latency = max(component.source.pool.latency() for component in components)
    if latency == float("inf"):
        return _AHEAD_BYTES
    wanted = int(latency * _BYTES_PER_SECOND / _UNDER_WAY)
    return max(_AHEAD_BYTES, min(_MOST_AHEAD_BYTES, wanted))


def budget_of(options: StreamOptions, components: Sequence[Component]) -> Budget:
    """Return what the default plan of a stream may cost."""
    # Not by `mmap=`, which ranks may choose each for itself.
    local = all(component.source.is_plain_local for component in components)
    decoded = not local and all(component.source.has_local_blocks for component in components)
    memory = options.memory_bytes
    if memory is None and decoded:
        memory = decoded_memory([component.order.sizes for component in components])
    bound = {} if memory is None else {"memory_bytes": memory}
    first = options.first_batch_bytes
    # Looked up in an index only where it matters.
    by_block = first is None or not local or reads_by_block(components)
    return Budget(
        mixing=options.mixing,
        local=local,
        decoded=decoded,
        first_batch_bytes=first,
        by_block=by_block,
        **bound,
    )


def reads_by_block(components: Sequence[Component]) -> bool:
    """Return whether blocks of local shards are read whole: some dataset has no checksums of records."""
    return not all(component.source.has_record_checksums for component in components)


def check_bound(
    order: Order,
    options: StreamOptions,
    components: Sequence[Component],
    unread: Sequence[bool],
    *,
    global_batch: int,
) -> None:
    """Raise ValueError, with both numbers, if one process of the plan needs more than the caller allows.

    A default plan is made to fit, so that this is about one that was given or came with a state.
    """
    world_size = options.place[1]
    read = [
        SourceReading(component.order.sizes, exact=False, unread=stays)
        for component, stays in zip(components, unread, strict=True)
    ]
    check_memory(
        order, global_batch=global_batch, world_size=world_size, memory_bytes=options.memory_bytes, read=read
    )


class _Built(NamedTuple):
    """The batches of a group, up to the first that could not be built, and the error of that one."""

    batches: list[Batch]
    error: Exception | None


class Pipeline:
    """One pass over the rest of an epoch.

    Args:
        schedule: the epoch, at the step to begin with.
        builder: builds batches.
        load: fetches windows, given the number of their source and their pieces; and, where they are to come
            in parts, int64 [rows], the part of each row: then it returns a list of what each part holds.
        options: see `PipelineOptions`.
    """

    def __init__(
        self,
        schedule: Schedule,
        builder: BatchBuilder,
        load: Load,
        options: PipelineOptions,
    ) -> None:
        self._planner = _Planner(schedule, load, options)
        self._builder = builder
        self._options = options

    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield the batches of this process, in order.

        Raises:
            ValueError: the pass was begun by the parent of this process; its threads are not here.
        """
        if self._options.threads == 0:
            for group in self._planner.groups():
                for planned in self._planner.plan(group, _run_here):
                    yield from self._builder.build(planned)
            return
        threads = _PassThreads(self._planner, self._builder, self._options)
        seconds = _INTERRUPTED_SECONDS
        try:
            try:
                threads.start()
                for batch in threads:
                    yield batch
                    _check_process(threads.home)
                seconds = _ENDING_SECONDS
            except (Exception, GeneratorExit):
                seconds = _ENDING_SECONDS
                raise
            finally:
                threads.close(seconds)
        except KeyboardInterrupt:
            # It may have come while they were being ended: those that were not told would wait for ever.
            threads.close(_INTERRUPTED_SECONDS)
            raise


def _check_process(home: int) -> None:
    if os.getpid() != home:
        raise ValueError(
            "this pass was begun before the process forked, and its threads stayed with the parent: iterate "
            "over the stream again"
        )


class _Planner:
    """Cuts the steps of a process into groups and has their windows fetched; one thread at a time uses it.

    Attributes:
        room: how many groups may be built, or wait to be taken, at a time.
    """

    def __init__(self, schedule: Schedule, load: Load, options: PipelineOptions) -> None:
        self._schedule = schedule
        self._options = options
        self._steps = schedule.steps(worker=options.worker, workers=options.workers)
        rows = max(1, -(-schedule.global_batch // options.world_size))
        step_bytes = max(1.0, rows * options.row_bytes)
        wanted = min(options.group_rows / rows, options.group_bytes / step_bytes, _MOST_STEPS)
        self._built_steps = max(1, int(wanted))
        group_bytes = self._built_steps * step_bytes
        # Of fetched steps this large, which come faster than they are taken, each waits for the one before.
        self._one_by_one = options.io_threads > 0 and not options.slow and step_bytes > _LARGE_STEP_BYTES
        # Windows that hold no records take no memory, so that many steps are planned at once.
        most = int(min(options.group_rows / rows, _MOST_STEPS))
        if not options.unread:
            # Steps that are a group each are large enough.
            small = options.io_threads > 0 and self._built_steps > 1 and not self._one_by_one
            small &= any(options.in_parts)
            most = min(most, (_PLANNED_TOGETHER if small else 1) * self._built_steps)
        self._group_steps = max(self._built_steps, most)
        ahead = int(options.ahead_bytes / group_bytes)
        self.room = max(2, min(options.threads + 1, int(_BUILT_BYTES / group_bytes)))
        self.room = 1 if self._one_by_one else self.room
        # What is large is ahead while it is built, and a group more would be held for nothing.
        least = 1 if group_bytes <= _AHEAD_BYTES else 0
        self._ahead = max(least, min(_MOST_GROUPS, ahead))
        self._windows = _HeldWindows(
            schedule.lanes,
            load,
            options.row_bytes,
            options.fetch_bytes,
            begun=schedule.step > 0,
            exact=options.exact,
            in_parts=options.in_parts,
        )
        self._load = load
        self._records_first = options.records_first

    def groups(self) -> Iterator[StepGroup]:
        """Yield the steps of this process in groups, of which the first is a single step."""
        options = self._options
        start, count = 0, 1
        while start < len(self._steps):
            steps = [step for step in self._steps[start : start + count] if step < self._schedule.tail_start]
            # Each step of the tail draws from windows of other lanes, so what is common to several is little.
            steps = steps or [self._steps[start]]
            yield self._schedule.group(steps, rank=options.rank, world_size=options.world_size)
            start, count = start + len(steps), self._group_steps

    def lead(self, group: StepGroup, taken: int) -> int:
        """Return how many groups may wait beside those that are being built, after so many were taken."""
        # It grows with every group that was delivered, so that what is needed first is fetched first.
        return 0 if self._one_by_one or self._in_tail(group) else min(self._ahead, 2 * taken)

    def built_apart(self, group: StepGroup) -> int:
        """Return how many groups are built of one that was planned together."""
        return -(-len(group.steps) // self._built_steps)

    def _in_tail(self, group: StepGroup) -> bool:
        return group.steps[0] >= self._schedule.tail_start

    def plan(self, group: StepGroup, submit: Callable[..., Future[WindowData]]) -> list[PlannedSteps]:
        """Find the rows of a group, submit what fetches their windows, and cut it as it is built."""
        if self._in_tail(group) and len(group.parts):
            # The tail goes through all lanes in order, those of other processes too; lanes before it are
            # done with.
            self._windows.let_go_before(int(group.parts[0, 0]))
        if self._records_first:
            self._records_first = False
            if self._reads_alone(group):
                return [self._plan_records(group, submit)]
        planned = _plan(
            self._schedule.lanes, group, self._windows, submit, with_identities=self._options.identities
        )
        return planned.split(self._built_steps)

    def _reads_alone(self, group: StepGroup) -> bool:
        begun = self._schedule.step > 0
        sources = [SourceReading(sizes, exact=False) for sizes in self._options.sizes]
        return reading_of(
            self._schedule.lanes,
            group.parts,
            sources,
            begun=begun,
            mapped=False,
            by_block=True,
            may_be_alone=True,
        ).alone

    def _plan_records(self, group: StepGroup, submit: Callable[..., Future[WindowData]]) -> PlannedSteps:
        """Submit what fetches the records of a group alone, without the windows that they are in."""
        lanes = self._schedule.lanes
        rows = lanes.rows(group.parts)
        window, row = np.empty_like(rows.positions), np.empty_like(rows.positions)
        futures: list[PendingWindow] = []
        for source in range(len(lanes.readers)):
            own = np.flatnonzero(rows.sources == source)
            for low in range(0, own.size, _FIRST_ROWS):
                some = own[low : low + _FIRST_ROWS]
                window[some], row[some] = len(futures), np.arange(some.size)
                futures.append(submit(self._load, source, lanes.record_pieces(source, rows.positions[some])))
        identities = None
        if self._options.identities:
            identities = RowIdentities(*(column[group.order] for column in rows))
        return PlannedSteps(group, futures, window, row, identities)


class _PassThreads:
    """The threads of one pass: a planner, builders, and fetchers where data is remote.

    Once they are started, iterating, in the consumer's thread, gives the batches. Ctrl-C may come between any
    two of its instructions: each thread is known to `close` before it is started.
    """

    def __init__(self, planner: _Planner, builder: BatchBuilder, options: PipelineOptions) -> None:
        self._planner = planner
        self._builder = builder
        self._room = planner.room
        self._changed = threading.Condition()
        # All below is changed with the condition held.
        self._planned: deque[PlannedSteps] = deque()
        self._building: deque[Future[_Built]] = deque()
        self._begun = False
        self._taken = 0
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None
        self._ended = False
        self._builders = DaemonThreads(options.threads, "shardio-stream")
        self._fetchers = self._builders
        if options.io_threads:
            self._fetchers = DaemonThreads(options.io_threads, "shardio-fetch")
        self._planning = threading.Thread(target=self._plan_ahead, name="shardio-plan", daemon=True)
        self.home = os.getpid()
        _passes.add(self)

    def start(self) -> None:
        """Start all threads.

        Raises:
            RuntimeError: the system has no more threads; those that were started are for `close` to end.
        """
        fetchers = [] if self._fetchers is self._builders else self._fetchers.threads
        threads = [*self._builders.threads, *fetchers, self._planning]
        for number, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError as error:
                message = (
                    f"{number} of {len(threads)} threads could be started ({error}); use a smaller "
                    "num_threads=, or raise the limit of threads (ulimit -u, or that of the container)"
                )
                raise RuntimeError(message) from error

    def __iter__(self) -> Iterator[Batch]:
        while True:
            future = self._next()
            if future is None:
                return
            built = future.result()
            with self._changed:
                self._taken += 1
                self._changed.notify_all()
            yield from built.batches
            if built.error is not None:
                raise built.error

    def _next(self) -> Future[_Built] | None:
        with self._changed:
            while not self._building:
                if self._finished:
                    if self._error is not None:
                        raise self._error
                    return None
                self._changed.wait()
            future = self._building.popleft()
            self._start_builds()
            return future

    def _start_builds(self) -> None:
        # Tasks start in the order in which they were submitted, and the windows of a group are submitted
        # before it: so a thread that waits for a window never waits for one that no thread will fetch.
        while self._planned and len(self._building) < self._room:
            self._building.append(self._builders.submit(self._build, self._planned.popleft()))

    def _build(self, planned: PlannedSteps) -> _Built:
        batches: list[Batch] = []
        try:
            batches.extend(self._builder.build(planned))
        except Exception as error:  # noqa: BLE001 - it is raised at its step
            return _Built(batches, error)
        return _Built(batches, None)

    def _plan_ahead(self) -> None:
        error: BaseException | None = None
        try:
            for group in self._planner.groups():
                with self._changed:
                    while not (self._closed or self._has_room(group)):
                        self._changed.wait()
                    if self._closed:
                        return
                    self._begun = True
                planned = self._planner.plan(group, self._fetchers.submit)
                with self._changed:
                    self._planned.extend(planned)
                    del planned
                    self._start_builds()
                    self._changed.notify_all()
        except BaseException as caught:  # noqa: BLE001 - it is raised in the consumer's thread
            error = caught
        finally:
            with self._changed:
                self._error = error
                self._finished = True
                self._changed.notify_all()

    def _has_room(self, group: StepGroup) -> bool:
        waiting = len(self._planned) + len(self._building)
        if not self._taken:
            # The first batch shares the bandwidth with no other.
            return not self._begun
        room = self._room + self._planner.lead(group, self._taken)
        return not waiting or waiting + self._planner.built_apart(group) <= room

    def close(self, seconds: float) -> None:
        """End all threads: no new task is begun, and those under way stop at the next record.

        What Ctrl-C interrupts here may be done again.

        Args:
            seconds: to wait for them at most.
        """
        # Threads of a parent cannot be waited for.
        if self._ended or os.getpid() != self.home:
            return
        deadline = time.monotonic() + seconds
        self._builder.cancel()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _join(self._planning, deadline)
        for threads in (self._builders, self._fetchers):
            threads.close()
        for threads in (self._builders, self._fetchers):
            threads.join(deadline)
        self._ended = True


_passes: weakref.WeakSet[_PassThreads] = weakref.WeakSet()


@atexit.register
def _end_passes() -> None:
    """End what was left in the middle while modules are still there: iterators end after some of them."""
    for threads in list(_passes):
        threads.close(_ENDING_SECONDS)


class DaemonThreads:
    """Threads that run tasks in the order in which they were submitted.

    Unlike those of a `ThreadPoolExecutor`, the interpreter does not wait for them when it ends: a function of
    the caller's that hangs must not make the program hang.

    Args:
        count: of threads.
        name: what their names begin with.

    Attributes:
        threads: for the caller to start.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._tasks = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Return the future of a call."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, args))
        return future

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            if task[0].set_running_or_notify_cancel():
                _run(*task)
            # What the task holds must not live until the next one comes.
            del task

    def close(self) -> None:
        """Cancel the tasks that were not begun."""
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task[0].cancel()
                task[0].set_running_or_notify_cancel()
        for _ in self.threads:
            self._tasks.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the threads until a moment of `time.monotonic`."""
        for thread in self.threads:
            _join(thread, deadline)


def _join(thread: threading.Thread, deadline: float) -> None:
    if thread.is_alive():  # else it may never have been started
        thread.join(max(0.0, deadline - time.monotonic()))


def _run(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = function(*args)
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is needed
        future.set_exception(error)
    else:
        future.set_result(result)


def _run_here(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Do at once, in this thread, what threads would do later."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args))
    except Exception as error:  # noqa: BLE001 - it is raised where the result is needed
        future.set_exception(error)
    return future


class _Held:
    """What was fetched of one source, and is in use: for each reader of its lanes the latest window."""

    def __init__(self, readers: int) -> None:
        self.window = np.full(readers, -1, np.int64)
        self.fetch = np.full(readers, -1, np.int64)  # number of the fetch that it came with
        self.base = np.zeros(readers, np.int64)  # its first row in what was fetched
        self.latest = np.zeros(readers, np.int64)  # of windows that come together, the place of its last one


class _WindowPart:
    """What a part of a fetch will be; lighter than a future, of which the whole fetch has one.

    Args:
        task: puts the parts of the fetch where they belong.
        slot: what this part is put into.
    """

    __slots__ = ("_slot", "_task")

    def __init__(self, task: Future[None], slot: list[WindowData]) -> None:
        self._task, self._slot = task, slot

    def result(self) -> WindowData:
        """Wait for the fetch, raise what it raised, or return the part."""
        # Future's own way to look takes a lock, and each part is wanted by a dozen groups.
        if not self._slot:
            self._task.result()
        return self._slot[0]


def _fill(slots: Sequence[list[WindowData]], load: Load, *args: Any) -> None:
    for slot, data in zip(slots, load(*args), strict=True):
        slot.append(data)


class _HeldWindows:
    """The windows of a pass that are held: the latest one of each reader, as what was fetched together.

    A lane is read forward, so older windows live as long as their groups. Of a source whose windows are cut
    into parts, each part lives until all of its rows are planned: a window that is half delivered takes
    little more than half of its memory.

    Args:
        lanes: of the epoch.
        load: as of `Pipeline`.
        row_bytes: mean decoded bytes of a row.
        fetch_bytes: decoded bytes of what one call fetches.
        begun: the pass begins in the middle of an epoch, and so of windows: of those that it finds open it
            fetches what is still to be delivered.
        exact, in_parts: as of `PipelineOptions`.
    """

    def __init__(
        self,
        lanes: Lanes,
        load: Load,
        row_bytes: float,
        fetch_bytes: int,
        *,
        begun: bool = False,
        exact: Sequence[bool] = (),
        in_parts: Sequence[bool] = (),
    ) -> None:
        self._lanes = lanes
        self._load = load
        self._fetch_rows = max(1, int(fetch_bytes / row_bytes))
        self._held = [_Held(readers) for readers in lanes.readers]
        # By number of a fetch: how many readers hold a window of it. Numbers are used again.
        self._used = np.zeros(0, np.int64)
        self._numbers: set[int] = set()
        self._free: list[int] = []
        # By number of a fetch and of its part: what it is, and how many of its rows are to be planned.
        self._parts: list[PendingWindow | None] = []
        self._left = np.zeros(0, np.int64)
        self._begun, self._exact, self._in_parts = begun, exact, in_parts
        # By number of a fetch that is a part of its windows, or cut into parts: of each of their rows, its
        # number in its part times the number of parts, plus that of the part; -1 where it was left out.
        self._codes: dict[int, NDArray[np.int32]] = {}

    def plan(
        self, group: StepGroup, submit: Callable[..., Future[Any]]
    ) -> tuple[list[PendingWindow], NDArray[np.int64], NDArray[np.int64]]:
        """Return what holds the rows of a group: futures, and for each row its future and row in that.

        What is not held yet is fetched by what `submit` makes of a call.
        """
        windows, window, row = self._lanes.locate(group.parts)
        fetch = np.empty(len(windows), np.int64)
        base = np.empty(len(windows), np.int64)
        key = windows.cycle * _CYCLES + windows.number
        for source, held in enumerate(self._held):
            own = np.flatnonzero(windows.source == source)
            reader = windows.reader[own]
            fetch[own], base[own] = held.fetch[reader], held.base[reader]
            other = held.window[reader] != key[own]
            if self._codes:
                other |= self._lacking(np.where(other, -1, fetch[own]), base[own], own, window, row)
            fresh = own[other]
            if not fresh.size:
                continue
            entered = self._begun and bool((held.fetch[windows.reader[fresh]] < 0).any())
            for some in self._cut(windows, fresh):
                pieces, counts = self._lanes.many_pieces(windows.take(some))
                part = self._to_come(windows.take(some), some, window, row) if entered else None
                base[some] = np.cumsum(counts) - counts
                if part is not None:
                    pieces, number = select_rows(pieces, part, exact=self._exact[source])
                    fetch[some] = own_number = self._number([submit(self._load, source, pieces)])
                    self._codes[own_number] = np.where(number < 0, -1, number * _PARTS).astype(np.int32)
                elif self._in_parts and self._in_parts[source]:
                    fetch[some] = self._begin_parts(source, windows.take(some), pieces, submit)
                else:
                    fetch[some] = self._number([submit(self._load, source, pieces)])
            self._hold(held, windows.reader[fresh], key[fresh], fetch[fresh], base[fresh])
        spot, place = self._spots(fetch[window], base[window] + row)
        counts = np.bincount(spot, minlength=len(self._parts))
        needed = np.flatnonzero(counts)
        found = [self._part(each) for each in needed.tolist()]
        # Parts and numbers are given up only here: what this group uses may have been freed for what it
        # uses later.
        self._left -= counts
        for each in needed[self._left[needed] <= 0].tolist():
            self._parts[each] = None
        self._give_up()
        number = np.cumsum(counts > 0) - 1
        return found, number[spot], place

    def _part(self, spot: int) -> PendingWindow:
        part = self._parts[spot]
        if part is None:
            # Left out, it would give the rows of this group the numbers of other parts: wrong records.
            message = f"part {spot % _PARTS} of fetch {spot // _PARTS} was freed before its last row"
            raise AssertionError(message)
        return part

    def _begin_parts(
        self, source: int, windows: Windows, pieces: Pieces, submit: Callable[..., Future[Any]]
    ) -> int:
        """Submit what fetches windows in parts, those rows together that are delivered together.

        Returns:
            The number of the fetch.
        """
        when, counts = self._lanes.row_order(windows), windows.rows
        assert when is not None  # noqa: S101 - for the type checker; a source in parts is interleaved
        part = when * _PARTS // np.repeat(counts, counts)
        sizes = np.bincount(part, minlength=_PARTS)
        order = np.argsort(part, kind="stable")
        code = np.empty(part.size, np.int32)
        code[order] = (np.arange(part.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)) * _PARTS
        # Some parts of very small windows are empty.
        numbers = np.cumsum(sizes > 0) - 1
        part, sizes = numbers[part], sizes[sizes > 0]
        slots: list[list[WindowData]] = [[] for _ in range(sizes.size)]
        task = submit(_fill, slots, self._load, source, pieces, part)
        number = self._number([_WindowPart(task, slot) for slot in slots], sizes)
        self._codes[number] = code + part.astype(np.int32)
        return number

    def _spots(
        self, fetch: NDArray[np.int64], place: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of the part that each row is in, in `_parts`, and its own number in that part.

        Args:
            fetch: int64 [rows], the fetch that each row came with; -1 for none.
            place: int64 [rows], its number there.

        Returns:
            The number of a part is -1 where the row was left out, or its fetch is -1.
        """
        spot, found = np.where(fetch < 0, -1, fetch * _PARTS), place
        if not self._codes:
            return spot, found
        begins = np.full(self._used.size + 1, -1, np.int64)  # the last entry is that of no fetch
        numbers = np.array([each for each in np.unique(fetch).tolist() if each in self._codes], np.int64)
        if not numbers.size:
            return spot, found
        codes = [self._codes[each] for each in numbers.tolist()]
        sizes = np.array([each.size for each in codes])
        begins[numbers] = np.cumsum(sizes) - sizes
        coded = np.flatnonzero(begins[fetch] >= 0)
        code = np.concatenate(codes)[begins[fetch[coded]] + place[coded]]
        found = place.copy()
        spot[coded] = np.where(code < 0, -1, spot[coded] + code % _PARTS)
        found[coded] = code // _PARTS
        return spot, found

    def _to_come(
        self, windows: Windows, some: NDArray[np.int64], window: NDArray[np.int64], row: NDArray[np.int64]
    ) -> NDArray[np.bool_] | None:
        """Return which rows of some windows are to be delivered yet, None where that is all of them.

        Args:
            windows: these windows.
            some: their numbers in the group.
            window, row: of each row of the group, its window's number there and its own in the window.
        """
        order = self._lanes.row_order(windows)
        if order is None:
            return None
        part = remaining_rows(order, windows.rows, some, window, row)
        return None if part.all() else part

    def _lacking(
        self,
        fetch: NDArray[np.int64],
        base: NDArray[np.int64],
        own: NDArray[np.int64],
        window: NDArray[np.int64],
        row: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return for which windows of a source (`own`) rows are not held any more that this group wants.

        They had been delivered: the padding of the last step begins the epoch again.
        """
        number = np.full(int(window.max(initial=-1)) + 1, -1)
        number[own] = np.arange(own.size)
        which = number[window]
        wanted = np.flatnonzero(which >= 0)
        wanted = wanted[fetch[which[wanted]] >= 0]
        at = which[wanted]
        spot, _ = self._spots(fetch[at], base[at] + row[wanted])
        lacking = np.zeros(own.size, bool)
        lacking[at[(spot < 0) | (self._left[spot] <= 0)]] = True
        return lacking

    def _cut(self, windows: Windows, fresh: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return lists of windows that one call fetches: of one source and cycle, in storage order."""
        cycles = windows.cycle[fresh]
        runs = np.split(fresh, np.flatnonzero(np.diff(cycles)) + 1)
        many = self._lanes.together(int(windows.source[fresh[0]]), self._fetch_rows)
        # They are all needed by one group, so what comes first is nothing to it. Groups of a step or two more
        # or less than one call fetches are fetched by one: memory for windows of one size is used again.
        runs = [run[np.argsort(windows.position[run], kind="stable")] for run in runs]
        if self._in_parts and self._in_parts[int(windows.source[fresh[0]])]:
            # A part lives as long as the longest window in it: at a start they are of many lengths.
            runs = [run[np.argsort(windows.rows[run], kind="stable")] for run in runs]
        return [part for run in runs for part in np.array_split(run, max(1, round(len(run) / many)))]

    def _number(self, parts: Sequence[PendingWindow], rows: NDArray[np.int64] | None = None) -> int:
        """Return a number for a fetch.

        Args:
            parts: what it is.
            rows: int64 [parts], how many each has; None for one that lives as long as it is held.
        """
        if not self._free:
            first = self._used.size
            more = max(64, first)
            self._used = np.concatenate([self._used, np.zeros(more, np.int64)])
            self._left = np.concatenate([self._left, np.zeros(more * _PARTS, np.int64)])
            self._parts += [None] * (more * _PARTS)
            self._free = list(range(first, first + more))[::-1]
        number = self._free.pop()
        self._numbers.add(number)
        at = number * _PARTS
        self._parts[at : at + len(parts)] = parts
        self._left[at : at + len(parts)] = _FOREVER if rows is None else rows
        return number

    def _hold(
        self,
        held: _Held,
        reader: NDArray[np.int64],
        key: NDArray[np.int64],
        fetch: NDArray[np.int64],
        base: NDArray[np.int64],
    ) -> None:
        # Windows come in the order in which they are used: of several of one reader the last is kept.
        places = np.arange(len(reader))
        held.latest[reader] = places
        last = held.latest[reader] == places
        latest, number = reader[last], fetch[last]
        self._let_go(held, latest)
        held.window[latest], held.fetch[latest], held.base[latest] = key[last], number, base[last]
        self._used += np.bincount(number, minlength=len(self._used))

    def _let_go(self, held: _Held, readers: NDArray[np.int64]) -> None:
        old = held.fetch[readers]
        self._used -= np.bincount(old[old >= 0], minlength=len(self._used))
        held.window[readers] = held.fetch[readers] = -1

    def _give_up(self) -> None:
        """Forget the fetches of which no reader holds a window."""
        for number in [each for each in self._numbers if not self._used[each]]:
            at = number * _PARTS
            self._parts[at : at + _PARTS] = [None] * _PARTS
            self._left[at : at + _PARTS] = 0
            self._codes.pop(number, None)
            self._numbers.remove(number)
            self._free.append(number)

    def let_go_before(self, lane: int) -> None:
        """Let go of the windows of the lanes before one."""
        for held in self._held:
            readers = len(held.window) // len(self._lanes.lane_lengths)
            self._let_go(held, np.flatnonzero(held.fetch[: lane * readers] >= 0))
        self._give_up()


def _plan(
    lanes: Lanes,
    group: StepGroup,
    windows: _HeldWindows,
    submit: Callable[..., Future[WindowData]],
    *,
    with_identities: bool,
) -> PlannedSteps:
    found = windows.plan(group, submit)
    identities = None
    if with_identities:
        identities = RowIdentities(*(column[group.order] for column in lanes.rows(group.parts)))
    return PlannedSteps(group, *found, identities)


def plan_template(lanes: Lanes, load: Load) -> PlannedSteps:
    """Return a step of the first few records of an epoch, loaded: the pattern of a batch that has none.

    Args:
        lanes: of the epoch.
        load: as of `Pipeline`.
    """
    lane = int(np.flatnonzero(lanes.lane_lengths)[0])
    count = min(_TEMPLATE_ROWS, int(lanes.lane_lengths[lane]))
    parts = np.array([[lane, 0, count]])
    group = StepGroup([0], np.array([0, count]), [count], parts, np.arange(count))

    return _plan(lanes, group, _HeldWindows(lanes, load, 1.0, 1), _run_here, with_identities=True)
