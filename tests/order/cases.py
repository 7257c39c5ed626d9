"""Random runs that are killed and continue elsewhere, checked against the replaying reference.

The tests run some through hypothesis, which shrinks them; `make test-nightly` runs many.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from shardio.errors import ResumeError
from shardio.order import Identity, Mixture, Plan, ShardSizes, Source, make_order
from tests.order.reference import Replay, lanes_of, mixed_lanes


@dataclass
class Case:
    sizes: list
    plans: list
    mixture: Mixture | None
    seed: int
    epoch: int
    shuffle: bool
    remainder: str
    global_batch: int
    lives: list  # (share of the remaining steps, ranks, workers, batch afterwards or None)


def random_sizes(rnd, shards, most):
    rows = [rnd.choice([0, 1, 2, 5, 9, rnd.randint(0, most)]) for _ in range(shards)]
    blocks = [rnd.randint(1, max(1, n)) + rnd.choice([0, 0, 3]) if n else rnd.choice([0, 1]) for n in rows]
    stored = [n * rnd.randint(1, 20) for n in rows]
    return ShardSizes(rows, stored, [2 * b for b in stored], blocks)


def random_plan(rnd, ranks, workers):
    rows = rnd.choice([1, 2, 3, 5, 8, 40, 1000])
    window = rnd.choice([rows, rows, rnd.randint(1, rows)])
    strands = rnd.choice([1, 1, 2, 3, 5, 9])
    return Plan(ranks=ranks, workers=workers, chunk_rows=rows, interleave=strands, window=window)


def random_case(rnd):
    C, T = rnd.choice([1, 2, 3, 4, 6]), rnd.choice([1, 1, 2, 3, 4])
    mixture = None
    if rnd.random() < 0.35:
        counts = tuple(rnd.randint(1, 4) for _ in range(rnd.randint(2, 3)))
        mixture = Mixture(counts, rnd.choice(["first", "all", rnd.randint(1, 12)]))
    count = 1 if mixture is None else len(mixture.counts)
    sizes = [random_sizes(rnd, rnd.randint(1, 9), rnd.choice([3, 20, 60])) for _ in range(count)]
    if mixture and mixture.stop != "first":  # every lane of every source must have a row
        sizes = [s if s.total_rows >= C * T else ShardSizes([C * T], [900], [900], [2]) for s in sizes]
    plans = [random_plan(rnd, C, T) for _ in range(count)]
    batches = [C * rnd.choice([1, 1, 2, 3, 4, 7]) for _ in range(4)]
    lives = []
    for batch in batches[1:]:
        R = rnd.randint(1, min(8, *batches))
        lives.append((rnd.random(), R, rnd.randint(0, 8), rnd.choice([None, batch])))
    seed = rnd.choice([0, 1, 2**64 - 1, rnd.randint(0, 1 << 60)])
    return Case(
        sizes, plans, mixture, seed, rnd.randint(0, 3), rnd.random() < 0.85, rnd.choice(["drop", "pad",
        "keep"]), batches[0], lives,
    )  # fmt: skip


def sources_of(case):
    return [Source(s, Identity(f"u{i}", 1, f"f{i}", "train")) for i, s in enumerate(case.sizes)]


def reference_lanes(case):
    if case.mixture is None:
        lanes = lanes_of(case.sizes[0], case.plans[0], seed=case.seed, epoch=case.epoch, shuffle=case.shuffle)
        return [[(0, 0, row) for row in lane] for lane in lanes]
    return mixed_lanes(
        case.sizes, case.plans, case.mixture,
        seed=case.seed, epoch=case.epoch, global_batch=case.global_batch, shuffle=case.shuffle,
    )  # fmt: skip


def triples(batch):
    assert batch.positions.dtype == np.int64
    return list(zip(batch.sources.tolist(), batch.cycles.tolist(), batch.positions.tolist(), strict=True))


def deliver(schedule, step, R, W):
    """Return the global batch as R ranks deliver it, the right worker of each asked."""
    worker = (step - schedule.step) % max(1, W)
    assert step in schedule.steps(worker=worker, workers=W)
    shares = [schedule.batch(step, rank=r, world_size=R) for r in range(R)]
    lengths = [len(share.positions) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert sum(lengths) == shares[0].global_rows
    assert all(len(share.valid) == len(share.positions) for share in shares)
    return [t for share in shares for t in triples(share)], [
        v for share in shares for v in share.valid.tolist()
    ]


class Run:
    """Run a case through all its lives, checking each step."""

    def __init__(self, case):
        self.case, self.batch = case, case.global_batch
        self.seen, self.history = Counter(), []
        self.begin()
        self.order = make_order(
            sources_of(case), global_batch=case.global_batch, shuffle=case.shuffle, seed=case.seed,
            remainder=case.remainder, plan=case.plans, mixture=case.mixture,
        )  # fmt: skip

    def begin(self):
        lanes = reference_lanes(self.case)
        self.replay = Replay(lanes, self.case.plans[0].ranks)
        self.rows = Counter(row for lane in lanes for row in lane)

    def no_step(self, batch):
        return self.case.remainder == "drop" and sum(self.rows.values()) < batch

    def live(self, schedule, until, ranks, workers):
        for step in range(schedule.step, until):
            expected = self.replay.step(self.batch)
            assert expected, "more steps than rows"
            real = len(expected)
            if self.case.remainder == "pad":
                expected = self.replay.padded(expected, self.batch)
            got, valid = deliver(schedule, step, ranks, workers)
            assert got == expected, (step, got, expected)
            assert valid == [i < real for i in range(len(expected))]
            assert real == self.batch or step == schedule.stop - 1
            self.seen.update(expected[:real])
            self.history.append(expected)

    def resume(self, schedule, until, batch):
        """Return the schedule after a kill before step `until`, with another batch if one can be made."""
        state = json.loads(json.dumps(self.order.state(schedule, self.case.epoch, until)))
        ended = until == schedule.stop
        again = until == 0 and batch not in (None, self.batch)
        counted = self.case.mixture is not None and isinstance(self.case.mixture.stop, int)
        if again and not counted and self.no_step(batch):
            with pytest.raises(ResumeError):
                self.order.resume(state, global_batch=batch)
            batch = None
        self.order, schedule, epoch = self.order.resume(state, global_batch=batch)
        assert (schedule.step, epoch) == (until, self.case.epoch)
        if batch is not None and not ended:
            if again and counted:  # the epoch starts again, and counts steps of the new batch
                self.case.global_batch = batch
                self.begin()
            self.batch = batch
        return schedule

    def check_end(self, schedule):
        left = self.rows - self.seen
        assert not self.seen - self.rows, "a row was delivered twice"
        assert sum(left.values()) < self.batch if self.case.remainder == "drop" else not left
        for step in random.Random(0).sample(range(len(self.history)), min(3, len(self.history))):
            assert triples(schedule.batch(step)) == self.history[step], "any step can be asked for again"


def run_case(case):
    """Run a case from its beginning to its end; return the number of steps."""
    run = Run(case)
    if run.no_step(case.global_batch):
        with pytest.raises(ValueError, match="leaves nothing"):
            run.order.schedule(case.epoch, case.global_batch)
        return 0
    schedule = run.order.schedule(case.epoch, case.global_batch)
    for share, ranks, workers, batch in [*case.lives, (1.0, 1, 0, None)]:
        until = schedule.step + round(len(schedule) * share)
        finished = until == schedule.stop
        run.live(schedule, until, ranks, workers)
        schedule = run.resume(schedule, until, batch)
        if finished:
            assert len(schedule) == 0
            break
    run.check_end(schedule)
    return len(run.history)
