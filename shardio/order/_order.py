"""The order of a run: datasets, plan, seed and mixture together, for every epoch and through every resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any, NamedTuple

from shardio.errors import ResumeError
from shardio.order._epoch import Epoch
from shardio.order._keys import seed_field
from shardio.order._lanes import Lanes
from shardio.order._mixture import MixedEpoch, Mixture
from shardio.order._plan import Budget, Plan, check_batch, default_plans
from shardio.order._schedule import Change, Schedule, StepShare, rank_slice
from shardio.order._sizes import ShardSizes
from shardio.order._state import Identity, State, check_identities, parse_state


@dataclass(frozen=True)
class Source:
    """Give one dataset: the sizes of its shards, and its identity."""

    sizes: ShardSizes
    identity: Identity


class OpenWindows(NamedTuple):
    """Windows of a source that a process has open at a time.

    Attributes:
        number: how many.
        rows: of the largest.
    """

    number: int
    rows: int


@dataclass(frozen=True)
class Order:
    """Hold everything that decides which record comes next, but for where the run is; see `make_order`.

    Attributes:
        sources: one dataset, or those of the mixture.
        plans: one for each source, sharing `ranks` and `workers`.
        mixture: how the sources are mixed; None for one dataset.
        seed: the only seed.
        shuffle: False is storage order.
        remainder: what becomes of a short last step.
        asked: the plans as the caller gave them, none for the default ones; a state whose plans have other
            numbers must not replace them.
    """

    sources: tuple[Source, ...]
    plans: tuple[Plan, ...]
    mixture: Mixture | None
    seed: int
    shuffle: bool
    remainder: str
    asked: tuple[Plan, ...] = ()

    @property
    def ranks(self) -> int:
        """C of the plan."""
        return self.plans[0].ranks

    @property
    def workers(self) -> int:
        """T of the plan."""
        return self.plans[0].workers

    def source_epoch(self, epoch: int, source: int, cycle: int) -> Epoch:
        """Return the lanes of one source after it has ended `cycle` times in an epoch."""
        return Epoch(
            self.sources[source].sizes,
            self.plans[source],
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            source=source,
            cycle=cycle,
        )

    def lanes(self, epoch: int, global_batch: int) -> Lanes:
        """Return the lanes of an epoch that began with a global batch."""
        if self.mixture is None:
            return self.source_epoch(epoch, 0, 0)
        makers = [partial(self.source_epoch, epoch, number) for number in range(len(self.sources))]
        return MixedEpoch(
            makers, self.mixture, seed=self.seed, epoch=epoch, shuffle=self.shuffle, global_batch=global_batch
        )

    def _lanes_of_ranks(self, global_batch: int, world_size: int) -> list[int]:
        """Return for each rank how many lanes of a class its slices take rows from."""
        share = global_batch // self.ranks
        slices = [rank_slice(global_batch, rank, world_size) for rank in range(world_size)]
        return [-(-stop // share) - start // share for start, stop in slices]

    def open_windows(self, global_batch: int, world_size: int = 1, workers: int = 1) -> list[OpenWindows]:
        """Return, of each source, the windows that the fullest process has open at a time.

        Args:
            global_batch: rows of a step over all ranks.
            world_size: number of ranks.
            workers: loader processes of each rank; 0 counts as 1.
        """
        lanes = max(self._lanes_of_ranks(global_batch, world_size)) * _classes(self.workers, workers)
        return [
            OpenWindows(
                lanes * plan.interleave,
                min(plan.window, -(-source.sizes.total_rows // plan.open_windows)),
            )
            for source, plan in zip(self.sources, self.plans, strict=True)
        ]

    def readers_per_window(self, global_batch: int, world_size: int = 1, workers: int = 1) -> float:
        """Return how many processes open a window, the mean: 1 where ranks and workers divide the plan's."""
        lanes = sum(self._lanes_of_ranks(global_batch, world_size))
        return lanes / self.ranks * max(1, workers) * _classes(self.workers, workers) / self.workers

    def schedule(self, epoch: int, global_batch: int) -> Schedule:
        """Return the steps of an epoch that begins with a global batch.

        Raises ValueError if the batch is not a multiple of the plan's ranks, or if no whole step can be made
        of the epoch and `remainder` is "drop".
        """
        seed_field(epoch, "epoch")
        check_batch(global_batch, self.ranks)
        changes = [Change(0, global_batch)]
        schedule = Schedule(self.lanes(epoch, global_batch), changes, remainder=self.remainder)
        if self.remainder == "drop" and schedule.rows < global_batch:
            raise ValueError(
                f"global_batch {global_batch} is larger than the {schedule.rows} rows of the epoch, "
                'so that remainder="drop" leaves nothing; use a smaller batch, or "pad" or "keep"'
            )
        return schedule

    def state(self, schedule: Schedule, epoch: int, step: int) -> dict[str, Any]:
        """Return the state before a step: small, readable, and fit for JSON."""
        return State(
            datasets=tuple(source.identity for source in self.sources),
            plans=self.plans,
            mixture=self.mixture,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            remainder=self.remainder,
            step=step,
            changes=tuple(change for change in schedule.changes if change.step <= step),
        ).to_dict()

    def resume(
        self, state: Mapping[str, Any], *, global_batch: int | None = None
    ) -> tuple[Order, Schedule, int]:
        """Return order, schedule and epoch of a state, going on with another batch if one is given.

        The order returned has the state's plan.  An epoch that had ended stays ended, whatever the batch.
        Raises ResumeError, naming what differs, if the state is damaged or belongs to another dataset, seed,
        mixture, `shuffle` or `remainder`, or if the batch does not fit the state's plan.
        """
        parsed = parse_state(state)
        check_identities(parsed.datasets, [source.identity for source in self.sources])
        for name in ("seed", "shuffle", "remainder", "mixture", "plans"):
            expected, found = getattr(parsed, name), getattr(self, name)
            if name == "plans":
                # What the caller left open was chosen for the first batch, which may have been another.
                same = not self.asked or (
                    len(expected) == len(found) and all(map(Plan.agrees, self.asked, expected))
                )
            else:
                same = expected == found
            if not same:
                what = f"{name} differs from the state's"
                advice = "give the value that the run began with, or begin a new run"
                raise ResumeError(what, expected=expected, found=found, advice=advice)
        return _restore(self, parsed, global_batch)


def _classes(classes: int, workers: int) -> int:
    """Return how many classes of lanes a worker reads: those congruent to it modulo gcd(T, W)."""
    return classes // gcd(classes, max(1, workers))


def make_order(
    sources: Sequence[Source],
    *,
    global_batch: int,
    shuffle: bool = True,
    seed: int = 0,
    remainder: str = "drop",
    plan: Plan | Sequence[Plan] | None = None,
    mixture: Mixture | None = None,
    budgets: Sequence[Budget] | None = None,
) -> Order:
    """Lay down the order of a run.

    What is left to the defaults depends on the datasets, the batch and the budgets, not on ranks and workers.

    Args:
        sources: one dataset, or as many as the mixture has counts.
        global_batch: rows of the first global batch, from which the default plan is made.
        shuffle: False is storage order; the default plan then has one lane of one strand.
        seed: an integer in [0, 2**64).
        remainder: "drop" leaves a short last step out, "pad" fills it up, "keep" delivers it short.
        plan: one for all sources, or one for each, sharing `ranks` and `workers`; numbers that it leaves out
            are chosen as for the default plan.
        mixture: how several sources are mixed; None for one.
        budgets: of each source, what a default plan may cost.
    """
    seed_field(seed, "seed")
    if remainder not in ("drop", "pad", "keep"):
        raise ValueError(f'remainder must be "drop", "pad" or "keep", found {remainder!r}')
    count = 1 if mixture is None else len(mixture.counts)
    if len(sources) != count:
        raise ValueError(
            f"{len(sources)} sources given for a mixture of {count}"
            if mixture
            else "one source, or a mixture of them"
        )
    asked: tuple[Plan, ...] = ()
    if plan is not None:
        asked = (plan,) * count if isinstance(plan, Plan) else tuple(plan)
        if not all(isinstance(each, Plan) for each in asked):
            raise TypeError(f"plan= takes a Plan, or one for each source, found {plan!r:.80}")
        if len(asked) != count:
            raise ValueError(f"{count} plans are needed, one for each source, found {len(asked)}")
    plans = default_plans(
        [source.sizes for source in sources],
        global_batch=global_batch,
        shuffle=shuffle,
        shares=None if mixture is None else mixture.counts,
        given=asked,
        budgets=budgets,
    )
    return Order(tuple(sources), tuple(plans), mixture, seed, shuffle, remainder, asked)


def _restore(order: Order, state: State, global_batch: int | None) -> tuple[Order, Schedule, int]:
    """Return the order of a state, of the same class as the one given, with schedule and epoch."""
    order = replace(order, plans=state.plans)
    try:
        first, *later = state.changes
        schedule = order.schedule(state.epoch, first.global_batch)
        for change in later:
            schedule = schedule.changed(*change)
        schedule = schedule.at(state.step)
    except (IndexError, ValueError) as error:
        what = f"the state's plan, mixture, batches or step do not fit its dataset: {error}"
        raise ResumeError(what) from error
    if global_batch is not None and global_batch != schedule.global_batch:
        try:
            check_batch(global_batch, order.ranks)
            if state.step == 0:
                schedule = order.schedule(state.epoch, global_batch)
            elif len(schedule):
                schedule = schedule.changed(state.step, global_batch)
        except ValueError as error:
            raise ResumeError(str(error)) from error
    return order, schedule, state.epoch


def audit(
    state: Mapping[str, Any], sources: Sequence[Source], step: int, *, rank: int = 0, world_size: int = 1
) -> StepShare:
    """Return which records were, or will be, in the batch of a step, from a state of the same epoch alone.

    Steps before the state's went through its changes of the batch; later ones continue with its last batch.
    Raises ResumeError if the state is damaged or the datasets are others, IndexError if the epoch has no such
    step.
    """
    parsed = parse_state(state)
    check_identities(parsed.datasets, [source.identity for source in sources])
    order = Order(tuple(sources), parsed.plans, parsed.mixture, parsed.seed, parsed.shuffle, parsed.remainder)
    _, schedule, _ = _restore(order, parsed, None)
    return schedule.batch(step, rank=rank, world_size=world_size)
