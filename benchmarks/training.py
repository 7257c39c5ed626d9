"""What a loader costs a training loop: a step of 20 ms, in torch and in pure Python, with loaders beside it.

    python benchmarks/training.py [--rounds 3] [--steps 60] [--seconds 300]

Needs `torch lmdb`.  Records are 2,048 int32 tokens, batches 64 of them.  The step is 20 ms of processor time
when it runs alone: products of matrices with one thread of torch, which release the interpreter lock, or a
loop in Python, which holds it.  Every loader runs in a process of its own; rounds are interleaved, with the
loop without a loader among them, and none begins after so many seconds.  Wait is the time in which the loop
stands still for the next batch; slower is what the step itself takes longer beside the loader's threads.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS, BATCH, STEP = 2048, 64, 0.020
KINDS = ("torch", "python")
LOADERS = ("no loader", "shardio, no thread", "shardio, 1 thread", "shardio, 2 threads", "shardio, 4 threads",
           "shardio, 2 workers", "torch over LMDB, no worker", "torch over LMDB, 2 workers")  # fmt: skip


def prepare(folder: pathlib.Path, records: int) -> None:
    """Write the tokens as a dataset and as an LMDB."""
    import lmdb
    import numpy as np

    import shardio

    rows = np.random.default_rng(0).integers(0, 50_000, (records, TOKENS), dtype=np.int32)
    schema = {"tokens": f"int32[{TOKENS}]"}
    with shardio.DatasetWriter(folder / "tokens", schema=schema, encoding="array") as out:
        for row in rows:
            out.write(row)
    with lmdb.open(str(folder / "tokens.lmdb"), map_size=1 << 36) as env, env.begin(write=True) as txn:
        for number, row in enumerate(rows):
            txn.put(number.to_bytes(8, "big"), row.tobytes(), append=True)


class Lookup:
    """A map-style dataset over LMDB, as people write it."""

    def __init__(self, path: pathlib.Path, records: int) -> None:
        self.path, self.records, self.handle = str(path), records, None

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: int) -> Any:
        import lmdb
        import numpy as np
        import torch

        if self.handle is None:
            self.handle = lmdb.open(self.path, readonly=True, lock=False).begin()
        return torch.from_numpy(
            np.frombuffer(bytearray(self.handle.get(number.to_bytes(8, "big"))), np.int32)
        )


def batches(folder: pathlib.Path, name: str, steps: int) -> Iterator[Any]:
    """Return the batches of a loader."""
    import torch

    if name == "no loader":
        return iter([{"tokens": torch.zeros((BATCH, TOKENS), dtype=torch.int32)}] * steps)
    count = 0 if "no " in name else int(name.split()[-2])
    if name.startswith("torch"):
        dataset: Any = Lookup(folder / "tokens.lmdb", steps * BATCH)
        return iter(torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=count))
    import shardio
    from shardio.torch import StreamingDataLoader, StreamingDataset

    how = {"num_workers": count} if name.endswith("workers") else {"num_threads": count}
    data = StreamingDataset(shardio.open(folder / "tokens"), global_batch=BATCH, seed=1)
    return iter(StreamingDataLoader(data, **how))


def torch_step() -> Callable[[], object]:
    """Return a step of 20 ms in torch."""
    import torch

    torch.set_num_threads(1)
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


def measure(folder: pathlib.Path, name: str, kind: str, steps: int) -> list[float]:
    """Return per step, in ms: the median time, the mean time, the median wait, processor time."""
    step = torch_step() if kind == "torch" else python_step()
    source = batches(folder, name, steps)
    next(source)
    step()
    waits, times = [], []
    cpu = time.process_time()
    for _ in range(steps - 1):
        began = time.perf_counter()
        batch = next(source)
        waits.append(time.perf_counter() - began)
        step()
        del batch
        times.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu) / len(times)
    found = (statistics.median(times), statistics.mean(times), statistics.median(waits), cpu)
    return [1e3 * each for each in found]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--folder")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        folder = pathlib.Path(args.folder)
        print(json.dumps([measure(folder, args.one, kind, args.steps) for kind in KINDS]))
        return
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load}")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        prepare(pathlib.Path(name), args.steps * BATCH)
        found: dict[tuple[str, str], list[list[float]]] = {
            (kind, loader): [] for kind in KINDS for loader in LOADERS
        }
        began, rounds = time.perf_counter(), 0
        while rounds < args.rounds and time.perf_counter() - began < args.seconds:
            rounds += 1
            for loader in LOADERS:
                command = [sys.executable, __file__, "--folder", name, "--steps", str(args.steps)]
                out = subprocess.run([*command, "--one", loader], capture_output=True, text=True, check=False)
                if out.returncode:
                    sys.exit(f"{loader}: {out.stderr}")
                for kind, values in zip(
                    ("torch", "python"), json.loads(out.stdout.splitlines()[-1]), strict=True
                ):
                    found[kind, loader].append(values)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"# {rounds} rounds of {args.steps} steps; load in the end {load}")
    print(
        "| step of 20 ms in | loader | ms a step, median | mean | wait | processor, this process |\n"
        "|---|---|---|---|---|---|"
    )
    for (kind, loader), values in found.items():
        columns = " | ".join(f"{statistics.median(column):.2f}" for column in zip(*values, strict=True))
        print(f"| {kind} | {loader} | {columns} |")


if __name__ == "__main__":
    main()
