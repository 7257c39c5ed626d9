"""P14: it stops."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.streaming.datasets import write

SCRIPT = Path(__file__).with_name("endings.py")
ROOT = Path(__file__).parents[2]
WAYS = ("threads", "fork", "forkserver", "spawn")
EVERY = ("close", "break", "exit", "exception", "killed", "SIGINT", "SIGTERM")
# Of a worker that dies while it hands a batch over, the loop may hear before torch sees that it is dead.
CUT_OFF = {
    "ConnectionResetError",
    "ConnectionRefusedError",
    "BrokenPipeError",
    "EOFError",
    "FileNotFoundError",
}
# Starting an interpreter with torch takes seconds, so of the slow ways every run tries only what differs.
SLOW = {"forkserver": ("SIGTERM",), "spawn": ("killed", "SIGTERM")}


def pytest_generate_tests(metafunc):
    """All endings of all ways in a long run: `pytest --hypothesis-profile=long`."""
    if "ending" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--hypothesis-profile", default=None) == "long"
        pairs = [(way, ending) for way in WAYS for ending in (EVERY if whole else SLOW.get(way, EVERY))]
        metafunc.parametrize(("way", "ending"), [pair for pair in pairs if pair != ("threads", "killed")])


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return write(tmp_path_factory.mktemp("endings") / "d", [400], block_bytes=512)


@pytest.fixture(scope="module")
def starter():
    """A process that has imported torch, and forks the ones that are ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, SCRIPT], env=environment, **pipes) as process:
        yield process
        process.stdin.close()


def alive(session):
    """Return the processes of a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
def folder():
    """A folder with a short path: multiprocessing puts sockets there."""
    with tempfile.TemporaryDirectory(prefix="p14-") as name:
        yield Path(name)


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir()}


def wait_for_text(path, text):
    deadline = time.monotonic() + 600
    while text not in (found := path.read_text(encoding="utf-8") if path.exists() else ""):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.sampled(10)
@pytest.mark.xdist_group("processes")
def test_it_stops(url, tmp_path, folder, starter, way, ending):
    """It stops: close, break, exception, Ctrl-C, SIGTERM, worker killed -- no hang, no process, thread,
    shared memory, lock or temporary file left.
    """
    out = tmp_path / "out"
    before = shared_memory()
    task = {"url": str(url), "way": way, "ending": ending, "folder": str(folder), "out": str(out)}
    starter.stdin.write(json.dumps(task) + "\n")
    starter.stdin.flush()
    pid = told(starter, "began")
    with killed_on_error(pid):
        wait_for_text(out, "under way\n")
        pids = [process.pid for process in alive(pid)]
        if ending == "SIGINT":
            os.killpg(pid, signal.SIGINT)  # as a terminal does
        elif ending == "SIGTERM":
            os.kill(pid, signal.SIGTERM)
        code = told(starter, "ended")
        _, still = psutil.wait_procs(alive(pid), timeout=600)
        assert still == [], "processes are left"
    check_what_was_said(ending, code, out.read_text(encoding="utf-8"))
    memory = shared_memory() - before
    # Whole numbers of a name: beside that of its process torch draws one, in which another's may stand.
    left = [name for name in memory if {*map(int, re.findall(r"\d+", name))} & {*pids}]
    # torch names a batch's memory and takes the name back at once; a worker killed in between cannot.
    said = out.read_text(encoding="utf-8").splitlines()
    killed = [line.removeprefix("killed ") for line in said if line.startswith("killed ")]
    assert [name for name in left if name.split("_")[1] not in killed] == []
    assert len(left) <= 1
    assert [str(path) for path in folder.rglob("*")] == []


def told(starter, word):
    """Return the number of the next line with a word; an earlier test that failed may have left others."""
    for line in starter.stdout:
        if line.startswith(word):
            return int(line.split()[1])
    raise AssertionError(f"the starter never said {word!r}")


@contextlib.contextmanager
def killed_on_error(session):
    """End all processes of a session where the block fails: the starter, and later tests, wait for them."""
    try:
        yield
    except BaseException:
        for process in alive(session):
            process.kill()
        raise


def check_what_was_said(ending, code, out):
    assert code == (-signal.SIGTERM if ending == "SIGTERM" else 0), out
    if ending in ("SIGTERM", "exit"):
        return
    ended = json.loads(out.splitlines()[-1])
    assert (ended["children"], ended["threads"]) == ([], [])
    wanted = {"exception": "TransformError", "SIGINT": "KeyboardInterrupt", "killed": "RuntimeError"}
    # A terminal's Ctrl-C goes to the workers, too; of one that was just starting torch says it was killed.
    if ending == "SIGINT" and "killed by signal: Interrupt" in ended["text"]:
        return
    if ending == "killed" and ended["error"] in CUT_OFF:
        return
    assert ended["error"] == wanted.get(ending)
    if ending == "exception":
        assert "record 150" in ended["text"]
    if ending == "killed":
        assert "DataLoader worker (pid" in ended["text"]
