# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Resize images as Pillow does."""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.shardio.kernels._compiled._resize import shardio_resize

from shardio.kernels._arguments import as_box, as_images

COMPILED = cython.compiled


def resize_image(source, out, *, box=None, bicubic=False, flip=False):
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
    source = as_images(source, out)
    part: cython.const[cython.float][::1] = as_box(box, source)
    rows: cython.const[uint8_t][:, :, :] = source
    made: uint8_t[:, :, ::1] = out
    kind: cython.int = 1 if bicubic else 0
    mirror: cython.int = 1 if flip else 0
    failed: cython.int
    with cython.nogil:
        failed = shardio_resize(
            cython.address(rows[0, 0, 0]),
            rows.strides[0],
            cython.cast(cython.int, rows.shape[0]),
            cython.cast(cython.int, rows.shape[1]),
            cython.cast(cython.int, rows.shape[2]),
            cython.address(made[0, 0, 0]),
            cython.cast(cython.int, made.shape[0]),
            cython.cast(cython.int, made.shape[1]),
            cython.address(part[0]),
            kind,
            mirror,
        )
    if failed:
        raise MemoryError
