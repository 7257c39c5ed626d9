"""The two forms in which records come to a codec: a sequence of payloads, or ranges of one buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardio import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Payloads", "as_list", "as_records", "count_of", "in_one_buffer"]

# Payloads, or records lying in one buffer: (buffer, starts, stops), half-open ranges in bytes.
Payloads: TypeAlias = "Sequence[bytes] | tuple[Any, Any, Any]"


def as_records(payloads: Payloads) -> kernels.Records | Sequence[Any]:
    """Return what the kernels take."""
    if _lies_in_buffer(payloads):
        return kernels.Records(*payloads)
    _refuse_one(payloads)
    return payloads


def count_of(payloads: Payloads) -> int:
    """Return how many records there are."""
    return len(payloads[1]) if _lies_in_buffer(payloads) else len(payloads)


def as_list(payloads: Payloads) -> list[bytes]:
    """Return the payloads as bytes objects of their own.

    Raises:
        IndexError: bounds leave the buffer.
    """
    if _lies_in_buffer(payloads):
        return kernels.slice_records(*payloads)
    _refuse_one(payloads)
    return [bytes(payload) for payload in payloads]


def in_one_buffer(payloads: Payloads) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the payloads as a buffer with bounds."""
    if _lies_in_buffer(payloads):
        buffer, starts, stops = payloads
        return buffer, np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    _refuse_one(payloads)
    offsets = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum([len(payload) for payload in payloads], out=offsets[1:])
    return b"".join(payloads), offsets[:-1], offsets[1:]


def _refuse_one(payloads: object) -> None:
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        message = "expected a sequence of payloads, or (buffer, starts, stops); found one payload"
        raise TypeError(message)
    if not hasattr(payloads, "__len__"):
        message = f"expected a sequence of payloads, found {type(payloads).__name__}; make a list of it"
        raise TypeError(message)


def _lies_in_buffer(payloads: Payloads) -> bool:
    return (
        isinstance(payloads, tuple) and len(payloads) == 3 and not isinstance(payloads[1], bytes | memoryview)
    )
