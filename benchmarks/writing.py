"""Write the same data with shardio and with what users would pick instead; medians of interleaved runs.

    python benchmarks/writing.py images --python peers=/peers/bin/python --python tensorflow=/tf/bin/python
    python benchmarks/writing.py small ...
    python benchmarks/writing.py small-zstd ...

`images` writes a folder of JPEG files of 60-100 KB with two processes, `small` writes records of 100-500
bytes with one, `small-zstd` the same compressed.  Each run is a process of its own in the environment that
has the library; its clock starts after a first write of two and stops when all is written and closed, for
shardio also flushed to disk and committed.  A second reading is taken when everybody's files are flushed.
Processor time is that of all processes, which is what to look at on a busy machine.  `--folder /dev/shm`
leaves the disk out of it.  Needs Pillow and NumPy where it is started.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import io
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CONTESTANTS = {
    "images": {
        "shardio": "",
        "webdataset": "peers",
        "mds": "peers",
        "litdata": "peers",
        "tensorflow": "tensorflow",
    },
    "small": {
        "shardio": "",
        "shardio_many": "",
        "mds": "peers",
        "bagz": "peers",
        "arrow": "peers",
        "tensorflow": "tensorflow",
    },
    "small-zstd": {"shardio": "", "mds": "peers", "bagz": "peers", "arrow": "peers"},
}
PROCESSES = 2


# --- the data


def make_images(folder: Path, count: int) -> None:
    """Make JPEG files of 60-100 KB: noise over smooth colours, which compresses about as photographs do."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    ramp = np.linspace(0, 120, 400)[:, None, None] + np.linspace(0, 60, 500)[None, :, None]
    made = 0
    while made < count:
        pixels = ramp * rng.uniform(0.5, 1, 3) + rng.normal(0, rng.uniform(12, 26), (400, 500, 3))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(file, "JPEG", quality=88)
        # A picture is written under several names, so that the folder is large and made soon.
        if 60_000 <= file.tell() <= 100_000:
            for _ in range(20):
                (folder / f"{made:06d}.jpg").write_bytes(file.getvalue())
                made += 1


def make_records(path: Path, count: int) -> None:
    """Cut the sources of Python's own library into records of 100-500 bytes."""
    import numpy as np

    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)
    lengths = np.random.default_rng(0).integers(100, 500, count)
    starts = np.random.default_rng(1).integers(0, len(text) - 500, count)
    with path.open("wb") as file:
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            file.write(length.to_bytes(4, "little") + text[start : start + length])


def read_records(path: Path) -> list[bytes]:
    """Return the records of `make_records`."""
    data, records, at = path.read_bytes(), [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        records.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return records


# --- images, two processes


def read_image(path: Path) -> dict[str, object]:
    """Return what everybody writes of an image."""
    return {"image": path.read_bytes(), "label": int(path.stem) % 1000}


def halves(paths: list[Path], out: Path) -> list[tuple[list[Path], Path]]:
    """Cut the files for processes that know nothing of each other."""
    step = -(-len(paths) // PROCESSES)
    return [(paths[k * step : (k + 1) * step], out / str(k)) for k in range(PROCESSES)]


def in_processes(work: Callable[[tuple[list[Path], Path]], None], paths: list[Path], out: Path) -> None:
    """Run a writer that has no parallelism of its own in two processes."""
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        pool.map(work, halves(paths, out))


def images_shardio(paths: list[Path], out: Path) -> Callable[[], None]:
    """Write with `shardio.write_dataset`."""
    from concurrent.futures import ProcessPoolExecutor

    from shardio import write_dataset

    def run() -> None:
        with ProcessPoolExecutor(PROCESSES) as executor:
            write_dataset(
                out / "ds", paths, read_image, schema={"image": "jpeg", "label": "int64"}, executor=executor
            )

    return run


def _webdataset(part: tuple[list[Path], Path]) -> None:
    import webdataset as wds

    paths, out = part
    out.mkdir(parents=True)
    with wds.ShardWriter(str(out / "%06d.tar"), maxsize=256 << 20, maxcount=1 << 30, verbose=0) as sink:
        for path in paths:
            value = read_image(path)
            sink.write({"__key__": path.stem, "jpg": value["image"], "cls": str(value["label"]).encode()})


def images_webdataset(paths: list[Path], out: Path) -> Callable[[], None]:
    """Write with `webdataset.ShardWriter`."""
    import webdataset  # noqa: F401 - before the clock starts

    return lambda: in_processes(_webdataset, paths, out)


def without_torchvision() -> None:
    """Let `streaming` be imported where torchvision does not match torch; writing does not need it."""
    import types

    try:
        import torchvision  # noqa: F401
    except Exception:  # noqa: BLE001 - whatever two builds that do not match say
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name, needed in {
            "torchvision": (),
            "torchvision.datasets": ("VisionDataset", "CIFAR10"),
            "torchvision.transforms": (),
            "torchvision.transforms.functional": ("to_tensor",),
        }.items():
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
            for attribute in needed:
                setattr(sys.modules[name], attribute, object)


def _mds(part: tuple[list[Path], Path]) -> None:
    from streaming import MDSWriter

    paths, out = part
    with MDSWriter(out=str(out), columns={"image": "bytes", "label": "int"}, size_limit=256 << 20) as sink:
        for path in paths:
            sink.write(read_image(path))


def images_mds(paths: list[Path], out: Path) -> Callable[[], None]:
    """Write with `streaming.MDSWriter`."""
    without_torchvision()
    import streaming  # noqa: F401 - before the clock starts

    return lambda: in_processes(_mds, paths, out)


def _litdata(path: str) -> dict[str, object]:
    return read_image(Path(path))


def images_litdata(paths: list[Path], out: Path) -> Callable[[], None]:
    """Write with `litdata.optimize`."""
    import litdata

    def run() -> None:
        litdata.optimize(
            _litdata,
            [str(path) for path in paths],
            str(out),
            num_workers=PROCESSES,
            chunk_bytes="256MB",
            verbose=False,
        )

    return run


def _tensorflow(part: tuple[list[Path], Path]) -> None:
    import tensorflow as tf

    paths, out = part
    out.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(out / "0.tfrecord")) as sink:
        for path in paths:
            value = read_image(path)
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[value["image"]])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[value["label"]])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            sink.write(example.SerializeToString())


def images_tensorflow(paths: list[Path], out: Path) -> Callable[[], None]:
    """Write with `tf.io.TFRecordWriter`."""
    import tensorflow  # noqa: F401, ICN001 - before the clock starts

    return lambda: in_processes(_tensorflow, paths, out)


# --- small records, one process


def small_shardio(records: list[bytes], out: Path, *, zstd: bool) -> Callable[[], None]:
    """Write with `shardio.DatasetWriter`."""
    from shardio import DatasetWriter

    def run() -> None:
        with DatasetWriter(out / "ds", compression="zstd" if zstd else None) as sink:
            write = sink.write
            for record in records:
                write(record)

    return run


def small_shardio_many(records: list[bytes], out: Path, *, zstd: bool) -> Callable[[], None]:
    """Write with `DatasetWriter.write_many`."""
    from shardio import DatasetWriter

    def run() -> None:
        with DatasetWriter(out / "ds", compression="zstd" if zstd else None) as sink:
            sink.write_many(records)

    return run


def small_mds(records: list[bytes], out: Path, *, zstd: bool) -> Callable[[], None]:
    """Write with `streaming.MDSWriter`."""
    without_torchvision()
    from streaming import MDSWriter

    def run() -> None:
        with MDSWriter(out=str(out), columns={"r": "bytes"}, compression="zstd" if zstd else None) as sink:
            for record in records:
                sink.write({"r": record})

    return run


def small_bagz(records: list[bytes], out: Path, *, zstd: bool) -> Callable[[], None]:
    """Write with `bagz.Writer`; the name decides about compression."""
    import bagz

    def run() -> None:
        out.mkdir(parents=True)
        with bagz.Writer(str(out / ("r.bagz" if zstd else "r.bag"))) as sink:
            for record in records:
                sink.write(record)

    return run


def small_arrow(records: list[bytes], out: Path, *, zstd: bool) -> Callable[[], None]:
    """Write an Arrow IPC file in batches of 1,024."""
    import pyarrow as pa

    def run() -> None:
        out.mkdir(parents=True)
        schema = pa.schema([("r", pa.binary())])
        options = pa.ipc.IpcWriteOptions(compression="zstd" if zstd else None)
        with (
            pa.OSFile(str(out / "r.arrow"), "wb") as file,
            pa.ipc.new_file(file, schema, options=options) as sink,
        ):
            for start in range(0, len(records), 1024):
                sink.write_batch(
                    pa.record_batch([pa.array(records[start : start + 1024], pa.binary())], schema)
                )

    return run


def small_tensorflow(records: list[bytes], out: Path, *, zstd: bool) -> Callable[[], None]:
    """Write with `tf.io.TFRecordWriter`, which knows no zstd."""
    import tensorflow as tf

    assert not zstd

    def run() -> None:
        out.mkdir(parents=True)
        with tf.io.TFRecordWriter(str(out / "r.tfrecord")) as sink:
            for record in records:
                sink.write(record)

    return run


# --- the race


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def child(kind: str, name: str, data: Path, out: Path) -> None:
    """Run one contestant once and print its seconds and the bytes that it wrote."""
    if kind == "images":
        make, items, options = globals()[f"images_{name}"], sorted(data.glob("*.jpg")), {}
    else:
        make, items = globals()[f"small_{name}"], read_records(data)
        options = {"zstd": kind == "small-zstd"}
    # What is loaded late is loaded now.
    make(items[:2], out.with_name("warm"), **options)()
    run = make(items, out, **options)
    processor = processor_seconds()
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    processor = processor_seconds() - processor
    files = [path for path in out.rglob("*") if path.is_file()]
    for path in files:
        # What shardio has done already: a dataset that a power cut would take away is not written.
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    durable = time.perf_counter() - begin
    print(
        "result",
        json.dumps([seconds, processor, durable, sum(path.stat().st_size for path in files)]),
        flush=True,
    )


def race(kind: str, data: Path, count: int, size: int, pythons: dict[str, str], rounds: int) -> None:
    """Run all contestants by turns and print a table."""
    found: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    flushed: dict[str, list[float]] = {}
    stored: dict[str, int] = {}
    for _ in range(rounds):
        for name, environment in CONTESTANTS[kind].items():
            python = pythons.get(environment)
            if python is None:
                continue
            with tempfile.TemporaryDirectory(dir=data.parent) as folder:
                command = [
                    python,
                    __file__,
                    "--child",
                    name,
                    kind,
                    "--data",
                    str(data),
                    "--out",
                    f"{folder}/out",
                ]
                done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
            line = [line for line in done.stdout.splitlines() if line.startswith("result ")]
            if not line:
                print(f"{name} failed: {done.stderr[-2000:]}", file=sys.stderr)
                continue
            seconds, processor, durable, stored[name] = json.loads(line[0].removeprefix("result "))
            found.setdefault(name, []).append(seconds)
            used.setdefault(name, []).append(processor)
            flushed.setdefault(name, []).append(durable)
    print(f"\n{kind}: {count:,} records, {size / 1e6:,.0f} MB, median of {rounds} interleaved runs\n")
    print(
        "| writer | processor us/record | records/s | fastest - slowest, s | records/s, on disk | stored MB |"
    )
    print("|---|---|---|---|---|---|")
    for name, seconds in sorted(found.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(seconds)
        durable = statistics.median(flushed[name])
        spread = f"{min(seconds):.2f} - {max(seconds):.2f}"
        rates = f"{statistics.median(used[name]) / count * 1e6:,.2f} | {count / median:,.0f}"
        print(f"| {name} | {rates} | {spread} | {count / durable:,.0f} | {stored[name] / 1e6:,.0f} |")


def main() -> None:
    """Parse the command line, make the data, race."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=[*CONTESTANTS])
    parser.add_argument("--count", type=int, help="images (2,000) or records (500,000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; the system's temporary folder")
    parser.add_argument("--python", action="append", default=[], metavar="ENVIRONMENT=INTERPRETER")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        # Files beside this one bear names that packages have, too.
        sys.path.remove(str(Path(__file__).parent))
        child(options.kind, options.child, options.data, options.out)
        return
    pythons = {"": sys.executable, **dict(pair.split("=", 1) for pair in options.python)}
    folder = Path(tempfile.mkdtemp(prefix="shardio-writing-", dir=options.folder))
    try:
        data = folder / "data"
        if options.kind == "images":
            count = options.count or 2000
            make_images(data, count)
            size = sum(path.stat().st_size for path in data.iterdir())
        else:
            count = options.count or 500_000
            make_records(data, count)
            size = data.stat().st_size - 4 * count
        race(options.kind, data, count, size, pythons, options.rounds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
