"""Cases of a law that `make test` tries once, and `make test-slow` with everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_fast(cases: Iterable[Any], fast: int = 0) -> list[Any]:
    """Return parametrized cases of which all but one are slow.

    Args:
        cases: values, or tuples of values.
        fast: the place of the one that is not slow.
    """
    return [
        case
        if place == fast
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]
