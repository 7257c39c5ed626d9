"""Uploads in the background: a bounded number under way, acknowledged in the order in which they were begun.

What is stored may end in any order, but a receipt acknowledges everything before it; so each upload has two
parts: one that runs beside others, and one that runs after those of all uploads begun before, and only if
they succeeded.  Each upload has a thread of its own; none is left once `finish` or `cancel` returns.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread


class Uploads:
    """Uploads of one writer; begun and awaited by one thread.

    Args:
        at_once: how many may be under way; what they need (spool files, indexes) is bounded by it.
    """

    def __init__(self, at_once: int = 3) -> None:
        if at_once < 1:
            raise ValueError(f"at_once={at_once} must be at least 1")
        self._at_once = at_once
        self._under_way: collections.deque[tuple[Future[None], Thread]] = collections.deque()
        self.cancelled = False

    def begin(self, store: Callable[[], None], acknowledge: Callable[[], None]) -> None:
        """Start an upload; waits while too many are under way.

        Args:
            store: runs at once, beside others.
            acknowledge: runs after `store`, once those of all uploads begun before have succeeded.

        Raises:
            Exception: what an earlier upload failed with; this one was not begun.
        """
        while len(self._under_way) >= self._at_once:
            self._await_first()
        self.check()
        done = Future[None]()
        before = self._under_way[-1][0] if self._under_way else None
        # Daemonic, so that a second Ctrl-C need not wait for a slow network.
        arguments = done, before, store, acknowledge
        thread = Thread(target=self._run, args=arguments, name="shardio-upload", daemon=True)
        self._under_way.append((done, thread))
        thread.start()

    def check(self) -> None:
        """Raise what an upload has failed with, if one has.

        Raises:
            Exception: of the first upload, in the order in which they were begun, that has failed by now.
        """
        for done, _ in self._under_way:
            if done.done():
                done.result()

    def finish(self) -> None:
        """Wait for all uploads.

        Raises:
            Exception: of the first one that failed; those after it are not acknowledged, stored or not.
        """
        while self._under_way:
            self._await_first()

    def cancel(self) -> None:
        """Wait until no upload is under way any more; those that are not acknowledged yet stay so."""
        self.cancelled = True
        while self._under_way:
            _join(*self._under_way[0])
            self._under_way.popleft()

    def _await_first(self) -> None:
        done, thread = self._under_way[0]
        _join(done, thread)
        # One that failed stays the first, so that asking again gives the same.
        done.result()
        self._under_way.popleft()

    def _run(
        self,
        done: Future[None],
        before: Future[None] | None,
        store: Callable[[], None],
        acknowledge: Callable[[], None],
    ) -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            store()
            if before is not None:
                before.result()
            if not self.cancelled:
                acknowledge()
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asks
            done.set_exception(error)
        finally:
            # The error holds this frame, and would hold the writer and its files.
            del self, done, before, store, acknowledge


def _join(done: Future[None], thread: Thread) -> None:
    """Wait until an upload has ended; what an interrupt kept from starting has, and will do nothing more."""
    if thread.ident is None and done.cancel():
        return
    # Not `Thread.join` first: when a signal interrupts that one, CPython 3.11 takes the thread for ended.
    wait([done])
    if thread.ident is not None:
        thread.join()
