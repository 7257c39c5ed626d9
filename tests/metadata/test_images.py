"""Features of images take files that begin as images, and nothing else."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import shardio
from shardio import codecs
from shardio.codecs import encode_image
from shardio.errors import SchemaError
from shardio.metadata import Feature, image_type, pillow
from tests.pictures import picture
from tests.suites.errors import refused

TYPES = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp", "TIFF": "tiff", "GIF": "image", "BMP": "image"}
# Told by Pillow alone: some of them have no first bytes of their own.
OTHERS = ["PPM", "TGA", "ICO", "PCX", "SGI", "JPEG2000", "DDS"]
ENCODINGS = ["example", "tensors", "bytes", "sequence_example"]


def encode(feature: Feature | str, value: object, encoding: str = "example") -> bytes:
    if encoding == "sequence_example":
        schema = {"context": {}, "feature_lists": {"x": feature}}
        codec = codecs.record_codec(schema, encoding=encoding)
        return codec.encode({"context": {}, "feature_lists": {"x": [value]}})
    return codecs.record_codec({"x": feature}, encoding=encoding).encode({"x": value})


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "tiff", "image"])
@pytest.mark.parametrize("data", [b"", b"hello", b"\xff\xd8", b"\x89PNG", b"RIFF....WAVE", bytes(100)])
def test_what_is_no_image_is_refused(encoding, name, data) -> None:
    for given in (data, bytearray(data), memoryview(data)):
        with pytest.raises(SchemaError, match=rf"'x' does not fit.*a file in .*found {len(data)} bytes"):
            encode(name, given, encoding)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "tiff", "image"])
def test_each_type_takes_its_files(kind, name) -> None:
    data = picture(7, kind)
    assert image_type(data) == TYPES[kind]
    if name in (TYPES[kind], "image"):
        for encoding in ENCODINGS:
            assert data in encode(name, data, encoding)
    else:
        with pytest.raises(SchemaError, match=f'expected {name}.*declare the feature as "image"'):
            encode(name, data)


@pytest.mark.parametrize("big", [False, True])
def test_tiffs_of_both_sizes_and_byte_orders(big) -> None:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("L", (2, 2)).save(out, "TIFF", big_tiff=big)
    assert image_type(out.getvalue()) == "tiff"
    assert image_type(b"MM\x00+" if big else b"MM\x00*") == "tiff"


@pytest.mark.parametrize("kind", OTHERS)
def test_image_takes_every_format_that_pillow_reads(kind) -> None:
    data = picture(7, kind)
    assert image_type(data) is None
    assert data in encode("image", data)
    with pytest.raises(SchemaError):
        encode("png", data)


def test_items_of_a_list_are_compared() -> None:
    encode("png[?]", [picture(1), picture(2)])
    encode("png[?]", [])
    with pytest.raises(SchemaError):
        encode("png[2]", [picture(1), b"hello"])


@pytest.mark.parametrize("encoding", ENCODINGS[:2])
def test_a_default_need_not_be_an_image(encoding) -> None:
    feature = Feature("jpeg", default=b"")
    encode(feature, b"", encoding)
    encode(Feature("jpeg[1]", default=[b"none"]), [b"none"], encoding)
    with pytest.raises(SchemaError):
        encode(feature, b"x", encoding)


def test_without_pillow_what_only_it_can_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    pillow.cache_clear()
    try:
        encode("image", b"\xff\xd8\xff")
        with refused(ModuleNotFoundError, "shardio[image]"):
            encode("image", b"hello")
    finally:
        pillow.cache_clear()


DEPTHS = {
    "I": np.array([[0, 256], [65535, 7]], "i4"),
    "wide I": np.array([[-1, 256], [70000, 7]], "i4"),
    "I;16": np.array([[0, 256], [65535, 7]], "u2"),
    "F": np.array([[0.5, 256], [-3, 7]], "f4"),
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("format_", ["jpeg", "png", "webp", "tiff"])
def test_more_than_8_bits_are_kept_or_refused(depth, format_):
    pixels = DEPTHS[depth]
    kept = format_ == "tiff" or (format_ == "png" and depth in ("I", "I;16"))
    if not kept:
        with pytest.raises(SchemaError):
            encode_image(Image.fromarray(pixels), format_)
        return
    found = np.asarray(Image.open(io.BytesIO(encode_image(Image.fromarray(pixels), format_))))
    assert found.tolist() == pixels.tolist()


@pytest.mark.parametrize("place", ["profile", "text"])
def test_a_png_with_a_large_profile_or_text_is_an_image(place, tmp_path):
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    out, info = io.BytesIO(), PngInfo()
    if place == "text":
        info.add_text("comment", "x" * (3 << 20), zip=True)
    profile = np.random.default_rng(0).bytes(3 << 20) if place == "profile" else None
    Image.fromarray(pixels).save(out, "PNG", icc_profile=profile, pnginfo=info)
    file = out.getvalue()
    assert codecs.decode_image(file).tolist() == pixels.tolist()
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "x.png").write_bytes(file)
    shardio.convert_dataset(tmp_path / "photos", tmp_path / "ds")
    assert shardio.open(tmp_path / "ds")[0]["image"] == file, "the file is stored as it is"
