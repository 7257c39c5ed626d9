"""Does this store create an object only if it is absent, as it promises? Asked before the first write.

A store that looks first and writes then refuses what exists, and yet two writers at the same moment both win,
and the first loses an acknowledged commit.  Only a race shows that, so the probe runs one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import secrets
import threading
from typing import TYPE_CHECKING, Any, Protocol

from shardio.errors import ShardioError, StorageError
from shardio.storage._retry import GaveUpError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shardio.storage._face import Store

__all__ = ["PROBES", "RACERS", "Proofs", "probe"]

# A probe whose writer was killed stays here, and is listed among the temporaries.
PROBES = "_shardio/probes/"
RACERS = 8

# How services say that they do not know the condition.
_UNKNOWN_CONDITION = {400, 405, 501}


class Create(Protocol):
    """The creation under test."""

    def __call__(self, key: str, data: bytes, *, exclusive: bool = True) -> bool:
        """Create an object and return whether this call did; without `exclusive`, over what is there."""
        ...


class Proofs:
    """The stores that have passed, so that one process asks each of them once, from whatever thread."""

    def __init__(self) -> None:
        # With what the keys were made of, which may be told apart by identity.
        self._passed: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._pid = os.getpid()

    def once(self, key: Hashable, keep: object, ask: Callable[[], None]) -> None:
        """Call `ask` unless it has returned before for this key; threads with the same key wait for it."""
        if key in self._passed:
            return
        if self._pid != os.getpid():
            # Threads that do not exist here may hold these; what the parent found out is still true.
            self._locks, self._pid = {}, os.getpid()
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._passed:
                ask()
                self._passed[key] = keep

    def forget(self) -> None:
        """Ask everybody again."""
        self._passed.clear()


def probe(store: Store, create: Create, refusal: Callable[[], str | None]) -> None:
    """Create an object twice, then let several writers race to create another: exactly one may win.

    Args:
        store: where.
        create: the creation under test, which does not limit how many run at once.
        refusal: asks the service for a reason why this bucket cannot do it, if it tells.

    Raises:
        StorageError: several writers would lose each other's commits here.
    """
    reason = refusal()
    if reason is None:
        with _key(store) as key:
            reason = _twice(store, create, key)
    if reason is None:
        with _key(store) as key:
            reason = _race(store, create, key)
    if reason is not None:
        what = f"this store cannot commit safely: {reason}"
        advice = "use another bucket, or single_writer=True if nobody else writes here"
        raise StorageError(what, url=store.url, advice=advice)


@contextlib.contextmanager
def _key(store: Store) -> Any:
    key = PROBES + secrets.token_hex(16)
    try:
        yield key
    finally:
        # Who may create but not delete leaves an object of a few bytes.
        with contextlib.suppress(ShardioError):
            store.delete(key)


def _twice(store: Store, create: Create, key: str) -> str | None:
    try:
        first = create(key, b"first")
    except StorageError as error:
        cause = error.__cause__
        last = cause.last if isinstance(cause, GaveUpError) else None
        if last is None or last.status not in _UNKNOWN_CONDITION or not _takes_plain(create, key):
            raise
        return f"it answers {last.text!r} to If-None-Match, the condition that an object is absent"
    if not first:
        return "it reports an object that nobody created"
    if create(key, b"second") or store.get(key, max_bytes=16) != b"first":
        return "it replaces objects although it was told to create them only if absent"
    return None


def _takes_plain(create: Create, key: str) -> bool:
    """Tell whether the same write succeeds without the condition: then it was the condition."""
    try:
        return create(key, b"first", exclusive=False)
    except StorageError:
        return False


def _race(store: Store, create: Create, key: str) -> str | None:
    bodies = [b"racer %d" % number for number in range(RACERS)]
    with concurrent.futures.ThreadPoolExecutor(RACERS, "shardio-probe") as pool:
        won = list(pool.map(lambda body: create(key, body), bodies))
    winners = [body for body, created in zip(bodies, won, strict=True) if created]
    if len(winners) != 1:
        told = str(len(winners)) if winners else "none"
        return f"of {RACERS} writers that raced to create one object, {told} were told to have done it"
    if store.get(key, max_bytes=16) != winners[0]:
        return f"of {RACERS} writers that raced to create one object, the winner's was replaced"
    return None
