"""Errors by what a program can use: their class, their fields, and the names that they mention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def refused(
    error: type[Exception] | tuple[type[Exception], ...], *names: str, **fields: Any
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error that mentions these names (features, options, files) and has these fields."""
    with pytest.raises(error) as caught:
        yield caught
    for name in names:
        assert name in str(caught.value), f"{name} is not in {caught.value}"
    for field, value in fields.items():
        assert getattr(caught.value, field) == value, field
