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
from shardio.order import record_generator
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.pictures import picture
from tests.suites.errors import refused


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


def test_large_reductions_in_a_transform(tmp_path) -> None:
    """A JPEG is decoded at a fraction of its size where that suffices."""
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": "jpeg"}) as out:
        for number in range(4):
            out.write({"image": picture(number * 50, "JPEG", (640, 480))})

    def small(value: dict) -> dict:
        return {"image": decode_image(value["image"], size=(60, 80))}

    (batch,) = shardio.stream(shardio.open(tmp_path / "ds"), global_batch=4, transform=small)
    assert batch["image"].shape == (4, 60, 80, 3)


def waves(number: int, size: tuple[int, int]) -> bytes:
    """Return a JPEG of its own: different parts of it differ, and so do different numbers."""
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    pixels = np.stack([128 + 100 * np.sin((x * (c + 1) + y * (number + 1)) / 40) for c in range(3)], axis=2)
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of many sizes; some are gray, some have alpha."""
    url = tmp_path_factory.mktemp("photos") / "ds"
    gray, alpha = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.full((70, 60), 90, np.uint8)).save(gray, "JPEG")
    Image.fromarray(np.full((50, 80, 4), 130, np.uint8)).save(alpha, "PNG")
    with shardio.DatasetWriter(url, schema={"image": "image", "label": "int64"}, shard_bytes=20_000) as out:
        for number in range(48):
            other = {0: gray.getvalue(), 1: alpha.getvalue()}.get(number % 16)
            out.write({"image": other or waves(number, (60 + 9 * number, 300 - 4 * number)), "label": number})
    return url


def test_a_size_makes_one_array(photos) -> None:
    ds = shardio.open(photos, decode="image", image_size=(40, 56))
    whole = ds.read_batch(range(48))["image"]
    assert (whole.shape, whole.dtype) == ((48, 40, 56, 3), np.uint8)
    np.testing.assert_array_equal(np.stack([value["image"] for value in ds]), whole)
    np.testing.assert_array_equal(np.stack([ds[i]["image"] for i in range(48)]), whole)
    batches = list(shardio.stream(ds, global_batch=7, remainder="keep", shuffle=False))
    assert [batch["image"].shape for batch in batches] == [(7, 40, 56, 3)] * 6 + [(6, 40, 56, 3)]
    np.testing.assert_array_equal(np.concatenate([batch["image"] for batch in batches]), whole)
    loader = StreamingDataLoader(StreamingDataset(ds, global_batch=12, shuffle=False))
    np.testing.assert_array_equal(np.concatenate([batch["image"].numpy() for batch in loader]), whole)
    middle = shardio.open(photos, decode="image", image_size=40, image_crop="center").read_batch([5])["image"]
    assert middle.shape == (1, 40, 40, 3)


def test_transforms_and_filters_see_images_of_that_size(photos) -> None:
    ds = shardio.open(photos, decode="image", image_size=24)
    few = ds.filter(lambda columns: columns["label"] < 20, features=["label"])
    stream = shardio.stream(few, global_batch=5, transform=lambda v: {"mean": v["image"].mean()})
    shapes = [batch["mean"].shape for batch in stream]
    assert shapes == [(5,)] * 4


def crops(ds, *, epochs: int = 2, loader: dict | None = None, state=None, **options) -> dict:
    """Return the image of every record of every epoch, by epoch and label."""
    found = {}
    dataset = StreamingDataset(ds, global_batch=8, seed=3, rank=0, world_size=1, **options)
    with StreamingDataLoader(dataset, **(loader or {})) as batches:
        if state is not None:
            batches.load_state_dict(state)
        for epoch in range(dataset.stream.epoch, epochs):
            batches.set_epoch(epoch)
            for batch in batches:
                for label, image in zip(batch["label"].tolist(), batch["image"].numpy(), strict=True):
                    found[epoch, label] = image.tobytes()
    return found


@pytest.mark.slow
def test_random_parts_belong_to_the_record(photos) -> None:
    """P12: the same crops in threads, processes, on two ranks, after a resume; others in another epoch."""
    crop = shardio.RandomResizedCrop(flip=0.5)
    ds = shardio.open(photos, decode="image", image_size=32, image_crop=crop)
    first = crops(ds, loader={"num_threads": 0})
    assert len(first) == 96
    assert len({image for (_, label), image in first.items() if label % 16 > 1}) == 84
    assert crops(ds, loader={"num_threads": 3}) == first
    assert crops(ds, loader={"num_workers": 2}) == first
    assert crops(ds, random_transform=lambda value, rng: {**value, "drawn": rng.random()}) == first
    ranks = {}
    for rank in range(2):
        stream = shardio.stream(ds, global_batch=8, seed=3, rank=rank, world_size=2)
        for batch in stream:
            ranks |= {(0, int(n)): i.tobytes() for n, i in zip(batch["label"], batch["image"], strict=True)}
    assert ranks == {key: image for key, image in first.items() if key[0] == 0}
    loader = StreamingDataLoader(StreamingDataset(ds, global_batch=8, seed=3))
    for _, _batch in zip(range(2), loader, strict=False):
        pass
    rest = crops(ds, state=loader.state_dict())
    assert len(rest) == 80
    assert rest.items() <= first.items()


def test_random_parts_are_those_of_the_documented_key(tmp_path) -> None:
    """Red and green are a pixel's column and row, so their means are the middle of the part."""
    columns, rows = np.meshgrid(np.arange(200), np.arange(160))
    file = io.BytesIO()
    Image.fromarray(np.stack([columns, rows, rows], 2).astype(np.uint8)).save(file, "PNG")
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": "png"}) as out:
        out.write_many({"image": file.getvalue()} for _ in range(32))
    crop = shardio.RandomResizedCrop()
    ds = shardio.open(tmp_path / "ds", decode="image", image_size=32, image_crop=crop)
    for batch in shardio.stream(ds, global_batch=16, seed=7, epoch=4, positions=True):
        for position, image in zip(batch["_position"].tolist(), batch["image"], strict=True):
            rng = record_generator(seed=7, epoch=4, position=position, purpose="crop")
            top, left, height, width, _ = crop.box(160, 200, rng)
            middle = [left + (width - 1) / 2, top + (height - 1) / 2]
            np.testing.assert_allclose(image.mean((0, 1))[:2], middle, atol=1)


def test_all_images_of_a_record_get_one_part(tmp_path) -> None:
    data = waves(3, (90, 70))
    schema = {"left": "jpeg", "right": "jpeg", "frames": "jpeg[?]"}
    with shardio.DatasetWriter(tmp_path / "ds", schema=schema) as out:
        for _ in range(4):
            out.write({"left": data, "right": data, "frames": [data, data]})
    ds = shardio.open(tmp_path / "ds", decode="image", image_size=16, image_crop="random")
    (batch,) = shardio.stream(ds, global_batch=4)
    np.testing.assert_array_equal(batch["left"], batch["right"])
    np.testing.assert_array_equal(batch["left"][1], batch["frames"][1][1])
    assert batch["left"][0].tobytes() != batch["left"][1].tobytes()


def test_lookups_do_not_crop_at_random(photos) -> None:
    ds = shardio.open(photos, decode="image", image_size=16, image_crop="random")
    for look in (lambda: ds[0], lambda: ds.read([1]), lambda: ds.read_batch([2]), lambda: list(ds)):
        with pytest.raises(ValueError, match="belongs to an epoch"):
            look()
    assert (
        "label"
        in shardio.open(photos, decode="image", image_size=16, image_crop="random", features=["label"])[0]
    )


@pytest.mark.parametrize(
    "options", [{"image_size": 8}, {"image_crop": "center"}, {"decode": False, "image_size": 8}]
)
def test_sizes_need_images(photos, options) -> None:
    with refused(ValueError, "decode="):
        shardio.open(photos, **options)


@pytest.mark.filterwarnings("ignore:damaged records are skipped")
@pytest.mark.parametrize("num_threads", [0, 2])
def test_damage_among_images_of_one_size_is_skipped(tmp_path, num_threads) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": "jpeg", "label": "int64"}) as out:
        for number in range(20):
            data = waves(number, (80, 60))
            out.write({"image": data[: len(data) // 2] if number in (3, 11) else data, "label": number})
    options = {"decode": "image", "image_size": 16, "image_crop": "random"}
    ds = shardio.open(tmp_path / "ds", **options)
    with refused(CorruptRecordError, "'image'") as caught:
        list(shardio.stream(ds, global_batch=10, shuffle=False, num_threads=num_threads))
    assert caught.value.row == 3
    skipping = shardio.open(tmp_path / "ds", on_error="skip", **options)
    batches = list(shardio.stream(skipping, global_batch=10, shuffle=False, num_threads=num_threads))
    assert [batch["label"].tolist() for batch in batches] == [
        [0, 1, 2, 4, 5, 6, 7, 8, 9],
        [10, *range(12, 20)],
    ]
    whole = {}
    with shardio.DatasetWriter(tmp_path / "good", schema={"image": "jpeg", "label": "int64"}) as out:
        for number in range(20):
            out.write({"image": waves(number, (80, 60)), "label": number})
    for batch in shardio.stream(shardio.open(tmp_path / "good", **options), global_batch=10, shuffle=False):
        whole |= dict(zip(batch["label"].tolist(), batch["image"], strict=True))
    for batch in batches:
        for label, image in zip(batch["label"].tolist(), batch["image"], strict=True):
            np.testing.assert_array_equal(image, whole[label])  # a skipped row moves no crop


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
        with refused(CorruptRecordError, "'image'") as caught:
            read()
        assert caught.value.shard == ds.locate(40).shard
        assert caught.value.row == 0
