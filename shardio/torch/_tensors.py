"""NumPy columns as tensors over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shardio.codecs import RaggedColumn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["pin", "tensors"]

# What torch has; NumPy's long doubles and structures stay arrays.
_KNOWN = frozenset("?bBhHiIlLqQefdFD")


def tensors(batch: Any) -> Any:
    """Return a batch with every numeric array as a tensor over its memory; nothing is copied.

    Ragged columns keep their form, with tensors inside; dicts, tuples and lists are gone through, text and
    bytes stay as they are. Arrays that torch cannot look at (read-only, of the other byte order, turned
    round) are copied.
    """
    if isinstance(batch, (np.ndarray, np.generic)):
        return _tensor(np.asarray(batch)) if batch.dtype.char in _KNOWN else batch
    return _inside(batch, tensors)


def pin(batch: Any) -> Any:
    """Return a batch with its tensors in page-locked memory, from where copies to a device are fast."""
    return batch.pin_memory() if isinstance(batch, torch.Tensor) else _inside(batch, pin)


def _inside(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, dict):
        return {name: change(column) for name, column in batch.items()}
    if isinstance(batch, RaggedColumn):
        return RaggedColumn(change(batch.values), change(batch.offsets), change(batch.shapes))
    if isinstance(batch, tuple):
        items = [change(item) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)
    if isinstance(batch, list) and not all(isinstance(item, (str, bytes)) for item in batch):
        return [change(item) for item in batch]
    return batch


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)
