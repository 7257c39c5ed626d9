"""The main job on real input: photographs and text become datasets, training batches, and verified files.

    make demo                          installs what is needed and runs this
    python examples/demo.py --help     what can be changed

Everything lands in `demo-data/`; `demo_bucket.py` then does it in a bucket.  The photographs come with
scikit-image and scikit-learn, the text with Python: the sources of its standard library and the pages of its
manual.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import struct
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import torch
import zstandard
from PIL import Image
from torch.utils.data import DataLoader

import shardio
from shardio.cli import main as shardio_program
from shardio.torch import MapDataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PHOTOS = {"image": "jpeg", "label": "int64", "name": "text", "corner": "int32[2]"}
TEXTS = {"source": "text", "text": "text", "lines": "int64"}
SIDE = 96  # pixels of a training image


# ------------------------------------------------------------------------------------------------ real input


def photographs() -> dict[str, np.ndarray]:
    """Return the colour photographs that scikit-image and scikit-learn carry, uint8 [height, width, 3]."""
    from skimage import data
    from sklearn.datasets import load_sample_image

    named = {
        "astronaut": data.astronaut(),
        "cat": data.chelsea(),
        "coffee": data.coffee(),
        "galaxies": data.hubble_deep_field(),
        "retina": data.retina(),
        "rocket": data.rocket(),
        "temple": load_sample_image("china.jpg"),
        "flower": load_sample_image("flower.jpg"),
    }
    return {name: np.asarray(pixels)[:, :, :3] for name, pixels in named.items()}


def texts() -> Iterator[dict[str, Any]]:
    """Yield functions and classes of the standard library, and the pages of Python's manual."""
    from pydoc_data.topics import topics

    for title, page in sorted(topics.items()):
        yield {"source": f"manual: {title}", "text": page, "lines": page.count("\n")}
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")]):
        source = path.read_text(encoding="utf-8", errors="replace")
        for piece in re.split(r"\n(?=def |class )", source):
            yield {"source": str(path.relative_to(library)), "text": piece, "lines": piece.count("\n") + 1}


# ------------------------------------------------------------------------------------------------ the steps


def write_photographs(url: Path | str, photos: Mapping[str, np.ndarray], count: int) -> None:
    """Cut, re-encode and store crops: the JPEG bytes are the record, so there is nothing left to compress."""
    rng = np.random.default_rng(0)
    names = sorted(photos)
    with shardio.DatasetWriter(url, PHOTOS, shard_bytes=8 << 20, metadata={"labels": names}) as out:
        for number in progress(range(count), "writing photographs"):
            label = number % len(names)
            pixels = photos[names[label]]
            side = int(rng.integers(96, 224))
            top, left = (int(rng.integers(0, size - side)) for size in pixels.shape[:2])
            crop = io.BytesIO()
            Image.fromarray(pixels[top : top + side, left : left + side]).save(crop, "JPEG", quality=85)
            record = {"image": crop.getvalue(), "label": label, "name": names[label], "corner": [top, left]}
            out.write(record, split="test" if number % 10 == 9 else "train")


def write_texts(url: Path, records: Iterable[dict[str, Any]]) -> None:
    """Store texts in Zstandard blocks."""
    with shardio.DatasetWriter(url, TEXTS, compression="zstd") as out:
        for number, record in enumerate(progress(records, "writing text")):
            out.write(record, split="test" if number % 10 == 9 else "train")


def look_up(url: Path | str, count: int = 1000) -> float:
    """Read records at random positions, one by one and as a batch; return microseconds for one."""
    records = shardio.open(url, split="train")
    positions = np.random.default_rng(1).integers(0, len(records), count)
    begin = time.perf_counter()
    singles = [records[int(position)] for position in positions]
    seconds = time.perf_counter() - begin
    if str(singles[:20]) != str(records.read(positions[:20])):
        raise SystemExit(f"{url}: a batched lookup gave something else than single ones")
    first = int(positions[0])
    name = singles[0].get("name") or singles[0].get("source")
    print(f"{Path(url).name}: record {first:,} is {name!r}; {seconds / count * 1e6:.0f} us a record, decoded")
    return seconds / count * 1e6


def to_tensor(record: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Decode and resize one photograph: float32 [3, SIDE, SIDE] in [0, 1], and its label."""
    with Image.open(io.BytesIO(record["image"])) as image:
        pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255, int(record["label"])


def train_epoch(url: Path, *, batch_size: int = 64, workers: int = 2) -> tuple[int, float]:
    """Draw one shuffled epoch through torch's own loader; return the number of images and the seconds."""
    dataset = MapDataset(shardio.open(url, split="train"), transform=to_tensor)
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers)
    seen, total, shape = 0, torch.zeros(3), torch.Size([])
    begin = time.perf_counter()
    for images, labels in progress(loader, "one epoch, 2 workers"):
        if not seen:
            shape = images.shape
        seen += len(labels)
        total += images.mean(dim=(0, 2, 3)) * len(labels)
    seconds = time.perf_counter() - begin
    if seen != len(dataset):
        raise SystemExit(f"{url}: the epoch had {seen} images and not {len(dataset)}")
    mean = ", ".join(f"{channel:.2f}" for channel in total / seen)
    print(f"{seen:,} images in batches of {list(shape)}, mean colour ({mean})")
    return seen, seconds


def independent_reader(data: bytes) -> Iterator[bytes]:
    """Yield the records of a plain TFRecord file; written from its public description, without shardio."""

    def masked(part: bytes) -> int:
        crc = int(crc32c.crc32c(part))
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    place = 0
    while place < len(data):
        length, length_crc = struct.unpack_from("<QI", data, place)
        record = data[place + 12 : place + 12 + length]
        (record_crc,) = struct.unpack_from("<I", data, place + 12 + length)
        if masked(data[place : place + 8]) != length_crc or masked(record) != record_crc:
            raise SystemExit("this is no TFRecord file")
        yield record
        place += length + 16


def compare_with_independent_reader(url: Path) -> int:
    """Read all shards of a split as TFRecord files; return how many records were the same as shardio's."""
    expected = shardio.open(url, split="test", decode=False)
    found = []
    for path in sorted((url / "data").glob("test-*.tfrecord*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            # What `zstd -d` does.
            with zstandard.ZstdDecompressor().stream_reader(
                io.BytesIO(data), read_across_frames=True
            ) as plain:
                data = plain.read()
        if path.suffix != ".shardidx":
            found += list(independent_reader(data))
    if sorted(found) != sorted(expected):
        raise SystemExit(f"{url}: an independent reader found other records")
    return len(found)


def show_damage(url: Path) -> None:
    """Flip one bit in a copy of a shard and let `shardio verify` find it."""
    with tempfile.TemporaryDirectory() as folder:
        shard = min((url / "data").glob("test-*.tfrecord"))
        copy = Path(folder) / "copy.tfrecord"
        shutil.copyfile(f"{shard}.shardidx", f"{copy}.shardidx")
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        copy.write_bytes(data)
        command("verify", str(copy), expected=1)


# ------------------------------------------------------------------------------------------------ the show


def progress(items: Iterable[Any], label: str) -> Iterator[Any]:
    """Yield the items under a progress bar; in a pipe one plain line says when it is done."""
    total = len(items) if isinstance(items, Sized) else None
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=label, total=total, leave=False, unit=" items")
        return
    begin, count = time.perf_counter(), 0
    for item in items:
        yield item
        count += 1
    print(f"{label}: {count:,} in {time.perf_counter() - begin:.1f} s", flush=True)


def command(*arguments: str, expected: int = 0) -> None:
    """Run the `shardio` program as a user would, and stop where it says something else than expected."""
    print(f"$ shardio {' '.join(arguments)}", flush=True)
    code = shardio_program(arguments)
    if code != expected:
        raise SystemExit(code or 1)


def step(number: int, text: str) -> None:
    """Say what comes next."""
    print(f"\n[{number}/6] {text}", flush=True)


def run(folder: Path, photos: Mapping[str, np.ndarray], pages: Iterable[dict[str, Any]], count: int) -> None:
    """Do everything, in order."""
    begin = time.perf_counter()
    pictures, prose = folder / "photographs", folder / "text"
    for url in (pictures, prose):
        shutil.rmtree(url, ignore_errors=True)

    step(1, f"write two datasets with train and test splits: {count:,} photographs as they are, text in zstd")
    write_photographs(pictures, photos, count)
    write_texts(prose, pages)

    step(2, "what they are")
    command("info", str(pictures))
    print()
    command("info", str(prose))
    print()
    command("head", str(prose), "-n", "1", "--split", "test")

    step(3, "random lookups")
    lookups = [look_up(url) for url in (pictures, prose)]

    step(4, "one epoch through a torch DataLoader with 2 workers: decode, resize, batch")
    seen, seconds = train_epoch(pictures)

    step(5, "verify every byte")
    command("verify", str(pictures))
    command("verify", str(prose))
    print("\nand with one bit of a copy flipped:")
    show_damage(pictures)

    step(6, "the shards are TFRecord files: read them with 20 lines that know nothing of shardio")
    same = [compare_with_independent_reader(url) for url in (pictures, prose)]
    print(f"the same {same[0]:,} photographs and {same[1]:,} texts, bit for bit")

    print("\n=== summary")
    for label, text in (
        ("lookups", f"{lookups[0]:.0f} us a photograph, {lookups[1]:.0f} us a text out of zstd, decoded"),
        ("epoch", f"{seen:,} photographs in {seconds:.1f} s: {seen / seconds:,.0f} a second with 2 workers"),
        ("verify", "every block, record and object matches its checksums"),
        ("TFRecord", f"{sum(same):,} records read without shardio, none differs"),
        ("total", f"{time.perf_counter() - begin:.0f} s; the datasets stay in {folder}"),
    ):
        print(f"{label:<10}{text}")


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="Photographs and text, from files to training batches.")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent.parent / "demo-data")
    parser.add_argument("--photographs", type=int, default=4000, metavar="N", help="how many crops to store")
    arguments = parser.parse_args()
    print(f"shardio {shardio.__version__}: real photographs and real text, from files to training batches")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = arguments.folder
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    run(folder, photographs(), texts(), arguments.photographs)


if __name__ == "__main__":
    main()
