"""One law for what starts processes: none outlives its parent, and a worker that dies costs only time.

Each caller is a program of its own, because it is killed.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import shardio
from shardio.storage import TEMPORARY
from tests.parallel.programs import ROOT, wait_until, workers_of
from tests.servers import s3 as servers_s3

# Each program takes two folders: where its processes leave a file with their number, and where the
# dataset goes.  A worker that finds a file "hang" waits; one that finds "die" removes it and is killed.
AT_WORK = """
import multiprocessing, os, signal, sys, time
from pathlib import Path

def at_work():
    folder = Path(sys.argv[1])
    (folder / str(os.getpid())).touch()
    if multiprocessing.parent_process() is None:
        return
    while (folder / "hang").exists():
        time.sleep(0.05)
    try:
        (folder / "die").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
"""
PROGRAMS = {
    "write": """
import shardio
def number(n):
    at_work()
    return {"n": n}
def main():
    shardio.write_dataset(sys.argv[2], range(8), number, schema={"n": "int64"}, workers=WORKERS)
""",
    "convert": """
import shardio
def number(line):
    at_work()
    return {"n": line}
options = {"kind": "list", "schema": {"n": "int64"}, "workers": WORKERS}
def main():
    shardio.convert_dataset(list(range(8)), sys.argv[2], options={"fn": number}, **options)
""",
    "adopt": """
import shardio_indexer
from shardio.adoption import _shard
index_shard = _shard.index_shard
def index(*arguments, **options):
    at_work()
    return index_shard(*arguments, **options)
_shard.index_shard = index
def main():
    Path(sys.argv[2]).mkdir()
    for n in range(64):
        (Path(sys.argv[2]) / f"{n}.txt").write_text(f"{n}\\n")
    shardio_indexer.adopt(sys.argv[2] + "/*.txt", workers=WORKERS)
""",
}
MAIN = """
if __name__ == "__main__":
    if len(sys.argv) > 3:
        multiprocessing.set_start_method(sys.argv[3])
    main()
"""


def program(
    name: str, workers: int | None, marks: Path, url: Path, method: str | None = None
) -> subprocess.Popen:
    text = AT_WORK + PROGRAMS[name].replace("WORKERS", repr(workers)) + MAIN
    script = marks.parent / "program.py"
    script.write_text(text, encoding="utf-8")
    command = [sys.executable, script, marks, url, *([method] if method else [])]
    path = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(marks.parent)}
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=path)


@pytest.fixture
def marks(tmp_path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def processes_of(marks: Path) -> list[int]:
    """Return the processes of a program that run, also those that have lost their parent."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.environ().get("TMPDIR") == str(marks.parent):
                found.append(process.pid)
    return found


# A small source is converted without processes unless the caller asks for them.
@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("name", "workers", "method"),
    [
        ("write", None, None),
        ("write", 2, None),
        ("convert", 2, None),
        ("adopt", None, None),
        ("adopt", 2, None),
        *(("write", 2, method) for method in multiprocessing.get_all_start_methods()),
    ],
)
def test_no_worker_outlives_a_killed_parent(tmp_path, marks, name, workers, method) -> None:
    (marks / "hang").touch()
    with program(name, workers, marks, tmp_path / "ds", method) as process:
        wait_until(lambda: {path.name for path in marks.iterdir()} - {"hang", str(process.pid)})
        assert workers_of(process)
        process.kill()
        process.wait()
        # Also a worker that was only being started then.
        wait_until(lambda: not processes_of(marks))
    assert not list(tmp_path.glob("pymp-*")), "sockets of a fork server"
    assert not list((tmp_path / "ds").rglob(f"{TEMPORARY}*")), "spool files"


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "method"), [*((name, None) for name in PROGRAMS), ("write", "forkserver")])
def test_a_worker_that_is_killed_costs_only_time(tmp_path, marks, name, method) -> None:
    (marks / "die").touch()
    with program(name, 2, marks, tmp_path / "ds", method) as process:
        _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert not (marks / "die").exists(), "a worker was killed"
    assert len(shardio.open(tmp_path / "ds")) == (64 if name == "adopt" else 8)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_worker_is_the_caller_itself(tmp_path, marks, name) -> None:
    with program(name, 1, marks, tmp_path / "ds") as process:
        process.communicate(timeout=600)
    assert process.returncode == 0
    assert [int(path.name) for path in marks.iterdir()] == [process.pid]


AFTER_READING = """
import json, multiprocessing, sys
import shardio

how = json.loads(sys.argv[2])
multiprocessing.set_start_method("fork")
for _ in range(3):
    with shardio.DatasetWriter(sys.argv[1], {"n": "int64"}, mode="append", **how) as out:
        out.write({"n": 1})
assert len(list(shardio.open(sys.argv[1], engine="obstore", **how))) == 3
place = shardio.Address(sys.argv[1], **how)
shardio.build_table(place, ["n"], workers=2)
shardio.build_keys(place, "n", workers=2)
assert shardio.compact(place, compression="zstd", workers=2).shards_after == 1
"""


@pytest.mark.slow
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="nothing forks here")
def test_forked_workers_of_our_own_say_nothing_of_it() -> None:
    """Each printed a line with advice that its user cannot follow, where obstore had been used before."""
    with servers_s3.moto() as endpoint:
        url = f"s3://{servers_s3.make_bucket(endpoint)}/forked"
        options = json.dumps({"storage_options": servers_s3.options_for(endpoint)})
        command = [sys.executable, "-c", AFTER_READING, url, options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
