"""Long trials, in pieces: what was tried, how often, and what came of it.

    make soak                                     a minute of each trial, from where the last one ended
    python -m tests.soak 600 simulation power     ten minutes of each of these
    python -m tests.soak 0 kills=17               seed 17 of this one alone, which is not recorded
    python -m tests.soak 0                        writes the table of docs/reliability.md alone

Each trial has a process of its own, in which descriptors, threads, memory and scratch are counted. The record
is docs/figures/reliability.json.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import shardio
from shardio.errors import FormatError
from tests.promises.appends import append_at_once, check_none_lost_or_doubled
from tests.promises.deeds import check_killed_appender, prepared
from tests.promises.stores import Dropping, faulty
from tests.servers.faults import READ_FAULTS, fault_server
from tests.servers.s3 import options_for
from tests.servers.web import folder_server
from tests.simulation.simulate import Schedule, run
from tests.streaming.cases import Case, quietly

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "figures" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- what was tried: begin -->", "<!-- what was tried: end -->"

# What one seed of a trial does: counts what it tried, and raises where a promise is broken.
Step = Callable[[int, Path], int]


class Trial(NamedTuple):
    """A trial: how it is called in the table, and how it is begun.

    Attributes:
        unit: what is counted.
        what: happens, each time.
        begin: returns what does one seed; it may give a folder, servers and recordings to all of them.
    """

    unit: str
    what: str
    begin: Callable[[Path, contextlib.ExitStack], Step]


def _simulation(folder: Path, stack: contextlib.ExitStack) -> Step:
    del folder, stack

    def step(seed: int, _: Path) -> int:
        history = run(Schedule.random(seed))
        assert history.wrong is None, history.wrong
        return 1

    return step


def _power(folder: Path, stack: contextlib.ExitStack) -> Step:
    from tests.promises.power_check import Judge
    from tests.promises.test_p01_power import record, try_cuts

    del stack
    recording = record("versions", folder)
    judge = Judge(recording, "versions")

    def step(seed: int, scratch: Path) -> int:
        try_cuts(recording, judge, scratch, 12, seed)
        return 12

    return step


def _power_of_a_cache(folder: Path, stack: contextlib.ExitStack) -> Step:
    from tests.promises.power_check import check_cache
    from tests.promises.test_p01_power import record, try_cuts

    recording = record("cache", folder)
    server = stack.enter_context(folder_server(folder / "served"))

    def step(seed: int, scratch: Path) -> int:
        try_cuts(recording, lambda cut, disk: check_cache(server, cut, disk), scratch, 12, seed)
        return 12

    return step


def _kills(folder: Path, stack: contextlib.ExitStack) -> Step:
    del stack
    begun = folder / "begun"
    prepared(str(begun))

    def step(seed: int, scratch: Path) -> int:
        url = str(scratch / "ds")
        shutil.copytree(begun, url)
        check_killed_appender(url, scratch / "acknowledged", random.Random(seed).uniform(0, 0.1))
        assert shardio.verify(url).ok
        return 1

    return step


def _commits(folder: Path, stack: contextlib.ExitStack) -> Step:
    """Eight writers race, and of ten requests that create something three are lost, or their replies."""
    del folder, stack

    def step(seed: int, scratch: Path) -> int:
        url = str(scratch / "ds") if seed % 4 == 0 else f"memory://soak-{seed}"
        shardio.DatasetWriter(url).close()
        with faulty(Dropping(seed)):
            known, in_doubt = append_at_once(url, rounds=5)
        check_none_lost_or_doubled(url, known, in_doubt)
        return 40

    return step


def _faulty_reads(folder: Path, stack: contextlib.ExitStack) -> Step:
    """Read from a bucket that answers one request in twenty wrongly, each time in another way."""
    written = [{"n": n, "text": f"record {n}" * (n % 9)} for n in range(3000)]
    with shardio.DatasetWriter(
        str(folder / "ds"), {"n": "int64", "text": "text"}, shard_bytes=20_000, block_bytes=500
    ) as out:
        out.write_many(written)
    server = stack.enter_context(fault_server())
    server.load(folder / "ds", "/bucket/ds")
    server.stale = {path: data[::-1] for path, data in server.objects.items()}
    # What never answers is given up after seconds, which the tests of stores do by a clock of their own.
    slow = {"never", "trickle", "redirect nowhere", "expired"}
    faults = [each for each in READ_FAULTS if each not in slow]

    def step(seed: int, _: Path) -> int:
        dice = random.Random(seed)
        server.random_faults(faults[seed % len(faults)], 0.05, seed=seed)
        rows = [dice.randrange(3000) for _ in range(2000)]
        try:
            ds = shardio.open("s3://bucket/ds", storage_options=options_for(server.url))
            found = [int(each["n"]) for each in ds.read(rows)]
        except FormatError:  # now and then one of twenty is met each time that is asked again
            return 0
        assert found == rows
        server.log.clear()
        return len(rows)

    return step


def _cache_storm(folder: Path, stack: contextlib.ExitStack) -> Step:
    """Processes that share a small cache are killed while its files are cut, emptied and overwritten."""
    served = folder / "served"
    served.mkdir()
    with shardio.DatasetWriter(str(served / "ds"), {"n": "int64"}, block_bytes=200) as out:
        out.write_many([{"n": n} for n in range(2000)])
    server = stack.enter_context(folder_server(served))
    options = shardio.CacheOptions(folder / "cache", max_bytes=20_000)

    def reading(seed: int, counter: Path) -> None:
        dice = random.Random(seed)
        ds = shardio.open(f"{server}/ds", cache=options)
        with counter.open("ab", buffering=0) as out:
            while True:
                first = dice.randrange(1900)
                rows = [*range(first, first + 60), *(dice.randrange(2000) for _ in range(40))]
                if [int(each["n"]) for each in ds.read(rows)] != rows:
                    out.write(b"!")
                    return
                out.write(b".")

    def step(seed: int, scratch: Path) -> int:
        dice = random.Random(seed)
        children = []
        for number in range(3):
            counter = scratch / f"{number}"
            child = os.fork()
            if child == 0:
                try:
                    reading(seed * 3 + number, counter)
                except BaseException:  # noqa: BLE001 - told by its mark
                    with counter.open("ab") as out:
                        out.write(b"!" + traceback.format_exc().encode())
                finally:
                    os._exit(0)
            children.append(child)
        # Until each has read something; how long that takes depends on the machine.
        for _ in range(600):
            time.sleep(dice.uniform(0.02, 0.1))
            _tamper(folder / "cache", dice)
            if min((path.stat().st_size for path in scratch.iterdir()), default=0) > 20:
                break
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        told = b"".join(path.read_bytes() for path in scratch.iterdir())
        assert b"!" not in told, told.partition(b"!")[2].decode()[-1500:]
        return told.count(b".") * 100

    return step


def _tamper(cache: Path, dice: random.Random) -> None:
    """Damage a file of a cache, as a disk or another program may."""
    files = sorted(cache.rglob("*.block"))
    if not files:
        return
    path = dice.choice(files)
    with contextlib.suppress(FileNotFoundError):
        data = bytearray(path.read_bytes())
        way = dice.choice(["cut", "empty", "flip", "other"])
        if way == "cut":
            data = data[: dice.randrange(len(data) + 1)]
        elif way == "empty":
            data = bytearray()
        elif way == "flip" and data:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        elif way == "other":
            data = bytearray(dice.choice(files).read_bytes())
        half = path.with_suffix(".tampered")
        half.write_bytes(data)
        half.replace(path)


def _resumes(folder: Path, stack: contextlib.ExitStack) -> Step:
    """Streams end at any step and go on as other numbers of ranks, workers and threads."""
    del folder, stack

    def step(seed: int, _: Path) -> int:
        quietly(Case(random.Random(1_000_000 + seed)))
        return 1

    return step


def _loaders(folder: Path, stack: contextlib.ExitStack) -> Step:
    """Loaders begin and end, some by an error, some left lying."""
    del stack
    with shardio.DatasetWriter(str(folder / "ds"), {"n": "int64"}, block_bytes=200, shard_bytes=2000) as out:
        out.write_many([{"n": n} for n in range(500)])

    def step(seed: int, _: Path) -> int:
        dice = random.Random(seed)
        stream = shardio.stream(
            str(folder / "ds"), global_batch=10, seed=seed, num_threads=dice.choice([0, 1, 2])
        )
        batches = iter(stream)
        for _batch in range(dice.randrange(6)):
            next(batches)
        if dice.random() < 0.5:
            stream.state_dict()
        return 1

    return step


TRIALS = {
    "simulation": Trial(
        "schedules",
        "clients of a simulated store interleave, fail and die at any of its calls",
        _simulation,
    ),
    "power": Trial("cuts", "the power goes while a dataset is changed", _power),
    "power of a cache": Trial("cuts", "the power goes while a cache is filled", _power_of_a_cache),
    "kills": Trial("kills", "a writer is killed at a random moment", _kills),
    "commits": Trial("commits", "eight writers race; 30 % of requests or replies are lost", _commits),
    "faulty reads": Trial("records", "one reply of a bucket in twenty is wrong", _faulty_reads),
    "cache storm": Trial(
        "records", "a cache is tampered with while its processes read and are killed", _cache_storm
    ),
    "resumes": Trial("streams", "a stream ends at random and goes on in another shape", _resumes),
    "loaders": Trial("loaders", "streams are begun and left", _loaders),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- running


def held() -> dict[str, int]:
    """Count what this process holds, and the scratch that it left."""
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "temporary files": len(list(Path(tempfile.gettempdir()).glob("shardio-*"))),
        "MiB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def attempt(name: str, first: int, seconds: float) -> dict[str, Any]:
    """Try seeds from the first on for some seconds; return what came of it."""
    began, seed, count, failure, early = time.monotonic(), first, 0, None, None
    with tempfile.TemporaryDirectory(prefix="soak-") as place, contextlib.ExitStack() as stack:
        scratch = Path(place, "scratch")
        scratch.mkdir()
        # What is left behind is left here.
        stack.enter_context(mock.patch.object(tempfile, "tempdir", str(scratch)))
        folder = Path(place, "trial")
        folder.mkdir()
        step = TRIALS[name].begin(folder, stack)
        while True:
            here = Path(place, str(seed))
            here.mkdir()
            try:
                count += step(seed, here)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is what a trial is for
                failure = f"{type(error).__name__}: {error}"[:2000]
                traceback.print_exc()
            shutil.rmtree(here)
            seed += 1
            if seed - first == 20:
                early = held()
            if failure or time.monotonic() - began > seconds:
                break
        late = held()
    if early and not failure:
        grown = {each: (early[each], late[each]) for each in early if late[each] > early[each] * 1.5 + 20}
        failure = f"grew: {grown}" if grown else None
    return {"first": first, "stop": seed, "count": count, "seconds": round(time.monotonic() - began),
            "held": late, "failure": failure}  # fmt: skip


def revision() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "no checkout"


def load() -> dict[str, list[dict[str, Any]]]:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def soak(names: list[str], seconds: float) -> int:
    """Run trials one after another, each in a process of its own; return how many failed."""
    failed = 0
    for given in names:
        name, _, seed = given.partition("=")
        runs = load().get(name, [])
        first = int(seed) if seed else max((each["stop"] for each in runs), default=0)
        command = [sys.executable, "-m", "tests.soak", "--attempt", name, str(first), str(seconds)]
        # Sets have one order then, so that a seed gives one history.
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, check=False
        )
        result = (
            json.loads(done.stdout) if done.returncode == 0 else {"failure": f"ended with {done.returncode}"}
        )
        print(f"{name}: {result}", flush=True)
        failed += result["failure"] is not None
        if seed or "stop" not in result:
            continue
        result |= {"revision": revision(), "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")}
        record = load()
        record.setdefault(name, []).append(result)
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write_page()
    return failed


def days(tried: list[dict[str, Any]]) -> str:
    """Return the days of what was tried, from the first to the last."""
    dates = sorted({each["date"] for each in tried})
    return " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "not run"


def table() -> str:
    """Return what the record says, as the table of the page."""
    lines = ["| what | tried | failed | on |", "|---|--:|--:|---|"]
    record = load()
    for name, trial in TRIALS.items():
        runs = record.get(name, [])
        count, failures = sum(each["count"] for each in runs), sum(bool(each["failure"]) for each in runs)
        lines.append(f"| {trial.what} | {count:,} {trial.unit} | {failures} | {days(runs)} |")
    return "\n".join(lines)


def write_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--attempt"]:
        out, sys.stdout = sys.stdout, sys.stderr  # results alone go there
        result = attempt(arguments[1], int(arguments[2]), float(arguments[3]))
        print(json.dumps(result), file=out)
        return 0
    seconds = float(arguments[0]) if arguments else 60.0
    names = arguments[1:] or (list(TRIALS) if seconds else [])
    return min(soak(names, seconds), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
