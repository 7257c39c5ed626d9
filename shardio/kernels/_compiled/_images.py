# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Images in another size, compiled: the same function as in `_reference`, which documents it."""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.shardio.kernels._compiled._resize import shardio_resize

from shardio.kernels._arguments import as_box, as_images

COMPILED = cython.compiled


def resize_image(source, out, *, box=None, bicubic=False, flip=False):
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
