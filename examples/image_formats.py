"""PNG, JPEG, TIFF and dense matrices as records, each in a few lines: write, read back, and what comes out.

    python examples/image_formats.py

Files are stored as they are, byte for byte; `decode="image"` makes arrays of them.  Matrices are stored
with their dtype, and with their shape where it differs from record to record.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import shardio


def photograph(height: int = 48, width: int = 64) -> np.ndarray:
    """Return a colourful picture, uint8 [height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x // width, 255 * y // height, (x * y) % 256], axis=-1).astype(np.uint8)


def png(url: Path) -> np.ndarray:
    """PNG keeps every pixel, alpha and grey levels too."""
    file = io.BytesIO()
    Image.fromarray(photograph()).save(file, "PNG")
    with shardio.DatasetWriter(url, schema={"image": "png", "label": "int64"}) as out:
        out.write({"image": file.getvalue(), "label": 1})
    pixels: np.ndarray = shardio.open(url, decode="image")[0]["image"]
    return pixels  # uint8 [48, 64, 3], equal to what was drawn


def jpeg(url: Path) -> tuple[bytes, np.ndarray]:
    """JPEG files go in as they are: never decode and encode again, it costs quality and size."""
    file = io.BytesIO()
    Image.fromarray(photograph()).save(file, "JPEG", quality=90)
    with shardio.DatasetWriter(url, schema={"image": "jpeg", "label": "int64"}) as out:
        out.write({"image": file.getvalue(), "label": 1})
    stored = shardio.open(url)[0]["image"]  # the file's own bytes
    return stored, shardio.open(url, decode="image")[0]["image"]


def tiff(url: Path) -> tuple[np.ndarray, np.ndarray]:
    """TIFF of 16 bits: the file is kept whole; as uint8 it is the high bytes, Pillow has all of it."""
    depth = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 21
    file = io.BytesIO()
    Image.fromarray(depth).save(file, "TIFF", compression="tiff_deflate")
    with shardio.DatasetWriter(url, schema={"depth": "tiff"}) as out:
        out.write({"depth": file.getvalue()})
    eight_bits = shardio.open(url, decode="image")[0]["depth"]  # uint8 [48, 64, 1]
    with Image.open(io.BytesIO(shardio.open(url)[0]["depth"])) as image:
        return eight_bits, np.asarray(image)  # uint16 [48, 64], every bit


def matrices(url: Path) -> list[np.ndarray]:
    """Matrices of any size: `?` is a size that differs; the shape is beside the elements."""
    schema = {"matrix": "float32[?,?]", "pixels": "uint8[224,224,3]"}
    with shardio.DatasetWriter(url, schema=schema, compression="zstd") as out:
        for rows in (2, 5):
            matrix = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
            out.write({"matrix": matrix, "pixels": np.full((224, 224, 3), rows, np.uint8)})
    columns = shardio.open(url).read_batch([0, 1])
    assert columns["pixels"].shape == (2, 224, 224, 3)  # fixed sizes stack
    return [columns["matrix"][row] for row in range(2)]  # others are values, offsets and shapes


def main() -> None:
    """Run them all in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        print("png:", png(Path(folder, "png")).shape)
        stored, pixels = jpeg(Path(folder, "jpeg"))
        print(f"jpeg: {len(stored)} bytes, {pixels.shape}")
        print("tiff:", *(f"{part.dtype} {part.shape}" for part in tiff(Path(folder, "tiff"))))
        print("matrices:", *(part.shape for part in matrices(Path(folder, "matrices"))))


if __name__ == "__main__":
    main()
