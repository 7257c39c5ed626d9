"""Images in another size, by Pillow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.kernels.reference._shared import as_box, as_images


def resize_image(
    source: NDArray[np.uint8],
    out: NDArray[np.uint8],
    *,
    box: tuple[float, float, float, float] | None = None,
    bicubic: bool = False,
    flip: bool = False,
) -> None:
    from PIL import Image

    source = as_images(source, out)
    left, top, right, bottom = as_box(box, source).tolist()
    height, width, channels = out.shape
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    image = Image.fromarray(source[:, :, 0] if channels == 1 else np.ascontiguousarray(source))
    # In two calls: by itself Pillow may begin with the columns, which rounds otherwise.
    rows = image.resize((width, image.height), resample, (left, 0, right, image.height))
    made = np.asarray(rows.resize((width, height), resample, (0, top, width, bottom)))
    out[:] = made.reshape(out.shape)[:, ::-1] if flip else made.reshape(out.shape)
