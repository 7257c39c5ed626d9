"""A million messages of a class of one's own: written, evolved, read by another language, compared with JSON.

    python examples/messages.py            runs all steps; needs grpcio-tools
    python examples/messages.py --help     what can be changed

`docs/encodings.md` explains the steps.  Programs of different ages cannot be one process, so each step runs
as a program of its own: this file with the class of its age on the path.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

import shardio
from shardio import codecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROOT = Path(__file__).parent.parent
SOURCES = Path(__file__).parent / "sightings"
SPECIES = (
    "Parus major",
    "Turdus merula",
    "Erithacus rubecula",
    "Sitta europaea",
    "Pica pica",
    "Corvus corax",
)
SAID: list[str] = []  # what a program has found to hold; whoever started it prints this
PEOPLE = ("Ada Lovelace", "Mary Anning", "Alexander von Humboldt", "Maria Sibylla Merian", "Rachel Carson")


# ----------------------------------------------------------------------------------------------- the programs


def sighting(number: int) -> dict[str, Any]:
    """Return what was seen, as a dict: the same for messages and for JSON."""
    mixed = number * 2654435761 % 2**32
    return {
        "species": SPECIES[mixed % len(SPECIES)],
        "time_ms": 1_700_000_000_000 + number * 1000 + mixed % 1000,
        "latitude": mixed / 2**32 * 180 - 90,
        "longitude": (mixed * 48271 % 2**32) / 2**32 * 360 - 180,
        "count": mixed % 7 + 1,
        "observer": PEOPLE[mixed // 7 % len(PEOPLE)],
    }


def write_old(folder: Path, records: int) -> dict[str, Any]:
    """The old program: write messages, plain and compressed, and the same as lines of JSON."""
    from sighting_pb2 import Sighting

    codec = codecs.Message(Sighting)
    encode = json.JSONEncoder(separators=(",", ":")).encode

    def write(name: str, compression: str | None) -> int:
        url = folder / name
        with shardio.DatasetWriter(url, schema=codec, compression=compression) as out:
            for number in range(records):
                out.write(Sighting(**sighting(number)), split="train")
        return shardio.open(url, decode=False).num_bytes

    def write_json() -> int:
        with (folder / "sightings.jsonl").open("w", encoding="utf-8") as file:
            for number in range(records):
                file.write(encode(sighting(number)) + "\n")
        return (folder / "sightings.jsonl").stat().st_size

    def write_json_zstd() -> int:
        with zstandard.open(folder / "sightings.jsonl.zst", "wt", encoding="utf-8") as file:
            for number in range(records):
                file.write(encode(sighting(number)) + "\n")
        return (folder / "sightings.jsonl.zst").stat().st_size

    return {
        "messages": timed(lambda: write("sightings", None)),
        "messages, zstd": timed(lambda: write("sightings-zstd", "zstd")),
        "JSON lines": timed(write_json),
        "JSON lines, zstd": timed(write_json_zstd),
    }


def read_old(folder: Path, records: int) -> dict[str, Any]:
    """The old program: read each form whole, and count the birds."""
    from sighting_pb2 import Sighting

    def read(name: str) -> int:
        return sum(found.count for found in shardio.open(folder / name, decode=codecs.Message(Sighting)))

    def count(lines: Iterable[str]) -> int:
        return sum(json.loads(line)["count"] for line in lines)

    def read_json() -> int:
        with (folder / "sightings.jsonl").open(encoding="utf-8") as file:
            return count(file)

    def read_json_zstd() -> int:
        with zstandard.open(folder / "sightings.jsonl.zst", "rt", encoding="utf-8") as file:
            return count(file)

    found = {
        "messages": timed(lambda: read("sightings")),
        "messages, zstd": timed(lambda: read("sightings-zstd")),
        "JSON lines": timed(read_json),
        "JSON lines, zstd": timed(read_json_zstd),
    }
    expected = sum(sighting(number)["count"] for number in range(records))
    check({birds for birds, _ in found.values()} == {expected}, f"every form holds {expected:,} birds")
    return found


def evolve_new(folder: Path, records: int) -> dict[str, Any]:
    """The new program: read what the old one wrote, and append messages with fields unknown to it."""
    from sighting_pb2 import Sighting

    codec = codecs.Message(Sighting)
    old = shardio.open(folder / "sightings", decode=codec)
    first = old[0]
    check(first.observer == sighting(0)["observer"], "a deprecated field is still read")
    check(first.observer_id == 0 and not first.song, "a field that was added has its default in old messages")
    with shardio.DatasetWriter(folder / "sightings", schema=codec, mode="append") as out:
        for number in range(records, records + records // 10):
            values = sighting(number)
            del values["observer"]
            out.write(
                Sighting(**values, observer_id=number, song=[number % 5 * 0.5, -3.25, 1.5]), split="train"
            )
    both = shardio.open(folder / "sightings", decode=codec)
    check(len(both) == records + records // 10, f"{len(both):,} messages of both ages in one dataset")
    last = both[-1]
    check(list(last.song)[1:] == [-3.25, 1.5], "new messages come back with their new fields")
    return {"json": [codec.to_json(first), codec.to_json(last)]}


def look_old(folder: Path, records: int) -> dict[str, Any]:
    """The old program again: read what the new one wrote, and pass it on without loss."""
    from sighting_pb2 import Sighting

    codec = codecs.Message(Sighting)
    values, payloads = (shardio.open(folder / "sightings", decode=how) for how in (codec, False))
    last = values[-1]
    check(last.species == sighting(len(values) - 1)["species"], "the old program reads new messages")
    check(last.observer == "", "a field that is no longer written has its default")
    check(not hasattr(last, "song"), "it knows nothing of the fields that were added")
    new = range(records, len(values))
    same = all(codec.encode(values[row]) == payloads[row] for row in new[:100])
    check(same, "and still keeps them: what it writes again is the same, bit for bit")
    return {}


def count_new(folder: Path, _records: int) -> dict[str, Any]:
    """The new program: what JavaScript must find too."""
    from sighting_pb2 import Sighting

    codec = codecs.Message(Sighting)
    names = ("records", "birds", "letters", "north", "observers", "ids", "loudness", "time")
    totals = dict.fromkeys(names, 0)
    for found in shardio.open(folder / "sightings", decode=codec):
        totals["records"] += 1
        totals["birds"] += found.count
        totals["letters"] += len(found.species)
        totals["north"] += math.floor(found.latitude * 1e6)
        totals["observers"] += found.observer != ""
        totals["ids"] += found.observer_id != 0
        totals["loudness"] += sum(math.floor(value * 4) for value in found.song)
        totals["time"] += found.time_ms
    return {**totals, "time": str(totals["time"])}


PROGRAMS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "write-old": write_old,
    "read-old": read_old,
    "evolve-new": evolve_new,
    "look-old": look_old,
    "count-new": count_new,
}


def timed(work: Callable[[], int]) -> tuple[int, float]:
    """Return what work returns, and how many seconds it took."""
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def check(holds: object, what: str) -> None:
    """Note what was found, or stop."""
    if not holds:
        sys.exit(f"this should hold and does not: {what}")
    SAID.append(what)


# ------------------------------------------------------------------------------------------------ around them


def compile_python(folder: Path, compiler: Sequence[str]) -> None:
    """Run protoc for both ages of the message."""
    for age in ("old", "new"):
        target = folder / "generated" / age
        target.mkdir(parents=True, exist_ok=True)
        run([*compiler, f"-I{SOURCES / age}", f"--python_out={target}", "sighting.proto"])


def read_javascript(folder: Path, modules: Path) -> dict[str, Any]:
    """Let protobufjs make its class from the same file, and node read the same shards."""
    generated = folder / "generated" / "sighting.cjs"
    form = ["-t", "static-module", "-w", "commonjs", "-o", str(generated)]
    run([str(modules / ".bin" / "pbjs"), *form, str(SOURCES / "new" / "sighting.proto")])
    shards = sorted((folder / "sightings" / "data").rglob("*.tfrecord"))
    command = ["node", str(SOURCES / "read.cjs"), str(generated), *map(str, shards)]
    found: dict[str, Any] = json.loads(run(command, NODE_PATH=str(modules)))
    return found


def run(command: Sequence[str], **variables: str) -> str:
    """Run a program and return what it prints; what it complains of is shown."""
    path = os.pathsep.join([os.environ["PATH"], str(ROOT / ".build" / "node" / "bin")])
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, "PATH": path, **variables}
    )
    if done.returncode:
        sys.exit(f"{command[0]} has failed with exit code {done.returncode}")
    return done.stdout


def program(name: str, folder: Path, records: int) -> Any:
    """Run one of `PROGRAMS` in a process of its own, with the class of its age on the path."""
    age = name.rpartition("-")[2]
    path = os.pathsep.join([str(folder / "generated" / age), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        __file__,
        "--folder",
        str(folder),
        "--records",
        str(records),
        "--program",
        name,
    ]
    said, result = json.loads(run(command, PYTHONPATH=path))
    for sentence in said:
        print(f"  {sentence}", flush=True)
    return result


def tour(folder: Path, records: int, compiler: Sequence[str], modules: Path) -> None:
    """Run all steps and print what they show."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print("[1/5] protoc makes a Python class of either age of the message", flush=True)
    compile_python(folder, compiler)
    print(f"[2/5] the old program writes {records:,} messages, and reads them", flush=True)
    written = program("write-old", folder, records)
    read = program("read-old", folder, records)
    print(f"  {'':18}{'MB':>8}{'bytes each':>12}{'write s':>10}{'read s':>9}")
    for name, (size, seconds) in written.items():
        each = size / records
        print(f"  {name:18}{size / 1e6:8.1f}{each:12.1f}{seconds:10.2f}{read[name][1]:9.2f}")
    print("[3/5] the new program reads old messages and appends new ones", flush=True)
    for line in program("evolve-new", folder, records)["json"]:
        print(f"  as JSON: {line}")
    print("[4/5] the old program reads new messages", flush=True)
    program("look-old", folder, records)
    print("[5/5] JavaScript reads the same files", flush=True)
    here, there = program("count-new", folder, records), read_javascript(folder, modules)
    if here != there:
        sys.exit(f"JavaScript has found something else: {there}, not {here}")
    print(f"  {there['records']:,} messages with {there['birds']:,} birds: the same as in Python")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tour, or one program of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("demo-data") / "messages")
    parser.add_argument(
        "--protoc",
        default=f"{ROOT / '.build' / 'pbenv' / 'bin' / 'python'} -m grpc_tools.protoc",
        help="the protobuf compiler; %(default)s",
    )
    parser.add_argument(
        "--node-modules",
        type=Path,
        default=ROOT / ".build" / "npm" / "node_modules",
        help="where protobufjs and protobufjs-cli are installed; %(default)s",
    )
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    if options.program:
        result = PROGRAMS[options.program](folder, options.records)
        print(json.dumps([SAID, result]))
    else:
        tour(folder, options.records, options.protoc.split(), options.node_modules.resolve())


if __name__ == "__main__":
    main()
