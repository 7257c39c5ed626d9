"""What the encoders of records are given, and what is said of what they do not take."""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_MESSAGE = (1 << 31) - 1  # bytes; protobuf's own limit


def is_packed(value: tuple[Any, ...]) -> bool:
    """Tell whether a tuple is of the form that `pack_list` returns."""
    return len(value) == 2 and value[0] in (1, 2, 3) and type(value[1]) is bytes


def too_large(size: int) -> ValueError:
    """Say that a message would be larger than protobuf allows."""
    return ValueError(f"the record would take {size} bytes as a message and protobuf allows {MAX_MESSAGE}")


def wrong_value(value: Any) -> TypeError:
    """Say what a value of one record may be."""
    found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"{value!r:.60}"
    return TypeError(
        f"expected int, float, bytes, a list of bytes, an array of int64 or float32, or None, found {found}"
    )


def wrong_name(name: Any) -> TypeError:
    """Say that features are named by text."""
    return TypeError(f"expected the name of a feature as str, found {name!r:.60}")
