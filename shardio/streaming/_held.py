"""The windows of a pass that are held: which are fetched together, and how long each part of them lives.

What a group of steps needs and is not held is fetched by as few requests as possible.  From a bucket the
neighbours of a window, which other strands come to soon, come with it by the same request, if there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from shardio.order import Lanes, Pieces, StepGroup, Windows, join_pieces, remaining_rows, select_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from shardio.streaming._batches import PendingWindow
    from shardio.streaming._windows import WindowData

    Load: TypeAlias = Callable[..., Any]

# Windows whose rows are copied or decoded are held in so many parts; what finds the rows of a part costs more
# than small records take.
_PARTS = 8
_FOREVER = 1 << 62
# The number of a window is below this, so that it and the cycle make one number.
_CYCLES = 1 << 41


class Neighbours(NamedTuple):
    """Which windows of a source come before they are needed, because a neighbour is fetched.

    Attributes:
        rounds: those that are needed within so many rounds.
        run_rows: until one request brings so many rows.
        room: rows that may be held early.
        rows: of the source.
        lanes: bool [lanes], which lanes this process alone delivers.
    """

    rounds: int
    run_rows: int
    room: int
    rows: int
    lanes: NDArray[np.bool_]


class _Held:
    """What was fetched of one source, and is in use: for each reader of its lanes the latest window."""

    def __init__(self, readers: int) -> None:
        self.window = np.full(readers, -1, np.int64)
        self.fetch = np.full(readers, -1, np.int64)  # number of the fetch that it came with
        self.base = np.zeros(readers, np.int64)  # its first row in what was fetched
        self.begin = np.full(readers, -1, np.int64)  # the round in which it was come to
        self.latest = np.zeros(readers, np.int64)  # of windows that come together, the place of its last one
        # Windows that came before they are needed, by number and cycle: fetch, first row there, and rows.
        self.early: dict[int, tuple[int, int, int]] = {}
        self.early_rows = 0


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


class HeldWindows:
    """The windows of a pass that are held: the latest one of each reader, as what was fetched together.

    A lane is read forward, so older windows live as long as their groups. Of a source whose windows are cut
    into parts, each part lives until all of its rows are planned: a window that is half delivered takes
    little more than half of its memory.

    Args:
        lanes: of the epoch.
        load: fetches windows, given the number of their source and their pieces.
        row_bytes: mean decoded bytes of a row.
        fetch_bytes: decoded bytes of what one call fetches.
        begun: the pass begins in the middle of an epoch, and so of windows: of those that it finds open it
            fetches what is still to be delivered.
        exact: of each source, whether rows that are apart are fetched as cheaply as those between them, too.
        in_parts: of each source, whether its windows are fetched in parts, which are freed one by one.
        neighbours: of each source, which windows come with others; None for none.
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
        neighbours: Sequence[Neighbours | None] = (),
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
        self._begun, self._exact, self._in_parts, self._neighbours = begun, exact, in_parts, neighbours
        self._seen = np.zeros(len(lanes.lane_lengths), bool)
        if begun:
            for held in self._held:
                held.begin[:] = _FOREVER  # not known: the pass began after it did
        # By number of a fetch that is a part of its windows, or cut into parts: of each of their rows, its
        # number in its part times the number of parts, plus that of the part; -1 where it was left out.
        self._codes: dict[int, NDArray[np.int32]] = {}

    def plan(
        self, group: StepGroup, submit: Callable[..., Future[Any]], *, alone: bool = False
    ) -> tuple[list[PendingWindow], NDArray[np.int64], NDArray[np.int64]]:
        """Return what holds the rows of a group: futures, and for each row its future and row in that.

        What is not held yet is fetched by what `submit` makes of a call; `alone`, without neighbours.
        """
        windows, window, row = self._lanes.locate(group.parts)
        fetch = np.empty(len(windows), np.int64)
        base = np.empty(len(windows), np.int64)
        key = windows.cycle * _CYCLES + windows.number
        self._seen[group.parts[:, 0]] = True
        for source, held in enumerate(self._held):
            own = np.flatnonzero(windows.source == source)
            reader = windows.reader[own]
            fetch[own], base[own] = held.fetch[reader], held.base[reader]
            other = held.window[reader] != key[own]
            if self._codes:
                other |= self._lacking(np.where(other, -1, fetch[own]), base[own], own, window, row)
            new = own[other]
            if not new.size:
                continue
            entered = self._begun and bool((held.fetch[windows.reader[new]] < 0).any())
            came, fresh = self._came_early(held, new, key)
            fetch[new], base[new] = came
            for run in np.split(fresh, np.flatnonzero(np.diff(windows.cycle[fresh])) + 1):
                if not run.size:
                    continue
                both, rule = windows.take(run), self._neighbours[source] if self._neighbours else None
                if rule is not None and not (alone or entered):
                    more = self._neighbours_of(source, held, both, key[own], rule)
                    both = both if more is None else Windows.joined([both, more])
                for some in self._cut(both, joined=rule is not None):
                    chosen = both.take(some)
                    pieces, counts = self._lanes.many_pieces(chosen)
                    first = some < run.size
                    part = self._to_come(chosen, run[some], window, row) if entered else None
                    number = self._begin(source, chosen, pieces, part, submit)
                    begins = np.cumsum(counts) - counts
                    fetch[run[some[first]]], base[run[some[first]]] = number, begins[first]
                    late = np.flatnonzero(~first)
                    self._keep_early(held, chosen.take(late), number, begins[late])
            self._hold(held, windows.take(new), key[new], fetch[new], base[new])
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
        places = np.cumsum(counts > 0) - 1
        return found, places[spot], place

    def _part(self, spot: int) -> PendingWindow:
        part = self._parts[spot]
        if part is None:
            # Left out, it would give the rows of this group the numbers of other parts: wrong records.
            message = f"part {spot % _PARTS} of fetch {spot // _PARTS} was freed before its last row"
            raise AssertionError(message)
        return part

    @staticmethod
    def _came_early(
        held: _Held, new: NDArray[np.int64], key: NDArray[np.int64]
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]:
        """Return fetch and first row of windows that come into use, and which of them are to be fetched."""
        if not held.early:
            nothing = np.full(new.size, -1)
            return (nothing, nothing), new
        found = np.array([held.early.get(each, (-1, -1, 0))[:2] for each in key[new].tolist()])
        return (found[:, 0], found[:, 1]), new[found[:, 0] < 0]

    def _keep_early(self, held: _Held, windows: Windows, fetch: int, base: NDArray[np.int64]) -> None:
        if not len(windows):
            return
        keys = windows.cycle * _CYCLES + windows.number
        rows = windows.rows.tolist()
        for key, begin, many in zip(keys.tolist(), base.tolist(), rows, strict=True):
            held.early[key] = fetch, begin, many
        held.early_rows += sum(rows)
        self._used[fetch] += len(rows)

    def _neighbours_of(
        self, source: int, held: _Held, windows: Windows, keys: NDArray[np.int64], rule: Neighbours
    ) -> Windows | None:
        """Return windows to fetch with others of one source and cycle, that follow or precede them.

        Args:
            source, held: of the windows.
            windows: that are fetched.
            keys: of all windows of the group.
            rule: which ones.
        """
        order = np.argsort(windows.position, kind="stable")
        starts, rows = windows.position[order], windows.rows[order]
        stops, latest = starts + rows, windows.begin[order] + rule.rounds
        taken = {*keys.tolist(), *held.early}
        cycle, room = int(windows.cycle[0]), rule.room - held.early_rows
        found: list[Windows] = []
        growing = {True: np.arange(starts.size), False: np.arange(starts.size)}
        while room > 0 and any(each.size for each in growing.values()):
            for after in (True, False):
                runs = growing[after]
                inside = stops[runs] < rule.rows if after else starts[runs] > 0
                runs = runs[(rows[runs] < rule.run_rows) & inside]
                at = self._lanes.windows_at(source, cycle, stops[runs] if after else starts[runs] - 1)
                if at is None:
                    return None
                good = rule.lanes[at.lane] & self._seen[at.lane]
                good &= (at.begin > held.begin[at.reader]) & (at.begin <= latest[runs])
                good &= rows[runs] + at.rows <= 2 * rule.run_rows
                number = cycle * _CYCLES + at.number
                chosen = []
                for k in np.flatnonzero(good).tolist():
                    key, many = int(number[k]), int(at.rows[k])
                    if key not in taken and many <= room:
                        taken.add(key)
                        room -= many
                        chosen.append(k)
                more = at.take(np.array(chosen, np.int64))
                growing[after] = runs = runs[chosen]
                if after:
                    stops[runs] += more.rows
                else:
                    starts[runs] -= more.rows
                rows[runs] += more.rows
                found.append(more)
        return Windows.joined(found)

    def _begin(
        self,
        source: int,
        windows: Windows,
        pieces: Pieces,
        wanted: NDArray[np.bool_] | None,
        submit: Callable[..., Future[Any]],
    ) -> int:
        """Submit what fetches windows, or rows of them that are wanted; return the number of the fetch."""
        if wanted is not None:
            pieces, number = select_rows(pieces, wanted, exact=self._exact[source])
            fetch = self._number([submit(self._load, source, join_pieces(pieces))])
            self._codes[fetch] = np.where(number < 0, -1, number * _PARTS).astype(np.int32)
            return fetch
        pieces = join_pieces(pieces)
        if not (self._in_parts and self._in_parts[source]):
            return self._number([submit(self._load, source, pieces)])
        return self._begin_parts(source, windows, pieces, submit)

    def _begin_parts(
        self, source: int, windows: Windows, pieces: Pieces, submit: Callable[..., Future[Any]]
    ) -> int:
        """Submit what fetches windows in parts, those rows together that are delivered together."""
        when, counts = self._lanes.row_order(windows), windows.rows
        assert when is not None  # noqa: S101 - for the type checker; a source in parts is interleaved
        first = windows.begin.min()
        rounds = int((windows.begin + counts).max() - first)
        part = ((when + np.repeat(windows.begin - first, counts)) * _PARTS // rounds).astype(np.uint8)
        sizes = np.bincount(part, minlength=_PARTS)
        order = np.argsort(part, kind="stable")
        code = np.empty(part.size, np.int32)
        code[order] = (np.arange(part.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)) * _PARTS
        # Some parts of very small windows are empty.
        numbers = np.cumsum(sizes > 0) - 1
        own, sizes = numbers[part], sizes[sizes > 0]
        slots: list[list[WindowData]] = [[] for _ in range(sizes.size)]
        task = submit(_fill, slots, self._load, source, pieces, own)
        number = self._number([_WindowPart(task, slot) for slot in slots], sizes)
        self._codes[number] = code + own.astype(np.int32)
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

    def _cut(self, windows: Windows, *, joined: bool) -> list[NDArray[np.int64]]:
        """Return lists of windows of one source and cycle that one call fetches.

        Args:
            windows: in the order of need.
            joined: in storage order, so that those that follow one another come together.
        """
        starts, rows = windows.position, windows.rows
        if (starts < 0).any():
            return list(np.arange(rows.size)[:, None])  # these are large, and end one by one
        # They are all needed by one group, so what comes first is nothing to it.
        order = np.argsort(starts, kind="stable")
        if not joined and self._in_parts and self._in_parts[int(windows.source[0])]:
            # Of what is decoded a part lives as long as the longest window in it: of like length at a start.
            order = order[np.argsort(rows[order], kind="stable")]
        starts, rows = starts[order], rows[order]
        before = np.cumsum(rows) - rows
        heads = np.append(True, starts[1:] != starts[:-1] + rows[:-1])
        # What one request brings is not cut, unless it is more than a call fetches.
        begins = before[heads][np.cumsum(heads) - 1] if joined else before
        call = begins // self._fetch_rows * (1 << 32) + (before - begins) // self._fetch_rows
        return np.split(order, np.flatnonzero(np.diff(call)) + 1)

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
        windows: Windows,
        key: NDArray[np.int64],
        fetch: NDArray[np.int64],
        base: NDArray[np.int64],
    ) -> None:
        # Windows come in the order in which they are used: of several of one reader the last is kept.
        reader = windows.reader
        places = np.arange(len(reader))
        held.latest[reader] = places
        last = held.latest[reader] == places
        latest, number = reader[last], fetch[last]
        self._let_go(held, latest)
        held.window[latest], held.fetch[latest], held.base[latest] = key[last], number, base[last]
        held.begin[latest] = windows.begin[last]
        self._used += np.bincount(number, minlength=len(self._used))
        for each in key.tolist() if held.early else ():
            early = held.early.pop(each, None)
            if early is not None:
                self._used[early[0]] -= 1
                held.early_rows -= early[2]

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
