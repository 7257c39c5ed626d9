"""From values to columns, and from the columns of many steps to those of one.

What a batch looks like depends on its own records alone: not on the steps that were decoded together with
it, so not on who delivers it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["cut", "stack"]

_NUMBERS = (bool, int, float, np.number, np.bool_)


def cut(columns: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """Return rows `low .. high - 1` of every column, as views.

    A list of arrays (images of differing sizes) whose rows happen to be alike here becomes one array.
    """
    return {name: _cut(column, low, high) for name, column in columns.items()}


def _cut(column: Any, low: int, high: int) -> Any:
    if isinstance(column, dict):  # the two halves of a sequence example
        return cut(column, low, high)
    part = column[low:high]
    if isinstance(part, list) and part and isinstance(part[0], np.ndarray) and _alike(part):
        return np.stack(part)
    return part


def stack(values: list[Any]) -> dict[str, Any]:
    """Bring the values that a transform returned into columns.

    Arrays of one shape and dtype become one array [n, ...], numbers an array [n], everything else a list.
    What is no mapping becomes the one column `"value"`.

    Raises:
        ValueError: the values do not have the same names.
    """
    if not values:
        return {}
    if not all(isinstance(value, dict) for value in values):
        return {"value": _column(values)}
    names = values[0].keys()
    for value in values:
        if value.keys() != names:
            message = (
                "a transform must return the same names for every record: "
                f"{sorted(map(str, names))}, then {sorted(map(str, value))}"
            )
            raise ValueError(message)
    return {name: _column([value[name] for value in values]) for name in names}


def _column(values: list[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.stack(values) if _alike(values) else values
    if all(isinstance(value, _NUMBERS) for value in values):
        return np.array(values)
    return values


def _alike(values: list[Any]) -> bool:
    shape, dtype = values[0].shape, values[0].dtype
    return all(
        isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype for value in values
    )
