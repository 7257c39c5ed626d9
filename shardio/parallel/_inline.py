"""Executors of this machine: so many processes, or none where the work is too small for one."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InlineExecutor", "local_executor"]


class InlineExecutor(Executor):
    """Run each call at once, in the caller's own thread."""

    # How many tasks a driver keeps under way depends on it.
    _max_workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function and return its outcome as a finished future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future carries it, as that of a pool does
            future.set_exception(error)
        return future


def local_executor(workers: int) -> Executor:
    """Return an executor of so many processes on this machine; of this process alone for one."""
    if workers < 1:
        message = f"workers={workers} must be at least 1"
        raise ValueError(message)
    return InlineExecutor() if workers == 1 else ProcessPoolExecutor(workers)
