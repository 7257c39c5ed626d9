"""`.npy` files as bytes: the header's claim is compared with the bytes that are there."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parse_npy(data: bytes | memoryview) -> NDArray[Any]:
    """Return the array of a `.npy` file, over the same memory; pickled objects are never loaded.

    `numpy.load` allocates what the header claims before it reads.

    Raises:
        ValueError: it is no array, or not as long as its header says.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version} of the format")  # noqa: TRY301 - said as others are
        # Versions differ in the length and the encoding of the header; NumPy's names for it are private.
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, in_columns, dtype = read(stream)
    except (
        EOFError,
        MemoryError,
        OverflowError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(f"no array: {error!r:.200}") from error
    if dtype.hasobject:
        raise ValueError("an array of pickled objects, which are never loaded")
    start, count = stream.tell(), math.prod(shape)
    if any(size < 0 for size in shape) or start + count * dtype.itemsize != len(data) or not dtype.itemsize:
        raise ValueError(
            f"an array of shape {shape!r:.100} and type {dtype!s:.100} has {count * dtype.itemsize} bytes, "
            f"and the file holds {len(data) - start}"
        )
    flat = np.frombuffer(data, dtype, count, start)
    return flat.reshape(shape, order="F" if in_columns else "C")
