"""Datasets in a bucket: streaming and random lookups, against raw clients and against other libraries.

    python benchmarks/object_store.py --peers PEERS/bin/python [--record-bytes 102400] [--json]

PEERS is an environment with `mosaicml-streaming litdata webdataset`; without it they are left out.  All
contestants read from one server of `range_server.py`, with 0 and with 20 ms of latency added; each run is a
process of its own, rounds are interleaved, figures are medians.  No round is begun that would not end within
`--minutes`.  Compare within one run only: client and server share the machine.

Rates and processor time of streams are those after the first batch, which has a column of its own: it costs
connections, heads of indexes and whole windows, which a run of hours does not feel.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Last, and each contestant runs with `-P`: files beside this one have names that packages have, too.
sys.path.append(str(Path(__file__).parent))
from range_server import options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORD = int(os.environ.get("BENCH_RECORD", "8192"))
SHARD = 64 << 20
PIECE = 2 << 20  # of the raw clients, and of shardio's stream where its plan is told to
IN_FLIGHT = 24
BATCH = max(16, (2 << 20) // RECORD // 16 * 16)  # of any number of lanes
KEYS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "y",
    "AWS_DEFAULT_REGION": "us-east-1",
}


# ------------------------------------------------------------------------------------------------ the data


def records(count: int) -> Iterator[bytes]:
    """Yield records that no compression makes smaller."""
    import numpy as np

    rng = np.random.default_rng(0)
    for start in range(0, count, 1000):
        for row in rng.integers(0, 256, (min(1000, count - start), RECORD), np.uint8):
            yield row.tobytes()


def prepare(folder: Path, count: int) -> None:
    """Write the dataset as shardio does."""
    import shardio

    with shardio.DatasetWriter(folder / "bench" / "shardio", shard_bytes=SHARD) as out:
        for record in records(count):
            out.write(record)


def prepare_peers(folder: Path, count: int) -> None:
    """Write it as the others do, with shards of the same size."""
    stub_torchvision()
    import litdata
    import webdataset
    from litdata.streaming.writer import BinaryWriter
    from streaming import MDSWriter

    root = folder / "bench"
    with MDSWriter(out=str(root / "mds"), columns={"x": "bytes"}, size_limit=SHARD) as mds:
        for record in records(count):
            mds.write({"x": record})
    (root / "litdata").mkdir(parents=True)
    os.environ["DATA_OPTIMIZER_GLOBAL_RANK"] = "0"
    writer = BinaryWriter(str(root / "litdata"), chunk_bytes=SHARD)
    for number, record in enumerate(records(count)):
        writer[number] = record
    writer.done()
    writer._merge_no_wait()  # noqa: SLF001 - `merge` waits for workers that there are not
    (root / "wds").mkdir()
    with webdataset.ShardWriter(str(root / "wds" / "%05d.tar"), maxsize=SHARD, verbose=0) as tar:
        for number, record in enumerate(records(count)):
            tar.write({"__key__": f"{number:08d}", "bin": record})
    assert litdata


def stub_torchvision() -> None:
    """Stand in for a torchvision that does not fit the torch beside it; MDS imports it for other datasets."""
    from unittest import mock

    try:
        import torchvision  # noqa: F401
    except Exception:  # noqa: BLE001 - whatever it fails with
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            module = mock.MagicMock()
            module.__spec__ = importlib.machinery.ModuleSpec("torchvision" + name, None)
            module.VisionDataset = object
            sys.modules["torchvision" + name] = module


# ------------------------------------------------------------------------------------------------ contestants
#
# Each takes the URL of the server and yields, after what comes before the measurement (imports, for lookups
# also opening and a first lookup of every shard), the bytes of records as it gets them.


def open_shardio(url: str, engine: str) -> Any:
    import shardio

    return shardio.open(
        "s3://bench/shardio", version=1, decode=False, storage_options=options(url), engine=engine
    )


def stream_shardio(
    url: str, engine: str = "obstore", *, large: bool = False, scratch: str | bool = "auto"
) -> Iterator[int]:
    """Shuffled, verified batches; by the default plan, whose chunks are small where the dataset is."""
    import shardio

    assert shardio.open, shardio.stream  # imports what they need
    plan = shardio.Plan(ranks=4, chunk_rows=PIECE // RECORD) if large else None
    yield 0
    ds = open_shardio(url, engine)
    for batch in shardio.stream(ds, global_batch=BATCH, seed=1, plan=plan, remainder="keep", scratch=scratch):
        yield sum(map(len, batch["payload"]))


def stream_shardio_in_memory(url: str) -> Iterator[int]:
    """The same with all open chunks in memory."""
    return stream_shardio(url, scratch=False)


def stream_shardio_large(url: str) -> Iterator[int]:
    """The same in chunks as large as the pieces of the raw clients."""
    return stream_shardio(url, large=True)


def stream_shardio_large_s3fs(url: str) -> Iterator[int]:
    return stream_shardio(url, "fsspec", large=True)


def iterate_shardio(url: str) -> Iterator[int]:
    """`for record in ds`: verified records in storage order."""
    import shardio

    assert shardio.open
    yield 0
    for record in open_shardio(url, "obstore"):
        yield len(record)


def pieces() -> list[tuple[str, int, int]]:
    """Return all data as pieces of shards."""
    root = Path(os.environ["BENCH_FOLDER"]) / "bench" / "shardio"
    sizes = {path: path.stat().st_size for path in sorted(root.glob("data/*.tfrecord"))}
    return [
        (f"shardio/data/{path.name}", start, min(start + PIECE, size))
        for path, size in sizes.items()
        for start in range(0, size, PIECE)
    ]


def raw_obstore_store(url: str) -> Any:
    from obstore.store import S3Store

    keys = {"access_key_id": "x", "secret_access_key": "y", "region": "us-east-1"}
    return S3Store("bench", endpoint=url, client_options={"allow_http": True}, **keys)


async def bounded(fetch: Any, todo: list[tuple[str, int, int]], at_once: int) -> int:
    """Fetch all pieces with as many tasks as may run at once; return the bytes."""
    import asyncio

    waiting, total = iter(todo), 0

    async def work() -> None:
        nonlocal total
        for piece in waiting:
            got = len(await fetch(*piece))
            total += got

    await asyncio.gather(*(work() for _ in range(at_once)))
    return total


def stream_raw_obstore(url: str) -> Iterator[int]:
    """`obstore.get_range_async` over all shards, nothing checked or cut."""
    import asyncio

    import obstore

    store, todo = raw_obstore_store(url), pieces()

    async def fetch(key: str, start: int, stop: int) -> Any:
        return await obstore.get_range_async(store, key, start=start, end=stop)

    yield 0
    yield asyncio.run(bounded(fetch, todo, IN_FLIGHT))


def raw_s3fs(url: str) -> Any:
    import s3fs

    return s3fs.S3FileSystem(**options(url), config_kwargs={"max_pool_connections": 64}, asynchronous=True)


def stream_raw_s3fs(url: str) -> Iterator[int]:
    """`s3fs.cat_file` over all shards, nothing checked or cut."""
    import asyncio

    todo = pieces()

    async def all_of_it() -> int:
        fs = raw_s3fs(url)
        session = await fs.set_session()

        async def fetch(key: str, start: int, stop: int) -> bytes:
            return await fs._cat_file(f"bench/{key}", start=start, end=stop)  # noqa: SLF001 - the asynchronous face of s3fs

        total = await bounded(fetch, todo, IN_FLIGHT)
        await session.close()
        return total

    __import__("s3fs")
    yield 0
    yield asyncio.run(all_of_it())


def stream_mds(url: str) -> Iterator[int]:
    """MosaicML's StreamingDataset, through torch's DataLoader without workers."""
    stub_torchvision()
    os.environ["S3_ENDPOINT_URL"] = url
    from streaming import StreamingDataset

    with tempfile.TemporaryDirectory() as local:
        yield 0
        dataset = StreamingDataset(remote="s3://bench/mds", local=local, shuffle=True, batch_size=BATCH)
        for sample in dataset:
            yield len(sample["x"])


def stream_litdata(url: str, workers: int = 0) -> Iterator[int]:
    """LitData's StreamingDataset and its loader."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It has no option for a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001 - as above
    with tempfile.TemporaryDirectory() as local:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "us-east-1"}
        yield 0
        dataset = StreamingDataset(
            "s3://bench/litdata", cache_dir=local, shuffle=True, storage_options={"endpoint_url": url, **keys}
        )
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=list)
        for batch in loader:
            yield sum(map(len, batch))


def stream_webdataset(url: str) -> Iterator[int]:
    """WebDataset's own reading of URLs (curl), with its shuffle buffer."""
    import webdataset

    root = Path(os.environ["BENCH_FOLDER"]) / "bench" / "wds"
    urls = [f"{url}/bench/wds/{path.name}" for path in sorted(root.glob("*.tar"))]
    yield 0
    for sample in webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0).shuffle(1000):
        yield len(sample["bin"])


def positions(total: int, count: int, seed: int = 1) -> Any:
    import numpy as np

    return np.random.default_rng(seed).integers(0, total, count)


def warm(ds: Any) -> int:
    """Look at one record of every shard, as a process that has been at work for a while has."""
    ds.read(ds.source.stops - 1)
    return len(ds)


def look_up_single(url: str, engine: str = "obstore") -> Iterator[int]:
    """`ds[i]`, one after another."""
    ds = open_shardio(url, engine)
    wanted = positions(warm(ds), 300).tolist()
    yield 0
    for position in wanted:
        yield len(ds[position])


def look_up_batched(url: str, engine: str = "obstore") -> Iterator[int]:
    """`ds.read` of 256 random positions at a time."""
    ds = open_shardio(url, engine)
    wanted = positions(warm(ds), 20 * BATCH).reshape(-1, BATCH)
    yield 0
    for batch in wanted:
        yield sum(map(len, ds.read(batch)))


def look_up_batched_s3fs(url: str) -> Iterator[int]:
    return look_up_batched(url, "fsspec")


def recorded(url: str) -> list[list[tuple[str, int, int]]]:
    """Return, for each batch of `look_up_batched`, the ranges that shardio asks for."""
    from shardio.storage import _obstore

    asked: list[tuple[str, int, int]] = []
    fetch = _obstore.ObstoreReader.fetch

    def noting(self: Any, path: str, start: int, stop: int) -> Any:
        asked.append((path.removeprefix("bench/"), start, stop))
        return fetch(self, path, start, stop)

    _obstore.ObstoreReader.fetch = noting
    batches = []
    for _ in look_up_batched(url):
        batches.append(list(asked))
        asked.clear()
    _obstore.ObstoreReader.fetch = fetch
    return batches[1:]


def raw_batched_obstore(url: str) -> Iterator[int]:
    """`obstore.get_range_async`, on the ranges that shardio asks for: what its coalescing leaves to do."""
    import asyncio

    import obstore

    store, batches = raw_obstore_store(url), recorded(url)

    async def fetch(key: str, start: int, stop: int) -> Any:
        return await obstore.get_range_async(store, key, start=start, end=stop)

    with asyncio.Runner() as runner:
        runner.run(bounded(fetch, batches[0], 128))
        yield 0
        for batch in batches:
            runner.run(bounded(fetch, batch, 128))
            yield BATCH * RECORD


def raw_batched_obstore_ranges(url: str) -> Iterator[int]:
    """`obstore.get_ranges_async`, one call for the ranges of a shard: the least that Python can do for it."""
    import asyncio
    import itertools

    import obstore

    store, batches = raw_obstore_store(url), recorded(url)

    async def fetch(batch: list[tuple[str, int, int]]) -> None:
        groups = itertools.groupby(sorted(batch), key=lambda place: place[0])
        calls = []
        for key, places in groups:
            _, starts, stops = zip(*places, strict=True)
            calls.append(obstore.get_ranges_async(store, key, starts=starts, ends=stops, coalesce=0))
        await asyncio.gather(*calls)

    with asyncio.Runner() as runner:
        runner.run(fetch(batches[0]))
        yield 0
        for batch in batches:
            runner.run(fetch(batch))
            yield BATCH * RECORD


def raw_batched_s3fs(url: str) -> Iterator[int]:
    """`s3fs.cat_file` on the same ranges, 32 at once."""
    import asyncio

    batches = recorded(url)
    with asyncio.Runner() as runner:
        fs = raw_s3fs(url)

        async def fetch(key: str, start: int, stop: int) -> bytes:
            return await fs._cat_file(f"bench/{key}", start=start, end=stop)  # noqa: SLF001 - the asynchronous face of s3fs

        session = runner.run(fs.set_session())
        runner.run(bounded(fetch, batches[0], 32))
        yield 0
        for batch in batches:
            runner.run(bounded(fetch, batch, 32))
            yield BATCH * RECORD
        runner.run(session.close())


def raw_single_obstore(url: str) -> Iterator[int]:
    """`obstore.get_range`, one block of 64 KiB after another."""
    import obstore

    store = raw_obstore_store(url)
    # The last piece of a shard may be shorter than a block.
    found = [(key, start) for key, start, stop in pieces() if stop - start >= 65536]
    wanted = [found[n % len(found)] for n in positions(1 << 20, 300).tolist()]
    obstore.get_range(store, found[0][0], start=0, end=10)
    yield 0
    for key, start in wanted:
        obstore.get_range(store, key, start=start, end=start + 65536)
        yield RECORD


def look_up_mds(url: str, count: int = 300) -> Iterator[int]:
    """`dataset[i]` of MosaicML streaming, whose shards are already on local disk for the most part."""
    stub_torchvision()
    os.environ["S3_ENDPOINT_URL"] = url
    from streaming import StreamingDataset

    with tempfile.TemporaryDirectory() as local:
        dataset = StreamingDataset(remote="s3://bench/mds", local=local, batch_size=1)
        yield 0
        for position in positions(len(dataset), count).tolist():
            yield len(dataset[position]["x"])


def look_up_litdata(url: str, count: int = 300) -> Iterator[int]:
    """`dataset[i]` of LitData."""
    from litdata import StreamingDataset

    with tempfile.TemporaryDirectory() as local:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "us-east-1"}
        more = {"endpoint_url": url, **keys}
        dataset = StreamingDataset("s3://bench/litdata", cache_dir=local, storage_options=more)
        wanted = positions(len(dataset), count).tolist()
        yield 0
        for position in wanted:
            yield len(dataset[position])


STREAMS: dict[str, Any] = {
    "raw obstore": stream_raw_obstore,
    "raw s3fs": stream_raw_s3fs,
    "shardio.stream, obstore, default plan": stream_shardio,
    "shardio.stream, obstore, default plan without scratch": stream_shardio_in_memory,
    "shardio.stream, obstore, chunks of 2 MiB": stream_shardio_large,
    "shardio.stream, s3fs, chunks of 2 MiB": stream_shardio_large_s3fs,
    "for record in ds, obstore": iterate_shardio,
}
SINGLE: dict[str, Any] = {
    "raw obstore, blocks of 64 KiB": raw_single_obstore,
    "shardio, obstore": look_up_single,
}
BATCHED: dict[str, Any] = {
    "raw obstore, the same ranges": raw_batched_obstore,
    "raw obstore, get_ranges by shard": raw_batched_obstore_ranges,
    "raw s3fs, the same ranges": raw_batched_s3fs,
    "shardio, obstore": look_up_batched,
    "shardio, s3fs": look_up_batched_s3fs,
}
PEER_STREAMS: dict[str, Any] = {
    "MosaicML streaming": stream_mds,
    "LitData": stream_litdata,
    "WebDataset": stream_webdataset,
}
PEER_SINGLE: dict[str, Any] = {"MosaicML streaming": look_up_mds, "LitData": look_up_litdata}
TABLES = {
    "streaming": (STREAMS, PEER_STREAMS),
    "single lookups": (SINGLE, PEER_SINGLE),
    "lookups of 256": (BATCHED, {}),
}


# ------------------------------------------------------------------------------------------------ the run


def measure(contestant: Callable[[str], Iterator[int]], url: str) -> dict[str, float]:
    """Run a contestant; what it does before it yields for the first time does not count."""
    run = contestant(url)
    next(run)
    # The last place to look: `streaming` is MosaicML's package here, not the file beside this one.
    sys.path.append(str(Path(__file__).parent))
    from range_server import counted

    sent, begun, spent = counted(url), time.perf_counter(), cpu()
    total = next(run)
    first = time.perf_counter() - begun
    begun_rest, spent_rest, rest = time.perf_counter(), cpu(), 0
    for each in run:
        rest += each
    if rest:
        # What comes in one piece has no first batch.
        begun, spent, total = begun_rest, spent_rest, rest
    seconds = time.perf_counter() - begun
    spent = cpu() - spent
    after = counted(url)
    return {
        "first": first,
        "seconds": seconds,
        "bytes": total,
        "cpu": spent,
        "requests": after[0] - sent[0],
        "sent": after[1] - sent[1],
    }


def cpu() -> float:
    """Return CPU seconds of this process and of its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def one(python: str, table: str, name: str, url: str, folder: Path) -> dict[str, float] | str:
    """Measure one contestant in a process of its own; return why there is no figure where it failed."""
    # -P: `streaming` is MosaicML's package, not the file beside this one.
    command = [python, "-P", "-W", "ignore", __file__, "--one", table, name, url]
    environment = {**os.environ, **KEYS, "BENCH_FOLDER": str(folder)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=120, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return "no end within two minutes"
    last = (done.stdout.strip().splitlines() or [""])[-1]
    # What happens to a contestant at its exit, after its figure, is not measured.
    if not last.startswith("{"):
        return f"exit {done.returncode}: {' '.join(done.stderr.split())[-300:]}"
    found: dict[str, float] = json.loads(last)
    return found


Runs = dict[tuple[str, float], dict[str, list[dict[str, float]]]]


def run(arguments: argparse.Namespace, folder: Path) -> int:
    """Prepare the data, measure everybody, print tables or JSON; return how many runs failed."""
    begun = time.monotonic()
    count = arguments.megabytes * (1 << 20) // RECORD
    prepare(folder, count)
    if arguments.peers:
        command = [arguments.peers, "-P", "-W", "ignore", __file__, "--prepare", str(folder), str(count)]
        subprocess.run(command, check=True, env={**os.environ, **KEYS}, capture_output=True, cwd=folder)
    runs: Runs = {}
    failed: list[str] = []
    rounds = 0
    longest = 0.0
    while rounds < arguments.rounds:
        start = time.monotonic()
        if rounds and start - begun + longest > arguments.minutes * 60:
            break
        measure_all(arguments, folder, runs, failed)
        longest = max(longest, time.monotonic() - start)
        rounds += 1
    about = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "records": count,
        "record_bytes": RECORD,
        "shard_bytes": SHARD,
        "rounds": rounds,
        "seconds": round(time.monotonic() - begun),
        "failed": failed,
    }
    if arguments.json:
        print(json.dumps({**about, "tables": [summary(*key, found) for key, found in runs.items()]}))
    else:
        print(", ".join(f"{name} {value}" for name, value in about.items()))
        for (table, latency), found in runs.items():
            show(table, latency, found)
    return len(failed)


def measure_all(arguments: argparse.Namespace, folder: Path, runs: Runs, failed: list[str]) -> None:
    """Run everybody once, with each latency."""
    from range_server import served

    for latency in arguments.latency:
        for table, (here, there) in TABLES.items():
            who = [(name, sys.executable) for name in here]
            who += [(name, arguments.peers) for name in there if arguments.peers]
            for name, python in who:
                if arguments.only not in f"{table}: {name}":
                    continue
                with served(folder, latency) as url:
                    found = one(python, table, name, url, folder)
                if isinstance(found, str):
                    failed.append(f"{table}, {latency * 1000:.0f} ms, {name}: {found}")
                else:
                    runs.setdefault((table, latency), {}).setdefault(name, []).append(found)


def summary(table: str, latency: float, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return one table's figures: medians and extremes, and each rate as a share of raw obstore's."""
    scale = 1e6 if table == "streaming" else RECORD
    rows = []
    for name, runs in found.items():
        rates = [each["bytes"] / scale / each["seconds"] for each in runs]
        rows.append(
            {
                "name": name,
                "rate": statistics.median(rates),
                "least": min(rates),
                "most": max(rates),
                "first_seconds": statistics.median(each["first"] for each in runs),
                "cpu_s_per_gb": statistics.median(each["cpu"] / each["bytes"] * 1e9 for each in runs),
                "requests": runs[-1]["requests"],
                "mb_sent": runs[-1]["sent"] / 1e6,
            }
        )
    raw = max((row["rate"] for row in rows if row["name"].startswith("raw obstore")), default=None)
    for row in rows:
        row["of_raw_obstore"] = None if raw is None else row["rate"] / raw
    unit = "MB/s" if table == "streaming" else "lookups/s"
    return {"table": table, "latency_ms": latency * 1000, "unit": unit, "rows": rows}


def show(table: str, latency: float, found: dict[str, list[dict[str, float]]]) -> None:
    """Print one table."""
    made = summary(table, latency, found)
    print(f"\n{table}, {latency * 1000:.0f} ms added\n")
    print(
        f"| what | {made['unit']} | least-most | of raw obstore | CPU s/GB | first, s | requests | MB sent |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in made["rows"]:
        share = "" if row["of_raw_obstore"] is None else f"{row['of_raw_obstore']:.2f}"
        print(
            f"| {row['name']} | {row['rate']:,.0f} | {row['least']:,.0f}-{row['most']:,.0f} | {share} "
            f"| {row['cpu_s_per_gb']:.2f} | {row['first_seconds']:.2f} | {row['requests']:,.0f} "
            f"| {row['mb_sent']:,.0f} |"
        )


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="python of an environment with the other libraries")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the dataset")
    parser.add_argument("--record-bytes", type=int, default=RECORD, help="size of a record")
    parser.add_argument("--rounds", type=int, default=3, help="at most so many")
    parser.add_argument("--minutes", type=float, default=7.0, help="begin no round that would end later")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--latency", type=float, nargs="*", default=[0.0, 0.02], help="seconds, added")
    parser.add_argument("--only", default="", help="contestants whose table or name contains this")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record_bytes != RECORD:
        # Processes of the contestants read it from there, and so does this one, again.
        os.environ["BENCH_RECORD"] = str(arguments.record_bytes)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if arguments.prepare:
        prepare_peers(Path(arguments.prepare[0]), int(arguments.prepare[1]))
    elif arguments.one:
        table, name, url = arguments.one
        here, there = TABLES[table]
        print(json.dumps(measure({**here, **there}[name], url)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(min(run(arguments, Path(folder)), 1))


if __name__ == "__main__":
    main()
