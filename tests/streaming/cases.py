"""Random streams that are killed and continue elsewhere, compared record by record with lookups.

`python -m tests.streaming.cases 0 20000` runs many; the tests run a few hundred through hypothesis, which
shrinks them.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import tempfile
import warnings
from collections import Counter

import shardio
from shardio.order import Plan, record_generator
from tests.streaming.datasets import edited, memory_url, write

ROWS = (1, 1, 2, 3, 5, 5, 8, 13, 21, 30, 34, 47, 60)


def augment(value, rng):
    return {"n": value["n"], "r": rng.random()}


_folder = tempfile.TemporaryDirectory(prefix="shardio-cases-")


@functools.cache
def base(local, compression, encoding):
    """Return one dataset of many shards, of which each case takes some."""
    url = f"{_folder.name}/{compression}-{encoding}" if local else memory_url()
    options = {"compression": compression, "encoding": encoding, "block_bytes": 128}
    return shardio.open(write(url, ROWS, schema={"n": "int64"}, **options))


def random_reader(rnd, encoding):
    compression = rnd.choice([None, "zstd", "gzip"])
    ds = base(rnd.random() < 0.5, compression, encoding)
    shards = rnd.sample(range(len(ROWS)), rnd.randint(1, len(ROWS)))
    deleted = {}
    for place, number in enumerate(shards):
        if rnd.random() < 0.25:
            gone = rnd.sample(range(ROWS[number]), rnd.randint(1, ROWS[number]))
            deleted[place] = sorted(gone)
    empty = rnd.sample(range(len(shards) + 1), rnd.choice([0, 0, 1, min(2, len(shards))]))
    reader = edited(ds, shards=shards, deleted=deleted, empty=empty)
    if rnd.random() < 0.3 and len(reader) > 2:
        start = rnd.randrange(len(reader) - 1)
        reader = reader[start : rnd.randint(start + 1, len(reader))]
    return reader


class Case:
    """One run: its data, its options, and which processes take part in each of its lives."""

    def __init__(self, rnd):
        self.rnd = rnd
        self.mixed = rnd.random() < 0.3
        encoding = rnd.choice(["example", "tensors"])
        self.readers = [random_reader(rnd, encoding) for _ in range(rnd.randint(2, 3) if self.mixed else 1)]
        self.C, self.T = rnd.choice([1, 2, 3, 4]), rnd.choice([1, 1, 2, 3])
        plans = [self.plan() for _ in self.readers]
        self.data = self.readers[0]
        stop = {}
        if self.mixed:
            stop = rnd.choice([{"stop": "first"}, {"stop": "all"}, {"steps": rnd.randint(1, 12)}])
            self.data = shardio.mix([(each, rnd.randint(1, 4)) for each in self.readers], **stop)
        self.random = rnd.random() < 0.3
        self.options = {
            "plan": plans,
            "seed": rnd.choice([0, 1, rnd.randint(0, 1 << 60)]),
            "shuffle": rnd.random() < 0.85,
            "remainder": rnd.choice(["drop", "pad", "keep", "keep"]),
            "positions": True,
            "random_transform": augment if self.random else None,
        }
        self.epoch = rnd.randint(0, 3)
        self.batch = self.C * rnd.choice([1, 2, 3, 5])
        self.pad = self.options["remainder"] == "pad"

    def plan(self):
        rnd, lanes = self.rnd, {"ranks": self.C, "workers": self.T}
        rows = rnd.choice([1, 2, 3, 7, 30, 1000])
        window = rnd.choice([rows, rnd.randint(1, rows)])
        return Plan(**lanes, chunk_rows=rows, interleave=rnd.choice([1, 2, 4, 9]), window=window)

    def stream(self, rank=0, world_size=1, **options):
        return shardio.stream(
            self.data,
            global_batch=self.batch,
            epoch=self.epoch,
            rank=rank,
            world_size=world_size,
            valid=self.pad,
            **self.options,
            **options,
        )

    def expected(self, schedule, step):
        """Return what the global batch of a step holds, by the order's arithmetic and lookups."""
        batch = schedule.batch(step)
        rows = zip(batch.sources.tolist(), batch.cycles.tolist(), batch.positions.tolist(), strict=True)
        found = []
        for (source, cycle, position), valid in zip(rows, batch.valid.tolist(), strict=True):
            number = int(self.readers[source][position]["n"])
            rng = record_generator(self.options["seed"], self.epoch, position, source=source, cycle=cycle)
            found.append((source, position, number, rng.random() if self.random else 0.0, valid))
        return found

    def delivered(self, batch):
        n = batch["n"].tolist()
        none = [0] * len(n)
        columns = (
            batch["_source"].tolist() if self.mixed else none,
            batch["_position"].tolist(),
            n,
            batch["r"].tolist() if self.random else [0.0] * len(n),
            batch["_valid"].tolist() if self.pad else [True] * len(n),
        )
        return list(zip(*columns, strict=True))

    def live(self, state, until, ranks, workers, threads):
        """Deliver the steps up to `until` as so many ranks and workers do; return the steps and the state."""
        steps: dict[int, list] = {}
        reached = state
        for rank in range(ranks):
            stream = self.stream(rank, ranks, num_threads=threads)
            if state is not None:
                stream.load_state_dict(json.loads(json.dumps(state)))
            here, start = stream.begin(workers=workers), stream.step
            turns = [stream.batches(worker=w, workers=max(1, workers)) for w in range(max(1, workers))]
            for step in range(stream.step, until):
                batch = next(turns[(step - start) % len(turns)])
                assert batch.step == step
                stream.delivered(here, step)
                steps.setdefault(step, []).append(self.delivered(batch.columns))
            for turn in turns:
                turn.close()
            reached = stream.state_dict()
        return steps, reached


def run_case(case):
    """Run a case from its beginning through some kills to its end; return the number of steps."""
    rnd = case.rnd
    try:
        first = case.stream()
    except ValueError as error:
        # No whole batch, an empty reader, or lanes too short for the mixture: said, not hung.
        if any(text in str(error) for text in ("leaves nothing", "no records", "period", "none for lane")):
            return 0
        raise
    everything = sum(map(len, case.readers))
    state, schedule, seen, steps = None, first._schedule, Counter(), 0
    lives = rnd.randint(1, 4)
    for life in range(lives):
        until = schedule.stop if life == lives - 1 else schedule.step + round(len(schedule) * rnd.random())
        ranks, workers = rnd.randint(1, min(8, case.batch)), rnd.choice([0, 0, 0, 1, 2, 3, 8])
        threads = 0 if workers else rnd.choice([0, 1, 1, 2, 3])
        got, state = case.live(state, until, ranks, workers, threads)
        assert sorted(got) == list(range(schedule.step, until))
        for step, shares in got.items():
            sizes = [len(share) for share in shares]
            assert max(sizes) - min(sizes) <= 1
            expected = case.expected(schedule, step)
            assert [row for share in shares for row in share] == expected, step
            seen.update(row[:2] for row in expected if row[4])
            steps += 1
        if rnd.random() < 0.4 and 0 < until < schedule.stop:
            batch = case.C * rnd.choice([1, 2, 3, 5])
            case.batch = min(batch, schedule.rows) // case.C * case.C or case.batch
        resumed = case.stream()
        resumed.load_state_dict(state)
        schedule = resumed._schedule
        assert schedule.step == until
        assert resumed.remaining == schedule.stop - until
        assert len(resumed) == schedule.stop
    if not case.mixed:
        assert set(seen.values()) <= {1}, "a record was delivered twice"
        missing = everything - len(seen)
        assert missing < case.batch if case.options["remainder"] == "drop" else not missing
    return steps


def quietly(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return run_case(case)


def main(first, cases):
    steps = mixtures = 0
    for number in range(first, first + cases):
        case = Case(random.Random(number))
        mixtures += case.mixed
        try:
            steps += quietly(case)
        except Exception:
            print(f"case {number}")
            raise
    print(f"cases {first} to {first + cases - 1} ({mixtures} mixtures), {steps} steps: as looked up")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
