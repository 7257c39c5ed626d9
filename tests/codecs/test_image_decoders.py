"""One law for every decoder of images: what comes out, in which part and size, and what is an error.

Where pixels are compared across decoders they are compared bit by bit: both are libjpeg-turbo with the same
settings. A decoder of other versions may differ by some steps of 255, which docs/training/images.md says;
`CLOSE` is what such a version may do here.
"""

from __future__ import annotations

import io
import math
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from shardio import codecs
from shardio.codecs import (
    CenterCrop,
    ImageOptions,
    RandomResizedCrop,
    _images as images,
    decode_image,
)
from shardio.codecs._images import Box, sized_image
from shardio.errors import CorruptRecordError, FormatError
from tests.suites.errors import refused

CLOSE = 2
DECODERS = ("simplejpeg", "Pillow")
RNG = np.random.default_rng(0)


def scene(height: int, width: int) -> np.ndarray:
    """Return something that compresses as photographs do: waves, edges, a little noise."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 90 * np.sin(x / (7 + c) + y / (11 - c)) + 30 * ((x // 16 + y // 16) % 2) for c in range(3)]
    noise = RNG.integers(-8, 9, (height, width, 3))
    return np.clip(np.stack(waves, axis=2) + noise, 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, mode: str = "RGB", **options) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if image.mode == mode else image.convert(mode)).save(out, "JPEG", **options)
    return out.getvalue()


def use(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a decoder decode; both must be there where tests run."""
    assert codecs.image_decoder() == "simplejpeg"
    if name == "Pillow":
        monkeypatch.setattr(images, "_simplejpeg", lambda: None)


def sized(data: bytes, options: ImageOptions, seed: int = 0) -> np.ndarray:
    out = np.full((*options.size, options.channels), 99, np.uint8)
    sized_image(data, options, out, lambda: np.random.default_rng(seed))
    return out


@pytest.fixture(params=DECODERS)
def decoder(request, monkeypatch) -> str:
    use(monkeypatch, request.param)
    return request.param


def both(monkeypatch, make):
    """Return what `make` returns with each decoder, an error being its kind and its words."""
    found = []
    for name in DECODERS:
        with monkeypatch.context() as patched:
            use(patched, name)
            try:
                found.append(make())
            except FormatError as error:
                found.append((type(error), error.what, error.expected))
    return found


FILES = {
    "4:2:0": jpeg(scene(300, 401), quality=90),
    "4:4:4": jpeg(scene(301, 400), quality=95, subsampling=0),
    "4:2:2": jpeg(scene(256, 256), quality=80, subsampling=1),
    "progressive": jpeg(scene(333, 222), quality=85, progressive=True),
    "gray": jpeg(scene(200, 310), "L", quality=90),
    "inks": jpeg(scene(150, 170), "CMYK", quality=90),
    "restarts": jpeg(scene(160, 240), quality=75, restart_marker_blocks=3),
    "small": jpeg(scene(9, 13)),
    "one pixel": jpeg(scene(1, 1)),
    "tall": jpeg(scene(900, 20)),
}
TARGETS = [
    ImageOptions(size=(64, 64)),
    ImageOptions(size=(224, 160), filter="bicubic"),
    ImageOptions(size=(75, 100), crop="center"),
    ImageOptions(size=96, crop=RandomResizedCrop(flip=0.5)),
    ImageOptions(size=(33, 47), crop=CenterCrop(fraction=1.0), channels=1),
    ImageOptions(size=40, channels=4),
]


@pytest.mark.parametrize("name", FILES)
def test_decoders_agree_on_whole_images(monkeypatch, name) -> None:
    for size in (None, (1, 1), (60, 60), (100, 150)):
        fast, pillow = both(monkeypatch, lambda size=size: decode_image(FILES[name], size=size))
        assert fast.shape == pillow.shape
        assert fast.flags.writeable
        np.testing.assert_array_equal(fast, pillow)


@pytest.mark.parametrize("options", TARGETS, ids=str)
@pytest.mark.parametrize("name", FILES)
def test_decoders_agree_on_parts_in_a_size(monkeypatch, name, options) -> None:
    for seed in range(3):
        fast, pillow = both(monkeypatch, lambda seed=seed: sized(FILES[name], options, seed))
        np.testing.assert_array_equal(fast, pillow)


def test_sizes_channels_and_orientation(decoder) -> None:
    assert decode_image(FILES["4:2:0"]).shape == (300, 401, 3)
    assert decode_image(FILES["gray"]).shape == (200, 310, 1)
    assert decode_image(FILES["inks"]).shape == (150, 170, 3)
    assert decode_image(FILES["gray"], channels=3).shape == (200, 310, 3)
    assert decode_image(FILES["4:2:0"], channels=1).shape == (300, 401, 1)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = jpeg(scene(40, 60), exif=exif)
    assert decode_image(turned).shape == (40, 60, 3)
    for file in FILES.values():
        assert sized(file, ImageOptions(size=(50, 70))).shape == (50, 70, 3)


def test_a_large_jpeg_is_shrunk_while_it_is_decoded(decoder, monkeypatch) -> None:
    """By the largest factor that leaves at least the size wanted, whatever the crop."""
    asked = []
    resize = images.kernels.resize_image

    def noted(part, *args, **options) -> None:
        asked.append(part.shape)
        resize(part, *args, **options)

    monkeypatch.setattr(images.kernels, "resize_image", noted)
    data = jpeg(scene(600, 1000))
    sized(data, ImageOptions(size=(70, 70)))
    sized(data, ImageOptions(size=(70, 70), crop=CenterCrop(fraction=1)))
    sized(data, ImageOptions(size=(301, 100)))
    assert asked == [(75, 125, 3), (75, 75, 3), (600, 1000, 3)]
    assert sized(data, ImageOptions(size=(300, 500))).shape == (300, 500, 3)
    assert len(asked) == 3  # at that size already


def test_a_part_has_its_place(decoder) -> None:
    """The pixels are those of the part, resized: against Pillow's crop and resize of the whole image."""
    data = FILES["4:4:4"]
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    for seed in range(10):
        crop = RandomResizedCrop(scale=(0.3, 0.9), flip=0.5)
        box = crop.box(301, 400, np.random.default_rng(seed))
        part = whole.crop((box.left, box.top, box.left + box.width, box.top + box.height))
        side = max(box.height, box.width)  # nothing is shrunk while it is decoded
        expected = np.asarray(part.resize((side, side), Image.Resampling.BILINEAR)).astype(int)
        made = sized(data, ImageOptions(size=side, crop=crop), seed)
        assert np.abs(made - (expected[:, ::-1] if box.flip else expected)).max() <= CLOSE


def test_a_part_of_a_shrunken_image_has_its_place(decoder) -> None:
    """To a fraction of its pixels: rounded to whole ones the first of these comes to 25 dB."""
    y, x = np.mgrid[0:401, 0:523]
    data = jpeg(np.stack([127 + 100 * np.sin(x / (3 + c) + y / 5) for c in range(3)], 2).astype(np.uint8))
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    for seed in range(20):
        crop = RandomResizedCrop(scale=(0.1, 0.9), flip=0.5)
        box = crop.box(401, 523, np.random.default_rng(seed))
        size = min(box.height, box.width) // (2 + 2 * (seed % 2))  # decoded at a half, or a quarter
        for channels in (3, 4):
            part = whole.crop((box.left, box.top, box.left + box.width, box.top + box.height))
            expected = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR)).astype(float)
            made = sized(data, ImageOptions(size=size, crop=crop, channels=channels), seed)[..., :3]
            error = np.mean((made - (expected[:, ::-1] if box.flip else expected)) ** 2)
            assert 10 * math.log10(255**2 / error) > 32


@pytest.mark.parametrize("progressive", [False, True])
def test_every_truncation_is_the_same_error(monkeypatch, progressive) -> None:
    data = jpeg(scene(40, 40), progressive=progressive)
    for stop in range(0, len(data) - 2, 11):
        fast, pillow = both(monkeypatch, lambda stop=stop: decode_image(data[:stop]))
        assert fast == pillow
        assert fast[0] is CorruptRecordError
        fast, pillow = both(monkeypatch, lambda stop=stop: sized(data[:stop], ImageOptions(size=8)))
        assert fast == pillow


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(st.sampled_from(["4:2:0", "progressive", "gray", "restarts", "inks"]), st.data())
def test_damage_is_judged_alike(name, data) -> None:
    """An image for both or an error for both; where it is an image, of one shape."""
    payload = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast, pillow = both(patched, lambda: decode_image(bytes(payload)))
    assert isinstance(fast, tuple) == isinstance(pillow, tuple)
    assert fast[:2] == pillow[:2] if isinstance(fast, tuple) else fast.shape == pillow.shape


def test_a_jpeg_that_claims_too_much_is_refused(decoder) -> None:
    data = bytearray(FILES["4:2:0"])
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = (60_000).to_bytes(2, "big") * 2
    for make in (lambda: decode_image(bytes(data)), lambda: sized(bytes(data), ImageOptions(size=8))):
        with pytest.raises(CorruptRecordError) as caught:
            make()
        assert caught.value.advice


def test_a_limit_counts_the_pixels_of_the_file(decoder, monkeypatch) -> None:
    """Not those that remain after shrinking: the file's coefficients are all read."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # Pillow's own limit
    rows = codecs.MAX_PIXELS // 10_000
    most, more = (jpeg(np.full((height, 10_000), 200, np.uint8), "L") for height in (rows, rows + 1))
    with pytest.raises(CorruptRecordError) as caught:
        sized(more, ImageOptions(size=8))
    assert caught.value.expected == f"at most {codecs.MAX_PIXELS} pixels"
    assert (sized(most, ImageOptions(size=8)) == 200).all()


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 4), ("L", 1)])
def test_a_limit_counts_what_is_between_rows_and_columns(mode, channels) -> None:
    """Some kilobytes, of pixels far below the limit, would take gigabytes while they are resized."""
    out = io.BytesIO()
    Image.new(mode, (1, 3_000_000)).save(out, "PNG")
    data = out.getvalue()
    assert len(data) < 50_000
    with pytest.raises(CorruptRecordError) as caught:
        sized(data, ImageOptions(size=224, channels=channels))
    assert caught.value.advice
    # As many pixels that are the other way are only made fewer.
    out = io.BytesIO()
    Image.new(mode, (3_000_000, 1)).save(out, "PNG")
    assert not sized(out.getvalue(), ImageOptions(size=224, channels=channels))[..., :3].any()


@settings(max_examples=max(50, settings().max_examples // 5), deadline=None)
@given(
    st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 1 << 32),
    st.sampled_from([RandomResizedCrop(), RandomResizedCrop(scale=(0.001, 0.01), ratio=(0.1, 10.0),
    flip=1.0)]), st.tuples(st.integers(1, 500), st.integers(1, 500)),
)  # fmt: skip
def test_boxes_lie_inside(height, width, seed, crop, size) -> None:
    for box in (crop.box(height, width, np.random.default_rng(seed)), CenterCrop().box(height, width, size)):
        assert isinstance(box, Box)
        assert box.height >= 1 <= box.width
        assert 0 <= box.top <= height - box.height
        assert 0 <= box.left <= width - box.width


def test_random_parts_are_spread_as_they_should_be() -> None:
    crop = RandomResizedCrop(scale=(0.25, 0.75), flip=0.3)
    boxes = [crop.box(400, 400, np.random.default_rng(seed)) for seed in range(2000)]
    areas = np.array([box.height * box.width / 160_000 for box in boxes])
    ratios = np.array([box.width / box.height for box in boxes])
    assert (areas.min(), areas.max()) == pytest.approx((0.25, 0.75), abs=0.03)
    assert (ratios.min(), ratios.max()) == pytest.approx((0.75, 1.333), abs=0.03)
    assert abs(np.mean([box.flip for box in boxes]) - 0.3) < 0.04
    assert abs(np.mean([box.left + box.width / 2 for box in boxes]) - 200) < 5


def test_the_middle_is_that_of_torchvision() -> None:
    """`Resize(256)` makes 341 x 256 of 400 x 300; 224 of it are 262.5 of the original."""
    assert CenterCrop().box(300, 400, (224, 224)) == Box(19, 69, 262, 262)
    assert CenterCrop(fraction=1.0).box(300, 400, (100, 100)) == Box(0, 50, 300, 300)
    assert CenterCrop(fraction=1.0).box(300, 400, (50, 200)) == Box(100, 0, 100, 400)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "image_size="), ({"size": (1, 2, 3)}, "image_size="),
        ({"size": (-1, 5)}, "image_size="),
        ({"size": (2.5, 5)}, "image_size="), ({"size": "224"}, "image_size="),
        ({"size": (1 << 20, 1 << 20)}, "pixels"), ({"crop": "center"}, "needs image_size="),
        ({"size": 8, "crop": "middle"}, "image_crop='middle'"),
        ({"channels": 2}, "channels=2"), ({"filter": "nearest"}, "filter='nearest'"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options, words) -> None:
    with pytest.raises(ValueError, match=words):
        ImageOptions(**options)


def test_other_options_that_make_no_sense() -> None:
    with refused(TypeError, "image_crop="):
        ImageOptions(size=8, crop=3)
    scales = [{"scale": given} for given in ((0.5, 0.2), (0.0, 1.0), (0.5, 2.0))]
    ratios = [{"ratio": given} for given in ((0, 1), (1, math.inf), (1.0, 1e308), (1e-320, 1), (math.nan, 1))]
    for wrong in (*scales, *ratios, {"flip": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RandomResizedCrop(**wrong)
    with refused(ValueError, "fraction"):
        CenterCrop(fraction=0)


def test_it_is_said_once_that_simplejpeg_is_missing(monkeypatch) -> None:
    import builtins

    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "simplejpeg":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    images._simplejpeg.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            decode_image(FILES["small"])
    images._simplejpeg.cache_clear()
    assert [str(each.message).count('pip install "shardio[image]"') for each in said] == [1]


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_decoding_lets_other_threads_run(decoder) -> None:
    """While a large JPEG is decoded and resized another thread continues: the lock is not held."""
    data = jpeg(scene(2000, 2000), quality=95)
    naps, stop = [0], threading.Event()

    def nap() -> None:
        while not stop.is_set():
            time.sleep(0.0002)
            naps[0] += 1

    before, sleeper = sys.getswitchinterval(), threading.Thread(target=nap)
    try:
        sleeper.start()
        sys.setswitchinterval(30)  # no thread is made to give the lock away
        began = naps[0]
        for _ in range(50):  # on a busy machine the other thread may miss one image
            sized(data, ImageOptions(size=1900))
            if (gone := naps[0] - began) > 5:
                break
    finally:
        stop.set()
        sys.setswitchinterval(before)
        sleeper.join()
    assert gone > 5
