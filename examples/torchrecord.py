"""What a user of TorchRecord writes, line by line with shardio.

The page `docs/coming-from.md` sets the two side by side.

    python examples/torchrecord.py data_list.txt records
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator


def process(line: str) -> dict[str, Any]:
    """Make a record of a line `path label`: what `data_process_func` did, without TensorProtos."""
    path, label = line.split(" ")
    with Image.open(path) as image:
        return {"image": np.asarray(image.convert("RGB")), "label": int(label)}


def write(data_list: Path, output_dir: Path, *, shuffle: bool) -> None:
    """Write the records, in as many processes as there are processors."""
    shardio.convert_dataset(
        data_list, output_dir, kind="list", options={"fn": process}, shuffle=shuffle,
        schema={"image": "uint8[?,?,3]", "label": "int64"}, compression="zstd",
    )  # fmt: skip


def to_tensor(record: dict[str, Any]) -> dict[str, Any]:
    """Resize and scale one record: float32 [3, 224, 224]; what `default_transform` did."""
    image = Image.fromarray(record["image"]).resize((224, 224))
    return {
        "image": np.asarray(image, np.float32).transpose(2, 0, 1) / 255,
        "label": record["label"],
    }


def load(record_path: Path, *, batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield the batches of an epoch, shuffled."""
    dataset = StreamingDataset(
        shardio.open(record_path), batch_size=batch_size, shuffle=True, seed=0, remainder="keep",
        transform=to_tensor, rank=0, world_size=1,
    )  # fmt: skip
    yield from StreamingDataLoader(dataset, num_threads=2)


def migrate(record_path: Path, output_dir: Path) -> int:
    """Convert a TorchRecord that exists already; return the number of records."""
    report = shardio.convert_dataset(record_path, output_dir, compression="zstd")
    return sum(report.records.values())


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), shuffle=True)
    for batch in load(Path(sys.argv[2]), batch_size=32):
        print(tuple(batch["image"].shape))
