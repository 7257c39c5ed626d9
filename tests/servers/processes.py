"""Start a server program on a free port of the loopback, wait until it answers, and end it."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Where `make test` installs server programs: those of PyPI that would move other versions, and those of npm.
BUILD = pathlib.Path(__file__).parents[2] / ".build"
PYTHON = BUILD / "servers" / "bin"
NODE = BUILD / "npm" / "node_modules" / ".bin"


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Yield a port of the loopback that is free, for a server that is told its number.

    Until the block ends the system gives it to no other that lets it choose, server or client, because a
    socket is bound to it. That one does not listen, and lets a server do so that sets SO_REUSEADDR, as they
    do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, *, env: Mapping[str, str] | None = None, seconds: float = 600
) -> Iterator[None]:
    """Run a program while the block lasts; its output is shown if it does not come up."""
    if not pathlib.Path(command[0]).exists():
        message = f"{command[0]} is missing: `make test` installs it"
        raise RuntimeError(message)
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for _ in range(int(seconds * 20)):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                process.kill()
            if process.poll() is not None:
                raise RuntimeError(process.communicate()[0])
            # Read to the end by a thread? The servers here are told to be silent.
            yield
        finally:
            process.terminate()
            try:
                process.communicate(timeout=600)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
