"""Ways in which an operation fails: each counts the points at which it can, and lets one of them fail."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardio.errors import CommitOutcomeUnknownError, ShardioError
from tests.promises.disk import MARK, FailingDisk
from tests.promises.stores import Counting, faulty
from tests.servers.proxy import Exchange, proxy
from tests.suites.processes import Forked


@dataclass(frozen=True)
class Outcome:
    """How an operation ended; an error that is no unknown outcome says that nothing happened."""

    acknowledged: bool
    unknown: bool = True


DONE = Outcome(acknowledged=True)


def attempt(do: Callable[[], object]) -> tuple[Outcome, ShardioError | None]:
    try:
        do()
    except ShardioError as error:
        return Outcome(False, isinstance(error, CommitOutcomeUnknownError)), error
    return DONE, None


@dataclass(frozen=True)
class StoreCall:
    """A call of a store fails: before its effect, after it, half way, or its reply is lost."""

    effect: str
    first: int = 0  # of every eighth

    def points(self, do: Callable[[], object], _root: Path, *, every: bool) -> list[int]:
        counting = Counting()
        with faulty(counting):
            do()
        assert len(counting.calls) > 5
        # The short run tries every eighth of them, in each place and for each effect others.
        return list(range(*((0, len(counting.calls)) if every else (self.first, len(counting.calls), 8))))

    def fail(self, do: Callable[[], object], _root: Path, at: int) -> Outcome:
        policy = Counting(at, self.effect)
        with faulty(policy):
            outcome, error = attempt(do)
        assert outcome.acknowledged or not self.effect.startswith("lost"), f"a lost reply: {error}"
        return outcome


@dataclass(frozen=True)
class SystemCall:
    """A system call fails: once, for good, or after its effect; its error is told, not that of cleaning."""

    way: str

    NUMBERS = (errno.EIO, errno.EACCES, errno.ENOSPC)

    def points(self, do: Callable[[], object], root: Path, *, every: bool) -> list[int]:
        disk = FailingDisk(root)
        with disk():
            do()
        assert len(disk.calls) > 40
        # The commit itself is always tried, call by call.
        commit = [k for k, call in enumerate(disk.calls) if "manifests" in call and "scandir" not in call]
        return [*range(len(disk.calls))] if every else sorted({*range(0, len(disk.calls), 15), *commit[::2]})

    def fail(self, do: Callable[[], object], root: Path, at: int) -> Outcome:
        number = self.NUMBERS[at % 3]
        disk = FailingDisk(
            root, at, number, lasting=self.way == "for good", after=self.way == "after its effect"
        )
        with disk():
            outcome, error = attempt(do)
        if error is not None:
            words, failed = os.strerror(number), disk.failed[0]
            assert words in str(error), f"{failed} is not told: {error}"
            assert f"{MARK} ({words}): unlink" not in str(error) or "unlink" in failed, (
                f"{failed} is hidden: {error}"
            )
        return outcome


# Before each of these something on a disk may change; the interpreter tells us when one is about to happen.
_AUDITED = {"open", "os.link", "os.remove", "os.rename", "os.mkdir", "os.chmod", "os.listdir", "os.scandir"}


@dataclass(frozen=True)
class Killed:
    """The process is killed before anything changes on the disk."""

    def _run(self, do: Callable[[], object], at: int) -> tuple[int, bytes]:
        def work() -> int:
            passed = 0

            def hook(event: str, _arguments: tuple[object, ...]) -> None:
                nonlocal passed
                if event in _AUDITED:
                    if passed == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    passed += 1

            sys.addaudithook(hook)
            do()
            return passed

        return Forked(work).end()

    def points(self, do: Callable[[], object], _root: Path, *, every: bool) -> list[int]:
        code, count = self._run(do, -1)
        assert (code, int(count) > 15) == (0, True)
        return list(range(0, int(count), 1 if every else 16))

    def fail(self, do: Callable[[], object], _root: Path, at: int) -> Outcome:
        code, answer = self._run(do, at)
        assert code in (0, -signal.SIGKILL), answer
        return Outcome(acknowledged=code == 0)


@dataclass(frozen=True)
class KilledAtARequest:
    """The process is killed before a request reaches the store, or after the reply has left it."""

    endpoint: str

    def _run(self, do: Callable[[], object], at: tuple[int, bool] | None) -> tuple[int, list[Exchange]]:
        reading, writing = os.pipe()
        with proxy(self.endpoint) as relay:

            def work() -> None:
                os.read(reading, 1)
                os.environ["AWS_ENDPOINT_URL"] = relay.url
                do()

            child = Forked(work)

            def kill(exchange: Exchange, answered: bool) -> int | None:
                if (exchange.number, answered) != at:
                    return None
                child.kill()
                return 0 if answered else -1

            relay.plan = kill
            os.write(writing, b"x")
            os.close(reading)
            os.close(writing)
            code, answer = child.end()
            assert code in (0, -signal.SIGKILL), answer
            return code, relay.exchanges

    def points(self, do: Callable[[], object], _root: Path, *, every: bool) -> list[tuple[int, bool]]:
        code, exchanges = self._run(do, None)
        assert code == 0
        if every:
            return [(at, answered) for at in range(len(exchanges)) for answered in (False, True)]
        # One of the early points, and those before and after the commit.
        (commit,) = (each.number for each in exchanges if each.method == "PUT" and "/manifests/" in each.path)
        return [(commit // 2, True), (commit, False), (commit, True)]

    def fail(self, do: Callable[[], object], _root: Path, at: tuple[int, bool]) -> Outcome:
        return Outcome(acknowledged=self._run(do, at)[0] == 0)
