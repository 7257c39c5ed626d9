"""Which bytes are an image file, and of which type of feature.

The formats that nearly all datasets hold are told by their first bytes; of all others Pillow is asked, which
reads them later.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardio.arguments import integer, need
from shardio.display import image_type
from shardio.errors import CorruptRecordError, SchemaError

# 256 MiB as RGB.  A few kilobytes can claim to be more; nothing is decoded beyond.
MAX_PIXELS = (256 << 20) // 3
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_TEXT = (b"iCCP", b"tEXt", b"zTXt", b"iTXt")

# These hand the file to another program or library; data from a dataset must not choose a program to run.
_NEVER = frozenset({"EPS", "WMF", "FITS", "BUFR", "GRIB", "HDF5"})

# Modes of Pillow that each format holds as they are; others of 8 bits become RGB.
_MODES = {
    "jpeg": {"L", "RGB", "CMYK"},
    "png": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"},
    "webp": {"RGB", "RGBA"},
    "tiff": {"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"},
}
ENCODED = (*_MODES,)


def is_image(data: bytes, type_name: str) -> bool:
    """Tell whether `data` begins as a file of an image type; "image" is every format that Pillow reads.

    Raises:
        ModuleNotFoundError: only Pillow can tell, and it is not installed.
    """
    found = image_type(data)
    if type_name != "image":
        return found == type_name
    return found is not None or (bool(data) and _opens(data))


def _opens(data: bytes) -> bool:
    """Tell whether Pillow reads the head of a file; some formats have no first bytes of their own."""
    image_module, _ = pillow()
    try:
        open_image(data).close()
    except (image_module.DecompressionBombError, CorruptRecordError):
        return True  # an image, however large; decoding says what is too large
    except Exception:  # noqa: BLE001 - Pillow's plugins raise whatever broken bytes lead them to
        return False
    return True


def encode_image(image: Any, format: str = "jpeg", *, quality: int = 95) -> bytes:  # noqa: A002 - Pillow's word
    """Encode pixels as an image file.

    Args:
        image: uint8 [height, width], or [height, width, channels] of 1, 3 or 4 channels; or a Pillow image.
        format: "jpeg", "png", "webp" or "tiff".
        quality: 1 to 100, of JPEG and lossy WebP; the others lose nothing.

    Returns:
        The file's bytes, which `decode_image` reads.

    Raises:
        SchemaError: pixels of another dtype or shape, or with alpha in a JPEG.
        ValueError: no such format or quality.
        ImportError: Pillow is not installed: `pip install "shardio[image]"`.
    """
    if format not in _MODES:
        raise ValueError(f"format={format!r} must be one of {', '.join(_MODES)}")
    if not 1 <= integer("quality", quality) <= 100:
        raise ValueError(f"quality={quality} must be 1 to 100")
    picture = image if hasattr(image, "save") else _picture(np.asarray(image))
    if picture.mode not in _MODES[format]:
        alpha = "A" in picture.getbands() or "transparency" in picture.info
        if format == "jpeg" and alpha:
            advice = 'leave the fourth channel out, image[:, :, :3] or image.convert("RGB"), or take png'
            raise SchemaError("a JPEG has no alpha channel", found=f"mode {picture.mode}", advice=advice)
        if picture.mode.startswith(("I", "F")):
            picture = _deep(picture, format)
        else:
            picture = picture.convert("RGBA" if alpha else "RGB")
    out = io.BytesIO()
    picture.save(out, format.upper(), **({"quality": quality} if format in ("jpeg", "webp") else {}))
    return out.getvalue()


def _deep(picture: Any, format_: str) -> Any:
    """Return an image of more than 8 bits in a mode that a format holds, without changing a pixel.

    Raises:
        SchemaError: the format has no such mode; Pillow would clip the pixels to 8 bits.
    """
    whole = picture.mode != "F"
    low, high = picture.getextrema() if whole else (0, 0)
    if whole and "I;16" in _MODES[format_] and low >= 0 and high < 1 << 16:
        return pillow()[0].fromarray(np.asarray(picture).astype(np.uint16))
    if whole and "I" in _MODES[format_]:
        return pillow()[0].fromarray(np.asarray(picture).astype(np.int32))
    raise SchemaError(
        f"a {format_} cannot hold these pixels",
        found=f"mode {picture.mode}" + (f", {low} to {high}" if whole else ""),
        advice='declare the feature as "tiff", which holds them, or as an array such as "float32[?,?]"',
    )


def _picture(pixels: npt.NDArray[Any]) -> Any:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    fits = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype != np.uint8 or not fits or not pixels.size:
        raise SchemaError(
            "an image is made of pixels",
            expected="uint8 [height, width], [height, width, 1], [height, width, 3] or [height, width, 4]",
            found=f"{pixels.dtype} {list(pixels.shape)}",
        )
    return pillow()[0].fromarray(np.ascontiguousarray(pixels))


def open_image(data: bytes | memoryview) -> Any:
    """Return a Pillow image of a file, whose pixels are not decoded yet.

    Pillow decodes icons when they are opened, whatever their list of sizes says of the images inside.

    Raises:
        CorruptRecordError: it has more than `MAX_PIXELS` pixels.
        ImportError: Pillow is not installed.
        Exception: whatever Pillow's plugins raise of broken bytes.
    """
    data = bytes(data)
    image_module, formats = pillow()
    for width, height in _embedded_sizes(data):
        refuse_pixels(width, height)
    # Pillow refuses a profile or text of more than a megabyte; neither changes a pixel.
    shown = _without_text(data) if data.startswith(_PNG) else data
    image = image_module.open(io.BytesIO(shown), formats=formats)
    try:
        refuse_pixels(*image.size)
    except CorruptRecordError:
        image.close()
        raise
    return image


def refuse_pixels(width: int, height: int) -> None:
    """Raise CorruptRecordError for an image of more than `MAX_PIXELS` pixels."""
    if width * height > MAX_PIXELS:
        what = f"an image of {width} x {height} pixels is refused"
        advice = "decode=True gives the file's bytes"
        raise CorruptRecordError(what, expected=f"at most {MAX_PIXELS} pixels", advice=advice)


def _without_text(data: bytes) -> bytes:
    """Return a PNG file without its color profile and text; https://www.w3.org/TR/png-3/#5Chunk-layout."""
    if not any(kind in data for kind in _PNG_TEXT):
        return data
    kept, at = [data[:8]], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] not in _PNG_TEXT:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def _embedded_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield width and height of the images within an icon, as their own headers give them."""
    starts: list[int] = []
    if data[:4] in (b"\0\0\1\0", b"\0\0\2\0"):
        count = int.from_bytes(data[4:6], "little")
        starts = [int.from_bytes(data[at : at + 4], "little") for at in range(18, 6 + 16 * count, 16)]
    elif data[:4] == b"icns":
        at = 8
        while at + 8 <= len(data):
            starts.append(at + 8)
            at += max(8, int.from_bytes(data[at + 4 : at + 8], "big"))
    for start in starts:
        head = data[start : start + 24]
        if head.startswith(_PNG):
            yield int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
        elif data[:4] != b"icns":  # a bitmap without its file's header
            width, height = (int.from_bytes(head[k : k + 4], "little", signed=True) for k in (4, 8))
            yield abs(width), abs(height) // 2


@cache
def pillow() -> tuple[Any, tuple[str, ...]]:
    """Return Pillow's module Image, and the names of the formats that it reads by itself.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
    """
    need("decoding images", "shardio[image]", "Pillow")
    from PIL import Image

    Image.init()
    return Image, tuple(name for name in Image.ID if name not in _NEVER)
