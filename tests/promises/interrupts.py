"""Operations interrupted at chosen moments, each in a process of its own; see test_p14_interrupts.py.

Signals are handled in the main thread, between instructions: where a function begins, where a loop goes
round, and after a call. The n-th such moment within some files of shardio gets a KeyboardInterrupt; then it
is looked at what is left, and the same operation runs again in the same process.

    python -m tests.promises.interrupts OPERATION FOLDER [TRIES]

prints how many moments there are, and then of so many of them (of all), which lie evenly, the number, the
place in shardio, and what was wrong afterwards.
"""

from __future__ import annotations

import contextlib
import dis
import faulthandler
import gc
import json
import linecache
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import ClassVar

import psutil

import shardio
from shardio.errors import NotFoundError
from shardio.storage import TEMPORARY

PACKAGE = str(Path(shardio.__file__).parent)
SECONDS = 600.0  # in which threads end


class Moments:
    """Count the moments at which an interrupt may come, in files of some rooms; interrupt at one of them."""

    def __init__(self, rooms, at=None):
        self.count = 0
        self.where = ""
        self._at = at
        self._pid = os.getpid()
        self._prefixes = tuple(f"{PACKAGE}/{room}" for room in rooms)
        self._after: dict[object, frozenset[int]] = {}

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, event, _argument):
        if not frame.f_code.co_filename.startswith(self._prefixes):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._look(frame, -1)
        return self._local

    def _local(self, frame, event, _argument):
        if event == "opcode":
            self._look(frame, frame.f_lasti)
        return self._local

    def _look(self, frame, offset):
        code = frame.f_code
        found = self._after.get(code)
        if found is None:
            found = self._after[code] = moments_of(code)
        if offset not in found or os.getpid() != self._pid:  # workers that are forked are traced, too
            return
        self.count += 1
        if self.count == self._at:
            self.where = f"{code.co_filename.removeprefix(PACKAGE + '/')}:{frame.f_lineno} {code.co_qualname}"
            sys.settrace(None)
            raise KeyboardInterrupt


def moments_of(code):
    """Return the offsets of instructions before which signals are handled.

    Without those between `os.open` and the name that its number gets: there is no way to close it.
    """
    found = set()
    looks = False
    line = 0
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if looks and "os.open(" not in linecache.getline(code.co_filename, line):
            found.add(instruction.offset)
        looks = instruction.opname in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") or (
            instruction.opname == "RESUME" and instruction.arg < 2
        )
    return frozenset(found)


RECORDS = 60


def make(path, rows=RECORDS, **options):
    size = {} if "shards" in options else {"shard_bytes": 600}
    with shardio.DatasetWriter(
        path, schema={"n": "int64", "id": "text"}, block_bytes=100, **size, **options
    ) as out:
        for n in range(rows):
            out.write({"n": n, "id": f"id {n}"})


def numbers(url):
    return [value["n"] for value in shardio.open(url)]


EVERY = list(range(RECORDS))


class Operation:
    """What is interrupted: `run` in a folder that `prepare` has filled, and `again`; `check` then looks."""

    rooms = ("",)
    opened = None  # a reader, which keeps what it has opened

    def prepare(self, folder):
        """Fill the folder."""

    def again(self, folder):
        """Run once more, after the interrupt."""
        self.run(folder)

    def warm(self, folder):
        """Import what `run` imports; nothing that it starts may stay."""
        self.run(folder)


class Write(Operation):
    rooms = ("writer/", "storage/", "catalog/")
    options: ClassVar = {}

    def run(self, folder):
        make(folder / "ds", **self.options)

    def again(self, folder):
        # The interrupt may have come behind the commit.
        try:
            assert numbers(folder / "ds") == EVERY
        except NotFoundError:
            self.run(folder)

    def check(self, folder):
        assert numbers(folder / "ds") == EVERY
        report = shardio.verify(folder / "ds")
        assert report.ok, report


class WriteShards(Write):
    options: ClassVar = {"shards": 3}


class WriteZlib(Write):
    options: ClassVar = {"compression": "zlib"}


class WriteSession(Write):
    """Run again, a session goes on where it was interrupted."""

    def run(self, folder):
        with shardio.DatasetWriter(
            folder / "ds", schema={"n": "int64", "id": "text"}, block_bytes=100, shard_bytes=600,
            session="run", task=0, commit=False,
        ) as out:  # fmt: skip
            for n in range(out.written["train"], RECORDS):
                out.write({"n": n, "id": f"id {n}"})
        shardio.commit(folder / "ds", session="run", tasks=1)

    again = run


class WriteShard(Operation):
    rooms = ("writer/", "storage/")

    def run(self, folder):
        with shardio.ShardWriter(folder / "x.tfrecord", block_bytes=100) as out:
            for n in range(RECORDS):
                out.write(b"%d" % n)

    def again(self, folder):
        if not (folder / "x.tfrecord").exists():
            (folder / "x.tfrecord.shardidx").unlink(missing_ok=True)
            self.run(folder)

    def check(self, folder):
        assert list(shardio.open_shard(folder / "x.tfrecord")) == [b"%d" % n for n in EVERY]


def one(n):
    return {"n": n, "id": f"id {n}"}


class WriteDataset(Write):
    rooms = ("parallel/",)
    workers = 1

    def run(self, folder):
        shardio.write_dataset(
            folder / "ds", EVERY, one, schema={"n": "int64", "id": "text"}, tasks=3, workers=self.workers
        )


class WriteDatasetProcesses(WriteDataset):
    workers = 2


class Shuffled(WriteDataset):
    rooms = ("parallel/", "convert/")

    def prepare(self, folder):
        (folder / "in.jsonl").write_text("".join(json.dumps(one(n)) + "\n" for n in EVERY))

    def run(self, folder):
        shardio.convert_dataset(folder / "in.jsonl", folder / "ds", shuffle=True, shards=2, workers=1)

    def again(self, folder):
        try:
            assert sorted(numbers(folder / "ds")) == EVERY
        except NotFoundError:
            self.run(folder)

    def check(self, folder):
        assert sorted(numbers(folder / "ds")) == EVERY
        assert shardio.verify(folder / "ds").ok


class Convert(Shuffled):
    rooms = ("convert/",)

    def run(self, folder):
        shardio.convert_dataset(folder / "in.jsonl", folder / "ds", workers=1)


class OnDataset(Operation):
    rooms = ("lifecycle/", "reader/", "catalog/")

    def prepare(self, folder):
        make(folder / "ds")


class Compact(OnDataset):
    def run(self, folder):
        shardio.compact(folder / "ds", workers=1)

    def check(self, folder):
        assert numbers(folder / "ds") == EVERY
        assert len(shardio.open(folder / "ds").source.table) == 1
        assert shardio.verify(folder / "ds").ok


class Erase(OnDataset):
    remove = staticmethod(shardio.erase)

    def run(self, folder):
        ds = shardio.open(folder / "ds")
        gone = [p for p, value in enumerate(ds) if value["n"] in (3, 40)]
        if gone:
            self.remove(folder / "ds", gone, version=ds.version)

    def check(self, folder):
        assert numbers(folder / "ds") == [n for n in EVERY if n not in (3, 40)]
        assert shardio.verify(folder / "ds").ok


class Delete(Erase):
    remove = staticmethod(shardio.delete)


class Keys(OnDataset):
    def run(self, folder):
        shardio.build_keys(folder / "ds", "id", workers=1)

    def check(self, folder):
        ds = shardio.open(folder / "ds")
        assert [ds.find(f"id {n}") for n in EVERY] == EVERY


class Table(OnDataset):
    def run(self, folder):
        shardio.build_table(folder / "ds", ["n"], workers=1)

    def check(self, folder):
        ds = shardio.open(folder / "ds")
        assert [value["n"] for value in ds.filter("n > 50")] == EVERY[51:]


class Filter(Table):
    rooms = ("reader/", "storage/")

    def prepare(self, folder):
        make(folder / "ds")
        Table().run(folder)
        Keys().run(folder)

    def warm(self, folder):
        """Without SQL, whose process waits for the next condition."""
        self.look(shardio.open(folder / "ds"), lambda columns: columns["n"] > 50, features=["n"])

    def run(self, folder):
        self.opened = shardio.open(folder / "ds")
        self.look(self.opened, "n > 50")

    def look(self, ds, condition, **options):
        assert [value["n"] for value in ds.filter(condition, **options)] == EVERY[51:]
        assert ds.find("id 7") == 7
        assert ds.to_arrow(["n"])["n"].to_pylist() == EVERY

    def again(self, folder):
        if self.opened is not None:
            self.look(self.opened, "n > 50")
        self.run(folder)


class Read(OnDataset):
    rooms = ("reader/", "storage/")
    options: ClassVar = {}

    def run(self, folder):
        self.opened = ds = shardio.open(folder / "ds", **self.options)
        self.look(ds)

    def look(self, ds):
        assert [value["n"] for value in ds] == EVERY
        assert [value["n"] for value in ds.read(EVERY[::-1])] == EVERY[::-1]
        assert [ds[n]["n"] for n in EVERY] == EVERY
        assert ds.read_batch([4, 2])["n"].tolist() == [4, 2]

    def again(self, folder):
        if self.opened is not None:
            self.look(self.opened)
        self.run(folder)

    def check(self, folder):
        assert numbers(folder / "ds") == EVERY


class ReadCompressed(Read):
    def prepare(self, folder):
        make(folder / "ds", compression="zstd")


class Stream(OnDataset):
    """With threads, which are to end."""

    rooms = ("streaming/",)

    def run(self, folder):
        stream = shardio.stream(shardio.open(folder / "ds"), global_batch=6, num_threads=2)
        assert sorted(n for batch in stream for n in batch["n"].tolist()) == EVERY

    def check(self, folder):
        assert numbers(folder / "ds") == EVERY


class Export(OnDataset):
    rooms = ("convert/",)
    kind = "jsonl"

    def run(self, folder):
        shardio.export_dataset(folder / "ds", folder / "out", kind=self.kind, shard_bytes=500)

    def again(self, folder):
        done = {path.name for path in folder.rglob("out/**/*") if path.is_file()}
        if done:
            # Files that are there are whole; the rest of the folder may be missing.
            shutil.rmtree(folder / "out")
        elif (folder / "out").exists():
            pass
        self.run(folder)

    def check(self, folder):
        back = folder / "back"
        shardio.convert_dataset(folder / "out", back, workers=1, mode="overwrite")
        assert sorted(value["n"] for value in shardio.open(back)) == EVERY


class ExportParquet(Export):
    kind = "parquet"


class ExportMds(Export):
    kind = "mds"


class Repair(OnDataset):
    def prepare(self, folder):
        make(folder / "ds")
        for index in sorted((folder / "ds" / "data").rglob("*.shardidx"))[:2]:
            index.unlink()

    def run(self, folder):
        shardio.repair(folder / "ds", dry_run=False, workers=1)

    def check(self, folder):
        assert numbers(folder / "ds") == EVERY
        assert shardio.verify(folder / "ds").ok


class Adopt(Operation):
    rooms = ("",)

    def prepare(self, folder):
        make(folder / "ds")
        (folder / "raw").mkdir()
        for k, path in enumerate(sorted((folder / "ds").rglob("*.tfrecord"))):
            shutil.copy(path, folder / "raw" / f"part-{k}.tfrecord")
        shutil.rmtree(folder / "ds")

    def run(self, folder):
        from shardio_indexer import adopt

        adopt(folder / "raw", schema={"n": "int64", "id": "text"})

    def again(self, folder):
        try:
            shardio.open(folder / "raw")
        except NotFoundError:
            self.run(folder)

    def check(self, folder):
        assert sorted(numbers(folder / "raw")) == EVERY


OPERATIONS = {
    kind.__name__: kind
    for kind in (
        Write, WriteSession, WriteShards, WriteZlib, WriteShard,
        WriteDataset, WriteDatasetProcesses, Shuffled, Convert, Adopt,
        Erase, Delete, Compact, Keys, Table, Repair,
        Filter, Read, ReadCompressed, Export, ExportParquet, ExportMds, Stream,
    )
}  # fmt: skip


def open_files():
    """Return what the descriptors of this process are open on."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[path.name] = str(path.readlink())
    return found


def interrupted(operation, folder, at):
    """Run an operation that is interrupted at a moment; return where that was, and how it ended."""
    outcome, ignored = "ended", []
    moments = Moments(operation.rooms, at)
    # What is raised while an object is destroyed is told on stderr, and goes no further.
    sys.unraisablehook = lambda told: ignored.append(told.exc_type)
    try:
        with moments:
            operation.run(folder)
    except KeyboardInterrupt:
        outcome = "interrupted"
    except BaseException as error:  # noqa: BLE001 - the parent is to know of it
        outcome = f"{type(error).__name__}: {error}"
    finally:
        sys.unraisablehook = sys.__unraisablehook__
    return moments.where, "interrupted" if ignored == [KeyboardInterrupt] else outcome


def wait_for_threads():
    """Give other threads some seconds to end; the last one would hold its pipes, if it were held here."""
    deadline = time.monotonic() + SECONDS
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def left_behind(folder, scratch, children, files):
    """Yield what an operation has left: threads, processes, descriptors, temporary files."""
    wait_for_threads()
    yield from (
        f"thread {each.name}" for each in threading.enumerate() if each is not threading.main_thread()
    )
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - children, timeout=SECONDS)
    yield from (f"process {each.cmdline()}" for each in alive)
    gc.collect()
    # Those that are open after a run that was not interrupted are kept for the next one.
    yield from (f"file {path}" for number, path in open_files().items() if files.get(number) != path)
    yield from (f"temporary {path}" for path in scratch.rglob("*"))
    yield from (f"temporary {path}" for path in folder.rglob(f"*{TEMPORARY}*"))


def try_moment(operation, folder, scratch, at):
    """Interrupt an operation at a moment, in this process; return where that was, and what is wrong then."""
    files, children = open_files(), set(psutil.Process().children(recursive=True))
    where, outcome = interrupted(operation, folder, at)
    wrong = [] if outcome == "interrupted" else [outcome]
    if operation.opened is None:
        wrong += left_behind(folder, scratch, children, files)
    try:
        operation.again(folder)
        operation.check(folder)
        if (folder / "ds").is_dir():
            shardio.gc(folder / "ds", dry_run=False)
            operation.check(folder)
    except BaseException:  # noqa: BLE001 - the parent is to know of it
        wrong.append(traceback.format_exc()[-1500:])
    return where, wrong


def in_child(pristine, operation, at):
    """Run an operation in a process of its own: count its moments, or interrupt it at one; tell what came."""
    read, wrote = os.pipe()
    if child := os.fork():
        os.close(wrote)
        with os.fdopen(read) as file:
            said = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return json.loads(said) if code == 0 else [f"exit code {code}", [said]]
    code = 1
    try:
        here, scratch = pristine.with_name(f"at{at}"), pristine.with_name(f"tmp{at}")
        with os.fdopen(wrote, "w") as out:
            faulthandler.dump_traceback_later(900, exit=True, file=out)  # one that hangs says where
            shutil.copytree(pristine, here)
            scratch.mkdir()
            tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
            result = None
            if at is None:
                with Moments(operation.rooms) as moments:
                    operation.run(here)
                operation.check(here)
                result = moments.count
            else:
                result = try_moment(operation, here, scratch, at)
            faulthandler.cancel_dump_traceback_later()
            json.dump(result, out)
        shutil.rmtree(here)
        shutil.rmtree(scratch)
        code = 0
    except BaseException:  # noqa: BLE001 - a copy of this program must not go on
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(name, folder, tries=sys.maxsize):
    warnings.simplefilter("ignore")
    operation = OPERATIONS[name]()
    pristine, warm = Path(folder) / "pristine", Path(folder) / "warm"
    pristine.mkdir(parents=True)
    operation.prepare(pristine)
    shutil.copytree(pristine, warm)
    operation.warm(warm)
    operation.opened = None
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()
    count = in_child(pristine, operation, None)
    print(json.dumps(count), flush=True)
    step = -(-count // tries)
    for at in range(1 + step // 2, count + 1, step):
        where, wrong = in_child(pristine, operation, at)
        if where:  # the system decides how often a driver looks after its workers
            print(json.dumps([at, where, wrong]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:4]))
