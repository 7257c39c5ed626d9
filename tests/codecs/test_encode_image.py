"""Pixels become image files: by `encode_image`, and where a feature of images is written."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import shardio
from shardio import codecs
from shardio.errors import SchemaError

RNG = np.random.default_rng(5)
PIXELS = {
    "gray": RNG.integers(0, 256, (5, 7), np.uint8),
    "one": RNG.integers(0, 256, (5, 7, 1), np.uint8),
    "rgb": RNG.integers(0, 256, (5, 7, 3), np.uint8),
    "rgba": RNG.integers(0, 256, (5, 7, 4), np.uint8),
}


@pytest.mark.parametrize("kind", PIXELS)
@pytest.mark.parametrize("format_", ["png", "tiff"])
def test_nothing_is_lost_without_loss(kind, format_):
    pixels = PIXELS[kind]
    back = codecs.decode_image(codecs.encode_image(pixels, format_))
    assert (back == pixels.reshape(back.shape)).all()


@pytest.mark.parametrize("format_", ["jpeg", "webp"])
def test_lossy_formats_keep_the_size(format_):
    for kind in ("gray", "rgb"):
        data = codecs.encode_image(PIXELS[kind], format_)
        assert codecs.decode_image(data).shape[:2] == (5, 7)
    smooth = np.linspace(0, 255, 32 * 32 * 3).reshape(32, 32, 3).astype(np.uint8)
    assert len(codecs.encode_image(smooth, format_, quality=10)) < len(codecs.encode_image(smooth, format_))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr", "HSV"])
@pytest.mark.parametrize("format_", ["jpeg", "png", "webp", "tiff"])
def test_every_mode_of_pillow(mode, format_):
    image = Image.new(mode, (6, 4))
    if (format_ == "jpeg" and mode in ("LA", "RGBA")) or (format_ in ("jpeg", "webp") and mode == "I;16"):
        with pytest.raises(SchemaError):
            codecs.encode_image(image, format_)
        return
    assert codecs.decode_image(codecs.encode_image(image, format_)).shape[:2] == (4, 6)


@pytest.mark.parametrize(
    ("image", "options", "error", "says"),
    [
        (np.zeros((2, 2, 3), np.float32), {}, SchemaError, "float32"),
        (np.zeros((2, 2, 2), np.uint8), {}, SchemaError, r"\[2, 2, 2\]"),
        (np.zeros((0, 2, 3), np.uint8), {}, SchemaError, r"\[0, 2, 3\]"),
        (PIXELS["rgba"], {}, SchemaError, "alpha"),
        (PIXELS["rgb"], {"format": "gif"}, ValueError, "must be one of jpeg, png, webp, tiff"),
        (PIXELS["rgb"], {"quality": 0}, ValueError, "1 to 100"),
    ],
)
def test_what_is_no_image(image, options, error, says):
    with pytest.raises(error, match=says):
        codecs.encode_image(image, **options)


@pytest.mark.parametrize("word", ["image", "png", "jpeg", "webp", "tiff"])
def test_a_feature_of_images_takes_pixels(tmp_path, word):
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": word, "more": f"{word}[?]"}) as out:
        out.write({"image": PIXELS["rgb"], "more": [Image.fromarray(PIXELS["rgb"]), PIXELS["gray"]]})
        for wrong, says in (
            ({"image": np.zeros((2, 2), np.float32), "more": []}, "uint8"),
            ({"image": tmp_path / "a.png", "more": []}, "a file that can be read"),
            ({"image": "a.png", "more": []}, r"pathlib\.Path\(name\)"),
            ({"image": 3, "more": []}, "or pixels"),
        ):
            with pytest.raises(SchemaError, match=says):
                out.write(wrong)
    record = shardio.open(tmp_path / "ds")[0]
    wanted = "png" if word == "image" else word
    assert Image.open(io.BytesIO(record["image"])).format == wanted.upper()
    assert codecs.decode_image(record["more"][1]).shape[:2] == (5, 7)
    if word in ("image", "png", "tiff"):
        assert (codecs.decode_image(record["image"]) == PIXELS["rgb"]).all()
