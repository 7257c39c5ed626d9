"""What callers give as an integer: the one rule of what is taken for one."""

from __future__ import annotations

import operator
from typing import SupportsIndex

__all__ = ["integer"]


def integer(name: str, value: object) -> int:
    """Return an argument as a plain `int`: integers of NumPy and other libraries are taken, bools are not.

    Raises:
        TypeError: it is anything else; names the argument.

    Examples:
        >>> import numpy as np
        >>> integer("seed", np.int64(3))
        3
    """
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        try:
            return operator.index(value)
        except TypeError:  # an array, a tensor of floats: whether it is an integer depends on what it holds
            pass
    message = f"{name} must be an integer, found {value!r}"
    raise TypeError(message)
