"""The names that a room offers."""

from __future__ import annotations

import inspect
import re
from types import ModuleType


def offered(module: ModuleType) -> list[str]:
    """All that `__all__` names; in rooms for the house alone, what `__init__` imports by `name as name`."""
    return getattr(module, "__all__", None) or re.findall(r"\b(\w+) as \1\b", inspect.getsource(module))
