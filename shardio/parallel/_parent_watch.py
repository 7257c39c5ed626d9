"""Worker processes that end with their parent and leave no file behind.

A parent that is killed cannot end its workers. They notice it late, and under some start methods never: a
worker of a fork server waits for the server, and the server waits for its workers. So each worker has a
thread that watches its parent, whatever started it and on whatever system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from multiprocessing import connection, parent_process, util
from typing import TYPE_CHECKING

from shardio.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

_CLEANING_SECONDS = 5.0
_STOPPING_SECONDS = 10.0
# Between two looks at the number of the parent; the sentinel says at once what it says.
_LOOK_SECONDS = 1.0
# What `sun_path` holds besides its final zero: 108 bytes on Linux, 104 on macOS and the BSDs.
_SOCKET_PATH = 107 if sys.platform.startswith("linux") else 103
_watching: int | None = None


def worker_folder() -> str | None:
    """Return where multiprocessing keeps the sockets of this process and its workers, if that is its own.

    It must exist before workers start: they use it instead of folders of their own, which would stay where a
    worker is killed; this one goes with this process. A process that is a worker itself may share its
    parent's.

    Raises:
        StorageError: its path leaves no room for the name of a socket. Workers would then lose their batches
            one by one, and their parent would wait for them forever.
    """
    folder: str = util.get_temp_dir()
    if sys.platform != "win32" and len(os.fsencode(folder)) + len("/listener-12345678") > _SOCKET_PATH:
        raise StorageError(
            "the folder for temporary files has too long a path for the sockets of worker processes",
            url=folder,
            expected=f"at most {_SOCKET_PATH - len('/listener-12345678')} bytes",
            found=len(os.fsencode(folder)),
            advice="set TMPDIR to a shorter one, or use threads",
        )
    return folder if parent_process() is None else None


def end_with_parent(folder: str | None = None, *, stop: Callable[[], None] | None = None) -> None:
    """End this process as soon as the one that started it is gone; does nothing outside of multiprocessing.

    Args:
        folder: is then removed; what `worker_folder` returned in the parent.
        stop: called then, in a thread of its own; asks the work under way to end in good order, for which it
            has ten seconds.
    """
    global _watching  # noqa: PLW0603 - one thread a process is enough
    parent = parent_process()
    if parent is None or _watching == os.getpid():
        return
    _watching = os.getpid()
    # A fork server, not the parent, has started its workers.
    number = parent.pid if os.getppid() == parent.pid else None
    arguments = (parent.sentinel, number, folder, stop)
    threading.Thread(target=_watch, args=arguments, name="shardio-parent", daemon=True).start()


def _watch(sentinel: int, number: int | None, folder: str | None, stop: Callable[[], None] | None) -> None:
    # The other end of a forked worker's sentinel is inherited by all processes that its parent forks
    # afterwards; while one of them lives the sentinel says nothing, and the parent's number tells.
    while not connection.wait([sentinel], _LOOK_SECONDS):
        if number is not None and os.getppid() != number:
            break
    if stop is not None:
        with contextlib.suppress(Exception):  # this process ends in any case
            stop()
            threading.Event().wait(_STOPPING_SECONDS)
    # Finalisers may wait for the dead, so they are given a thread and some seconds. What they do is what
    # multiprocessing does when a worker ends: remove its sockets.
    cleaning = threading.Thread(target=_clean, args=(folder,), daemon=True)
    cleaning.start()
    cleaning.join(_CLEANING_SECONDS)
    os._exit(1)


def _clean(folder: str | None) -> None:
    run = getattr(util, "_run_finalizers", None)
    if run is not None:
        run()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
