# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# Resize images as Pillow does.

from libc.stdint cimport uint8_t
from shardio.kernels._compiled._resize cimport shardio_resize

from shardio.kernels._arguments import as_box, as_images


# Resize an image, or a part of it, as Pillow does, antialiased, first along rows and then along columns.
#
# Args:
#     source: uint8 [height, width, channels] with 1 or 3 channels; may be a part of a larger image.
#     out: uint8 [height, width, channels], C-contiguous; is filled.
#     box: left, top, right and bottom of the part, in pixels and fractions of them; None for all of it. As
#         Pillow's `box=`: at the edges of the part pixels beside it count, too.
#     bicubic: take Pillow's bicubic filter instead of the bilinear one.
#     flip: mirror left and right.
#
# Raises:
#     ValueError: arrays that do not fit each other, or a box that is not in the image.
#     MemoryError: there is no memory for the rows in between.
def resize_image(source, out, *, box=None, bicubic=False, flip=False):
    source = as_images(source, out)
    cdef const float[::1] part = as_box(box, source)
    cdef const uint8_t[:, :, :] rows = source
    cdef uint8_t[:, :, ::1] made = out
    cdef int kind = 1 if bicubic else 0
    cdef int mirror = 1 if flip else 0
    cdef int failed
    with nogil:
        failed = shardio_resize(
            &rows[0, 0, 0],
            rows.strides[0],
            <int> rows.shape[0],
            <int> rows.shape[1],
            <int> rows.shape[2],
            &made[0, 0, 0],
            <int> made.shape[0],
            <int> made.shape[1],
            &part[0],
            kind,
            mirror,
        )
    if failed:
        raise MemoryError
