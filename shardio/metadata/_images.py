"""Which bytes are an image file, and of which type of feature.

The formats that nearly all datasets hold are told by their first bytes; of all others Pillow is asked, which
reads them later.
"""

from __future__ import annotations

import io
from functools import cache
from typing import Any

from shardio.arguments import need

# These hand the file to another program or library; data from a dataset must not choose a program to run.
_NEVER = frozenset({"EPS", "WMF", "FITS", "BUFR", "GRIB", "HDF5"})


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
    if data.startswith((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")):
        return "tiff"
    if data.startswith((b"GIF87a", b"GIF89a", b"BM")):
        return "image"
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


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
    image_module, formats = pillow()
    try:
        image_module.open(io.BytesIO(data), formats=formats).close()
    except image_module.DecompressionBombError:
        return True  # an image, however large; decoding says what is too large
    except Exception:  # noqa: BLE001 - Pillow's plugins raise whatever broken bytes lead them to
        return False
    return True


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
