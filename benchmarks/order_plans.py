"""Measure what plans cost and give: the tables of docs/design/order-measured.md.

    python benchmarks/order_plans.py [--peers mosaicml=PYTHON webdataset=PYTHON tf.data=PYTHON]
                                                  default plans: what they read, and how they mix beside
                                                  random order and the orders of other systems
    python benchmarks/order_plans.py --budgets    what more memory and smaller chunks mix, from a bucket
    python benchmarks/order_plans.py --train      a classifier trained on sorted data, in these orders
    python benchmarks/order_plans.py --steps      steps a second of the arithmetic, batches of 4,096
    python benchmarks/order_plans.py --windowed   C, T, chunk_bytes and window of windowed plans

The first two take labels that are sorted over the dataset, 1,000 of them: how many different ones a batch has
against a random permutation, and how often pairs of one label come again in the batches that follow: 1, 4, 16
and 64 later, and on average over all 64; in the first hundred batches and in the middle of the epoch, of the
global batch and of each of 8 and 64 ranks, the mean over ranks.  A dash stands where chance would give fewer
than 30 pairs.  The orders of other systems are made by their own code, of numbers in place of records, by
interpreters that have `mosaicml-streaming`, `webdataset` and `tensorflow-cpu`; see `order_peers.py`.

For the windowed plans, labels are taken to be sorted by shard.  "Sameness" is the sum of squares of the
records that each shard gives to a global batch, divided by the batch: how many times the variance of a
batch's mean label is that of a batch of different labels.  Memory is simulated: a process holds the windows
in use and those that its next `AHEAD` steps will use, and a window leaves when the next one of its lane is
used.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.order import SCRATCH_BYTES, Budget, Identity, Order, Plan, ShardSizes, Source, make_order, report
from shardio.order._epoch import Epoch
from shardio.order._mixing import enough_memory, smaller_chunks
from shardio.order._plan import windowed_plans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardio.order import Schedule
    from shardio.order._windows import Window

AHEAD = 4


def dataset(
    rows: int, rows_per_shard: int, record: int, ratio: float = 1.0, block: int = 1 << 16
) -> ShardSizes:
    """Return shards of equal records."""
    counts = np.full(-(-rows // rows_per_shard), rows_per_shard)
    counts[-1] -= counts.sum() - rows
    decoded = counts * record
    return ShardSizes(
        counts, (decoded * ratio).astype(int), decoded, np.maximum(1, decoded // max(block, record))
    )


DATASETS = {
    "1.28 M images of 110 KB": dataset(1_281_167, 2000, 110_000),
    "10 M records of 8 KB, zstd": dataset(10_000_000, 16_000, 8192, 0.5),
    "1,000 M texts of 500 B, zstd": dataset(1_000_000_000, 1_000_000, 500, 0.4),
    "65,536 records of 8 KB": dataset(65_536, 2048, 8192),
    "60,000 digits of 800 B": dataset(60_000, 60_000, 800),
    "1,000 records of 100 B": dataset(1000, 1000, 100),
}


def order_of(sizes: ShardSizes, batch: int, plan: Plan | None) -> Order:
    """Return the order of one dataset."""
    return make_order([Source(sizes, Identity("", 1, "", ""))], global_batch=batch, plan=plan)


def sameness(order: Order, batch: int) -> tuple[float, float]:
    """Return the sameness of the order's batches, and of batches drawn at random."""
    sizes, schedule = order.sources[0].sizes, order.schedule(0, batch)
    squares = []
    for step in (
        np.linspace(0, schedule.tail_start - 1, 40).astype(int)
        if schedule.tail_start
        else range(schedule.stop)
    ):
        shards = np.searchsorted(sizes.edges, schedule.batch(int(step)).positions, side="right")
        squares.append(float((np.unique(shards, return_counts=True)[1] ** 2).sum()) / batch)
    share = np.asarray(sizes.rows) / sizes.total_rows
    return float(np.mean(squares)), 1 + (batch - 1) * float((share**2).sum())


def needs(schedule: Schedule, ranks: int, stop: int) -> Iterator[tuple[int, Window]]:
    """Yield (step, window) whenever rank 0 comes to a window that its lane did not use just before."""
    held: dict[int, Window] = {}
    for step in range(min(stop, schedule.stop)):
        parts, _ = schedule.parts(step, rank=0, world_size=ranks)
        for window in schedule.lanes.locate(parts).windows:
            if held.get(window.lane) != window:
                held[window.lane] = window
                yield step, window


def memory(order: Order, batch: int, ranks: int) -> tuple[float, float, float]:
    """Return the most decoded bytes held by rank 0, the most fetched for one step, and the mean of that."""
    sizes, schedule = order.sources[0].sizes, order.schedule(0, batch)
    lanes = order.source_epoch(0, 0, 0)
    assert isinstance(lanes, Epoch)
    size = sizes.total_decoded_bytes / sizes.total_rows
    span = min(
        schedule.tail_start,
        3 * order.plans[0].window * order.ranks * order.workers // batch + 2 * order.workers,
    )
    held: dict[int, list[tuple[int, int]]] = {}
    most = 0.0
    fetched = []
    total = 0
    steps = range(0, span, max(1, span // 20_000))
    last = {}
    queue = needs(schedule, ranks, span)
    coming = next(queue, None)
    for step in steps:
        new = 0
        while coming is not None and coming[0] <= step + AHEAD:
            rows = -int(np.subtract(*lanes.window_range(coming[1].lane, coming[1].number)))
            held.setdefault(coming[1].lane, []).append((coming[0], rows))
            new += rows
            coming = next(queue, None)
        total += new
        for lane, windows in held.items():
            while len(windows) > 1 and windows[1][0] <= step:
                total -= windows.pop(0)[1]
            last[lane] = windows
        most = max(most, total * size)
        fetched.append(new * size)
    busy = fetched[len(fetched) // 3 :]
    return most, max(busy, default=0.0), float(np.mean(busy)) if busy else 0.0


def row(name: str, sizes: ShardSizes, batch: int, plan: Plan | None = None, *, simulate: bool = True) -> str:
    """Return one line of a table, of a windowed plan."""
    order = order_of(sizes, batch, plan or windowed_plans([sizes], global_batch=batch)[0])
    used = order.plans[0]
    figures = order.schedule(0, batch)
    epoch = order.source_epoch(0, 0, 0)
    widest = min(used.window, int(epoch.lane_lengths.max()))
    ours, random = sameness(order, batch)
    requests = epoch.piece_count()
    cells = [
        name,
        str(batch),
        f"{used.ranks} x {used.workers}",
        f"{used.chunk_bytes / 2**20:.2f}",
        f"{used.window:,}",
        f"{sizes.total_decoded_bytes / sizes.total_rows * widest / 2**20:.1f}",
        f"{requests / figures.stop:.2f}",
        f"{sizes.total_stored_bytes / requests / 2**20:.2f}",
        f"{ours:.2f} ({random:.2f})",
        f"{100 * (figures.stop - figures.tail_start) / figures.stop:.1f} %",
    ]
    for ranks in (1, 8) if simulate else ():
        most, peak, mean = memory(order, batch, ranks) if order.ranks % ranks == 0 else (0, 0, 0)
        cells.append(f"{most / 2**20:.0f}")
        cells.append(f"{peak / mean:.1f}" if mean else "-")
    return "| " + " | ".join(cells) + " |"


LABELS = 1000
LAGS = (1, 4, 16, 64)
STEPS = 164  # a hundred, and those in which their labels come again
RANKS = (1, 8, 64)
LEAST_PAIRS = 30  # by chance; of fewer, how many there are is chance

Batches = tuple[np.ndarray, np.ndarray]


def steps_of(sizes: ShardSizes, batch: int) -> tuple[int, int]:
    """Return how many steps are looked at, and the first of those amid the epoch."""
    all_ = sizes.total_rows // batch
    steps = min(STEPS, all_ - 1)
    return steps, max(0, all_ // 2 - steps // 2)


class Shardio:
    """Positions of the records of a step, by shardio's default plan."""

    def __init__(self, sizes: ShardSizes, batch: int, budget: Budget) -> None:
        self.order = make_order([Source(sizes, Identity("", 1, "", ""))], global_batch=batch, budget=budget)
        schedule = self.order.schedule(0, batch)
        steps, middle = steps_of(sizes, batch)
        first, amid = (
            np.stack([schedule.batch(step).positions for step in range(begin, begin + steps)])
            for begin in (0, middle)
        )
        self._found = first, amid

    def __call__(self, ranks: int) -> Batches:  # noqa: ARG002 - for any number of ranks the same
        """Return the first batches of an epoch and some amid it: int64 [steps, batch], the ranks in turn."""
        return self._found


class Random:
    """Positions of a random permutation; drawn with repetition where there are very many records."""

    def __init__(self, sizes: ShardSizes, batch: int) -> None:
        rows, rng = sizes.total_rows, np.random.default_rng(7)
        shape = (steps_of(sizes, batch)[0], batch)
        first, amid = (
            rng.integers(0, rows, shape)
            if rows > 20_000_000
            else rng.permutation(rows)[: shape[0] * batch].reshape(shape)
            for _ in range(2)
        )
        self._found = first, amid

    def __call__(self, ranks: int) -> Batches:  # noqa: ARG002 - all are alike
        """Return two times int64 [steps, batch]."""
        return self._found


class Peer:
    """Positions as another system gives them, by its own code and interpreter; see `order_peers.py`."""

    def __init__(self, sizes: ShardSizes, batch: int, kind: str, python: str) -> None:
        numbers = (sizes.total_rows, len(sizes), batch, steps_of(sizes, batch)[0])
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "order.npz")
            script = Path(__file__).with_name("order_peers.py")
            # Without the folder of the script, in which files are named as packages of theirs are.
            command = [python, "-P", str(script), kind, *map(str, numbers), str(out), *map(str, RANKS)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr[-2000:])
            with np.load(out) as found:
                self._found = dict(found)

    def __call__(self, ranks: int) -> Batches:
        """Return two times int64 [steps, batch]."""
        return self._found[f"first {ranks}"], self._found[f"middle {ranks}"]


def mixed(positions: np.ndarray, rows: int, ranks: int) -> list[str]:
    """Return cells: labels of the batches of each rank against chance, and how often they come again."""
    steps, batch = positions.shape
    width = batch // ranks
    labels = (positions * LABELS // rows).reshape(steps, ranks, width)
    pairs, distinct = np.zeros((steps, steps)), 0
    for rank in range(ranks):
        seen = np.zeros((steps, LABELS), np.float32)
        np.add.at(seen, (np.repeat(np.arange(steps), width), labels[:, rank].ravel()), 1)
        pairs += seen @ seen.T
        distinct += np.count_nonzero(seen)
    each = rows / LABELS
    # A label is missing from a random batch if all its records are among those that are not drawn.
    missing = math.exp(log_choose(rows - each, width) - log_choose(rows, width))
    different = 100 * distinct / (steps * ranks * LABELS * (1 - missing)) - 100
    chance = width * width * (each - 1) / (rows - 1)
    lags = range(1, min(max(LAGS), steps - 1) + 1)
    often = {lag: np.diagonal(pairs, lag).mean() / ranks / chance - 1 for lag in lags}
    enough = {lag: (steps - lag) * ranks * chance >= LEAST_PAIRS for lag in lags}
    said = [f"{100 * often[lag]:+.0f}" if enough.get(lag) else "-" for lag in LAGS]
    mean = f"{100 * np.mean(list(often.values())):+.0f}" if enough.get(max(LAGS)) else "-"
    return [f"{different:+.1f}", f"{' '.join(said)}; {mean}"]


def log_choose(of: float, many: int) -> float:
    """Return the logarithm of a binomial coefficient."""
    return math.lgamma(of + 1) - math.lgamma(many + 1) - math.lgamma(of - many + 1)


def compare(order: Shardio | Random | Peer, sizes: ShardSizes, ranks: Sequence[int]) -> list[str]:
    """Return for each number of ranks, at the beginning and in the middle, the cells of `mixed`."""
    return [cell for many in ranks for own in order(many) for cell in mixed(own, sizes.total_rows, many)]


RECORDS = {"100 B": 100, "1 KB": 1000, "8 KB": 8192, "100 KB": 100_000, "1 MB": 1_000_000}


def of_shards(record: int, shards: int) -> ShardSizes:
    """Return so many shards of 16 MiB of such records."""
    each = (16 << 20) // record
    return dataset(each * shards, each, record)


def defaults(peers: dict[str, str], batch: int = 256) -> None:
    """Print what default plans read, and how they mix, beside random order and those of peers.

    Args:
        peers: for each kind of peer the interpreter that has it.
        batch: the global batch.
    """
    datasets = [(name, shards) for name in RECORDS for shards in (64, 4096)]
    print(
        "| records | shards | plan | C x J, rows of a chunk | windows hold MiB | first batch: MB, requests "
        "| requests per MiB | over-read | a resume: its first batch MB, all MB |\n" + "| --- " * 9 + "|"
    )
    for name, shards in datasets:
        sizes = of_shards(RECORDS[name], shards)
        for kind, budget in BUDGETS.items():
            cells = cost(Shardio(sizes, batch, budget).order, batch, local=budget.local)
            print("| " + " | ".join([name, f"{shards:,}", kind, *cells]) + " |", flush=True)
    heads = [
        f"{what} of {which} {where}"
        for which in ("the batch,", "each of 8 ranks,", "each of 64,")
        for where in ("first", "middle")
        for what in ("labels", "again")
    ]
    print("\n| records | shards | order | " + " | ".join(heads) + " |\n" + "| --- " * 15 + "|")
    for name, shards in datasets:
        sizes = of_shards(RECORDS[name], shards)
        makers: dict[str, Callable[[ShardSizes, int], Shardio | Random | Peer]] = {
            **{f"shardio, {kind}": partial(Shardio, budget=budget) for kind, budget in BUDGETS.items()},
            "random": Random,
            **{kind: partial(Peer, kind=kind, python=python) for kind, python in peers.items()},
        }
        for kind, make in makers.items():
            cells = compare(make(sizes, batch), sizes, RANKS)
            print("| " + " | ".join([name, f"{shards:,}", kind, *cells]) + " |", flush=True)


BUDGETS = {
    "local": Budget(local=True),
    "bucket, scratch=False": Budget(),
    "bucket": Budget(scratch_bytes=SCRATCH_BYTES),
    "bucket, 16 GiB of scratch": Budget(scratch_bytes=16 << 30),
}


def cost(order: Order, batch: int, *, local: bool) -> list[str]:
    """Return cells: the plan, what its windows hold, and what it reads, as `shardio plan` says it."""
    told, plan = report(order, global_batch=batch, mapped=local, by_block=not local), order.plans[0]
    shape = f"{plan.ranks} x {plan.interleave}, {plan.chunk_rows:,}" if plan.interleave else "windowed"
    return [
        shape,
        f"{told.open_windows * told.window_bytes / 2**20:,.0f}",
        f"{told.first_batch_bytes / 1e6:.1f}, {told.first_batch_requests}",
        f"{told.requests / (told.epoch_bytes / 2**20):.2f}",
        f"{1 + told.bytes_twice / told.epoch_bytes:.2f}",
        f"{told.resume_batch_bytes / 1e6:.1f}, {told.resume_bytes / 1e6:.0f}",
    ]


def budgets(batch: int = 256) -> None:
    """Print what mixing in a bucket costs: the default plan, the best mixing, and more memory."""
    print(
        "| records | budget | C x J, rows of a chunk | windows hold MiB | requests per MiB | labels, first "
        "| again, first | labels, middle | again, middle | labels of each of 8 ranks, middle | again |\n"
        + "| --- " * 11
        + "|"
    )
    for name in ("100 B", "1 KB", "8 KB", "100 KB"):
        for shards in (64, 4096):
            sizes = of_shards(RECORDS[name], shards)
            usual = Shardio(sizes, batch, Budget()).order
            enough, whole = enough_memory(usual.plans[0], sizes)
            tried = {"default": Budget(), 'mixing="best"': Budget(mixing="best")}
            smaller = smaller_chunks(usual.plans[0], sizes, Budget())
            less, all_ = (enough, whole) if smaller is None else enough_memory(smaller, sizes)
            if not whole:
                tried[f"memory_bytes={enough >> 20} MiB"] = Budget(memory_bytes=enough)
            memory = enough if all_ else less
            if (whole or not all_) and memory > Budget().memory_bytes:
                named = f'memory_bytes={memory >> 20} MiB, mixing="best"'
                tried[named] = Budget(memory_bytes=memory, mixing="best")
            for kind, budget in tried.items():
                order = Shardio(sizes, batch, budget)
                shape, held, _, requests, *_ = cost(order.order, batch, local=False)
                where = f"{name}, {sizes.total_stored_bytes / 2**30:.0f} GiB"
                mixes = compare(order, sizes, (1, 8))
                cells = [where, kind, shape, held, requests, *mixes[:4], *mixes[6:]]
                print("| " + " | ".join(cells) + " |", flush=True)


def train(seeds: int = 8) -> None:
    """Print the accuracy of a softmax regression on sorted data, by the order of its records."""
    rng = np.random.default_rng(0)
    record, classes, width, rows = 1000, 100, 32, 200_000
    centres = rng.normal(size=(classes, width)).astype(np.float32)
    labels = np.arange(rows) * classes // rows
    features = centres[labels] + 2.5 * rng.normal(size=(rows, width)).astype(np.float32)
    held_labels = rng.integers(0, classes, 20_000)
    held = centres[held_labels] + 2.5 * rng.normal(size=(20_000, width)).astype(np.float32)
    sizes = dataset(rows, 16_000, record)
    print("| order | accuracy after an epoch, mean of 8 seeds | standard deviation |\n| --- | --- | --- |")
    for kind in ("random", "shardio, local", "shardio, bucket", "storage"):
        found = []
        for seed in range(seeds):
            weights, bias = np.zeros((width, classes), np.float32), np.zeros(classes, np.float32)
            options: dict[str, Any] = {"shuffle": kind != "storage", "seed": seed}
            options["budget"] = Budget(local=kind.endswith("local"), memory_bytes=128 << 20)
            order = make_order([Source(sizes, Identity("", 1, "", ""))], global_batch=256, **options)
            schedule = order.schedule(0, 256)
            chance = np.random.default_rng(seed).permutation(rows)
            for step in range(schedule.stop):
                at = chance[step * 256 :][:256] if kind == "random" else schedule.batch(step).positions
                scores = features[at] @ weights + bias
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                scores /= scores.sum(axis=1, keepdims=True)
                scores[np.arange(len(at)), labels[at]] -= 1
                weights -= 0.1 * features[at].T @ scores / len(at)
                bias -= 0.1 * scores.mean(axis=0)
            found.append(float(((held @ weights + bias).argmax(axis=1) == held_labels).mean()))
        print(f"| {kind} | {np.mean(found):.4f} | {np.std(found):.4f} |", flush=True)


def steps() -> None:
    """Print how many steps the arithmetic makes in a second of the processor, one after another."""
    print("| records | local | bucket |\n| --- | --- | --- |")
    for record in (100, 1000, 8192, 100_000):
        sizes = dataset((16 << 30) // record, (16 << 20) // record, record)
        cells = []
        for local in (True, False):
            order = make_order(
                [Source(sizes, Identity("", 1, "", ""))], global_batch=4096, budget=Budget(local=local)
            )
            schedule = order.schedule(0, 4096)
            count, rounds = min(300, schedule.tail_start // 8), []
            for first in range(count, 7 * count, count):
                begin = time.process_time()
                for step in range(first, first + count):
                    schedule.batch(step)
                rounds.append(count / (time.process_time() - begin))
            cells.append(f"{np.median(rounds):,.0f}")
        print(f"| {record:,} B | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--windowed", action="store_true")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--budgets", action="store_true")
    parser.add_argument(
        "--peers", nargs="+", default=[], metavar="KIND=PYTHON", help="mosaicml, webdataset, tf.data"
    )
    chosen = parser.parse_args(sys.argv[1:])
    peers = dict(each.split("=", 1) for each in chosen.peers)
    tables = {"steps": steps, "train": train, "windowed": windowed, "budgets": budgets}
    next((table for name, table in tables.items() if getattr(chosen, name)), partial(defaults, peers))()


def windowed() -> None:
    """Print the tables of windowed plans."""
    head = "| dataset | batch | C x T | chunk MiB | window rows | window MiB | requests per batch "
    head += "| MiB per request | sameness (random) | tail |"
    more = " MiB in 1 process | peak / mean fetch | MiB in each of 8 | peak / mean fetch |"
    print(head + more + "\n" + "| --- " * 14 + "|")
    for name, sizes in DATASETS.items():
        for batch in (32, 256, 1024, 4096):
            if batch <= sizes.total_rows:
                print(row(name, sizes, batch, simulate=sizes.total_rows < 2_000_000))
    print("\nOne thing changed at a time, batch of 256:\n\n" + head + "\n|" + " --- |" * 10)
    for name in list(DATASETS)[:2]:
        sizes = DATASETS[name]
        mean = sizes.total_decoded_bytes / sizes.total_rows
        [plan] = windowed_plans([sizes], global_batch=256)
        shapes = [(c, plan.workers, plan.chunk_bytes) for c in (8, 16, 32, 128, 256)]
        shapes += [(plan.ranks, t, plan.chunk_bytes) for t in (1, 2, 8, 12)]
        shapes += [(plan.ranks, plan.workers, b << 18) for b in (1, 2, 4, 8, 16, 32)]
        for c, t, chunk in shapes:
            window = max(1, int((1 << 30) / (c * t * mean)))
            print(
                row(
                    name,
                    sizes,
                    256,
                    Plan(ranks=c, workers=t, chunk_bytes=chunk, window=window),
                    simulate=False,
                )
            )


if __name__ == "__main__":
    main()
