"""Packages that take seconds to import, imported when a test uses them and not when tests are collected."""

from __future__ import annotations

import importlib
from typing import Any


class imported_when_used:  # noqa: N801 - stands for a function that imports
    """A module that is imported when its first public name is looked up; pytest looks up private ones."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
