"""Streams into torch: tokens and photographs against loaders over bagz, LMDB, Arrow and files; start-up.

    python benchmarks/streaming.py --peers PEERS/bin/python

PEERS is an environment with `torch lmdb bagz datasets pillow`; this one needs `torch Pillow scikit-image`.
Every figure is the median of interleaved rounds, each in a process of its own; compare within one run only.
Where `--minutes` end before all rounds are made there are fewer, as the table says; what had no turn
is named.
"""

from __future__ import annotations

import argparse
import io
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
    from collections.abc import Iterable, Iterator

TOKENS = 2048
BATCH = 64


def token_rows(count: int) -> Iterator[Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    for start in range(0, count, 1000):
        yield from rng.integers(0, 50_000, (min(1000, count - start), TOKENS), dtype=np.int32)


def photographs(count: int) -> Iterator[bytes]:
    """Yield JPEGs of 60-100 KB: crops of real photographs, encoded again."""
    import numpy as np
    from PIL import Image
    from skimage import data

    sources = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket(), data.retina()]
    rng = np.random.default_rng(0)
    for _ in range(count):
        source = Image.fromarray(sources[rng.integers(len(sources))])
        size = int(rng.integers(180, 280))
        x, y = (int(rng.integers(0, side - size)) for side in source.size)
        crop = source.crop((x, y, x + size, y + size)).resize((512, 512))
        for quality in (95, 90, 97):
            out = io.BytesIO()
            crop.save(out, "JPEG", quality=quality)
            if 60_000 <= out.tell() <= 100_000:
                break
        yield out.getvalue()


def prepare(root: pathlib.Path, args: argparse.Namespace) -> None:
    import shardio

    with shardio.DatasetWriter(
        root / "tokens", schema={"tokens": f"int32[{TOKENS}]"}, encoding="array"
    ) as out:
        for row in token_rows(args.tokens):
            out.write(row)
    (root / "files").mkdir()
    with shardio.DatasetWriter(root / "photos", schema={"image": "jpeg", "label": "int64"}) as out:
        for number, jpeg in enumerate(photographs(args.photos)):
            (root / "files" / f"{number:06d}.jpg").write_bytes(jpeg)
            out.write({"image": jpeg, "label": number})
    prepare_large(root / "large")
    subprocess.run(
        [args.peers, __file__, "--prepare-peers", "--folder", str(root), "--tokens", str(args.tokens)],
        check=True,
    )


def prepare_large(url: pathlib.Path, shards: int = 100) -> None:
    """Lay out 10^8 records: one shard of 10^6, linked a hundred times under names of its own."""
    import shardio
    from shardio.catalog import Catalog, commit_receipts
    from shardio.metadata import Receipt, ShardTable, SplitReceipt
    from shardio.storage import connect

    with shardio.DatasetWriter(url) as out:
        for number in range(1_000_000):
            out.write(number.to_bytes(16, "little"))
    catalog = Catalog(connect(str(url)))
    (entry,) = catalog.table(catalog.latest())
    from dataclasses import replace

    entries = []
    for number in range(1, shards):
        key = entry.key.replace("-00000.tfrecord", f"-{number:05d}.tfrecord")
        for suffix in ("", ".shardidx"):
            os.link(url / (entry.key + suffix), url / (key + suffix))
        entries.append(replace(entry, key=key))
    rows = sum(each.rows for each in entries)
    receipt = Receipt(
        session="large", task=0, attempt="0", complete=True, table=ShardTable.from_entries(entries),
        splits={"train": SplitReceipt(rows, 0)}, mode="append", base_version=1,
    )  # fmt: skip
    commit_receipts(catalog, [receipt], mode="append")


def prepare_peers(root: pathlib.Path, count: int) -> None:
    import bagz
    import lmdb
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    with lmdb.open(str(root / "tokens.lmdb"), map_size=1 << 36) as env, env.begin(write=True) as txn:
        for number, row in enumerate(token_rows(count)):
            txn.put(number.to_bytes(8, "big"), row.tobytes(), append=True)
    with bagz.Writer(str(root / "tokens.bagz")) as out:
        for row in token_rows(count):
            out.write(row.tobytes())
    # As `Sequence(Value("int32"), length=TOKENS)` is stored; from a generator it takes minutes.
    flat = np.concatenate(list(token_rows(count)))
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat), TOKENS)
    table = InMemoryTable(pa.table({"tokens": column}))
    Dataset(table).save_to_disk(str(root / "tokens.arrow"))
    with lmdb.open(str(root / "photos.lmdb"), map_size=1 << 34) as env, env.begin(write=True) as txn:
        for path in sorted((root / "files").iterdir()):
            txn.put(path.stem.encode(), path.read_bytes(), append=True)


def drain(loader: Iterable[Any]) -> float:
    began = time.perf_counter()
    count = 0
    for batch in loader:
        count += len(batch["tokens"] if isinstance(batch, dict) else batch)
    return count / (time.perf_counter() - began)


# Tokens to torch batches.


def tokens_shardio(root: pathlib.Path, threads: int = 2, epochs: int = 1) -> float:
    import shardio
    from shardio.torch import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(shardio.open(root / "tokens"), global_batch=BATCH, seed=1)
    loader = StreamingDataLoader(dataset, num_threads=threads)
    return [drain(loader) for _ in range(epochs)][-1]


def tokens_shardio_one_thread(root: pathlib.Path) -> float:
    return tokens_shardio(root, threads=0)


# The memory that a first epoch touches for the first time is there in a second one.
def tokens_shardio_again(root: pathlib.Path) -> float:
    return tokens_shardio(root, epochs=2)


def tokens_shardio_one_thread_again(root: pathlib.Path) -> float:
    return tokens_shardio(root, threads=0, epochs=2)


def torch_loader(dataset: Any, workers: int) -> float:
    from torch.utils.data import DataLoader

    return drain(DataLoader(dataset, batch_size=BATCH, num_workers=workers))


class Lookup:
    """A map-style dataset over something opened once in each process."""

    def __init__(self, path: pathlib.Path, kind: str) -> None:
        self.path, self.kind, self.handle = str(path), kind, None
        self.count = len(self._open()) if kind != "lmdb" else None
        if kind == "lmdb":
            import lmdb

            with lmdb.open(self.path, readonly=True, lock=False) as env:
                self.count = env.stat()["entries"]
        self.handle = None

    def _open(self) -> Any:
        if self.handle is None:
            if self.kind == "lmdb":
                import lmdb

                self.handle = lmdb.open(self.path, readonly=True, lock=False).begin(buffers=True)
            elif self.kind == "bagz":
                import bagz

                self.handle = bagz.Reader(self.path)
            else:
                from datasets import load_from_disk

                self.handle = load_from_disk(self.path).with_format("torch")
        return self.handle

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        import numpy as np
        import torch

        handle = self._open()
        if self.kind == "arrow":
            return handle[number]["tokens"]
        data = handle.get(number.to_bytes(8, "big")) if self.kind == "lmdb" else handle[number]
        return torch.from_numpy(np.frombuffer(bytearray(data), np.int32))


def tokens_lmdb(root: pathlib.Path, workers: int = 0) -> float:
    return torch_loader(Lookup(root / "tokens.lmdb", "lmdb"), workers)


def tokens_bagz(root: pathlib.Path, workers: int = 0) -> float:
    return torch_loader(Lookup(root / "tokens.bagz", "bagz"), workers)


def tokens_lmdb_two(root: pathlib.Path) -> float:
    return tokens_lmdb(root, 2)


def tokens_bagz_two(root: pathlib.Path) -> float:
    return tokens_bagz(root, 2)


def tokens_arrow_two(root: pathlib.Path) -> float:
    return torch_loader(Lookup(root / "tokens.arrow", "arrow"), 2)


# Photographs, decoded and resized.


def resized(data: bytes) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (224, 224))
        return np.asarray(image.convert("RGB").resize((224, 224)))


def photos_shardio(root: pathlib.Path) -> float:
    import shardio
    from shardio.torch import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        shardio.open(root / "photos"),
        global_batch=32,
        seed=1,
        transform=lambda value: {"tokens": resized(value["image"]), "label": value["label"]},
    )
    return drain(StreamingDataLoader(dataset, num_threads=2))


class Photos:
    def __init__(self, root: pathlib.Path, kind: str) -> None:
        self.root, self.kind, self.handle = root, kind, None
        self.names = sorted(path.stem for path in (root / "files").iterdir())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> Any:
        import torch

        if self.kind == "files":
            data = (self.root / "files" / f"{self.names[number]}.jpg").read_bytes()
        else:
            if self.handle is None:
                import lmdb

                self.handle = lmdb.open(str(self.root / "photos.lmdb"), readonly=True, lock=False).begin()
            data = self.handle.get(self.names[number].encode())
        return torch.from_numpy(resized(data).copy())


def photos_torch(root: pathlib.Path, kind: str) -> float:
    from torch.utils.data import DataLoader

    return drain(DataLoader(Photos(root, kind), batch_size=32, num_workers=2, shuffle=True))


def photos_files_two(root: pathlib.Path) -> float:
    return photos_torch(root, "files")


def photos_lmdb_two(root: pathlib.Path) -> float:
    return photos_torch(root, "lmdb")


# Start-up.


def first_batch(root: pathlib.Path) -> float:
    """Seconds from opening 10^8 records to the first batch, imports apart."""
    import shardio

    _ = shardio.open, shardio.stream
    began = time.perf_counter()
    next(iter(shardio.stream(shardio.open(root / "large"), global_batch=256, seed=1)))
    return time.perf_counter() - began


def first_batch_after_resume(root: pathlib.Path) -> float:
    """The same, resumed at step 100,000."""
    import shardio

    probe = shardio.stream(shardio.open(root / "large"), global_batch=256, seed=1)
    state = probe.order.state(probe.order.schedule(0, 256), 0, 100_000)
    began = time.perf_counter()
    stream = shardio.stream(shardio.open(root / "large"), global_batch=256, seed=1)
    stream.load_state_dict(state)
    next(iter(stream))
    return time.perf_counter() - began


def plan_memory(_root: pathlib.Path) -> float:
    """MB of resident memory that the order of 10^9 records takes, with its first batch."""
    import numpy as np
    import psutil

    from shardio.order import Identity, ShardSizes, Source, make_order

    process = psutil.Process()
    shards = 1000
    rows = np.full(shards, 10**6)
    before = process.memory_info().rss
    sizes = ShardSizes(rows, rows * 300, rows * 300, rows * 300 // 65536)
    order = make_order([Source(sizes, Identity("0" * 32, 1, "f", "train"))], global_batch=1024, seed=1)
    schedule = order.schedule(0, 1024)
    schedule.batch(0)
    return (process.memory_info().rss - before) / 1e6


HERE = {
    "tokens, shuffled and verified: shardio, 2 threads (records/s)": tokens_shardio,
    "tokens, shuffled and verified: shardio, no thread (records/s)": tokens_shardio_one_thread,
    "tokens, the same, second epoch: shardio, 2 threads (records/s)": tokens_shardio_again,
    "tokens, the same, second epoch: shardio, no thread (records/s)": tokens_shardio_one_thread_again,
    "photographs, decoded and resized: shardio, 2 threads (records/s)": photos_shardio,
    "first batch of 10^8 records (s)": first_batch,
    "first batch of 10^8 records, resumed at step 100,000 (s)": first_batch_after_resume,
    "plan of 10^9 records and its first batch (MB resident)": plan_memory,
}
PEERS = {
    "tokens, in storage order: torch over bagz, no worker (records/s)": tokens_bagz,
    "tokens, in storage order: torch over LMDB, no worker (records/s)": tokens_lmdb,
    "tokens, in storage order: torch over bagz, 2 workers (records/s)": tokens_bagz_two,
    "tokens, in storage order: torch over LMDB, 2 workers (records/s)": tokens_lmdb_two,
    "tokens, in storage order: torch over Arrow (datasets), 2 workers (records/s)": tokens_arrow_two,
    "photographs: torch over loose files, 2 workers (records/s)": photos_files_two,
    "photographs: torch over LMDB, 2 workers (records/s)": photos_lmdb_two,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peers", default=sys.executable, help="python of an environment with torch, lmdb, bagz, datasets"
    )
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--photos", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=5, help="at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of it, the data included")
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--prepare-peers", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.prepare_peers:
        prepare_peers(pathlib.Path(args.folder), args.tokens)
    elif args.one:
        print({**HERE, **PEERS}[args.one](pathlib.Path(args.folder)))
    else:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            run(pathlib.Path(folder), args)


def run(root: pathlib.Path, args: argparse.Namespace) -> None:
    end = time.monotonic() + 60 * args.minutes
    print(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    prepare(root, args)
    seconds = time.monotonic() - end + 60 * args.minutes
    print(f"# the data was written in {seconds:.0f} s")
    contestants = [(name, sys.executable) for name in HERE] + [(name, args.peers) for name in PEERS]
    contestants = [each for each in contestants if args.only in each[0]]
    found = {name: [] for name, _ in contestants}
    failed: dict[str, str] = {}
    for _ in range(args.rounds):
        for name, python in contestants:
            if name not in failed:
                measure(name, python, root, end, found[name], failed)
    for name, why in failed.items():
        if not found[name]:
            print(f"not measured: {name}: {why}", file=sys.stderr)
    print("| what | median | least | most | rounds |\n|---|---|---|---|---|")
    for name, values in found.items():
        if values:
            median = statistics.median(values)
            print(f"| {name} | {median:,.4g} | {min(values):,.4g} | {max(values):,.4g} | {len(values)} |")


def measure(
    name: str, python: str, root: pathlib.Path, end: float, values: list[float], failed: dict[str, str]
) -> None:
    """Let a contestant run in a process of its own; note what it said, or why there is nothing."""
    command = [python, __file__, "--one", name, "--folder", str(root)]
    left = max(0.0, end - time.monotonic())
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        failed[name] = "no time was left"
        return
    if not out.returncode:
        values.append(float(out.stdout.strip().splitlines()[-1]))
    elif name in PEERS:
        failed[name] = out.stderr.strip().splitlines()[-1]
    else:
        sys.exit(f"{name}: {out.stderr}")


if __name__ == "__main__":
    main()
