"""Image files to uint8 arrays."""

from __future__ import annotations

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from shardio.codecs import ImageOptions, decode_image, record_codec
from shardio.errors import CorruptRecordError, FormatError
from shardio.metadata import Feature, is_image, pillow
from tests.suites.errors import refused

RAMP = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


def _file(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _png(array, mode=None):
    return _file(Image.fromarray(array) if mode is None else Image.fromarray(array).convert(mode), "PNG")


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM"])
def test_lossless_files_come_back(kind):
    got = decode_image(_file(Image.fromarray(RAMP), kind))
    assert got.dtype == np.uint8
    assert got.flags.writeable
    np.testing.assert_array_equal(got, RAMP)


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})])
def test_photographs(kind, options):
    flat = np.full((16, 24, 3), (200, 100, 50), np.uint8)
    got = decode_image(_file(Image.fromarray(flat), kind, **options))
    assert got.shape == (16, 24, 3)
    assert np.abs(got.astype(int) - flat).max() <= 3


def test_modes():
    gray = RAMP[:, :, 0]
    np.testing.assert_array_equal(decode_image(_png(gray)), gray[:, :, None])
    one_bit = decode_image(_png(gray, "1"))
    assert one_bit.shape == (5, 7, 1)
    assert set(np.unique(one_bit)) <= {0, 255}
    assert decode_image(_png(RAMP, "RGBA")).shape == (5, 7, 4)
    assert decode_image(_png(gray, "LA")).shape == (5, 7, 4)
    assert decode_image(_png(RAMP, "P")).shape == (5, 7, 3)
    assert decode_image(_file(Image.fromarray(RAMP).convert("CMYK"), "JPEG")).shape == (5, 7, 3)
    assert decode_image(_file(Image.fromarray(RAMP).convert("P"), "GIF")).shape == (5, 7, 3)
    palette = Image.fromarray(RAMP).convert("P")
    assert decode_image(_file(palette, "PNG", transparency=0)).shape == (5, 7, 4)


def test_sixteen_bits_keep_the_high_byte():
    wide = np.array([[0, 255, 256, 65535]], np.uint16)
    np.testing.assert_array_equal(
        decode_image(_file(Image.fromarray(wide), "PNG"))[:, :, 0], [[0, 0, 1, 255]]
    )
    floats = Image.fromarray(np.zeros((2, 2), np.float32))
    with pytest.raises(FormatError):
        decode_image(_file(floats, "TIFF"))
    with pytest.raises(FormatError):
        decode_image(_file(Image.fromarray(np.full((1, 1), -5, np.int32)), "TIFF"))


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_no_image(data):
    with pytest.raises(CorruptRecordError):
        decode_image(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_every_truncation_is_noticed(kind):
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    data = _file(Image.fromarray(noise), kind)
    for stop in range(0, len(data) * 3 // 4, 7):
        with pytest.raises(CorruptRecordError):
            decode_image(data[:stop])


@settings(max_examples=max(30, settings().max_examples // 5), deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP"]), st.data())
def test_damage_is_an_image_or_an_error_of_the_tree(kind, data):
    payload = bytearray(_file(Image.fromarray(RAMP), kind))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert decode_image(bytes(payload)).dtype == np.uint8
    except FormatError as error:
        assert error.advice  # noqa: PT017 - the error is one of two right outcomes


def test_more_pixels_than_allowed_are_refused_before_they_are_decoded(monkeypatch):
    data = _png(RAMP)
    monkeypatch.setattr("shardio.metadata._images.MAX_PIXELS", 34)
    with pytest.raises(CorruptRecordError):
        decode_image(data)
    monkeypatch.setattr("shardio.metadata._images.MAX_PIXELS", 35)
    assert decode_image(data).shape == (5, 7, 3)


def _icon(kind: str) -> bytes:
    """Return an icon whose list says 16 x 16, and whose one image says 20,000 x 10,000."""
    if kind == "ico with a bitmap":
        inner = struct.pack("<IiiHHIIiiII", 40, 20_000, 20_000, 1, 32, 0, 0, 0, 0, 0, 0)
    else:
        png = bytearray(_file(Image.new("1", (10, 10)), "PNG"))
        png[16:24] = struct.pack(">II", 20_000, 10_000)
        png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
        inner = bytes(png)
    if kind == "icns":
        return b"icns" + struct.pack(">I4sI", 16 + len(inner), b"ic07", 8 + len(inner)) + inner
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner


@pytest.mark.parametrize("kind", ["ico", "ico with a bitmap", "icns"])
def test_an_icon_is_as_large_as_the_image_within(kind, monkeypatch):
    from PIL import IcoImagePlugin

    def refuse(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(IcoImagePlugin.IcoFile, "getimage", refuse)
    with pytest.raises(CorruptRecordError):
        decode_image(_icon(kind))
    assert is_image(_icon(kind), "image")


def test_icons_are_read():
    assert decode_image(_file(Image.new("RGB", (64, 64)), "ICO")).shape[:2] == (64, 64)
    assert decode_image(_file(Image.new("RGB", (64, 64)), "ICNS")).shape[2] == 3


def test_data_chooses_no_program_to_run():
    """P8: hostile data runs no code; Pillow would hand PostScript to Ghostscript."""
    data = _file(Image.fromarray(RAMP), "EPS")
    assert Image.open(io.BytesIO(data)).format == "EPS"
    with pytest.raises(CorruptRecordError):
        decode_image(data)


def test_records_decode_when_asked():
    codec = record_codec(
        {"i": "png", "l": "image[?]", "o": Feature("jpeg", optional=True)}, images=ImageOptions()
    )
    plain = record_codec(codec.schema)
    other = np.zeros((2, 2, 3), np.uint8)
    payloads = [codec.encode({"i": _png(RAMP), "l": [_png(RAMP), _png(other)]}) for _ in range(2)]
    assert plain.decode(payloads[0])["i"] == _png(RAMP)
    value = codec.decode(payloads[0])
    np.testing.assert_array_equal(value["i"], RAMP)
    assert [image.shape for image in value["l"]] == [(5, 7, 3), (2, 2, 3)]
    assert value["o"] is None
    batch = codec.decode_batch(payloads)
    assert batch["i"].shape == (2, 5, 7, 3)
    assert batch["o"] == [None, None]
    mixed = codec.decode_batch([payloads[0], codec.encode({"i": _png(other), "l": []})])["i"]
    assert [image.shape for image in mixed] == [(5, 7, 3), (2, 2, 3)]
    tensors = record_codec({"i": "png"}, encoding="tensors", images=ImageOptions())
    assert tensors.decode_batch([tensors.encode({"i": _png(RAMP)})])["i"].shape == (1, 5, 7, 3)
    bare = record_codec({"i": "png"}, encoding="bytes", images=ImageOptions())
    assert bare.decode(_png(RAMP))["i"].shape == (5, 7, 3)


def test_a_default_image_decodes_too():
    for encoding in ("example", "tensors"):
        schema = {"n": "int64", "i": Feature("png", default=_png(RAMP))}
        codec = record_codec(schema, encoding=encoding, images=ImageOptions())
        payload = record_codec({"n": "int64"}, encoding=encoding).encode({"n": 1})
        assert codec.decode(payload)["i"].shape == (5, 7, 3)
        assert codec.decode_batch([payload])["i"].shape == (1, 5, 7, 3)


def test_a_damaged_image_names_feature_and_row():
    codec = record_codec({"picture": "png[?]"}, images=ImageOptions())
    good, bad = (
        codec.encode({"picture": [_png(RAMP)] * 2}),
        codec.encode({"picture": [_png(RAMP), _png(RAMP)[:30]]}),
    )
    with refused(CorruptRecordError, "'picture'") as caught:
        codec.decode_batch([good, bad])
    assert caught.value.row == 1
    with refused(CorruptRecordError, "'picture'") as caught:
        codec.decode(bad)
    assert caught.value.row is None


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    pillow.cache_clear()
    with refused(ImportError, "shardio[image]"):
        decode_image(b"")
    pillow.cache_clear()
