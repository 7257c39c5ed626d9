"""Images through every way of reading: lookups, batches, iteration, streams and the loader, in threads."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardio
from shardio.codecs import decode_image
from shardio.errors import CorruptRecordError
from shardio.torch import StreamingDataLoader, StreamingDataset


def picture(number: int, kind: str = "PNG", size: tuple[int, int] = (12, 10)) -> bytes:
    pixels = np.full((size[1], size[0], 3), number, np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


@pytest.fixture
def url(tmp_path: Path) -> Path:
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": "png", "label": "int64"}) as out:
        for number in range(40):
            out.write({"image": picture(number), "label": number})
    return tmp_path / "ds"


def test_bytes_unless_asked(url) -> None:
    """Raw bytes otherwise."""
    assert shardio.open(url)[7]["image"] == picture(7)
    assert shardio.open(url).read_batch([3, 4])["image"] == [picture(3), picture(4)]


def test_arrays_when_asked(url) -> None:
    ds = shardio.open(url, decode="image")
    assert ds[7]["image"].shape == (10, 12, 3)
    assert [int(value["image"][0, 0, 0]) for value in ds.read([5, 2])] == [5, 2]
    assert [int(value["image"].max()) for value in ds] == list(range(40))
    batch = ds.read_batch([9, 1, 9])
    assert batch["image"].shape == (3, 10, 12, 3)
    assert batch["image"][:, 0, 0, 0].tolist() == [9, 1, 9]


@pytest.mark.parametrize("num_threads", [0, 3])
def test_streams_decode_in_their_threads(url, num_threads) -> None:
    ds = shardio.open(url, decode="image")
    seen: list[int] = []
    for batch in shardio.stream(ds, global_batch=8, shuffle=True, num_threads=num_threads):
        assert batch["image"].shape == (8, 10, 12, 3)
        assert batch["image"].dtype == np.uint8
        assert batch["image"][:, 0, 0, 0].tolist() == batch["label"].tolist()
        seen += batch["label"].tolist()
    assert sorted(seen) == list(range(40))


def test_the_loader_decodes_in_its_threads(url) -> None:
    dataset = StreamingDataset(shardio.open(url, decode="image"), global_batch=8, shuffle=True, seed=0)
    batches = list(StreamingDataLoader(dataset, num_threads=2))
    assert len(batches) == 5
    for batch in batches:
        assert tuple(batch["image"].shape) == (8, 10, 12, 3)
        assert batch["image"][:, 0, 0, 0].tolist() == batch["label"].tolist()


def test_large_reductions_in_a_transform(tmp_path) -> None:
    """A JPEG is decoded at a fraction of its size where that suffices."""
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": "jpeg"}) as out:
        for number in range(4):
            out.write({"image": picture(number * 50, "JPEG", (640, 480))})

    def small(value: dict) -> dict:
        return {"image": decode_image(value["image"], size=(60, 80))}

    (batch,) = shardio.stream(shardio.open(tmp_path / "ds"), global_batch=4, transform=small)
    assert batch["image"].shape == (4, 60, 80, 3)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_broken_image_has_an_address(url, num_threads) -> None:
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write({"image": picture(40)[:30], "label": 40})
    ds = shardio.open(url, decode="image")
    for read in (
        lambda: ds[40],
        lambda: ds.read([1, 40]),
        lambda: ds.read_batch([40, 1]),
        lambda: list(ds),
        lambda: list(shardio.stream(ds, batch_size=41, num_threads=num_threads)),
    ):
        with pytest.raises(CorruptRecordError, match="feature 'image'") as caught:
            read()
        assert caught.value.shard == ds.locate(40).shard
        assert caught.value.row == 0
