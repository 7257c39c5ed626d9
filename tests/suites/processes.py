"""Processes of tests: forked for a piece of work, killed on demand, or run side by side."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import Any


class Forked:
    """A forked process that does some work and ends; its answer is the result, or its error, as bytes.

    Its exit code is 0 if the work returned, 1 if it raised. The time limit of the test ends one that hangs.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            # Under nohup these are ignored, and with them what a test sends.
            for number, action in (
                (signal.SIGTERM, signal.SIG_DFL),
                (signal.SIGINT, signal.default_int_handler),
            ):
                signal.signal(number, action)
            with contextlib.suppress(BaseException):
                try:
                    answer, code = work(), 0
                except BaseException as error:  # noqa: BLE001 - the parent is to know of it
                    answer = f"{type(error).__name__}: {error}"
                plain = isinstance(answer, bytes | bytearray | memoryview)
                data = bytes(answer) if plain else str(answer).encode()
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(data)
            os._exit(code)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self) -> tuple[int, bytes]:
        """Wait for its end; return its exit code, negative for a signal, and its answer."""
        with self._pipe:
            answer = self._pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), answer


def answer_of_child(work: Callable[[], Any]) -> bytes:
    """Return what work in a forked child returns, or its error as text."""
    code, answer = Forked(work).end()
    assert code >= 0, f"the child was killed by signal {-code}"
    return answer


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
