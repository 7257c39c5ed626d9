"""Packages that take seconds to import, imported when a test uses them and not when tests are collected."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType


def imported_when_used(name: str) -> ModuleType:
    """Return a module that is loaded when its first attribute is looked up."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed"
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
