"""`seeded` around real transforms of torchvision: the same pixels on every rerun."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import library as torch_library

import shardio
from shardio.order import record_generator
from shardio.torch import StreamingDataLoader, StreamingDataset, seeded

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]

SIZE = 64


@pytest.fixture(scope="module", autouse=True)
def operators():
    """Let torchvision be imported where its build is for another device than that of torch.

    Its compiled operators are missing then, and it looks for two of them when it is imported; transforms use
    none.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch_library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        yield library  # they are gone when it is
    else:
        yield None


def transforms():
    """Return every kind of transform that draws, by name."""
    from torchvision.transforms import v2

    return {
        "crop and flip": v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]),
        "colours": v2.Compose(
            [v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomGrayscale(0.3), v2.RandomPosterize(3)]
        ),
        "erasing": v2.RandomErasing(p=0.8, value="random"),
        "blur and noise": v2.Compose(
            [v2.GaussianBlur(5), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()]
        ),
        "geometry": v2.Compose(
            [v2.RandomRotation(30), v2.RandomPerspective(), v2.RandomAffine(10), v2.ElasticTransform()]
        ),
        "policies": v2.Compose([v2.RandAugment(), v2.TrivialAugmentWide(), v2.AugMix()]),
        "auto": v2.AutoAugment(),
        "choice": v2.Compose(
            [
                v2.RandomChoice([v2.RandomInvert(), v2.RandomSolarize(100)]),
                v2.RandomApply([v2.RandomCrop(40)]),
            ]
        ),
        "photometric": v2.Compose(
            [v2.RandomPhotometricDistort(), v2.RandomZoomOut(), v2.Resize((SIZE, SIZE))]
        ),
    }


class Apply:
    """What a user writes: image in, tensor out; pickles for worker processes."""

    def __init__(self, name: str) -> None:
        self.name, self.transform = name, transforms()[name]

    def __call__(self, value: dict) -> dict:
        from torchvision.transforms import v2

        made = self.transform(v2.functional.to_image(value["image"]))
        return {
            "image": made.as_subclass(torch.Tensor).flatten()[:2000].float(),
            "label": int(value["label"]),
        }


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    place = tmp_path_factory.mktemp("torchvision") / "d"
    rng = np.random.default_rng(0)
    with shardio.DatasetWriter(place, schema={"image": "png", "label": "int64"}) as out:
        for number in range(24):
            file = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(file, "PNG")
            out.write({"image": file.getvalue(), "label": number})
    return str(place)


def epoch(url, function, **loader):
    dataset = StreamingDataset(
        shardio.open(url, decode="image"), global_batch=4, seed=5, random_transform=function
    )
    with StreamingDataLoader(dataset, **loader) as batches:
        return {
            int(label): bytes(np.ascontiguousarray(image.numpy()))
            for batch in batches
            for label, image in zip(batch["label"], batch["image"], strict=True)
        }


@pytest.mark.parametrize(
    "name",
    [
        "crop and flip",
        "colours",
        "erasing",
        "blur and noise",
        "geometry",
        "policies",
        "auto",
        "choice",
        "photometric",
    ],
)
def test_reruns_are_the_same(url, name) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = epoch(url, seeded(Apply(name), generators=("torch",)), num_threads=4)
    assert len(first) == 24
    torch.rand(7)  # the global generator has no part in it
    assert epoch(url, seeded(Apply(name), generators=("torch",)), num_threads=3) == first
    assert epoch(url, seeded(Apply(name)), num_threads=0).keys() == first.keys()
    assert epoch(url, seeded(Apply(name), generators=("torch",)), num_workers=2) == first
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)
    values = list(shardio.open(url, decode="image"))
    function = seeded(Apply(name), generators=("torch",))
    for position, value in enumerate(values[:5]):
        made = function(value, record_generator(5, 0, position))
        assert bytes(np.ascontiguousarray(made["image"].numpy())) == first[position]


def test_records_and_epochs_differ(url) -> None:
    """Else a generator that is never advanced would pass, too."""
    function = seeded(lambda value: {"image": torch.rand(3), "label": int(value["label"])})
    assert len(set(epoch(url, function).values())) == 24


def test_without_it_reruns_differ_or_it_is_said(url) -> None:
    apply = Apply("crop and flip")
    with pytest.warns(UserWarning, match="draws from torch's global generator in a thread"):
        epoch(url, lambda value, rng: apply(value), num_threads=4)
