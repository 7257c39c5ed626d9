"""The shape of a plan, and the default shape: a function of the dataset and the first global batch alone.

The constants below were chosen by measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, cast

from shardio.arguments import integer
from shardio.order._sizes import ShardSizes

SHUFFLE_BYTES = 1 << 30
# Of storage order, where windows mix nothing: all of one is there before its first row is delivered.
_STORAGE_ORDER_BYTES = 16 << 20
_MAX_WINDOW_ROWS = 1 << 23  # rows in all windows: their permutations take 4 bytes each
_CHUNK_BYTES = 1 << 20  # some blocks, for a chunk's first and last one are fetched by two chunks
_MAX_LANES = 1 << 16
_MAX_STRANDS = 1 << 20
_LIMITS = {
    "ranks": _MAX_LANES,
    "workers": _MAX_LANES,
    "chunk_bytes": 1 << 62,
    "window": 1 << 32,
    "chunk_rows": 1 << 24,
    "interleave": 1 << 16,
}
# Of interleaved plans: a chunk of mapped files, where a request is a look into memory; of buckets, small
# records are read by so much that there is less than a request for a MiB though strands and shards cut chunks
# in two, larger ones by less, so that there are more chunks to mix.
_LOCAL_CHUNK = 32 << 10
_MOST_CHUNK = 5 << 18
_LEAST_CHUNK = 256 << 10
# From a bucket one request brings neighbours of a window that are needed soon, until it has so many stored
# bytes: the blocks at both its ends are a thirtieth of that.
RUN_BYTES = 2 << 20
_ONE_CHUNK = 1 << 34
# Of compressed local files, where a chunk costs no request: the blocks at its two ends are decoded by two
# chunks. So many blocks are smaller than what a bucket needs, and fewer bytes hold as many chunks.
_DECODED_BLOCKS = 8
_DECODED_MEMORY = 128 << 20
ROW_BYTES = 8  # beside the record itself: where it ends, and its place in the permutation
# What a window holds of a record that is in a file until it is delivered: number of the file, place, size
# and checksum.
UNREAD_ROW_BYTES = 32
# On a local disk chunks have room that are worth a request each. From so many on, larger ones mix as well.
_SCRATCH_CHUNKS = 8192
_SCRATCH_CHUNK = 17 << 16
_MOST_SCRATCH_CHUNK = 2 << 20
SCRATCH_BYTES = 4 << 30
_SMALL = 64 << 20
_CHUNKS_PER_LANE = 8
_LANES = 512  # with SHUFFLE_BYTES, windows of 2 MiB
_RANKS = 256
_CLASSES = 4
_CLASS_STEPS = 16  # an epoch has at least so many steps for each class
_HALVED_FROM = 64  # from this batch on the plan allows a batch of half the size
_COMMON_WORLDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Give the shape of an order, or part of it; it belongs to a run for life, whatever processes take part.

    There are two kinds. An *interleaved* plan, which is the default, has `chunk_rows`, `interleave` and
    `window`; a *windowed* one has `chunk_bytes` and `window`. A number that is left out is None here; the
    order chooses it, given the others, so the plans that an order and a state hold are complete. A plan that
    gives `window` or `chunk_bytes`, and no number that only interleaved ones have, is windowed.

    Attributes:
        ranks: C: any number of ranks that divides it reads every chunk once. The global batch is a multiple
            of it.
        workers: T: any number of loader workers that divides it reads every chunk once.
        chunk_bytes: stored bytes of a chunk, the unit of I/O and of the first shuffle; of windowed plans.
        window: rows of a window, the unit of the second shuffle. C * T of them are open at a time in the
            whole job, in interleaved plans C * T * J.
        chunk_rows: records of a chunk; of interleaved plans.
        interleave: J, the chunks of a lane that are read side by side; of interleaved plans.

    >>> Plan(ranks=8, workers=2, chunk_bytes=1 << 20, window=1000).lanes
    16
    >>> Plan(ranks=8, workers=1, chunk_rows=32, interleave=100, window=32).interleaved
    True
    """

    # Typed as what they are in every plan of an order; only the plan that a caller passes in may hold None.
    ranks: int = cast("int", None)
    workers: int = cast("int", None)
    chunk_bytes: int = cast("int", None)
    window: int = cast("int", None)
    chunk_rows: int = cast("int", None)
    interleave: int = cast("int", None)

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
                "read side by side"
            )
        if self.interleaved and self.chunk_bytes is not None:
            msg = "a plan has chunk_bytes, or chunk_rows and interleave: give the size of a chunk once"
            raise ValueError(msg)
        if self.window is not None and self.chunk_rows is not None and self.window > self.chunk_rows:
            msg = f"Plan.window={self.window} must not be larger than Plan.chunk_rows={self.chunk_rows}"
            raise ValueError(msg)

    @property
    def lanes(self) -> int:
        """L = C * T, of a plan that has both."""
        return self.ranks * self.workers

    @property
    def interleaved(self) -> bool:
        """Whether this is an interleaved plan."""
        return self.chunk_rows is not None or self.interleave is not None

    @property
    def windowed(self) -> bool:
        """Whether this is a windowed plan; one that gives ranks and workers alone may become either."""
        return not self.interleaved and (self.chunk_bytes is not None or self.window is not None)

    def agrees(self, other: Plan) -> bool:
        """Return whether another plan has every number that this one gives."""
        theirs = other.to_dict()
        return all(theirs.get(name) == value for name, value in self.to_dict().items())

    def to_dict(self) -> dict[str, int]:
        """Return the numbers that are given as a dict of integers, for a state."""
        return {name: value for name, value in asdict(self).items() if value is not None}


MIXINGS = {"cheap": 4.0, "default": 1.0, "best": 0.25}  # bytes of a chunk, as a multiple of the default's


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Say what the default plan may cost.

    Attributes:
        memory_bytes: what a process that delivers whole global batches may hold beside them.
        mixing: "default", "best" for smaller chunks, "cheap" for larger ones.
        local: shards are mapped files, of which small chunks cost little.
        decoded: shards are local files of compressed blocks, of which a chunk has several. Where neither is
            so, chunks are made for a bucket.
        scratch_bytes: what such a process may keep of open chunks on a local disk; chunks that fit in
            `memory_bytes` stay there.
    """

    memory_bytes: int = 512 << 20
    mixing: str = "default"
    local: bool = False
    decoded: bool = False
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        if self.mixing not in MIXINGS:
            raise ValueError(f"mixing must be one of {', '.join(map(repr, MIXINGS))}, found {self.mixing!r}")
        for name, least in (("memory_bytes", 1), ("scratch_bytes", 0)):
            value = getattr(self, name)
            if integer(name, value) < least:
                raise ValueError(f"{name} must be at least {least}, found {value}")

    @property
    def window_bytes(self) -> int:
        """Of `memory_bytes`, what windows may take; the rest is for what is fetched and built ahead."""
        return self.memory_bytes * 7 // 10

    def on_scratch(self, sources: Sequence[ShardSizes]) -> bool:
        """Return whether the windows of datasets are kept on a local disk: they do not fit in memory."""
        whole = sum(sizes.total_decoded_bytes + ROW_BYTES * sizes.total_rows for sizes in sources)
        return not (self.local or self.decoded) and self.memory_bytes < min(self.scratch_bytes, whole)

    def held_bytes(self, sizes: ShardSizes, share: float, *, scratch: bool) -> int:
        """Return what the windows of a dataset, which has a share of the whole, may hold."""
        memory = int(self.window_bytes * share)
        if not scratch:
            return memory
        row = sizes.row_decoded_bytes + ROW_BYTES
        most = int(memory / (UNREAD_ROW_BYTES + ROW_BYTES) * row)
        return max(memory, min(int(self.scratch_bytes * share), most))

    def chunk_bytes(self, sizes: ShardSizes, *, scratch: int = 0) -> float:
        """Return the stored bytes that a chunk of some shards should have.

        Args:
            sizes: of the shards.
            scratch: what windows hold on a local disk; 0 where they are in memory.
        """
        bytes_ = _LOCAL_CHUNK if self.local else _decoded_chunk(sizes) if self.decoded else _chunk(sizes)
        if scratch:
            bytes_ = min(max(scratch / _SCRATCH_CHUNKS, _SCRATCH_CHUNK), _MOST_SCRATCH_CHUNK)
        bytes_ *= MIXINGS[self.mixing]
        return min(bytes_, _LEAST_CHUNK) if self.mixing == "best" else bytes_


def _chunk(sizes: ShardSizes) -> float:
    """Return the stored bytes that a chunk should have in a bucket."""
    return min(max(_ONE_CHUNK / max(1.0, sizes.row_stored_bytes), _LEAST_CHUNK), _MOST_CHUNK)


def _decoded_chunk(sizes: ShardSizes) -> float:
    """Return the stored bytes that a chunk of compressed local files should have."""
    return min(max(_DECODED_BLOCKS * sizes.block_stored_bytes, _LOCAL_CHUNK), _chunk(sizes))


def decoded_memory(sources: Sequence[ShardSizes]) -> int:
    """Return the `memory_bytes` that compressed local files have by default.

    It holds as many chunks as the default of a bucket does, whose chunks are larger.
    """
    share = max(_decoded_chunk(sizes) / _chunk(sizes) for sizes in sources)
    return max(_DECODED_MEMORY, round(Budget.memory_bytes * share))


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
    budget: Budget | None = None,
) -> list[Plan]:
    """Return the plans of the sources of a mixture, which share their lanes, or of one dataset.

    The smallest source decides how many lanes there are; the windows of a source have its share of the
    memory.

    Args:
        sources: of each, the shards of the split.
        global_batch: rows of the first global batch.
        shuffle: False gives one lane, which is storage order.
        shares: the places of each source in one period of the schedule.
        given: for each source a plan with the numbers that are fixed; the others are chosen to go with them.
        budget: what it may cost.

    Raises:
        ValueError: the given plans contradict each other, or the batch.
    """
    asked = _Asked.of_call(sources, global_batch, shares, given, budget)
    kinds = {plan.interleaved for plan in asked.fixed if plan.interleaved or plan.windowed}
    if len(kinds) > 1:
        raise ValueError("the plans of a mixture must be of one kind: windowed, or interleaved")
    budget = asked.budget
    # What is small is read whole before the first batch, and shuffled as a whole.
    small = sum(sizes.total_decoded_bytes for sizes in sources) <= min(_SMALL, budget.window_bytes)
    if True in kinds or (shuffle and not kinds and not small):
        return _shaped(asked)
    return windowed_plans(sources, global_batch=global_batch, shuffle=shuffle, shares=shares, given=given)


class _Asked(NamedTuple):
    """What plans are made for: of each source the sizes, the places in a period, and the numbers given."""

    sources: Sequence[ShardSizes]
    global_batch: int
    counts: Sequence[int]
    fixed: Sequence[Plan]
    budget: Budget

    @classmethod
    def of_call(
        cls,
        sources: Sequence[ShardSizes],
        global_batch: int,
        shares: Sequence[int] | None,
        given: Sequence[Plan] | None,
        budget: Budget | None = None,
    ) -> _Asked:
        """Return what a call asks for, with what it leaves out."""
        check_batch(global_batch, 1)
        count = len(sources)
        return cls(
            sources, global_batch, shares or [1] * count, given or [Plan()] * count, budget or Budget()
        )

    def fixed_number(self, name: str) -> int | None:
        """Return a number that all sources share, None where no plan gives it."""
        found = {getattr(plan, name) for plan in self.fixed} - {None}
        if len(found) > 1:
            shown = " and ".join(str(value) for value in sorted(found))
            raise ValueError(f"the plans of a mixture must share ranks and workers; found {name}={shown}")
        return found.pop() if found else None


def windowed_plans(
    sources: Sequence[ShardSizes],
    *,
    global_batch: int,
    shuffle: bool = True,
    shuffle_bytes: int = SHUFFLE_BYTES,
    shares: Sequence[int] | None = None,
    given: Sequence[Plan] | None = None,
) -> list[Plan]:
    """Return windowed plans, which were the default ones of order 1; see `default_plans`.

    `shuffle_bytes` are the decoded bytes of all windows of the whole job; without a shuffle at most 16 MiB.
    """
    asked = _Asked.of_call(sources, global_batch, shares, given)
    if shuffle_bytes < 1:
        raise ValueError(f"shuffle_bytes must be at least 1, found {shuffle_bytes}")
    if not shuffle:
        shuffle_bytes = min(shuffle_bytes, _STORAGE_ORDER_BYTES)
    counts, most = asked.counts, 1
    if shuffle:
        chunks = (min(sizes.total_blocks, sizes.total_stored_bytes // _CHUNK_BYTES) for sizes in sources)
        most = min(chunks, default=1) // _CHUNKS_PER_LANE
    ranks, workers = _lanes(asked, most=most, classes=_CLASSES, shuffle=shuffle)
    plans = []
    for sizes, count, plan in zip(sources, counts, asked.fixed, strict=True):
        rows = max(1, sizes.total_rows)
        budget = shuffle_bytes * count // sum(counts)
        window = budget * rows // (ranks * workers * max(1, sizes.total_decoded_bytes))
        window = max(1, min(window, _MAX_WINDOW_ROWS // (ranks * workers)))
        plans.append(
            Plan(
                ranks=ranks,
                workers=workers,
                chunk_bytes=plan.chunk_bytes or _CHUNK_BYTES,
                window=plan.window or window,
            )
        )
    return plans


def _shaped(asked: _Asked) -> list[Plan]:
    """Return interleaved plans."""
    counts, budget = asked.counts, asked.budget
    scratch = budget.on_scratch(asked.sources)
    shapes = [
        _chunks(
            sizes,
            asked.global_batch,
            budget.held_bytes(sizes, count / sum(counts), scratch=scratch),
            budget,
            plan,
            scratch=scratch,
        )
        for sizes, count, plan in zip(asked.sources, counts, asked.fixed, strict=True)
    ]
    ranks, workers = _lanes(asked, most=min(strands for _, strands in shapes), classes=1)
    plans = []
    for (rows, strands), plan in zip(shapes, asked.fixed, strict=True):
        most = min(_LIMITS["interleave"], _MAX_STRANDS // (ranks * workers))
        interleave = 1 if rows == 1 else max(1, min(strands // (ranks * workers), most))
        plans.append(
            Plan(
                ranks=ranks,
                workers=workers,
                chunk_rows=rows,
                interleave=plan.interleave or interleave,
                window=min(plan.window or rows, rows),
            )
        )
    return plans


def _chunks(
    sizes: ShardSizes,
    global_batch: int,
    window_bytes: int,
    budget: Budget,
    given: Plan,
    *,
    scratch: bool,
) -> tuple[int, int]:
    """Return the rows of a chunk, and how many chunks may be read side by side."""
    rows = max(1, sizes.total_rows)
    stored = max(1.0, sizes.row_stored_bytes)
    held = sizes.row_decoded_bytes + ROW_BYTES
    wanted = max(1, round(budget.chunk_bytes(sizes, scratch=scratch * window_bytes) / stored))
    least = max(1, wanted // 4)  # requests cost, too
    # As many chunks as a batch has records, so that no two of a batch come from one chunk, where memory
    # allows it; and two for each strand, so that strands are not all beginning and end.
    fitting = min(int(window_bytes / (global_batch * held)), rows // (2 * global_batch))
    most = min(rows, max(1, int(window_bytes / held)), _LIMITS["chunk_rows"])
    usual = min(wanted, int(RUN_BYTES / stored))
    wanted = min(max(least, min(wanted, fitting)), most)
    many = given.chunk_rows or wanted
    if many == 1:
        return 1, max(1, min(rows // _CHUNKS_PER_LANE, int(window_bytes / held)))
    whole, chunk = rows * held <= window_bytes, many
    if whole and not (budget.local or budget.decoded):
        # A chunk may be several strands, which are one rank's: then its requests are as large as a chunk.
        chunk, many = given.chunk_rows or max(usual, wanted), min(many, wanted)
    strands = rows // (many if whole else 2 * many)
    return chunk, max(1, min(int(window_bytes / (many * held)), strands, _MAX_STRANDS))


def _lanes(asked: _Asked, *, most: int, classes: int, shuffle: bool = True) -> tuple[int, int]:
    """Choose C and T for the smallest source: at most `most` lanes, classes of enough steps.

    What is given stays; what is left open is chosen so that the product keeps within the same bounds.
    """
    ranks, workers = asked.fixed_number("ranks"), asked.fixed_number("workers")
    if ranks is not None:
        check_batch(asked.global_batch, ranks)
    if not shuffle:
        return ranks or 1, workers or 1
    if classes == 1:
        workers = workers or 1
    sources, global_batch, counts = asked.sources, asked.global_batch, asked.counts
    # A lane of a mixture is made of whole periods; with few of them in a lane, many rows would be left out.
    periods = min(
        sizes.total_rows // (count * _CHUNKS_PER_LANE) for sizes, count in zip(sources, counts, strict=True)
    )
    most = max(1, min(most, periods))
    if ranks is None:
        cap = min(
            most // (workers or 1),
            max(_RANKS, global_batch // 16),
            global_batch // (2 if global_batch >= _HALVED_FROM else 1),
            _MAX_LANES // (workers or 1),
        )
        divisors = [c for c in range(1, max(1, cap) + 1) if global_batch % c == 0]
        ranks = max(divisors, key=lambda c: (sum(c % w == 0 for w in _COMMON_WORLDS), _divisors(c), -c))
    if workers is None:
        rows = min(
            sizes.total_rows * sum(counts) // count for sizes, count in zip(sources, counts, strict=True)
        )
        workers = 1
        while (
            workers < classes
            and 2 * workers * ranks <= min(most, _LANES)
            and rows >= 2 * workers * global_batch * _CLASS_STEPS
        ):
            workers *= 2
    return ranks, workers


def reads_whole(plan: Plan, sizes: ShardSizes) -> bool:
    """Return whether the windows of an interleaved plan hold about all rows of a dataset at once."""
    return 3 * plan.lanes * plan.interleave * plan.window >= 2 * sizes.total_rows


def _divisors(value: int) -> int:
    return sum(value % d == 0 for d in range(1, value + 1))
