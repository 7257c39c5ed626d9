"""NumPy columns as tensors over the same memory, and the values of transforms as batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shardio.codecs import RaggedColumn
from shardio.streaming import common_names

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["collate", "pin", "tensors"]

# What torch has; NumPy's long doubles and structures stay arrays.
_KNOWN = frozenset("?bBhHiIlLqQefdFD")
_NUMBERS = (bool, int, float, np.number, np.bool_)


def tensors(batch: Any) -> Any:
    """Return a batch with every numeric array as a tensor over its memory; nothing is copied.

    Ragged columns keep their form, with tensors inside; dicts, tuples and lists are gone through, text and
    bytes stay as they are. Arrays that torch cannot look at (read-only, of the other byte order, with
    negative strides) are copied.
    """
    if isinstance(batch, (np.ndarray, np.generic)):
        return _tensor(np.asarray(batch)) if batch.dtype.char in _KNOWN else batch
    return _inside(batch, tensors)


def pin(batch: Any) -> Any:
    """Return a batch with its tensors in page-locked memory, from where copies to a device are fast."""
    return batch.pin_memory() if isinstance(batch, torch.Tensor) else _inside(batch, pin)


def collate(values: list[Any]) -> Any:
    """Return the batch of what a transform returned for each record, as torch's `default_collate` makes it.

    Tensors and arrays of one shape and dtype are stacked, numbers become a tensor; dicts and tuples are
    collated item by item. Unlike with `default_collate`, tensors of differing shapes, and whatever else torch
    has no tensor for, become a list instead of an error, and lists stay lists of lists.

    Raises:
        ValueError: dicts with different names.
    """
    if values and all(isinstance(value, dict) for value in values):
        return {name: _column([value[name] for value in values]) for name in common_names(values)}
    return _column(values)


def _column(values: list[Any]) -> Any:
    if not values:
        return []
    first = values[0]
    if isinstance(first, torch.Tensor) or (
        isinstance(first, np.ndarray) and any(isinstance(value, torch.Tensor) for value in values)
    ):
        made = [tensors(value) if isinstance(value, np.ndarray) else value for value in values]
        alike = all(isinstance(v, torch.Tensor) and _form(v) == _form(made[0]) for v in made)
        # A plain tensor, not the subclass that torchvision marks images with, as `default_collate` does.
        return torch.stack([tensor.as_subclass(torch.Tensor) for tensor in made]) if alike else values
    if isinstance(first, np.ndarray):
        alike = all(isinstance(value, np.ndarray) and _form(value) == _form(first) for value in values)
        return np.stack(values) if alike else values
    if all(isinstance(value, _NUMBERS) for value in values):
        array = np.array(values)
        return array if array.dtype.char in _KNOWN else values
    if all(isinstance(value, dict) for value in values):
        names = first.keys()
        if any(value.keys() != names for value in values):
            return values
        return {name: _column([value[name] for value in values]) for name in names}
    if all(isinstance(value, tuple) and len(value) == len(first) for value in values):
        columns = [_column(list(items)) for items in zip(*values, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return values


def _form(value: Any) -> Any:
    return value.shape, value.dtype


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
