"""Stores that fail on demand: before, after or halfway through any call, or after a reply was lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import shardio
from shardio.errors import StorageError
from shardio.storage import DataFile, ObjectInfo, Store, UnknownOutcomeError, connect, connect_folder

EFFECTS = ("before", "after", "half", "lost before", "lost after")

Policy = Callable[[str, str], str]


class FaultyStore(Store):
    """A store that asks `policy(verb, key)` before each call what is to go wrong; "" for nothing."""

    def __init__(self, inner: Store, policy: Policy) -> None:
        self.inner = inner
        self.policy = policy
        self.url = inner.url
        self.is_local = inner.is_local

    def _do(
        self, verb: str, key: str, call: Callable[[], Any], half: Callable[[], Any] = lambda: None
    ) -> Any:
        fault = self.policy(verb, key)
        if fault == "before":
            raise StorageError(f"made to fail before {verb}", url=key)
        if fault == "lost before":
            raise UnknownOutcomeError(f"the request for {verb} was lost", url=key)
        if fault == "half":
            half()
            raise StorageError(f"made to fail halfway through {verb}", url=key)
        if fault == "kill before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = call()
        if fault == "after":
            raise StorageError(f"made to fail after {verb}", url=key)
        if fault == "lost after":
            raise UnknownOutcomeError(f"the reply to {verb} was lost", url=key)
        if fault == "kill after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def put_and_confirm(self, key: str, data: Any) -> bool:
        return self._create(key, data, lambda: self.inner.put_and_confirm(key, data))

    def _put_if_absent(self, key: str, data: Any, *, move: bool) -> bool:
        return self._create(key, data, lambda: self.inner.put_if_absent(key, data, move=move), move=move)

    def _create(self, key: str, data: Any, create: Callable[[], bool], *, move: bool = False) -> bool:
        def half() -> None:
            # What a store may leave of an object that it did not create: a temporary, and the spool is gone.
            if self.is_local:
                content = data.read_bytes() if isinstance(data, Path) else bytes(data)
                folder = Path(self.url, key).parent
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f".shardio-tmp-{os.urandom(6).hex()}").write_bytes(content[: len(content) // 2])
            if move and isinstance(data, Path):
                data.unlink()

        return self._do("put_if_absent", key, create, half)

    def _overwrite(self, key: str, data: Any) -> None:
        self._do(
            "overwrite",
            key,
            lambda: self.inner.overwrite(key, data),
            lambda: self.inner.overwrite(key, b"9" * 30 + b"\xff"),
        )

    def _get(self, key: str, max_bytes: int) -> bytes:
        return self._do("get", key, lambda: self.inner.get(key, max_bytes=max_bytes))

    def _head(self, key: str) -> ObjectInfo | None:
        return self._do("head", key, lambda: self.inner.head(key))

    def _list(self, prefix: str, *, linked: bool) -> Iterator[ObjectInfo]:
        return iter(self._do("list", prefix, lambda: list(self.inner.list(prefix))))

    def _delete(self, key: str) -> bool:
        return self._do("delete", key, lambda: self.inner.delete(key))

    def open(self, key: str, *, size: int | None = None, stable: bool = False, etag: str = "") -> DataFile:
        return self._do("open", key, lambda: self.inner.open(key, size=size, stable=stable, etag=etag))

    def list_temporaries(self) -> Iterator[ObjectInfo]:
        return self.inner.list_temporaries()


@contextlib.contextmanager
def faulty(policy: Policy) -> Iterator[None]:
    """Let every room see its stores through `policy`."""
    for name in shardio.__all__:
        getattr(shardio, name)  # rooms are imported when their names are first used

    def connected(url: str, **options: Any) -> Store:
        return FaultyStore(connect(url, **options), policy)

    def connected_folder(url: str, **options: Any) -> tuple[Store, str]:
        store, key = connect_folder(url, **options)
        return FaultyStore(store, policy), key

    replaced = {"connect": (connect, connected), "connect_folder": (connect_folder, connected_folder)}
    # Everywhere that a room turns a URL into a store.
    entrances = [
        (module, way)
        for name, module in sys.modules.copy().items()
        for way, (true, _) in replaced.items()
        if name.startswith("shardio.") and getattr(module, way, None) is true
    ]
    with contextlib.ExitStack() as stack:
        for module, way in entrances:
            inside = module.__name__.startswith("shardio.storage")
            if not inside or module.__name__ == "shardio.storage._address":
                stack.enter_context(mock.patch.object(module, way, replaced[way][1]))
        yield


@contextlib.contextmanager
def faultless() -> Iterator[None]:
    """Within `faulty`: let calls through unseen, as those of another process that comes in between."""
    with mock.patch.object(FaultyStore, "_do", lambda _self, _verb, _key, call, _half=None: call()):
        yield


class Counting:
    """A policy that counts calls and lets one of them go wrong; calls are numbered from 0.

    Shards are stored in the background, so a number may mean another call next time.  Only what creates can
    lose its reply.
    """

    def __init__(self, at: int = -1, fault: str = "") -> None:
        self.at = at
        self.fault = fault
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def __call__(self, verb: str, key: str) -> str:
        with self._lock:
            self.calls.append((verb, key))
            hit = len(self.calls) - 1 == self.at
        return self.fault if hit and (verb == "put_if_absent" or not self.fault.startswith("lost")) else ""


class Dropping:
    """A policy that loses a share of the creates, before or after they take effect; safe among threads."""

    def __init__(self, seed: int, share: float = 0.3, before: float = 0.5) -> None:
        self._random = random.Random(seed)
        self._share, self._before = share, before
        self._lock = threading.Lock()
        self.lost = 0

    def __call__(self, verb: str, key: str) -> str:
        with self._lock:
            if verb != "put_if_absent" or self._random.random() >= self._share:
                return ""
            self.lost += 1
            return "lost before" if self._random.random() < self._before else "lost after"
