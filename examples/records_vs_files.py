"""The same training loop from loose JPEG files and from a dataset: how long does each step wait for its data?

    python examples/records_vs_files.py --images 4000

Four runs: files and records, from memory (warm) and from the disk (after the kernel has been told to forget
them).  Decoding, batch size, number of threads or processes, and the model are the same.  Prints a table
and writes a plot, `records-vs-files.svg`.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SIDE = 64
COLOURS = {"files": "#c0504d", "records": "#1f8a70"}


@dataclass
class Run:
    """One run: seconds that each step waited for data, and seconds that it computed."""

    source: str
    cache: str
    wait: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Share of the time spent waiting."""
        return sum(self.wait) / (sum(self.wait) + sum(self.compute))


# ------------------------------------------------------------------------------ the data, twice


def write_files(folder: Path, count: int) -> None:
    """Write JPEG crops of the photographs that scikit-image carries, in a folder a class."""
    from skimage import data

    photographs = {"astronaut": data.astronaut(), "cat": data.chelsea(), "coffee": data.coffee()}
    rng = np.random.default_rng(0)
    for number in range(count):
        name = sorted(photographs)[number % len(photographs)]
        pixels = photographs[name]
        top, left = (int(rng.integers(0, size - 160)) for size in pixels.shape[:2])
        path = folder / name / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[top : top + 160, left : left + 160]).save(path, "JPEG", quality=90)


def to_tensors(data: bytes) -> torch.Tensor:
    """Decode and resize one image: float32 [3, SIDE, SIDE]; the same for both sources."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (SIDE, SIDE))
        pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Loose files, as most tutorials read them."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        names = sorted({path.parent.name for path in self.paths})
        self.labels = [names.index(path.parent.name) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return to_tensors(self.paths[index].read_bytes()), self.labels[index]


def decoded(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its image decoded."""
    return {"image": to_tensors(record["image"]).numpy(), "label": record["label"]}


def from_files(folder: Path, batch_size: int, workers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of loose files, shuffled, through torch's own loader."""
    generator = torch.Generator().manual_seed(0)
    yield from DataLoader(
        Files(folder), batch_size, shuffle=True, num_workers=workers, drop_last=True, generator=generator
    )


def from_records(url: Path, batch_size: int, workers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of the dataset, shuffled."""
    records = shardio.open(url)
    stream = StreamingDataset(
        records, global_batch=batch_size, shuffle=True, seed=0, rank=0, world_size=1, transform=decoded
    )
    for batch in StreamingDataLoader(stream, num_threads=max(1, workers)):
        yield torch.as_tensor(batch["image"]), torch.as_tensor(batch["label"])


# ------------------------------------------------------------------------------ the loop and the clock


def forget(folder: Path) -> None:
    """Tell the kernel to drop the files' pages, so that the next run reads from the disk; needs no rights."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def train(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], run: Run) -> Run:
    """Train a small network for an epoch and note, for each step, the wait and the work."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 8),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    source = iter(batches)
    while True:
        begin = time.perf_counter()
        batch = next(source, None)
        arrived = time.perf_counter()
        if batch is None:
            return run
        images, labels = batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels.long()).backward()
        optimizer.step()
        run.wait.append(arrived - begin)
        run.compute.append(time.perf_counter() - arrived)


def compare(folder: Path, batch_size: int, workers: int) -> list[Run]:
    """Do the four runs in random order after one of each that does not count."""
    files, url = folder / "files", folder / "dataset"
    sources = {"files": (from_files, files), "records": (from_records, url)}
    for make, place in sources.values():
        train(make(place, batch_size, workers), Run("", ""))
    plan = [(source, cache) for source in sources for cache in ("warm", "cold")]
    random.Random(0).shuffle(plan)
    runs = []
    for source, cache in plan:
        make, place = sources[source]
        if cache == "cold":
            forget(place)
        else:
            for path in place.rglob("*"):
                if path.is_file():
                    path.read_bytes()
        runs.append(train(make(place, batch_size, workers), Run(source, cache)))
    return sorted(runs, key=lambda run: (run.cache, run.source), reverse=True)


# ------------------------------------------------------------------------------ what came out


def table(runs: list[Run], batch_size: int) -> str:
    """Return the figures as lines."""
    lines = [f"{'source':<10}{'cache':<8}{'images/s':>10}{'wait/step':>12}{'p95':>10}{'waiting':>10}"]
    for run in runs:
        seconds = sum(run.wait) + sum(run.compute)
        lines.append(
            f"{run.source:<10}{run.cache:<8}{len(run.wait) * batch_size / seconds:>10,.0f}"
            f"{1000 * float(np.mean(run.wait)):>9.1f} ms{1000 * float(np.quantile(run.wait, 0.95)):>7.1f} ms"
            f"{100 * run.share:>9.0f}%"
        )
    return "\n".join(lines)


def plot(runs: list[Run]) -> str:
    """Return an SVG: a panel for each cache, a line for each source, the share of each step spent waiting."""
    width, height, pad = 420, 220, 44
    box = f'viewBox="0 0 {2 * width} {height + 40}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel, cache in enumerate(("warm", "cold")):
        left, right = panel * width + pad, (panel + 1) * width - 12
        top, bottom = 30, height - 10
        parts.append(
            f'<text x="{left}" y="18">{cache} page cache: share of each step spent waiting for data</text>'
        )
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = bottom - share * (bottom - top)
            parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
        for line, run in enumerate(run for run in runs if run.cache == cache):
            shares = [wait / (wait + work) for wait, work in zip(run.wait, run.compute, strict=True)]
            step = (right - left) / max(1, len(shares) - 1)
            points = " ".join(
                f"{left + n * step:.1f},{bottom - share * (bottom - top):.1f}"
                for n, share in enumerate(shares)
            )
            colour = COLOURS[run.source]
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
            parts.append(
                f'<text x="{left + 150 * line}" y="{height + 14}" fill="{colour}">'
                f"{run.source}: {run.share:.0%} of the time</text>"
            )
        parts.append(f'<text x="{right}" y="{height + 32}" text-anchor="end">step</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="The same loop from loose files and from a dataset.")
    parser.add_argument("--folder", type=Path, default=Path("records-vs-files"))
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="processes for files, threads for records")
    arguments = parser.parse_args()
    if not (arguments.folder / "dataset").exists():
        write_files(arguments.folder / "files", arguments.images)
        report = shardio.convert_dataset(arguments.folder / "files", arguments.folder / "dataset")
        print(f"{sum(report.records.values()):,} images, as files and as a dataset")
    # The model's threads would compete with those that decode.
    torch.set_num_threads(1)
    runs = compare(arguments.folder, arguments.batch_size, arguments.workers)
    print(table(runs, arguments.batch_size))
    path = arguments.folder / "records-vs-files.svg"
    path.write_text(plot(runs), encoding="utf-8")
    print(f"the plot is {path}")


if __name__ == "__main__":
    main()
