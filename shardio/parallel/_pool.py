"""A process pool of our own: its workers end with it, and with the process that made it, however that ends.

Left alone, the workers of a `ProcessPoolExecutor` outlive a parent that was killed, hold each other's pipes
open forever, and print a traceback each at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_start_method
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any

from shardio.parallel._parent_watch import end_with_parent, worker_folder
from shardio.storage import fork_is_meant, remove_temporaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

# Seconds in which a worker told to stop may clean up; a flush of its files may wait for a busy disk.
_GRACE = 60.0

_SLOTS = 4096  # tasks under way whose records are counted apart
_BEAT_SECONDS = 1.0

_busy = False
_stopping = False
_inherited: Any = None  # records of the tasks under way, shared with the driver


class _StoppedError(BaseException):
    """The driver wants no more of this task; not an `Exception`, which callers' functions may catch."""


class TaskCounts:
    """Records that tasks under way have written; workers of our own pool share them with the driver.

    Args:
        show: called about once a second while tasks run, in the thread that made this.

    Attributes:
        error: what `show` has raised; it is not called again.
    """

    error: Exception | None = None

    def __init__(self, show: Callable[[], None] | None = None, records: Any = None) -> None:
        self.records = records or RawArray("Q", _SLOTS)
        self._show, self._thread, self._next = show, threading.get_ident(), 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited_counts, ()

    def clear(self, task: int) -> None:
        """Count a task that begins, or whose result has arrived, as nothing."""
        self.records[task % _SLOTS] = 0

    def watch(self, task: int, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the values of a task, and count those that were taken."""
        for value in values:
            yield value
            self.records[task % _SLOTS] += 1
            self.beat()

    def beat(self) -> None:
        """Show how far the tasks are, if it is time."""
        if self._show is None or threading.get_ident() != self._thread or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _BEAT_SECONDS
        try:
            self._show()
        except Exception as error:  # noqa: BLE001 - the driver raises it; here an item would be blamed for it
            self._show, self.error = None, error

    def total(self) -> int:
        """Return the records of all tasks under way."""
        return sum(self.records)


def _inherited_counts() -> TaskCounts | None:
    return None if _inherited is None else TaskCounts(records=_inherited)


def make_pool(workers: int | None = None, counts: TaskCounts | None = None) -> ProcessPoolExecutor:
    """Return a pool of so many workers (None: one per processor), started the way this Python does."""
    # Of these only a fork server has sockets, in a folder that a killed parent leaves behind.
    folder = worker_folder() if get_start_method() == "forkserver" else None
    begin = (folder, None if counts is None else counts.records)
    return ProcessPoolExecutor(workers, initializer=_begin_worker, initargs=begin)


def stop_pool(pool: ProcessPoolExecutor) -> None:
    """End a pool now: tasks under way clean up, workers that take too long are killed, none is left."""
    # `terminate_workers` came with Python 3.14; before it there is no public way to the processes.
    workers = list((getattr(pool, "_processes", None) or {}).values())
    alive = {worker.sentinel: worker for worker in workers}
    try:
        for worker in workers:
            with contextlib.suppress(OSError, ValueError):
                worker.terminate()
        while alive:
            ended = connection.wait(list(alive), timeout=_GRACE)
            if not ended:
                break
            for sentinel in ended:
                del alive[sentinel]
    finally:
        # At once where another Ctrl-C comes.
        for worker in alive.values():
            with contextlib.suppress(OSError, ValueError):
                worker.kill()
        # Its futures are left as they are: a pool that finds its workers dead stumbles over cancelled ones.
        pool.shutdown(wait=True)


def check_travels(function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be sent to another process, before anything is begun.

    Raises:
        TypeError: it is a lambda, or defined within another function.
    """
    try:
        pickle.dumps(function)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        message = (
            f"fn={name} cannot be sent to worker processes ({error}); define it at the top of a module, "
            "or give another executor="
        )
        raise TypeError(message) from error


def run_in_worker(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a worker so that SIGTERM ends it in good order."""
    global _busy  # noqa: PLW0603 - the state of this process
    try:
        _busy = True
        return function(*arguments)
    except BaseException:
        if not _stopping:
            raise
    finally:
        _busy = False
        if _stopping:
            remove_temporaries()
            os._exit(1)


def check_stopped() -> None:
    """End the task of this worker if it was told to stop; a finalizer may have swallowed what said so."""
    if _stopping:
        raise _StoppedError


def _begin_worker(folder: str | None, records: Any) -> None:
    global _inherited  # noqa: PLW0603 - the state of this process
    _inherited = records
    # Ctrl-C on a terminal reaches all processes; the driver hears it and says what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    fork_is_meant()

    def stop() -> None:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        # The main thread may be in the middle of a task, which cleans up as when the driver stops it.
        os.kill(os.getpid(), signal.SIGTERM)

    end_with_parent(stop=stop)


def _stop(_number: int, _frame: FrameType | None) -> None:
    global _stopping  # noqa: PLW0603 - the state of this process
    if not _busy:
        os._exit(1)
    if not _stopping:
        _stopping = True
        raise _StoppedError
