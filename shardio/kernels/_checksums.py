"""CRC-32C and the mask that TFRecord puts on it, the same in both implementations."""

from __future__ import annotations

from typing import Any, TypeVar

import crc32c as _library
from numpy.typing import NDArray

Crc = TypeVar("Crc", int, NDArray[Any])


def crc32c(data: Any, value: int = 0) -> int:
    """Compute the CRC-32C (Castagnoli) of a contiguous buffer, continuing from `value`."""
    return _library.crc32c(data, value)


def mask_crc(crc: Crc) -> Crc:
    """Mask CRCs as TFRecord stores them, so that one of bytes which hold a CRC stays meaningful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
