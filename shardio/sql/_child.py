"""Run queries in DuckDB in a process of its own, and write what they give to standard output.

Within one call a function of DuckDB neither looks whether it was interrupted nor keeps to `memory_limit`: the
text that a function makes is not counted. So what may come from a form runs here, where the system bounds
both. This file is run as a script, by `shardio.sql._engine`, and imports nothing but `duckdb` and `pyarrow`.

Arguments: where the parent finds its packages, and bytes of memory. A request is two u32 (little-endian), the
sizes of a JSON object and of an Arrow stream, and both: `{"sql", "parameters", "rows", "seconds"}`, the last
of a processor, and the table `columns` or nothing. So is an answer: `{"rows": [...]}`, or `{"values": n}` and
n bytes, a bool each; or `{"error": text, "memory": bool}`. The end of standard input ends the process at
once, also within a query.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HEAD = struct.Struct("<II")
_CONFIG = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "temp_directory": "",
    "threads": "1",
}


def main(memory: int) -> None:
    """Answer requests until there are no more."""
    # Ctrl-C is for the parent, which ends this process when it gives up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(":memory:", config={**_CONFIG, "memory_limit": f"{memory}B"})
    with contextlib.suppress(duckdb.Error):  # of the extension for time zones, where it is built in
        connection.execute("SET TimeZone = 'UTC'")  # not this machine's
    connection.execute("SET lock_configuration = true")
    # What it costs to be here at all, so that the first query finds the same bound as the last one.
    connection.register("columns", pa.table({"n": [1]}))
    connection.execute("SELECT n = 1 FROM columns").fetchnumpy()
    connection.unregister("columns")
    thread = ThreadPoolExecutor(1)
    thread.submit(int).result()
    _bound_memory(memory)
    source = sys.stdin.buffer
    while len(head := source.read(HEAD.size)) == HEAD.size:
        told, given = HEAD.unpack(head)
        request, data = json.loads(source.read(told)), source.read(given)
        _bound_time(request["seconds"])
        thread.submit(_reply, connection, request, data)
    # The parent is gone, and nothing else would end a query that takes long.
    os._exit(0)


def _reply(connection: Any, request: dict[str, Any], data: bytes) -> None:
    import duckdb
    import pyarrow as pa

    try:
        answer, values = _answer(connection, request, data)
    except Exception as error:  # noqa: BLE001 - the parent waits for an answer
        lines = str(error).strip().splitlines()
        memory = isinstance(error, duckdb.OutOfMemoryException | pa.ArrowMemoryError | MemoryError)
        answer, values = {"error": lines[0] if lines else type(error).__name__, "memory": memory}, b""
    text = json.dumps(answer).encode()
    out = sys.stdout.buffer
    out.write(HEAD.pack(len(text), len(values)) + text)
    out.write(values)
    out.flush()


def _answer(connection: Any, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    import pyarrow as pa

    if not data:
        return {"rows": connection.execute(request["sql"], request["parameters"]).fetchall()}, b""
    connection.register("columns", pa.ipc.open_stream(data).read_all())
    try:
        found = connection.execute(request["sql"])
        if request["rows"]:
            return {"rows": found.fetchall()}, b""
        (values,) = found.fetchnumpy().values()
        return {"values": len(values)}, values.astype(bool).tobytes()
    finally:
        connection.unregister("columns")


def _bound_memory(more: int) -> None:
    """Let the process take so many bytes more than it has.

    Only Linux counts them; elsewhere the engine's own limit is all there is.
    """
    with contextlib.suppress(ImportError, OSError):
        import resource

        with Path("/proc/self/status").open() as status:
            taken = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (taken + more, taken + more))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _bound_time(seconds: float) -> None:
    """Let the process take so many seconds more of a processor than it has: then SIGXCPU ends it."""
    with contextlib.suppress(ImportError, OSError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_CPU)[1]
        used = resource.getrusage(resource.RUSAGE_SELF)
        bound = math.ceil(used.ru_utime + used.ru_stime + seconds)
        resource.setrlimit(
            resource.RLIMIT_CPU, (bound if most == resource.RLIM_INFINITY else min(bound, most), most)
        )


if __name__ == "__main__":
    sys.path[:] = sys.argv[1].split(os.pathsep)
    with contextlib.suppress(BrokenPipeError):
        main(int(sys.argv[2]))
