"""Images in another size, by Pillow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.kernels._arguments import as_images

if TYPE_CHECKING:
    from numpy.typing import NDArray


def resize_image(
    source: NDArray[np.uint8], out: NDArray[np.uint8], *, bicubic: bool = False, flip: bool = False
) -> None:
    """Resize an image as Pillow does, antialiased, first along its rows and then along its columns.

    Args:
        source: uint8 [height, width, channels] with 1 or 3 channels; may be a part of a larger image.
        out: uint8 [height, width, channels], C-contiguous; is filled.
        bicubic: take Pillow's bicubic filter instead of the bilinear one.
        flip: mirror left and right.

    Raises:
        ValueError: arrays that do not fit each other.
        MemoryError: there is no memory for the rows in between.
    """
    from PIL import Image

    source = as_images(source, out)
    height, width, channels = out.shape
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    image = Image.fromarray(source[:, :, 0] if channels == 1 else np.ascontiguousarray(source))
    # In two calls: by itself Pillow may begin with the columns, which rounds otherwise.
    made = np.asarray(image.resize((width, image.height), resample).resize((width, height), resample))
    out[:] = made.reshape(out.shape)[:, ::-1] if flip else made.reshape(out.shape)
