"""Images in another size, by Pillow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardio.kernels._arguments import as_box, as_images


def resize_image(
    source: NDArray[np.uint8],
    out: NDArray[np.uint8],
    *,
    box: tuple[float, float, float, float] | None = None,
    bicubic: bool = False,
    flip: bool = False,
) -> None:
    """Resize an image, or a part of it, as Pillow does, antialiased, first along rows and then along columns.

    Args:
        source: uint8 [height, width, channels] with 1 or 3 channels; may be a part of a larger image.
        out: uint8 [height, width, channels], C-contiguous; is filled.
        box: left, top, right and bottom of the part, in pixels and fractions of them; None for all of it. As
            Pillow's `box=`: at the edges of the part pixels beside it count, too.
        bicubic: take Pillow's bicubic filter instead of the bilinear one.
        flip: mirror left and right.

    Raises:
        ValueError: arrays that do not fit each other, or a box that is not in the image.
        MemoryError: there is no memory for the rows in between.
    """
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
