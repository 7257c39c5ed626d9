"""A disk that fails on demand: a system call below a folder, once or for good, before or after its effect."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

MARK = "made to fail"
# By path, and by descriptor.
_PATHS = (
    "stat", "lstat", "mkdir", "unlink", "remove", "link", "rename", "replace", "chmod", "scandir", "listdir",
    "rmdir", "open", "truncate",
)  # fmt: skip
_NUMBERS = ("fsync", "fstat", "pread", "write", "writev", "close", "fdatasync", "ftruncate")


class FailingDisk:
    """Counts the calls below a folder, and lets call number `at` fail; all threads share the count.

    Args:
        root: of what is watched.
        at: number of the call that fails, from 0, or its name and its number among those of that name, where
            threads make calls in another order each time; -1 for none.
        number: the error's `errno`.
        lasting: all calls from that one on fail.
        after: the call takes effect first.
    """

    def __init__(
        self,
        root: Path,
        at: int | tuple[str, int] = -1,
        number: int = errno.EIO,
        *,
        lasting: bool = False,
        after: bool = False,
    ) -> None:
        self.calls: list[str] = []
        self.failed: list[str] = []
        self._root = os.fspath(root)
        self._at = at
        self._number = number
        self._lasting = lasting
        self._after = after
        self._numbers: dict[int, str] = {}
        self._lock = threading.RLock()

    def _hit(self, name: str, path: str) -> OSError | None:
        with self._lock:
            call = f"{name} {os.path.relpath(path, self._root)}"
            self.calls.append(call)
            here = (call, self.calls.count(call) - 1) if isinstance(self._at, tuple) else len(self.calls) - 1
            if here != self._at and not (self._lasting and self.failed):
                return None
            self.failed.append(call)
            return OSError(self._number, f"{MARK} ({os.strerror(self._number)}): {call}", path)

    def _below(self, path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            return self._numbers.get(path)
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            base = self._numbers.get(dir_fd)
            return None if base is None else os.path.join(base, text)
        text = os.path.abspath(text)
        return text if text == self._root or text.startswith(self._root + os.sep) else None

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(path: Any, *arguments: Any, **options: Any) -> Any:
            where = self._below(path, options.get("dir_fd"))
            if where is None:
                return call(path, *arguments, **options)
            error = self._hit(name, where)
            if error is not None and not self._after:
                if name == "close":
                    # The descriptor is gone whatever `close` says.
                    self._numbers.pop(path, None)
                    call(path)
                raise error
            result = call(path, *arguments, **options)
            if name == "open":
                self._numbers[result] = where
            elif name == "close":
                self._numbers.pop(path, None)
            if error is not None:
                if name == "open":
                    self._numbers.pop(result, None)
                    self._true_close(result)
                elif name == "scandir":
                    result.close()
                raise error
            return result

        return wrapper

    def _opened(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **options: Any) -> Any:
            path = self._below(file)
            if path is None or "b" not in mode:
                return true(file, mode, buffering, *arguments, **options)
            if not isinstance(file, int):
                error = self._hit("open file", path)
                if error is not None:
                    raise error
            raw = self._file(path)(file, mode.replace("b", ""))
            self._numbers[raw.fileno()] = path
            if buffering == 0:
                return raw
            if "+" in mode:
                return io.BufferedRandom(raw)
            return io.BufferedReader(raw) if mode[0] == "r" else io.BufferedWriter(raw)

        return wrapper

    def _file(self, path: str) -> type[io.FileIO]:
        """Return the class of one open file."""
        disk = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                error = disk._hit("write", path)
                if error is not None and not disk._after:
                    raise error
                count = super().write(data)
                if error is not None:
                    raise error
                return count

            def close(self) -> None:
                if self.closed:
                    return
                error = disk._hit("close file", path)
                disk._numbers.pop(self.fileno(), None)
                super().close()
                if error is not None:
                    raise error

        return File

    @contextlib.contextmanager
    def __call__(self) -> Iterator[FailingDisk]:
        """Put the disk in place."""
        self._true_close = os.close
        with contextlib.ExitStack() as stack:
            for name in (*_PATHS, *_NUMBERS):
                wrapped = self._wrapped(name, getattr(os, name))
                stack.enter_context(mock.patch.object(os, name, wrapped))
            # A caller that asks `os.supports_dir_fd` compares functions.
            stack.enter_context(
                mock.patch.object(os, "supports_dir_fd", {*os.supports_dir_fd, os.unlink, os.stat, os.open})
            )
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self._opened(open)))
            yield self
