"""Processes that run side by side, all of which must end well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.context import BaseContext


def run_together(
    context: BaseContext, target: Callable[..., object], each: Iterable[tuple[Any, ...]]
) -> None:
    """Run a function in a process for each tuple of arguments, at once, and wait for all of them."""
    processes = [context.Process(target=target, args=args) for args in each]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
