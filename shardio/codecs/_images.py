"""Image files: their type by their first bytes, and arrays of pixels; Pillow loads when first needed."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.errors import CorruptRecordError, FormatError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MAX_PIXELS", "decode_image", "image_type"]

# 256 MiB as RGB.  A few kilobytes can claim to be more; nothing is decoded beyond.
MAX_PIXELS = (256 << 20) // 3
# These hand the file to another program or library; data from a dataset must not choose a program to run.
_NEVER = frozenset({"EPS", "WMF", "FITS", "BUFR", "GRIB", "HDF5"})
_TO_RGBA = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})


def image_type(data: bytes) -> str | None:
    """Return the feature type of an image file by its first bytes, None where it is not an image.

    One rule for everything that infers types: Examples, converted values, members of tar files.

    Args:
        data: its first 16 bytes, or more.
    """
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith((b"II*\x00", b"MM\x00*")):
        return "tiff"
    if data.startswith((b"GIF87a", b"GIF89a", b"BM")):
        return "image"
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def decode_image(data: bytes | memoryview, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """Decode an image file to uint8 [height, width, channels].

    Grayscale has 1 channel, images with alpha (or a transparent palette) 4, everything else becomes RGB.
    Of 16-bit grayscale the high byte remains.  EXIF orientation is not applied; of several frames the first
    counts.

    Args:
        data: the file's bytes, in any format that Pillow reads by itself.
        size: (height, width) that suffice.  A JPEG is then decoded at 1/2, 1/4 or 1/8 of its size, the
            smallest that is still at least this large, several times faster; other formats come whole.

    Raises:
        CorruptRecordError: the bytes are no image, are damaged, or claim more than `MAX_PIXELS` pixels.
        FormatError: the pixels do not fit into uint8.
        ImportError: Pillow is not installed.
    """
    image_module, formats = _pillow()
    try:
        with image_module.open(io.BytesIO(data), formats=formats) as image:
            if size is not None:
                image.draft(None, (size[1], size[0]))
            _refuse_bomb(*image.size)
            return _pixels(image)
    except (FormatError, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise whatever broken bytes lead them to
        what = f"the image cannot be decoded ({type(error).__name__}: {error})"
        raise CorruptRecordError(what, advice="decode=True gives the file's bytes") from error


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        advice = "decode=True gives the file's bytes"
        what = f"an image of {width} x {height} pixels is refused"
        raise CorruptRecordError(what, expected=f"at most {MAX_PIXELS} pixels", advice=advice)


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    mode = image.mode
    if mode in ("I", "F") or mode.startswith("I;16"):
        wide = np.asarray(image)
        if mode == "F" or wide.min() < 0 or wide.max() > 0xFFFF:
            advice = "decode=True gives the file's bytes"
            what = f"pixels of mode {mode} do not fit into uint8"
            raise FormatError(what, advice=advice)
        return np.asarray(wide >> 8, np.uint8)[:, :, None]
    if mode in ("1", "L"):
        target = "L"
    elif mode in _TO_RGBA or (mode == "P" and "transparency" in image.info):
        target = "RGBA"
    else:
        target = "RGB"
    # np.array copies, so the result is writable and does not hold the file.
    array = np.array(image if mode == target else image.convert(target))
    return array[:, :, None] if array.ndim == 2 else array


@cache
def _pillow() -> tuple[Any, tuple[str, ...]]:
    try:
        from PIL import Image
    except ImportError as error:
        message = 'decoding images needs Pillow: pip install "shardio[image]"'
        raise ImportError(message) from error
    Image.init()
    return Image, tuple(name for name in Image.ID if name not in _NEVER)
