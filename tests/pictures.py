"""Small images, as files of any format that Pillow writes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def picture(number: int = 0, kind: str = "PNG", size: tuple[int, int] = (12, 10)) -> bytes:
    """Return a file of one colour, `size` being (width, height)."""
    pixels = np.full((size[1], size[0], 3), number, np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()
