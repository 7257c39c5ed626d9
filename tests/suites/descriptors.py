"""Descriptors of this process: those that other tests have left open, or close meanwhile, do not count."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_in(folder: str | Path) -> set[int]:
    """Return the descriptors that are open on what lies, or lay, in a folder; on Linux."""
    found, root = set(), str(Path(folder).resolve())
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            if str(path.readlink()).startswith(root + os.sep):
                found.add(int(path.name))
    return found
