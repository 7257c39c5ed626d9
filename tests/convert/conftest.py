"""A place to convert to, real small images, and the conversion with what the tests compare."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardio
from shardio.convert import ConvertReport

FOREIGN = Path(__file__).parent.parent / "golden" / "foreign"
TENSORFLOW = Path(__file__).parent.parent / "golden" / "tensorflow"


def picture(seed: int, form: str = "JPEG", size: tuple[int, int] = (9, 7)) -> bytes:
    """Return the bytes of a small image file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def library_samples(file: Path) -> list[dict[str, Any]]:
    """Return the samples of a tar file as the webdataset library gives them."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    with file.open("rb") as stream:
        samples = list(group_by_keys(tar_file_expander([{"url": str(file), "stream": stream}])))
    return [{name: data for name, data in sample.items() if name != "__url__"} for sample in samples]


class Converter:
    """Convert to a fresh place each time; keeps the last report."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.report: ConvertReport

    def __call__(self, source: Any, **options: Any) -> list[Any]:
        self.count += 1
        self.url = self.folder / f"dataset{self.count}"
        self.report = shardio.convert_dataset(source, self.url, **options)
        assert sum(self.report.records.values()) == len(shardio.open(self.url, split="all"))
        return list(shardio.open(self.url, split="all"))

    def refused(self, source: Any, error: type[Exception], match: str | None = None, **options: Any) -> Any:
        """Check that the source is refused and that nothing was published; return the error."""
        self.count += 1
        self.url = self.folder / f"dataset{self.count}"
        with pytest.raises(error, match=match) as caught:
            shardio.convert_dataset(source, self.url, **options)
        with pytest.raises(shardio.errors.NotFoundError):
            shardio.open(self.url, split="all")
        return caught.value


@pytest.fixture
def convert(tmp_path: Path) -> Converter:
    return Converter(tmp_path / "converted")
