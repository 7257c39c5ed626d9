"""NumPy columns as tensors over the same memory, and the values of transforms as batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from shardio.codecs import RaggedColumn, common_names

# What torch has; NumPy's long doubles and structures stay arrays.
_KNOWN = frozenset("?bBhHiIlLqQefdFD")
_NUMBERS = (bool, int, float, np.number, np.bool_)


@dataclass(frozen=True, eq=False, slots=True)
class RaggedTensor(RaggedColumn):
    """Rows of differing length, as tensors; what loaders give for features such as `"int32[?]"`.

    Has the attributes and methods of `shardio.codecs.RaggedColumn`: `values`, `offsets`, `lengths`, `pad`,
    `mask`, `varlen`, `position_ids`. Trainers and torch's loaders move and pin it as they do tensors.

    Examples:
        >>> column = RaggedTensor(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
        >>> column.pad(value=-100)
        tensor([[   1,    2],
                [   3, -100]])
        >>> column.to(torch.float32)[0]
        tensor([1., 2.])
    """

    values: Any
    offsets: Any
    shapes: Any = None

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        device: torch.device = self.offsets.device
        return device

    def to(self, *args: Any, **kwargs: Any) -> RaggedTensor:
        """Return the column on another device, or with values of another dtype.

        Args:
            args, kwargs: those of `torch.Tensor.to`. Values that are not tensors, such as text, stay.
        """
        non_blocking = kwargs.get("non_blocking", False)
        if isinstance(self.values, (torch.Tensor, RaggedTensor)):
            values = self.values.to(*args, **kwargs)
            device = values.device
        else:
            values, device = self.values, torch.empty(0).to(*args, **kwargs).device
        offsets = self.offsets.to(device, non_blocking=non_blocking)
        shapes = None if self.shapes is None else self.shapes.to(device, non_blocking=non_blocking)
        return RaggedTensor(values, offsets, shapes)

    def pin_memory(self) -> RaggedTensor:
        """Return the column in page-locked memory; torch's `DataLoader(pin_memory=True)` calls this."""
        return RaggedTensor(pin(self.values), pin(self.offsets), pin(self.shapes))

    def nested(self) -> torch.Tensor:
        """Return a nested tensor of jagged layout over the same memory, one tensor for each row."""
        self._check_flat("nested")
        made: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.values, self.offsets)
        return made

    def _arange(self, stop: int) -> Any:
        return torch.arange(stop, device=self.device)

    def _repeat(self, values: Any, counts: Any) -> Any:
        return torch.repeat_interleave(values, counts)

    def _int32(self, values: Any) -> Any:
        return values.to(torch.int32)

    def _full(self, shape: tuple[int, ...], value: Any) -> Any:
        dtype = self.values.dtype
        try:
            one = torch.full((), value, dtype=dtype).item()
            kept = one == value or one != one  # noqa: PLR0124 - NaN
            kept = kept or (dtype.is_floating_point and math.isfinite(one))
        except (RuntimeError, TypeError, OverflowError):
            kept = False
        if not kept:
            raise ValueError(f"value={value!r} does not fit {dtype}: write column.to(torch.int64) first")
        return torch.full(shape, value, dtype=dtype, device=self.device)

    @classmethod
    def of_rows(cls, rows: Sequence[Any], dtype: Any = None, shape: tuple[int | None, ...] = (None,)) -> Self:
        """Lay tensors or arrays, which differ in their first size only, one after another.

        Args:
            rows: of one dtype, such as the values that a `collate_fn` is given.
            dtype: of the values; None for that of the first row, or int64 where there is none.
            shape: of a row, for the inner sizes where there are no rows.
        """
        made = [row if isinstance(row, torch.Tensor) else tensors(np.asarray(row)) for row in rows]
        inner = [size or 0 for size in shape[1:]]
        dtype = dtype or (made[0].dtype if made else torch.int64)
        wrong = next((number for number, row in enumerate(made) if row.dtype != dtype or not row.ndim), None)
        if wrong is not None:
            raise TypeError(
                f"row {wrong} is {made[wrong].dtype} {list(made[wrong].shape)}, expected {dtype} [n, ...]"
            )
        lengths = torch.tensor([0, *map(len, made)], dtype=torch.int64)
        values = torch.cat(made) if made else torch.empty((0, *inner), dtype=dtype)
        return cls(values, torch.cumsum(lengths, 0).to(values.device))


def tensors(batch: Any) -> Any:
    """Return a batch with every numeric array as a tensor over its memory; nothing is copied.

    Ragged columns become `RaggedTensor`s; dicts, tuples and lists are gone through, text and
    bytes stay as they are. Arrays that torch cannot look at (read-only, of the other byte order, with
    negative strides) are copied.
    """
    if isinstance(batch, (np.ndarray, np.generic)):
        return _tensor(np.asarray(batch)) if batch.dtype.char in _KNOWN else batch
    return inside(batch, tensors)


def pin(batch: Any) -> Any:
    """Return a batch with its tensors in page-locked memory, from where copies to a device are fast."""
    return batch.pin_memory() if isinstance(batch, torch.Tensor) else inside(batch, pin)


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


def inside(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch with what is in its dicts, tuples, lists and ragged columns changed; text stays."""
    if isinstance(batch, dict):
        return {name: change(column) for name, column in batch.items()}
    if isinstance(batch, RaggedColumn):
        return RaggedTensor(change(batch.values), change(batch.offsets), change(batch.shapes))
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
