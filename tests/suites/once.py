"""What is dear to make is made once in a run, whichever of its processes asks first."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from typing import Any

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` gives, by way of JSON; the other processes that run tests wait for it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return json.loads(json.dumps(make()))
    kept = factory.getbasetemp().parent / f"{name}.json"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(make()), "utf-8")
    return json.loads(kept.read_text("utf-8"))
