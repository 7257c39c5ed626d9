"""P22: importing does nothing."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from tests.suites.errors import refused

WATCHED = """
import sys, threading
events = []
def hook(event, arguments):
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if event.startswith(("socket.", "subprocess.", "os.fork", "os.exec", "os.system", "_thread.", "signal.")):
        events.append(event)
    elif writes or event in ("os.mkdir", "os.remove", "os.rename", "os.putenv", "os.chdir"):
        if "__pycache__" not in str(arguments[0]):
            events.append((event, arguments))
import numpy, fsspec  # what shardio is built on may do as it likes
sys.addaudithook(hook)
before = threading.active_count(), set(sys.modules)
{imports}
print(events)
print(threading.active_count() - before[0])
print(sorted(name for name in {heavy} if name in sys.modules and name not in before[1]))
"""
HEAVY = {
    "torch",
    "s3fs",
    "gcsfs",
    "adlfs",
    "obstore",
    "zstandard",
    "google.protobuf",
    "PIL",
    "tqdm",
    "ray",
    "dask",
}


@functools.cache
def watch(imports: str) -> list[str]:
    script = WATCHED.replace("{imports}", imports).replace("{heavy}", repr(HEAVY))
    # Without bytecode: Python itself would write it.
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "imports",
    [
        "import shardio",
        "import shardio.reader, shardio.writer, shardio.catalog",
        "import shardio; [getattr(shardio, name) for name in shardio.__all__]",
    ],
)
def test_importing_does_nothing(imports):
    """P22: no network, no thread, under an audit hook."""
    events, threads, heavy = watch(imports)
    assert events == "[]"
    assert threads == "0"
    assert "torch" not in heavy
    assert not {"s3fs", "gcsfs", "adlfs", "obstore"} & set(heavy.strip("[]'").split("', '"))


def test_importing_shardio_loads_nothing_heavy():
    """Cloud clients, torch, protobuf and zstandard load when they are first needed."""
    assert watch("import shardio")[2] == "[]"


def test_names_are_found_when_they_are_used():
    import shardio

    assert set(shardio.__all__) <= set(dir(shardio))
    with refused(AttributeError, "'teleport'"):
        _ = shardio.teleport
