"""From the order to open chunks: which rows a group of steps delivers, and which chunks are opened for them.

The order says in which *window* each row is: a run of rows of a chunk that one reader of the order takes, one
window after another. A window is opened with the other windows of its chunk that are needed soon after it, so
that a chunk is one request.

An example: batches of 6 in the order that `shardio/order/_epoch.py` shows, with `window=4`, one rank.

    group 0   step 0       places 0 to 5 of lane 0    opens the windows 23; 18 19; 13 14 15; 8 9 10 11
    group 1   steps 1-3    places 6 to 23             opens 4 5 6 7; 0 1 2 3; 20 21 22; 16 17; 12

After group 0 the windows 23 and 18 19 are used up, and given up when it is built; the other two stay open,
since step 1 takes 15 and 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio.joins import JoinedSource
from shardio.order import Rows, rank_slice
from shardio.ranges import distinct
from shardio.streaming._batches import PlannedSteps
from shardio.streaming._chunks import Chunk
from shardio.streaming._options import TUNING
from shardio.streaming._rows import chunk_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from shardio.order import Plan, Schedule, StepGroup, Windows
    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions
    from shardio.streaming._rows import RowGatherer

    _Flags = NDArray[np.bool_]

_FOREVER = 1 << 62
_NONE = np.zeros(0, np.int64)
_CYCLE_BITS = 44  # the number of a window is below this, so that it and its cycle make one number


class PassLimits(NamedTuple):
    """How many threads a pass has, and how much it plans at a time.

    Attributes:
        threads: that build, and fetch where data is local; 0 for none.
        io_threads: further threads that fetch, where fetching is waiting for a network; else 0.
        group_bytes, group_rows: what a group of more than one step holds at most.
        ahead_bytes: decoded bytes that are planned ahead of the consumer.
    """

    threads: int
    io_threads: int
    group_bytes: int
    group_rows: int
    ahead_bytes: int


def pass_limits(
    options: StreamOptions,
    components: Sequence[Component],
    open_bytes: int,
    *,
    threads: int,
    by_value: bool,
) -> PassLimits:
    """Return how a pass runs.

    Args:
        options, components: of the stream.
        open_bytes: of the windows that this process has open.
        threads: that build.
        by_value: whether a function of the caller's sees every record.
    """
    local = all(component.source.is_local for component in components)
    images = components[0].source.options.images
    ahead_bytes = options.ahead_bytes or _ahead_bytes(components, local=local)
    # Each thread has a group, and others are ahead: few bytes ahead are small groups, too.
    group_bytes = min(TUNING.group_bytes, -(-ahead_bytes // 4))
    memory = options.memory_bytes
    if memory is not None:
        left = memory - open_bytes
        # A quarter for what is ahead, one for the chunks of the groups that are being built and delivered,
        # one for the batches that are gathered from them, one for blocks that are decoded.
        group_bytes = max(1, min(group_bytes, left // (4 * (threads + 2))))
        ahead_bytes = max(1, min(ahead_bytes, left // 4))
    io_threads = max(TUNING.io_threads, threads, min(4 * TUNING.io_threads, ahead_bytes // group_bytes))
    if threads == 0 or local:
        io_threads = 0
    is_slow = by_value or images is not None
    group_rows = TUNING.group_rows_by_value if is_slow else TUNING.group_rows
    if images is not None:
        # A row takes its payload and the image that is made of it; one image is what most records hold.
        rows = sum(component.order.sizes.total_rows for component in components)
        payloads = sum(component.order.sizes.total_decoded_bytes for component in components) / rows
        group_bytes = max(1, int(group_bytes * payloads / (payloads + images.bytes_each)))
        ahead_bytes = max(1, int(ahead_bytes * payloads / (payloads + images.bytes_each)))
    return PassLimits(threads, io_threads, group_bytes, group_rows, ahead_bytes)


def needs_identities(options: StreamOptions, components: Sequence[Component]) -> bool:
    """Whether batches need to know which records their rows are."""
    images = components[0].source.options.images
    if options.positions or options.random_transform is not None or (images is not None and images.random):
        return True
    return any(isinstance(component.source, JoinedSource) for component in components)


def _ahead_bytes(components: Sequence[Component], *, local: bool) -> int:
    """Return the default readahead in bytes; more for high-latency stores."""
    usual = TUNING.ahead_bytes
    if local:
        return usual
    latency = max(component.source.pool.latency() for component in components)
    if latency == float("inf"):
        return usual
    return max(usual, min(4 * usual, int(2 * latency * TUNING.bytes_per_second)))


class _Source:
    """What a planner knows of a dataset, and where its readers are; int64 [readers] each.

    Args:
        component, plan: of the dataset.
        is_mapped: its rows are gathered from mapped shards, without chunks.
        readers: how many it has.
        begin: the round in which those that have no window yet are.
        lanes: bool [lanes], which lanes this process alone delivers.

    Attributes:
        window: the window that each reader is in, -1 before the first.
        begin: the round of the order in which it came to that.
        chunk, base: its chunk, 0 for none, and its first row there.
        early: of windows that readers will come to, the chunk and the first row there.
        run_rows: rows of a chunk that is opened of several windows, at most; their edges are multiples of it.
    """

    def __init__(
        self, component: Component, plan: Plan, *, is_mapped: bool, readers: int, begin: int, lanes: _Flags
    ) -> None:
        sizes = component.order.sizes
        self.is_mapped, self.lanes = is_mapped, lanes
        self.rows, self.row_bytes = sizes.total_rows, sizes.row_decoded_bytes
        most = int(TUNING.run_bytes / max(1.0, sizes.row_stored_bytes))
        self.run_rows = max(1, min(plan.chunk_rows, most))
        self.window, self.begin = np.full(readers, -1), np.full(readers, begin)
        self.chunk, self.base = np.zeros(readers, np.int64), np.zeros(readers, np.int64)
        self.early: dict[int, tuple[int, int]] = {}

    def enter(
        self, reader: NDArray[np.int64], windows: Windows, chunk: NDArray[np.int64], base: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Let readers come to windows, of several the last one; return the chunks they leave, 0 for none."""
        left = self.chunk[distinct(reader)]
        keys = _keys_of(windows)
        self.window[reader], self.begin[reader] = keys, windows.begin
        self.chunk[reader], self.base[reader] = chunk, base
        passed = self.window[reader] != keys
        return np.append(left, chunk[passed])


def _own_lanes(plan: Plan, global_batch: int, place: tuple[int, int], workers: int) -> _Flags:
    """Return which lanes one of so many workers of a rank alone delivers; bool [lanes]."""
    start, stop = rank_slice(global_batch, *place)
    share = global_batch // plan.ranks
    own = np.zeros(plan.ranks, bool)
    own[-(-start // share) : stop // share] = plan.workers % max(1, workers) == 0
    return np.tile(own, plan.workers)


def _keys_of(windows: Windows) -> NDArray[np.int64]:
    return windows.cycle << _CYCLE_BITS | windows.number


class Planner:
    """Cuts the steps of a process into groups and has their chunks opened; one thread at a time uses it.

    Args:
        schedule: the epoch, at the step to begin with.
        share: rank, world size, loader worker and workers, of which this process delivers its share.
        plans: of each dataset.
        is_mapped: of each, whether its rows are gathered from mapped shards, without chunks.
        gatherer: of the pass, whose chunks are opened.
        limits: see `PassLimits`.
        identities: batches need to know which records their rows are.
    """

    def __init__(
        self,
        schedule: Schedule,
        share: tuple[int, int, int, int],
        plans: Sequence[Plan],
        is_mapped: Sequence[bool],
        gatherer: RowGatherer,
        limits: PassLimits,
        *,
        identities: bool,
    ) -> None:
        self._schedule, self._lanes = schedule, schedule.lanes
        self._rank, self._world_size, worker, workers = share
        self._steps = schedule.steps(worker=worker, workers=workers)
        self._gatherer, self._chunks, components = gatherer, gatherer.chunks, gatherer.components
        self._task_bytes = min(TUNING.task_bytes, limits.group_bytes)
        self._identities = identities
        self._remote = not all(component.source.is_local for component in components)
        self._is_mapped = is_mapped
        total_bytes = sum(component.order.sizes.total_decoded_bytes for component in components)
        self._opens_records = not self._remote or total_bytes > TUNING.first_bytes
        # A pass that begins in the middle does not know which windows were delivered before.
        begin = _FOREVER if schedule.step else -1
        self._sources = [
            _Source(
                component,
                plan,
                is_mapped=mapped,
                readers=readers,
                begin=begin,
                lanes=_own_lanes(plan, schedule.global_batch, share[:2], workers),
            )
            for component, plan, mapped, readers in zip(
                components, plans, is_mapped, self._lanes.readers, strict=True
            )
        ]
        rows = max(1, -(-schedule.global_batch // self._world_size))
        self.step_bytes = max(1.0, rows * max(source.row_bytes for source in self._sources))
        self.group_steps = max(
            1, int(min(limits.group_rows / rows, limits.group_bytes / self.step_bytes, TUNING.most_steps))
        )

    def groups(self) -> Iterator[StepGroup]:
        """Yield the steps of this process in groups, of which the first is a single step."""
        start, count = 0, 1
        while start < len(self._steps):
            steps = [step for step in self._steps[start : start + count] if not self.is_in_tail(step)]
            # Each step of the tail draws from windows of other lanes, so what is common to several is little.
            steps = steps or [self._steps[start]]
            yield self._schedule.group(steps, rank=self._rank, world_size=self._world_size)
            start, count = start + len(steps), self.group_steps

    def is_in_tail(self, step: int) -> bool:
        """Whether a step is one of the last, which go through all lanes in order."""
        return step >= self._schedule.tail_start

    def plan(self, group: StepGroup, submit: Callable[..., Future[None]]) -> PlannedSteps:
        """Say where each row of a group is, and submit what opens the chunks that are not open yet."""
        in_tail = self.is_in_tail(group.steps[0])
        if in_tail and len(group.parts):
            self._leave_lanes(int(group.parts[0, 0]))
        rows = self._lanes.rows(group.parts) if any(self._is_mapped) or self._identities else None
        codes, used = np.zeros(group.order.size, np.int64), _NONE
        if not all(self._is_mapped):
            codes, used = self._plan_chunks(group, submit, in_tail=in_tail)
        for number, source in enumerate(self._sources):
            if source.is_mapped:
                assert rows is not None  # noqa: S101 - for the type checker
                own = np.flatnonzero(rows.sources == number)
                codes[own] = self._gatherer.mapped_codes(number, rows.positions[own])
        identities = None
        if self._identities and rows is not None:
            identities = Rows(*(column[group.order] for column in rows))
        return PlannedSteps(group, codes, used, identities)

    def _plan_chunks(
        self, group: StepGroup, submit: Callable[..., Future[None]], *, in_tail: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the codes of the rows of a group that are in chunks, and these chunks, in use once more."""
        windows, window, row = self._lanes.locate(group.parts)
        if self._opens_records and group.steps[0] == self._steps[0]:
            return self._open_records(group, submit)
        chunk, base, left = self._enter(windows, submit, alone=in_tail)
        used = distinct(chunk[window])
        used = used[used > 0]
        self._chunks.use(used)
        self._chunks.release(left)
        return chunk_codes(chunk[window], base[window] + row), used

    def _enter(
        self, windows: Windows, submit: Callable[..., Future[None]], *, alone: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Let readers come to windows.

        Returns:
            The chunk of each window, 0 for those of mapped shards, and its first row there; and the chunks of
            windows that readers have left.
        """
        chunk, base, keys = (
            np.zeros(len(windows), np.int64),
            np.zeros(len(windows), np.int64),
            _keys_of(windows),
        )
        left = [_NONE]
        for number, source in enumerate(self._sources):
            own = np.flatnonzero(windows.source == number)
            if source.is_mapped or not own.size:
                continue
            reader = windows.reader[own]
            chunk[own], base[own] = source.chunk[reader], source.base[reader]
            new = own[source.window[reader] != keys[own]]
            early = [source.early.pop(key, (0, 0)) for key in keys[new].tolist()]
            chunk[new], base[new] = np.array(early, np.int64).reshape(-1, 2).T
            closed = new[chunk[new] == 0]
            for cycle in distinct(windows.cycle[closed]).tolist():
                same = closed[windows.cycle[closed] == cycle]
                chunk[same], base[same] = self._open(number, windows.take(same), keys, submit, alone=alone)
            left.append(source.enter(windows.reader[new], windows.take(new), chunk[new], base[new]))
        gone = np.concatenate(left)
        return chunk, base, gone[gone > 0]

    def _open(
        self,
        number: int,
        wanted: Windows,
        keys: NDArray[np.int64],
        submit: Callable[..., Future[None]],
        *,
        alone: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Have windows of one source and cycle opened; return the chunk of each, and its first row there."""
        source, windows = self._sources[number], wanted
        if self._remote and not alone:
            windows = self._with_neighbours(number, wanted, keys)
        order = np.argsort(windows.position, kind="stable")
        heads, owner = _cut_chunks(windows.take(order), source.run_rows)
        counts = windows.rows[order]
        stops = np.cumsum(counts)
        first = windows.position[order[heads]]
        ends = np.append(heads[1:], order.size) - 1
        last = windows.position[order[ends]] + counts[ends]
        opened = [Chunk(number, range(*bounds)) for bounds in zip(first.tolist(), last.tolist(), strict=True)]
        numbers = self._chunks.add(opened)
        chunk, base = np.empty(order.size, np.int64), np.empty(order.size, np.int64)
        starts = stops - counts
        chunk[order], base[order] = numbers[owner], starts - starts[heads][owner]
        self._chunks.use(chunk)
        more = _keys_of(windows)[len(wanted) :].tolist()
        places = zip(chunk[len(wanted) :].tolist(), base[len(wanted) :].tolist(), strict=True)
        source.early.update(zip(more, places, strict=True))
        task = (stops[heads] - 1) * source.row_bytes // self._task_bytes
        for own in np.split(np.arange(heads.size), np.flatnonzero(np.diff(task)) + 1):
            self._begin(opened[own[0] : own[-1] + 1], numbers[own], submit)
        return chunk[: len(wanted)], base[: len(wanted)]

    def _with_neighbours(self, number: int, windows: Windows, keys: NDArray[np.int64]) -> Windows:
        """Return windows, and behind them others of their chunks that are needed within a chunk's life."""
        source, joined = self._sources[number], [windows]
        low = windows.position // source.run_rows * source.run_rows
        high = np.minimum(low + source.run_rows, source.rows)
        taken = np.append(keys, np.fromiter(source.early, np.int64, len(source.early)))
        for after in (True, False):
            edge = windows.position + windows.rows if after else windows.position.copy()
            runs = np.arange(len(windows))
            while (runs := runs[edge[runs] < high[runs] if after else edge[runs] > low[runs]]).size:
                cycle = int(windows.cycle[0])
                more = self._lanes.windows_at(number, cycle, edge[runs] - (not after))
                key = _keys_of(more)
                good = (
                    source.lanes[more.lane] & (more.begin > source.begin[more.reader]) & ~np.isin(key, taken)
                )
                good &= more.begin <= windows.begin[runs] + source.run_rows
                runs, more = runs[good], more.take(np.flatnonzero(good))
                taken = np.append(taken, key[good])
                edge[runs] += more.rows if after else -more.rows
                joined.append(more)
        return type(windows).joined(joined)

    def _begin(
        self, chunks: Sequence[Chunk], numbers: NDArray[np.int64], submit: Callable[..., Future[None]]
    ) -> None:
        task = submit(self._gatherer.opener.open, numbers.tolist())
        for chunk in chunks:
            chunk.task = task

    def _leave_lanes(self, lane: int) -> None:
        """Give up the chunks of lanes before one: the tail goes through all lanes in order."""
        for source in self._sources:
            behind = slice(lane * (source.chunk.size // len(self._lanes.lane_lengths)))
            chunks = source.chunk[behind]
            self._chunks.release(chunks[chunks > 0])
            source.chunk[behind], source.window[behind] = 0, -1

    def _open_records(
        self, group: StepGroup, submit: Callable[..., Future[None]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Have the rows of a group opened without the rest of their chunks; return their codes and chunks."""
        rows = self._lanes.rows(group.parts)
        codes, used = np.zeros_like(rows.positions), [_NONE]
        for number, source in enumerate(self._sources):
            own = np.flatnonzero(rows.sources == number) if not source.is_mapped else _NONE
            own = own[np.argsort(rows.positions[own], kind="stable")]
            for some in (
                np.split(own, range(TUNING.first_rows, own.size, TUNING.first_rows)) if own.size else ()
            ):
                chunk = Chunk(number, rows.positions[some])
                numbers = self._chunks.add([chunk])
                self._chunks.use(numbers)
                used.append(numbers)
                codes[some] = chunk_codes(numbers[0], np.arange(some.size))
                self._begin([chunk], numbers, submit)
        return codes, np.concatenate(used)


def _cut_chunks(windows: Windows, run_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first windows of chunks, given windows by position, and the chunk of each window."""
    start, rows = windows.position, windows.rows
    apart = (start[1:] != start[:-1] + rows[:-1]) | (start[1:] // run_rows != start[:-1] // run_rows)
    is_head = np.append(True, apart)
    return np.flatnonzero(is_head), np.cumsum(is_head) - 1
