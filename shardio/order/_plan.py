"""The shape of a plan, and the default shape: a function of the dataset, the first global batch and a budget.

The constants below were chosen by measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

from shardio.arguments import integer
from shardio.order._sizes import ShardSizes

_MAX_LANES = 1 << 16
_MAX_STRANDS = 1 << 20
_LIMITS = {
    "ranks": _MAX_LANES,
    "workers": _MAX_LANES,
    "chunk_rows": 1 << 24,
    "interleave": 1 << 16,
    "window": 1 << 24,
}
ROW_BYTES = 8  # beside the record itself: where it ends, and its place in the permutation
# A dataset of at most so many bytes and rows is open as a whole: each lane is a window, shuffled as one.
_SMALL_BYTES = 64 << 20
_SMALL_ROWS = 1 << 22
_LANE_BYTES = 2 << 20  # of a small dataset: the lanes are what ranks divide among themselves
_CHUNKS_PER_LANE = 8
_RANKS = 256
_HALVED_FROM = 64  # from this batch on the plan allows a batch of half the size
_COMMON_WORLDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Give the shape of an order, or part of it; it belongs to a run for life, whatever processes take part.

    A number that is left out is None here; the order chooses it, given the others, so the plans that an order
    and a state hold are complete.

    Attributes:
        ranks: C: any number of ranks that divides it reads every chunk once. The global batch is a multiple
            of it.
        workers: T: any number of loader workers that divides it reads every chunk once.
        chunk_rows: records of a chunk, the unit of I/O and of the first shuffle.
        interleave: J, the chunks of a lane that are read concurrently.
        window: rows of a window, the unit of the second shuffle; C * T * J of them are open at a time in the
            whole job.

    >>> Plan(ranks=8, workers=2, chunk_rows=32, interleave=100).lanes
    16
    """

    # Typed as what they are in every plan of an order; only the plan that a caller passes in may hold None.
    ranks: int = cast("int", None)
    workers: int = cast("int", None)
    chunk_rows: int = cast("int", None)
    interleave: int = cast("int", None)
    window: int = cast("int", None)

    def __post_init__(self) -> None:
        for name, most in _LIMITS.items():
            value = getattr(self, name)
            if value is None:
                continue
            value = integer(f"Plan.{name}", value)
            object.__setattr__(self, name, value)
            if not 1 <= value <= most:
                raise ValueError(f"Plan.{name} must be in [1, {most}], found {value}")
        lanes = (self.ranks or 1) * (self.workers or 1)
        if lanes > _MAX_LANES:
            raise ValueError(f"Plan.ranks * Plan.workers is {lanes} lanes, at most {_MAX_LANES} can be kept")
        if lanes * (self.interleave or 1) > _MAX_STRANDS:
            raise ValueError(
                f"Plan.interleave={self.interleave} in {lanes} lanes: at most {_MAX_STRANDS} chunks can be "
                "read concurrently"
            )
        if self.window is not None and self.chunk_rows is not None and self.window > self.chunk_rows:
            msg = f"Plan.window={self.window} must not be larger than Plan.chunk_rows={self.chunk_rows}"
            raise ValueError(msg)

    @property
    def lanes(self) -> int:
        """L = C * T, of a plan that has both."""
        return self.ranks * self.workers

    @property
    def open_windows(self) -> int:
        """C * T * J, of a complete plan."""
        return self.lanes * self.interleave

    @property
    def gives_shape(self) -> bool:
        """Whether this gives a number beside `ranks` and `workers`."""
        return bool(self.to_dict().keys() - {"ranks", "workers"})

    def agrees(self, other: Plan) -> bool:
        """Return whether another plan has every number that this one gives."""
        theirs = other.to_dict()
        return all(theirs.get(name) == value for name, value in self.to_dict().items())

    def to_dict(self) -> dict[str, int]:
        """Return the numbers that are given as a dict of integers, for a state."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the default plan of a dataset may cost; whoever reads the dataset knows the numbers.

    Attributes:
        open_bytes: of its open windows, decoded, with 8 bytes a row, in a process that delivers whole global
            batches.
        chunk_bytes: stored bytes that a chunk should have.
        run_bytes: stored bytes that one request may bring, where a chunk costs a request; else 0.
    """

    open_bytes: float = (512 << 20) * 7 // 10
    chunk_bytes: float = 5 << 18
    run_bytes: int = 2 << 20


def nearest_multiples(value: int, unit: int) -> list[int]:
    """Return the multiples of `unit` next to `value` but 0; `value` itself if it is one.

    >>> nearest_multiples(100, 24), nearest_multiples(5, 8)
    ([96, 120], [8])
    """
    below = value // unit * unit
    return [m for m in dict.fromkeys((below, below if below == value else below + unit)) if m > 0]


def check_batch(global_batch: int, ranks: int) -> None:
    """Raise ValueError unless the global batch is a positive multiple of the plan's `ranks`."""
    if integer("global_batch", global_batch) < 1:
        raise ValueError(f"global_batch must be at least 1, found {global_batch}")
    if global_batch % ranks:
        near = " or ".join(str(m) for m in nearest_multiples(global_batch, ranks))
        raise ValueError(
            f"global_batch must be a multiple of the plan's ranks, {ranks}: found {global_batch}; use {near}"
        )


def default_plans(
    sources: Sequence[ShardSizes],
    *,
    global_batch: int,
    shuffle: bool = True,
    shares: Sequence[int] | None = None,
    given: Sequence[Plan] | None = None,
    budgets: Sequence[Budget] | None = None,
) -> list[Plan]:
    """Return the plans of the sources of a mixture, which share their lanes, or of one dataset.

    The smallest source decides how many lanes there are; the windows of a source have its share of the
    memory.

    Args:
        sources: of each, the shards of the split.
        global_batch: rows of the first global batch.
        shuffle: False gives one lane of one strand, which is storage order.
        shares: the places of each source in one period of the schedule.
        given: for each source a plan with the numbers that are fixed; the others are chosen to go with them.
        budgets: of each, what it may cost.

    Raises:
        ValueError: the given plans contradict each other, or the batch.
    """
    check_batch(global_batch, 1)
    shares = shares or [1] * len(sources)
    given = given or [Plan()] * len(sources)
    budgets = budgets or [Budget(open_bytes=Budget.open_bytes * share / sum(shares)) for share in shares]
    memory = sum(budget.open_bytes for budget in budgets)
    if shuffle and not any(plan.gives_shape for plan in given) and _is_small(sources, memory):
        shapes = [(max(1, sizes.total_rows), 1) for sizes in sources]
        most = min(sizes.total_stored_bytes // _LANE_BYTES for sizes in sources)
    else:
        shapes = [
            (_chunks if shuffle else _chunks_in_storage_order)(sizes, global_batch, budget, plan)
            for sizes, budget, plan in zip(sources, budgets, given, strict=True)
        ]
        most = min(chunks for _, chunks in shapes)
    periods = min(
        sizes.total_rows // (share * _CHUNKS_PER_LANE) for sizes, share in zip(sources, shares, strict=True)
    )
    ranks, workers = _shared_number(given, "ranks"), _shared_number(given, "workers") or 1
    if ranks is not None:
        check_batch(global_batch, ranks)
    elif not shuffle:
        ranks = 1
    else:
        # A lane of a mixture is made of whole periods; with few in a lane, many rows would be excluded.
        ranks = _ranks(global_batch, max(1, min(most, periods)) // workers, _MAX_LANES // workers)
    return [
        _plan(rows, chunks, ranks, workers, plan) for (rows, chunks), plan in zip(shapes, given, strict=True)
    ]


def _is_small(sources: Sequence[ShardSizes], memory: float) -> bool:
    """Whether all of the sources are open at a time, and shuffled as a whole."""
    rows = sum(sizes.total_rows for sizes in sources)
    bytes_ = sum(sizes.total_decoded_bytes for sizes in sources) + ROW_BYTES * rows
    return rows <= _SMALL_ROWS and bytes_ <= min(_SMALL_BYTES, memory)


def _plan(chunk_rows: int, chunks: int, ranks: int, workers: int, given: Plan) -> Plan:
    """Return a plan of chunks of so many rows, of which so many are read concurrently."""
    most = min(_LIMITS["interleave"], _MAX_STRANDS // (ranks * workers))
    interleave = 1 if chunk_rows == 1 else max(1, min(chunks // (ranks * workers), most))
    return Plan(
        ranks=ranks,
        workers=workers,
        chunk_rows=chunk_rows,
        interleave=given.interleave or interleave,
        window=min(given.window or chunk_rows, chunk_rows),
    )


def _chunks_in_storage_order(sizes: ShardSizes, _: int, budget: Budget, given: Plan) -> tuple[int, int]:
    """Return the rows of a chunk, of which one is read at a time: as many as are wanted and memory holds."""
    held = sizes.row_decoded_bytes + ROW_BYTES
    wanted = min(budget.chunk_bytes / max(1.0, sizes.row_stored_bytes), budget.open_bytes / held)
    most = min(max(1, sizes.total_rows), _LIMITS["chunk_rows"])
    return given.chunk_rows or max(1, min(round(wanted), most)), 1


def _chunks(sizes: ShardSizes, global_batch: int, budget: Budget, given: Plan) -> tuple[int, int]:
    """Return the rows of a chunk, and how many chunks may be read concurrently."""
    open_bytes = budget.open_bytes
    rows = max(1, sizes.total_rows)
    stored = max(1.0, sizes.row_stored_bytes)
    held = sizes.row_decoded_bytes + ROW_BYTES
    wanted = max(1, round(budget.chunk_bytes / stored))
    least = max(1, wanted // 4)  # requests cost, too
    # As many chunks as a batch has records, so that no two of a batch come from one chunk, where memory
    # allows it; and two for each strand, so that strands are not all beginning and end.
    fitting = min(int(open_bytes / (global_batch * held)), rows // (2 * global_batch))
    most = min(rows, max(1, int(open_bytes / held)), _LIMITS["chunk_rows"])
    wanted = min(max(least, min(wanted, fitting)), most)
    chunk = many = given.chunk_rows or wanted
    is_whole = rows * held <= open_bytes
    if is_whole and budget.run_bytes:
        # A chunk may be several strands, which are one rank's: then its requests are as large as can be, and
        # strands, which cost none, are half as long as a chunk would be, which mixes more.
        chunk = given.chunk_rows or min(max(int(budget.run_bytes / stored), wanted), most)
        many = max(1, min(many, wanted) // 2)
    if chunk == 1:
        return 1, max(1, min(rows // _CHUNKS_PER_LANE, int(open_bytes / held)))
    strands = rows // (many if is_whole else 2 * many)
    return chunk, max(1, min(int(open_bytes / (many * held)), strands, _MAX_STRANDS))


def _shared_number(given: Sequence[Plan], name: str) -> int | None:
    """Return a number that all sources share, None where no plan gives it."""
    found = {getattr(plan, name) for plan in given} - {None}
    if len(found) > 1:
        shown = " and ".join(str(value) for value in sorted(found))
        raise ValueError(f"the plans of a mixture must share ranks and workers; found {name}={shown}")
    return found.pop() if found else None


def _ranks(global_batch: int, lanes: int, most: int) -> int:
    """Choose C among the divisors of the batch: the one that suits most of the usual numbers of ranks."""
    halved = global_batch // (2 if global_batch >= _HALVED_FROM else 1)
    most = max(1, min(lanes, max(_RANKS, global_batch // 16), halved, most))
    divisors = [c for c in range(1, most + 1) if global_batch % c == 0]
    return max(divisors, key=lambda c: (sum(c % w == 0 for w in _COMMON_WORLDS), _divisors(c), -c))


def _divisors(value: int) -> int:
    return sum(value % d == 0 for d in range(1, value + 1))
