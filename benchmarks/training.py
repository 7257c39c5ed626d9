"""What a loader costs a training loop: a step of 20 ms, in torch and in pure Python, with loaders beside it.

    python benchmarks/training.py [--rounds 5] [--steps 40] [--seconds 240]

Needs `torch lmdb psutil`.  Records are 2,048 int32 tokens, 20,000 of them, batches of 64, shuffled.  The step
is 20 ms of processor time when it runs alone: products of matrices with one thread of torch, which release
the interpreter lock, or a loop in Python, which holds it.  Everything is imported once, and every measurement
runs in a forked process of its own; rounds are interleaved, with the loop without a loader among them, and
none begins after so many seconds.  Each measurement takes some batches before the clock begins.  Wait is the
time in which the loop stands still for the next batch; the processor's time is that of the process, its
threads and its worker processes, step included.  Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import psutil
import torch

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS, BATCH, STEP, RECORDS, WARM = 2048, 64, 0.020, 20_000, 8
LOADERS = ("no loader", "shardio, no thread", "shardio, 1 thread", "shardio, 2 threads", "shardio, 4 threads",
           "shardio, 2 workers", "torch over LMDB, no worker", "torch over LMDB, 2 workers")  # fmt: skip


def prepare(folder: pathlib.Path) -> None:
    """Write the tokens as a dataset and as an LMDB."""
    rows = np.random.default_rng(0).integers(0, 50_000, (RECORDS, TOKENS), dtype=np.int32)
    schema = {"tokens": f"int32[{TOKENS}]"}
    with shardio.DatasetWriter(folder / "tokens", schema=schema, encoding="array") as out:
        for row in rows:
            out.write(row)
    with lmdb.open(str(folder / "tokens.lmdb"), map_size=1 << 36) as env, env.begin(write=True) as txn:
        for number, row in enumerate(rows):
            txn.put(number.to_bytes(8, "big"), row.tobytes(), append=True)


class Lookup:
    """A map-style dataset over LMDB, as people write it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.handle = str(path), None

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> Any:
        if self.handle is None:
            self.handle = lmdb.open(self.path, readonly=True, lock=False).begin()
        return torch.from_numpy(
            np.frombuffer(bytearray(self.handle.get(number.to_bytes(8, "big"))), np.int32)
        )


def batches(folder: pathlib.Path, name: str) -> Iterator[Any]:
    """Return the batches of a loader."""
    if name == "no loader":
        return iter([{"tokens": torch.zeros((BATCH, TOKENS), dtype=torch.int32)}] * (RECORDS // BATCH))
    count = 0 if "no " in name else int(name.split()[-2])
    if name.startswith("torch"):
        dataset: Any = Lookup(folder / "tokens.lmdb")
        return iter(torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=count))
    how = {"num_workers": count} if name.endswith("workers") else {"num_threads": count}
    plan = shardio.Plan(workers=count) if name.endswith("workers") else None
    data = StreamingDataset(shardio.open(folder / "tokens"), global_batch=BATCH, seed=1, plan=plan)
    return iter(StreamingDataLoader(data, **how))


def torch_step() -> Callable[[], object]:
    """Return a step of 20 ms in torch."""
    matrix = torch.rand(256, 256)

    def work(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    return scaled(work, 20)


def python_step() -> Callable[[], object]:
    """Return a step of 20 ms in pure Python."""

    def work(times: int) -> None:
        total = 0
        for number in range(times):
            total += number * number

    return scaled(work, 50_000)


def scaled(work: Callable[[int], None], times: int) -> Callable[[], object]:
    """Return the work repeated so often that it takes the time of a step, by the processor's clock."""
    work(times)
    taken = []
    for _ in range(9):
        began = time.thread_time()
        work(times)
        taken.append(time.thread_time() - began)
    often = max(1, round(times * STEP / statistics.median(taken)))
    return lambda: work(often)


def processor_time() -> float:
    """Return the seconds of processor time of this process and its workers."""
    own = psutil.Process()
    times = [own.cpu_times(), *(child.cpu_times() for child in own.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def measure(folder: pathlib.Path, name: str, step: Callable[[], object], steps: int) -> list[float]:
    """Return per step, in ms: the mean time, the mean and the longest wait, the rest, processor time."""
    source = batches(folder, name)
    for _ in range(WARM):
        next(source)
        step()
    waits = []
    cpu, began = processor_time(), time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(source)
        waits.append(time.perf_counter() - asked)
        step()
        del batch
    whole = (time.perf_counter() - began) / steps
    cpu = (processor_time() - cpu) / steps
    wait = statistics.mean(waits)
    return [1e3 * each for each in (whole, wait, max(waits), whole - wait, cpu)]


def in_child(work: Callable[[], list[float]]) -> list[float]:
    """Return what a function returns in a forked process, which ends without running exit handlers."""
    mine, its = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setsid()
            its.send_bytes(json.dumps(work()).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - the parent reads the code, and people the traceback
            traceback.print_exc()
        finally:
            for worker in multiprocessing.active_children():
                worker.kill()
            os._exit(code)
    its.close()
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit("a measurement failed")
    return list(json.loads(mine.recv_bytes()))


def load() -> str:
    """Return the machine's load averages."""
    return ", ".join(f"{each:.1f}" for each in os.getloadavg())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--folder", help="where the data is written, for a while; some 330 MB")
    args = parser.parse_args()
    torch.set_num_threads(1)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"# {platform.machine()}, {os.cpu_count()} cores, {versions}, load {load()}")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = pathlib.Path(name)
        # In a child, as everything else: what shardio has open does not outlive a fork.
        in_child(lambda: prepare(folder) or [])
        steps = {"torch": torch_step(), "Python": python_step()}
        found: dict[tuple[str, str], list[list[float]]] = {
            (kind, loader): [] for kind in steps for loader in LOADERS
        }
        began, rounds = time.perf_counter(), 0
        while rounds < args.rounds and time.perf_counter() - began < args.seconds:
            rounds += 1
            for (kind, loader), values in found.items():
                values.append(in_child(lambda: measure(folder, loader, steps[kind], args.steps)))  # noqa: B023
    print(f"# medians of {rounds} interleaved rounds of {args.steps} steps; load in the end {load()}")
    print(
        "| step of 20 ms in | loader | ms a step | wait | longest wait | the step itself | processor |\n"
        "|---|---|---|---|---|---|---|"
    )
    for (kind, loader), values in found.items():
        columns = [statistics.median(column) for column in zip(*values, strict=True)]
        print(f"| {kind} | {loader} | " + " | ".join(f"{each:.2f}" for each in columns) + " |")


if __name__ == "__main__":
    main()
