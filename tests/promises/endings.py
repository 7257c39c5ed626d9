"""A training loop in a process of its own, ended in one of many ways; see test_p14_endings.py.

Reads one JSON object a line, each with `url`, `way`, `ending`, `folder` and `out`, and forks a process for
each, so that torch is imported once. That process leads a session of its own, writes what is left of the
loader (where it lives to see the end) to the file `out`, and ends as any program does. Its number and its
exit code are printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

WAYS = {
    "threads": {"num_threads": 2},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
}


# What torch raises where a worker dies while it hands a batch over, and is not yet seen to be dead.
CUT_OFF = (ConnectionError, EOFError, FileNotFoundError)


class TransformError(Exception):
    """What a user's function raises."""


def transform(value):
    if value["n"] == 150:
        raise TransformError("record 150")
    return {"n": value["n"]}


def plain(value):
    return {"n": value["n"]}


def left():
    """Return what is still there of threads and worker processes; multiprocessing keeps helpers."""
    # A queue's own thread ends a moment after the queue was closed, and one that Ctrl-C left at a record when
    # it has that.
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(600)
    children = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(child.cmdline())
            if "resource_tracker" not in words and "forkserver" not in words:
                children.append(child)
    # torch waits five seconds for a worker to end and then ends it, without a look whether it has.
    _, children = psutil.wait_procs(children, timeout=600)
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    return {"children": [child.pid for child in children], "threads": threads}


def train(url, way, ending, say):
    data = StreamingDataset(
        shardio.open(url), global_batch=4, transform=transform if ending == "exception" else plain, epoch=1
    )
    loader = StreamingDataLoader(data, **WAYS[way])
    it = iter(loader)
    # One of each worker: in one that is only being started, Ctrl-C ends what torch does not expect to end.
    for _ in range(2):
        next(it)
    # Not the error itself: its traceback would keep the loop that it ended, and with it the iterator.
    error = text = None
    try:
        say("under way")  # the signal may come before this is left
        if ending == "exit":
            sys.exit(0)
        end(ending, way, loader, it, say)
    except (TransformError, RuntimeError, KeyboardInterrupt, *CUT_OFF) as caught:
        error, text = type(caught).__name__, str(caught)
    del it
    say(json.dumps({"error": error, "text": text, **left()}))


def end(ending, way, loader, it, say):
    if ending == "close":
        it.close()
    elif ending == "break":
        it.close()
        for number, _ in enumerate(loader):
            if number == 3:
                break
    elif ending == "killed":
        workers = [child for child in psutil.Process().children(recursive=True) if child.memory_info().shared]
        views = [child for child in workers if "resource_tracker" not in " ".join(child.cmdline())]
        say(f"killed {views[-1].pid}")
        os.kill(views[-1].pid, signal.SIGKILL)
        list(it)
    elif ending == "exception":
        list(it)
    else:  # a signal comes
        while True:
            for _ in it:
                time.sleep(0.01)
            it = iter(loader)


def main():
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if not child:
            os.setsid()
            # A shell that runs the tests in the background has it ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(task["folder"])
            tempfile.tempdir = task["folder"]
            # Where a dead worker cut a connection, torch opens files, to see whether it still can. In the
            # middle of that it is told that the worker is dead, and leaves one of them.
            tempfile.NamedTemporaryFile = io.BytesIO
            with Path(task["out"]).open("w", encoding="utf-8") as out:
                sys.stderr.flush()
                os.dup2(out.fileno(), 2)
                print(f"began {os.getpid()}", flush=True)
                train(
                    task["url"], task["way"], task["ending"], lambda text: print(text, file=out, flush=True)
                )
            return
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
