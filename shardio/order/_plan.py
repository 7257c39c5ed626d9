"""The shape of a plan, and the default shape: a function of the dataset and the first global batch alone.

The constants below were chosen by measurement; the table and the command that makes it are in docs/order.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.order._sizes import ShardSizes

__all__ = ["SHUFFLE_BYTES", "Plan", "check_batch", "default_plan", "default_plans", "nearest_multiples"]

SHUFFLE_BYTES = 1 << 30
_MAX_WINDOW_ROWS = 1 << 23  # rows in all windows: their permutations take 4 bytes each
_CHUNK_BYTES = 1 << 20  # some blocks, for a chunk's first and last one are fetched by two chunks
_MAX_LANES = 1 << 16
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

    A number that is left out is None here; the order chooses it as the default plan would, given the others,
    so the plans that an order and a state hold are complete.

    Attributes:
        ranks: C. Any number of ranks that divides it reads every chunk once; the global batch is a multiple
            of it.
        workers: T. Any number of loader workers that divides it reads every chunk once.
        chunk_bytes: stored bytes of a chunk, the unit of I/O and of the first shuffle.
        window: rows of a window, the unit of the second shuffle; C * T of them are open at a time in the
            whole job.

    >>> Plan(ranks=8, workers=2, chunk_bytes=1 << 20, window=1000).lanes
    16
    """

    # Typed as what they are in every plan of an order; only the plan that a caller passes in may hold None.
    ranks: int = cast("int", None)
    workers: int = cast("int", None)
    chunk_bytes: int = cast("int", None)
    window: int = cast("int", None)

    def __post_init__(self) -> None:
        for name, most in (
            ("ranks", _MAX_LANES),
            ("workers", _MAX_LANES),
            ("chunk_bytes", 1 << 62),
            ("window", 1 << 32),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                msg = f"Plan.{name} must be an integer, found {value!r}"
                raise TypeError(msg)
            if not 1 <= value <= most:
                msg = f"Plan.{name} must lie in [1, {most}], found {value}"
                raise ValueError(msg)
        lanes = (self.ranks or 1) * (self.workers or 1)
        if lanes > _MAX_LANES:
            msg = f"Plan.ranks * Plan.workers is {lanes} lanes, at most {_MAX_LANES} can be kept"
            raise ValueError(msg)

    @property
    def lanes(self) -> int:
        """L = C * T, of a plan that has both."""
        return self.ranks * self.workers

    def agrees(self, other: Plan) -> bool:
        """Return whether another plan has every number that this one gives."""
        pairs = zip(_numbers(self), _numbers(other), strict=True)
        return all(mine in (None, theirs) for mine, theirs in pairs)

    def to_dict(self) -> dict[str, int]:
        """Return the plan as a dict of integers, for a state."""
        return asdict(self)


def _numbers(plan: Plan) -> tuple[int | None, ...]:
    return plan.ranks, plan.workers, plan.chunk_bytes, plan.window


def nearest_multiples(value: int, unit: int) -> list[int]:
    """Return the multiples of `unit` next to `value` but 0; `value` itself if it is one.

    >>> nearest_multiples(100, 24), nearest_multiples(5, 8)
    ([96, 120], [8])
    """
    below = value // unit * unit
    return [m for m in dict.fromkeys((below, below if below == value else below + unit)) if m > 0]


def check_batch(global_batch: int, ranks: int) -> None:
    """Raise ValueError unless the global batch is a positive multiple of the plan's `ranks`."""
    if isinstance(global_batch, bool) or not isinstance(global_batch, int):
        msg = f"global_batch must be an integer, found {global_batch!r}"
        raise TypeError(msg)
    if global_batch < 1:
        msg = f"global_batch must be at least 1, found {global_batch}"
        raise ValueError(msg)
    if global_batch % ranks:
        near = " or ".join(str(m) for m in nearest_multiples(global_batch, ranks))
        msg = (
            f"global_batch must be a multiple of the plan's ranks, {ranks}: found {global_batch}; use {near}"
        )
        raise ValueError(msg)


def default_plan(
    sizes: ShardSizes,
    *,
    global_batch: int,
    shuffle: bool = True,
    shuffle_bytes: int = SHUFFLE_BYTES,
    given: Plan | None = None,
) -> Plan:
    """Return the plan of a dataset for its first global batch; it depends on nothing else.

    Args:
        sizes: the shards of the split.
        global_batch: rows of a global batch.
        shuffle: False gives one lane, which is storage order.
        shuffle_bytes: decoded bytes of all windows of the whole job.
        given: the numbers that are fixed; the others are chosen to go with them.
    """
    plans = default_plans(
        [sizes],
        global_batch=global_batch,
        shuffle=shuffle,
        shuffle_bytes=shuffle_bytes,
        given=None if given is None else [given],
    )
    return plans[0]


def default_plans(
    sources: Sequence[ShardSizes],
    *,
    global_batch: int,
    shuffle: bool = True,
    shuffle_bytes: int = SHUFFLE_BYTES,
    shares: Sequence[int] | None = None,
    given: Sequence[Plan] | None = None,
) -> list[Plan]:
    """Return the plans of the sources of a mixture, which share their lanes; see `default_plan`.

    `shares` are the places of each source in one period of the schedule.  The smallest source decides how
    many lanes there are; the windows of a source have its share of `shuffle_bytes`.  `given` is one plan for
    each source, with the numbers that are fixed.

    Raises:
        ValueError: the given plans contradict each other, or the batch.
    """
    check_batch(global_batch, 1)
    if shuffle_bytes < 1:
        msg = f"shuffle_bytes must be at least 1, found {shuffle_bytes}"
        raise ValueError(msg)
    fixed = list(given or [Plan()] * len(sources))
    ranks, workers = (_shared(fixed, name) for name in ("ranks", "workers"))
    if ranks is not None:
        check_batch(global_batch, ranks)
    counts = list(shares or [1] * len(sources))
    if shuffle:
        ranks, workers = _lanes(sources, global_batch, counts, ranks, workers)
    ranks, workers = ranks or 1, workers or 1
    plans = []
    for sizes, count, plan in zip(sources, counts, fixed, strict=True):
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


def _shared(plans: Sequence[Plan], name: str) -> int | None:
    """Return a number that all sources share, None where no plan gives it."""
    found = {getattr(plan, name) for plan in plans} - {None}
    if len(found) > 1:
        shown = " and ".join(str(value) for value in sorted(found))
        msg = f"the plans of a mixture must share ranks and workers; found {name}={shown}"
        raise ValueError(msg)
    return found.pop() if found else None


def _lanes(
    sources: Sequence[ShardSizes],
    global_batch: int,
    counts: Sequence[int],
    ranks: int | None,
    workers: int | None,
) -> tuple[int, int]:
    """Choose C and T for the smallest source: lanes of enough chunks to shuffle, classes of enough steps.

    What is given stays; what is left open is chosen so that the product keeps within the same bounds.
    """
    chunks = (min(sizes.total_blocks, sizes.total_stored_bytes // _CHUNK_BYTES) for sizes in sources)
    most = min(chunks, default=1) // _CHUNKS_PER_LANE
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
            workers < _CLASSES
            and 2 * workers * ranks <= min(most, _LANES)
            and rows >= 2 * workers * global_batch * _CLASS_STEPS
        ):
            workers *= 2
    return ranks, workers


def _divisors(value: int) -> int:
    return sum(value % d == 0 for d in range(1, value + 1))
