"""CRC-32C and the mask that TFRecord puts on it, the same in both implementations."""

from __future__ import annotations

from typing import Any

import crc32c as _library

_MASK = 0xA282EAD8


def crc32c(data: Any, value: int = 0) -> int:
    """Compute the CRC-32C (Castagnoli) of a contiguous buffer, continuing from `value`."""
    return _library.crc32c(data, value)


def mask_crc(crc: int) -> int:
    """Mask a CRC as TFRecord stores it, so that a CRC of bytes which hold a CRC stays meaningful."""
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
