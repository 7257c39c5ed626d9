"""Random streams that are killed and continue elsewhere, compared with an oracle of the specification.

Which records a dataset holds is known because this file wrote it; which of them a batch holds is worked out
by `tests.order.reference`, written from docs/order.md.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

import shardio
from shardio import codecs
from tests.order.reference import Replay, lanes_of, mixed_lanes, words
from tests.servers import s3
from tests.streaming.datasets import flip, memory_url, path_of, write

ROWS = (1, 1, 2, 3, 5, 5, 8, 13, 21, 30, 34, 47, 60)
TOTAL = sum(ROWS)
PLACES = (*("local",) * 4, *("memory",) * 4, "moto")
REMAINDERS = ("drop", "pad", "keep", "keep")
# Refusals of a run that no order has: no whole batch, no record, or lanes too short for the mixture.
NO_RUN = ("leaves nothing", "no records", "period", "none for lane")


class Data(NamedTuple):
    """A dataset as it is streamed.

    Attributes:
        reader: what is streamed.
        numbers: of its records, by position.
        lost: those that damage hides.
    """

    reader: shardio.DatasetReader
    numbers: list[int]
    lost: frozenset[int] = frozenset()


@functools.cache
def folder() -> Path:
    return Path(_folder.name)


_folder = tempfile.TemporaryDirectory(prefix="shardio-cases-")


@functools.cache
def endpoint() -> str:
    """Return the address of an S3 server that runs as long as this process."""
    server = s3.moto()
    atexit.register(server.__exit__, None, None, None)
    return server.__enter__()


class Place(NamedTuple):
    """An address, and the options to open it with."""

    url: str
    options: dict[str, Any]


def new_place(kind: str, name: str) -> Place:
    if kind == "local":
        return Place(str(folder() / name), {})
    if kind == "memory":
        return Place(memory_url(), {})
    bucket = s3.make_bucket(endpoint())
    return Place(f"s3://{bucket}/{name}", {"storage_options": s3.options_for(endpoint())})


@functools.cache
def written(kind: str, compression: str | None, encoding: str, feature: str = "n") -> Place:
    """Write records 0 to TOTAL - 1 in shards of `ROWS`."""
    place = new_place(kind, f"{compression}-{encoding}-{feature}")
    options = {"compression": compression, "encoding": encoding, "block_bytes": 128}
    value = {"n": lambda n: {"n": n}, "other": lambda n: {"other": 7 * n + 1}}[feature]
    write(place.url, ROWS, schema={feature: "int64"}, value=value, **options, **place.options)
    return place


@functools.cache
def deleted(kind: str, compression: str | None, encoding: str) -> tuple[Place, list[int]]:
    """Write a dataset and delete a third of its records, whole shards too."""
    place = new_place(kind, f"deleted-{compression}-{encoding}")
    options = {"compression": compression, "encoding": encoding, "block_bytes": 128}
    write(place.url, ROWS, schema={"n": "int64"}, **options, **place.options)
    gone = sorted({*random.Random(5).sample(range(TOTAL), TOTAL // 3), *range(7, 12)})
    shardio.delete(shardio.open(place.url, **place.options), gone)
    return place, sorted(set(range(TOTAL)) - set(gone))


@functools.cache
def damaged(kind: str, compression: str | None) -> tuple[Place, frozenset[int]]:
    """Write a dataset and hurt some of its blocks; return the records that these hold."""
    local = new_place("local", f"damaged-{kind}-{compression}")
    write(local.url, ROWS, schema={"n": "int64"}, compression=compression, block_bytes=128)
    ds, lost, hurt = shardio.open(local.url), set(), random.Random(9)
    for position in hurt.sample(range(TOTAL), 4):
        path = path_of(ds, position)
        flip(path, hurt.randrange(path.stat().st_size))
    shards = {where.shard: p - where.row for p in range(TOTAL) for where in [ds.locate(p)]}
    for each in shardio.verify(local.url).findings:
        lost |= {shards[each.shard] + row for row in range(each.row, each.row_stop)}
    if kind == "local":
        return local, frozenset(lost)
    place = new_place(kind, f"damaged-{compression}")
    shardio_copy(local.url, place)
    return place, frozenset(lost)


def shardio_copy(source: str, place: Place) -> None:
    """Copy the files of a dataset as they are."""
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(place.url, **place.options.get("storage_options", {}))
    for path in Path(source).rglob("*"):
        if path.is_file():
            filesystem.pipe(f"{root}/{path.relative_to(source).as_posix()}", path.read_bytes())


@functools.cache
def adopted() -> Place:
    """Adopt the shards of a dataset as if another program had written them."""
    source = Path(written("local", None, "example").url)
    files = folder() / "theirs"
    files.mkdir()
    order = {shardio.open(source).locate(p).shard: None for p in range(TOTAL)}
    for number, shard in enumerate(order):
        (files / f"{number:02}.tfrecord").write_bytes((source / shard).read_bytes())
    into = folder() / "adopted"
    shardio.adopt(files, into=into)
    return Place(str(into), {"allow_roots": {str(files): {}}})


def number_of(value: Any) -> int:
    """Return the number of a record that is bytes."""
    return int(codecs.decode_example(value)["n"][0])


class Case:
    """One run: its data, its options, and which processes take part in each of its lives."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.kind = rnd.choice(
            ["plain", "plain", "part", "deleted", "adopted", "joined", "damaged", "mixed", "mixed"]
        )
        self.place = rnd.choice(PLACES)
        self.compression = rnd.choice([None, None, "zstd", "gzip"])
        self.encoding = rnd.choice(["example", "tensors"])
        self.C, self.T = rnd.choice([1, 2, 3, 4]), rnd.choice([1, 1, 2, 3])
        self.mixture: SimpleNamespace | None = None
        self.sources = [self.dataset(self.kind)]
        self.data: Any = self.sources[0].reader
        if self.kind == "mixed":
            self.mix()
        self.options = {
            "seed": rnd.choice([0, 1, rnd.randint(0, 1 << 60)]),
            "shuffle": rnd.random() < 0.85,
            "remainder": rnd.choice(REMAINDERS),
            "positions": True,
            "plan": None if rnd.random() < 0.2 else [self.plan() for _ in self.sources],
        }
        self.is_random = self.kind in ("plain", "part", "deleted") and rnd.random() < 0.4
        if self.is_random:
            self.options["random_transform"] = augment
        self.epoch = rnd.randint(0, 3)
        self.batch = self.C * rnd.choice([1, 2, 3, 5])
        self.pads = self.options["remainder"] == "pad"

    def dataset(self, kind: str) -> Data:
        """Return a dataset of a kind, or a part of it."""
        rnd = self.rnd
        if kind == "mixed":
            kind = rnd.choice(["plain", "part", "deleted"])
        if kind == "deleted":
            place, numbers = deleted(self.place, self.compression, self.encoding)
            return self.part(Data(shardio.open(place.url, **place.options), numbers), 0.3)
        if kind == "adopted":
            place = adopted()
            return self.part(Data(shardio.open(place.url, **place.options), [*range(TOTAL)]), 0.3)
        if kind == "damaged":
            place, lost = damaged(self.place, self.compression)
            return Data(shardio.open(place.url, on_error="skip", **place.options), [*range(TOTAL)], lost)
        place = written(self.place, self.compression, self.encoding)
        reader = shardio.open(place.url, **place.options)
        if kind == "joined":
            other = written(self.place, None, "example", "other")
            reader = shardio.join(reader, shardio.open(other.url, **other.options))
        return self.part(Data(reader, [*range(TOTAL)]), kind == "part")

    def part(self, data: Data, chance: float) -> Data:
        """Return a slice, a choice or a filter of a dataset, or all of it."""
        reader, numbers = data.reader, data.numbers
        if self.rnd.random() >= chance:
            return data
        how = self.rnd.choice(["slice", "stride", "select", "mask"])
        if how in ("slice", "stride"):
            start = self.rnd.randrange(len(numbers) - 1)
            chosen = slice(start, self.rnd.randint(start + 1, len(numbers)), 1 if how == "slice" else 3)
            return Data(reader[chosen], numbers[chosen])
        kept = sorted(self.rnd.sample(range(len(numbers)), self.rnd.randint(1, len(numbers))))
        if how == "select":
            return Data(reader.select(np.array(kept)), [numbers[i] for i in kept])
        mask = np.zeros(len(numbers), bool)
        mask[kept] = True
        return Data(reader.filter(mask), [numbers[i] for i in kept])

    def mix(self) -> None:
        rnd = self.rnd
        self.sources += [self.dataset("mixed") for _ in range(rnd.randint(1, 2))]
        weights = [rnd.randint(1, 4) for _ in self.sources]
        stop = rnd.choice([{"stop": "first"}, {"stop": "all"}, {"steps": rnd.randint(1, 12)}])
        self.data = shardio.mix(
            [(each.reader, weight) for each, weight in zip(self.sources, weights, strict=True)], **stop
        )
        counts = [weight // math.gcd(*weights) for weight in weights]
        self.mixture = SimpleNamespace(counts=counts, stop=next(iter(stop.values())))

    def plan(self) -> shardio.Plan:
        rows = self.rnd.choice([1, 2, 3, 7, 30, 1000])
        window = self.rnd.choice([rows, self.rnd.randint(1, rows)])
        strands = self.rnd.choice([1, 2, 4, 9])
        return shardio.Plan(ranks=self.C, workers=self.T, chunk_rows=rows, interleave=strands, window=window)

    def stream(self, rank: int = 0, world_size: int = 1, **options: Any) -> shardio.Stream:
        where = {"epoch": self.epoch, "rank": rank, "world_size": world_size}
        return shardio.stream(
            self.data, global_batch=self.batch, valid=self.pads, **where, **self.options, **options
        )

    def lanes(self, plans: list[dict[str, int]], batch: int) -> list[list[tuple[int, int, int]]]:
        """Return the (source, cycle, position) of each lane, by the specification."""
        shapes = [shardio.Plan(**plan) for plan in plans]
        self.C = shapes[0].ranks
        sizes = [SimpleNamespace(rows=np.array([len(each.numbers)])) for each in self.sources]
        how = {"seed": self.options["seed"], "epoch": self.epoch, "shuffle": self.options["shuffle"]}
        if self.mixture is None:
            return [[(0, 0, row) for row in lane] for lane in lanes_of(sizes[0], shapes[0], **how)]
        return mixed_lanes(sizes, shapes, self.mixture, global_batch=batch, **how)

    def expected(self, rows: list[tuple[int, int, int]], real: int) -> list[tuple[Any, ...]]:
        """Return what a global batch of these (source, cycle, position) delivers."""
        found = []
        for place, (source, cycle, position) in enumerate(rows):
            data = self.sources[source]
            number = data.numbers[position]
            if number in data.lost:
                continue
            drawn = 0.0
            if self.is_random:
                bits = words("record", self.options["seed"], self.epoch, source, cycle, position)
                drawn = Generator(bits).random()
            found.append((source, position, number, 7 * number + 1, drawn, place < real))
        return found

    def delivered(self, batch: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a batch, in the same form."""
        n = batch["n"].tolist() if "n" in batch else [number_of(each) for each in batch["payload"]]
        columns = (
            batch["_source"].tolist() if self.mixture is not None else [0] * len(n),
            batch["_position"].tolist(),
            n,
            batch["other"].tolist() if self.kind == "joined" else [7 * each + 1 for each in n],
            batch["r"].tolist() if self.is_random else [0.0] * len(n),
            batch["_valid"].tolist() if self.pads else [True] * len(n),
        )
        return list(zip(*columns, strict=True))

    def live(
        self, state: Any, start: int, until: int, ranks: int, workers: int, threads: int
    ) -> tuple[list[list[tuple[Any, ...]]], Any]:
        """Return the global batches of steps `start .. until - 1` as delivered, and the state."""
        batches: list[list[tuple[Any, ...]]] = [[] for _ in range(start, until)]
        for rank in range(ranks):
            stream = self.stream(rank, ranks, num_threads=threads)
            if state is not None:
                stream.load_state_dict(json.loads(json.dumps(state)))
            assert stream.step == start
            here = stream.begin(workers=workers)
            turns: list[Iterator[Any]] = [
                stream.batches(worker=w, workers=max(1, workers)) for w in range(max(1, workers))
            ]
            for step in range(start, until):
                batch = next(turns[(step - start) % len(turns)])
                assert batch.step == step
                stream.delivered(here, step)
                batches[step - start] += self.delivered(batch.columns)
            for turn in turns:
                turn.close()
            last = stream.state_dict()
        return batches, last


def augment(value: dict[str, Any], rng: Generator) -> dict[str, Any]:
    return {"n": value["n"], "r": rng.random()}


class Epoch:
    """The steps of an epoch by the specification, one after another."""

    def __init__(self, case: Case, plans: list[dict[str, int]]) -> None:
        self.case, self.step = case, 0
        lanes = case.lanes(plans, case.batch)
        self._replay, self.rows = Replay(lanes, case.C), sum(map(len, lanes))
        self.left = self.rows

    @property
    def steps(self) -> int:
        """Steps that are left with the present batch."""
        drops = self.case.options["remainder"] == "drop"
        return self.left // self.case.batch if drops else -(-self.left // self.case.batch)

    def next(self) -> list[tuple[Any, ...]]:
        batch = self.case.batch
        rows = self._replay.step(batch)
        self.step, self.left = self.step + 1, self.left - len(rows)
        return self.case.expected(self._replay.padded(rows, batch) if self.case.pads else rows, len(rows))


def run_case(case: Case) -> int:
    """Run a case from its beginning through some kills to its end; return the number of steps."""
    rnd = case.rnd
    try:
        first = case.stream()
    except ValueError as error:
        if any(text in str(error) for text in NO_RUN):
            return 0
        raise
    epoch = Epoch(case, first.state_dict()["plans"])
    case.batch = -(-case.batch // case.C) * case.C
    assert len(first) == epoch.steps
    state, seen, lives = None, Counter(), rnd.randint(1, 4)
    for life in range(lives):
        steps = epoch.steps if life == lives - 1 else round(epoch.steps * rnd.random())
        ranks = min(rnd.choice([1, 1, 1, 2, 2, 3, 4, 8]), case.batch)
        workers = rnd.choice([0, 0, 0, 0, 1, 2, 3, 8])
        threads = 0 if workers else rnd.choice([0, 1, 1, 2, 3])
        start = epoch.step
        batches, state = case.live(state, start, start + steps, ranks, workers, threads)
        for found in batches:
            step, expected = epoch.step, epoch.next()
            assert found == expected, (step, found, expected)
            seen.update(row[:2] for row in expected if row[-1])
        if rnd.random() < 0.4 and start < epoch.step and epoch.steps:
            case.batch = case.C * rnd.choice([1, 2, 3, 5])
        resumed = case.stream() if case.batch <= epoch.rows or not drops(case) else None
        if resumed is None:  # a stream of its own could not begin with this batch
            return epoch.step
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert (resumed.step, resumed.remaining) == (epoch.step, epoch.steps)
    if case.mixture is None:
        assert set(seen.values()) <= {1}, "a record was delivered twice"
        missing = epoch.rows - len(case.sources[0].lost) - len(seen)
        assert missing < case.batch if drops(case) else not missing
    return epoch.step


def drops(case: Case) -> bool:
    return case.options["remainder"] == "drop"


def quietly(case: Case) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return run_case(case)
