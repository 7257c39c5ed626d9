"""Uploads in the background: a bounded number under way, acknowledged in the order in which they were begun.

What is stored may end in any order, but a receipt acknowledges everything before it; so each upload has two
parts: one that runs beside others, and one that runs after those of all uploads begun before, and only if
they succeeded.  Each upload has a thread of its own; none is left once `finish` or `cancel` returns.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable


class Uploads:
    """Uploads of one writer; begun and awaited by one thread.

    Args:
        at_once: how many may be under way; what they need (spool files, indexes) is bounded by it.
    """

    def __init__(self, at_once: int = 3) -> None:
        if at_once < 1:
            raise ValueError(f"at_once={at_once} must be at least 1")
        self._at_once = at_once
        self._under_way: collections.deque[_UploadThread] = collections.deque()
        self._last: _UploadThread | None = None
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
        upload = _UploadThread(store, acknowledge, self._last, self)
        self._last = upload
        self._under_way.append(upload)
        upload.start()

    def check(self) -> None:
        """Raise what an upload has failed with, if one has.

        Raises:
            Exception: of the first upload, in the order in which they were begun, that has failed by now.
        """
        for upload in self._under_way:
            if upload.failure is not None:
                raise upload.failure

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
            self._under_way[0].join()
            self._under_way.popleft()

    def _await_first(self) -> None:
        first = self._under_way[0]
        first.join()
        if first.failure is not None:
            # It stays the first, so that asking again gives the same.
            raise first.failure
        self._under_way.popleft()


class _UploadThread:
    """One upload and its thread."""

    def __init__(
        self,
        store: Callable[[], None],
        acknowledge: Callable[[], None],
        before: _UploadThread | None,
        group: Uploads,
    ) -> None:
        self.failure: BaseException | None = None
        self._work: tuple[Callable[[], None], Callable[[], None]] | None = (store, acknowledge)
        self._before = before
        self._group = group
        self._ended = threading.Event()
        # Taken by the thread before it does anything, or by who finds that it was not started.
        self._turn = threading.Lock()
        self._started = False
        # Daemonic, so that a second Ctrl-C need not wait for a slow network.
        self._thread = threading.Thread(target=self._run, name="shardio-upload", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:
            # No thread could be had; or an interrupt, and it may have started or not.
            self.failure = error
            raise
        self._started = True

    def join(self) -> None:
        """Wait until it has ended; what an interrupt kept from starting has, and will do nothing any more."""
        if not self._started and self._turn.acquire(blocking=False):
            self.failure = self.failure or RuntimeError("an upload was interrupted before it began")
            self._ended.set()
            return
        # Not `Thread.join` first: when a signal interrupts that one, CPython 3.11 takes the thread for ended.
        self._ended.wait()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        if not self._turn.acquire(blocking=False):
            return
        work, self._work = self._work, None
        before, self._before = self._before, None
        try:
            if work is None:
                return
            store, acknowledge = work
            store()
            if before is not None:
                before.join()
                # That of an interrupt of `start` stays.
                self.failure = self.failure or before.failure
            # A chain of references to all uploads before would keep their indexes in memory.
            before = None
            if self.failure is None and not self._group.cancelled:
                acknowledge()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asks
            self.failure = error
        finally:
            self._ended.set()
