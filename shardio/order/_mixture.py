"""Several datasets as one: each lane interleaves the same lane of the sources in exact proportions.

Weights become integers over a period, every period of every lane holds exactly those proportions, and the
stream of words that shuffles a period can be entered anywhere; so how much of a source comes before any place
is arithmetic, and everything built on lanes (steps, ranks, state, resume) is the same as for one dataset.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from shardio.arguments import integer
from shardio.order._epoch import Epoch
from shardio.order._keys import Array, key, raw_words
from shardio.order._lanes import RowLocations, Rows, Windows

_EXACT_PERIOD = 1000


@dataclass(frozen=True)
class Mixture:
    """Say how sources are mixed.

    Attributes:
        counts: places of each source in one period, each at least 1.
        stop: "first": until a source ends; "all": until every source has ended once, ended ones beginning
            again;
            or a number of steps of the first global batch, ended sources beginning again.
    """

    counts: tuple[int, ...]
    stop: str | int = "first"

    def __post_init__(self) -> None:
        if not self.counts or min(integer("counts", count) for count in self.counts) < 1:
            msg = f"a mixture needs a count of at least 1 for each source, found {list(self.counts)}"
            raise ValueError(msg)
        if sum(self.counts) > 1 << 20:
            raise ValueError(f"a mixture's period holds at most 2**20 places, found {sum(self.counts)}")
        number = type(self.stop) is int and self.stop >= 1
        if self.stop not in ("first", "all") and not number:
            raise ValueError(f'stop must be "first", "all" or a number of steps, found {self.stop!r}')

    @classmethod
    def from_weights(
        cls, weights: Sequence[float], *, stop: str | int = "first", period: int | None = None
    ) -> Mixture:
        """Turn weights into counts over a period by largest remainder, the first of equal ones first.

        Args:
            weights: finite and positive; only their proportions matter.
            stop: as in the class.
            period: places of a period; by default the smallest up to 1,000 in which the counts are exact to
                one
                part in 10**9, else 1,000, or more where a source would get no place.
        """
        if not weights or any(not math.isfinite(w) or w <= 0 for w in weights):
            msg = f"weights must be finite and above 0, found {list(weights)}; leave a source of weight 0 out"
            raise ValueError(msg)
        exact = [Fraction(w) for w in weights]
        shares = [w / sum(exact) for w in exact]
        if period is None:
            fitting = (p for p in range(len(weights), _EXACT_PERIOD + 1) if _fits(shares, p))
            period = next(fitting, max(_EXACT_PERIOD, math.ceil(1 / min(shares))))
        counts = [math.floor(share * period) for share in shares]
        remainders = [share * period - count for share, count in zip(shares, counts, strict=True)]
        for i in sorted(range(len(counts)), key=lambda i: (-remainders[i], i))[: period - sum(counts)]:
            counts[i] += 1
        if 0 in counts:
            msg = f"source {counts.index(0)} gets no place in a period of {period}; give a longer period"
            raise ValueError(msg)
        return cls(tuple(counts), stop)

    @property
    def period(self) -> int:
        """Places of one period."""
        return sum(self.counts)

    def pattern(self) -> Array:
        """Return the source of each place of an unshuffled period, spread evenly, int64 [period].

        Visit j of a source with k visits is at (2 j + 1) / (2 k) of the period; of equal ones the first
        source.
        """
        ordered = [(Fraction(2 * j + 1, 2 * k), i) for i, k in enumerate(self.counts) for j in range(k)]
        return np.array([i for _, i in sorted(ordered)], np.int64)


def _fits(shares: Sequence[Fraction], period: int) -> bool:
    slack = Fraction(period, 10**9)
    return all(
        round(share * period) >= 1 and abs(share * period - round(share * period)) <= slack
        for share in shares
    )


class MixedEpoch:
    """The lanes of a mixture in one epoch, made of those of its sources.

    Args:
        sources: sources[i](cycle) is the `Epoch` of source i after it has ended `cycle` times.
        mixture: how they are mixed.
        seed, epoch: any integers in [0, 2**64).
        shuffle: False makes all permutations the identity.
        global_batch: the batch with which the epoch began; `stop=N` counts steps of it.
    """

    def __init__(
        self,
        sources: Sequence[Callable[[int], Epoch]],
        mixture: Mixture,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        global_batch: int,
    ) -> None:
        self._make = sources
        self._epochs: list[dict[int, Epoch]] = [{0: make(0)} for make in sources]
        self.mixture = mixture
        first = self._epochs[0][0]
        self.ranks, self.workers = first.ranks, first.workers
        self.readers = tuple(each[0].readers[0] for each in self._epochs)
        self._fields = (seed, epoch)
        self._shuffle = shuffle
        self._pattern = mixture.pattern()
        self._lengths = np.stack([each[0].lane_lengths for each in self._epochs])
        self.lane_lengths = self._lane_lengths(global_batch)

    def _lane_lengths(self, global_batch: int) -> Array:
        counts = np.array(self.mixture.counts, np.int64)[:, None]
        if self.mixture.stop == "first":
            whole: Array = (self._lengths // counts).min(axis=0) * self.mixture.period
            return whole
        if not self._lengths.all():
            source, lane = (int(i) for i in np.argwhere(self._lengths == 0)[0])
            raise ValueError(
                f"source {source} has {int(self._lengths[source].sum())} rows for "
                f"{self._lengths.shape[1]} lanes and none for lane {lane}, so it "
                "cannot begin again there; use a plan with fewer ranks or workers"
            )
        if self.mixture.stop == "all":
            cover: Array = (-(-self._lengths // counts)).max(axis=0) * self.mixture.period
            return cover
        steps = int(self.mixture.stop)
        classes = np.arange(self.workers, dtype=np.int64)
        visits = steps // self.workers + (classes < steps % self.workers)
        return np.repeat(visits * (global_batch // self.ranks), self.ranks)

    def _epoch(self, source: int, cycle: int) -> Epoch:
        held = self._epochs[source]
        epoch = held.get(cycle)
        if epoch is None:
            # Lanes advance together, so two passes over a source are in use at a time; the tail may look
            # back.
            for old in sorted(held)[1 : max(1, len(held) - 2)]:
                held.pop(old, None)
            epoch = held[cycle] = self._make[source](cycle)
        return epoch

    def _interleaved(self, parts: Array) -> tuple[Array, Array, Array]:
        """Return for each place of the parts its source, its place in the source's lane, and its lane."""
        period = self.mixture.period
        found = [np.zeros((3, 0), np.int64)]
        for lane, start, stop in parts.tolist():
            first, last = start // period, -(-stop // period)
            sources = np.tile(self._pattern, (last - first, 1))
            if self._shuffle:
                raw = raw_words(key("schedule", *self._fields, lane), first * period, sources.size)
                sources = self._pattern[np.argsort(raw.reshape(sources.shape), axis=-1, kind="stable")]
            sources = sources.reshape(-1)
            places = np.empty_like(sources)
            for source, count in enumerate(self.mixture.counts):
                at = np.flatnonzero(sources == source)
                places[at] = np.arange(first * count, first * count + at.size)
            own = slice(start - first * period, stop - first * period)
            found.append(np.stack([sources[own], places[own], np.full(stop - start, lane)]))
        sources, places, lanes = np.concatenate(found, axis=1)
        return sources, places, lanes

    def _source_parts(self, source: int, places: Array, lanes: Array) -> Iterator[tuple[int, Array, slice]]:
        """Yield (cycle, parts, where): runs of consecutive places in one lane and cycle of a source."""
        if not places.size:
            return
        cycles, within = np.divmod(places, self._lengths[source][lanes])
        new = np.flatnonzero((np.diff(lanes) != 0) | (np.diff(within) != 1) | (np.diff(cycles) != 0)) + 1
        starts = np.concatenate([np.zeros(1, np.int64), new])
        stops = np.concatenate([new, np.array([places.size], np.int64)])
        parts = np.stack([lanes[starts], within[starts], within[stops - 1] + 1], axis=1)
        run_cycles = cycles[starts]
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(run_cycles)) + 1, [starts.size]]).tolist()
        for low, high in itertools.pairwise(cuts):
            yield int(run_cycles[low]), parts[low:high], slice(int(starts[low]), int(stops[high - 1]))

    def rows(self, parts: Array) -> Rows:
        """Return the records of `parts`, int64 [n, 3] of (lane, start, stop), one part after another."""
        sources, places, lanes = self._interleaved(parts)
        positions, cycles = np.empty_like(places), np.empty_like(places)
        for source in range(len(self._make)):
            at = np.flatnonzero(sources == source)
            for cycle, own, where in self._source_parts(source, places[at], lanes[at]):
                positions[at[where]] = self._epoch(source, cycle).rows(own).positions
                cycles[at[where]] = cycle
        return Rows(positions, sources, cycles)

    def locate(self, parts: Array) -> RowLocations:
        """Return where the records of `parts` are in the windows of the sources."""
        sources, places, lanes = self._interleaved(parts)
        which, local = np.empty_like(places), np.empty_like(places)
        windows: list[Windows] = []
        before = 0
        for source in range(len(self._make)):
            at = np.flatnonzero(sources == source)
            for cycle, own, where in self._source_parts(source, places[at], lanes[at]):
                found = self._epoch(source, cycle).locate(own)
                which[at[where]] = found.window + before
                local[at[where]] = found.row
                windows.append(found.windows)
                before += len(found.windows)
        return RowLocations(Windows.joined(windows), which, local)

    def windows_at(self, source: int, cycle: int, positions: Array) -> Windows:
        """Return the window of a source and cycle that holds each position; see `Lanes`."""
        return self._epoch(source, cycle).windows_at(source, cycle, positions)
