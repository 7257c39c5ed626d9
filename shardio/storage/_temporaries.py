"""The temporary files of this process, so that one which is stopped in the middle leaves none behind.

`finally` is not enough: a signal that arrives as it is entered, or in a finalizer, which ignores what is
raised in it, leaves the file.
"""

from __future__ import annotations

import os
import secrets

from shardio.storage._keys import TEMPORARY

_paths: set[str] = set()


def new_temporary(folder: str | os.PathLike[str]) -> str:
    """Return the path of a temporary in a folder; the caller makes it and gives it to `remove_temporary`."""
    path = os.path.join(folder, TEMPORARY + secrets.token_hex(12))
    _paths.add(path)
    return path


def remove_temporary(path: str) -> None:
    """Remove a temporary, if it is still there; what fails leaves a file that `shardio gc` lists."""
    try:  # noqa: SIM105 - at a call of `suppress` an interrupt would come between
        os.unlink(path)
    except OSError:
        pass
    _paths.discard(path)


def remove_temporaries() -> None:
    """Remove all temporaries of this process, which is about to end."""
    for path in list(_paths):
        remove_temporary(path)


if hasattr(os, "register_at_fork"):  # those of its parent are not a child's
    os.register_at_fork(after_in_child=_paths.clear)
