"""Run all workloads against their peers, and write what was found into docs/performance.md: `make bench`.

    python benchmarks/all.py [--small] [--minutes 20] [--only WORDS] [--no-write]

Each peer lives in an environment of its own under `.build/bench`, made here. A package that cannot be
installed, a contestant that fails, and a workload for which no time is left are named, in the page too. The
tables are those that each benchmark prints; they and a plot go between the markers of "The last `make
bench`". `--small` takes data so small that it shows no more than that everything runs.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "figures"
BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"
# Those that must not meet: TensorFlow chooses its own NumPy, Streaming and LitData their own packages for
# storage. torch and torchvision are a pair, for the operators of one are compiled for the other.
TORCH = ["torch==2.14.1", "torchvision==0.29.1"]
ENVIRONMENTS = {
    "tensorflow": ["tensorflow-cpu", "tfrecord", "lmdb", "bagz", "pyarrow", "array_record"],
    "torch": [
        *TORCH, "lmdb", "bagz", "datasets", "pillow", "opencv-python-headless", "simplejpeg", "pyvips",
        "pyvips-binary",
    ],
    "loaders": [*TORCH, "mosaicml-streaming", "litdata", "webdataset", "bagz", "pyarrow"],
}  # fmt: skip


class Workload(NamedTuple):
    """A benchmark, its arguments on a quiet machine and for a trial, and the most minutes that it may take.

    Attributes:
        title: its heading on the page.
        command: words; `{tensorflow}` and the like stand for interpreters of environments.
        full, small: further words for each of the two.
        minutes: after which it is ended; what it printed so far stays.
    """

    title: str
    command: str
    full: str
    small: str
    minutes: float


WORKLOADS = [
    Workload(
        "Local disk",
        "backbone.py --peers {tensorflow}",
        "--rounds 1",
        "--rounds 1 --records 20000",
        3.0,
    ),
    Workload(
        "Streams into torch",
        "streaming.py --peers {torch}",
        "--rounds 3 --photos 400 --minutes 5.7",
        "--rounds 1 --tokens 2000 --photos 60",
        6,
    ),
    Workload(
        "Images",
        "images.py --peers {torch} decoders loaders",
        "--photos 400 --rounds 1",
        "--photos 40 --rounds 1",
        2.5,
    ),
    Workload(
        "Object stores",
        "object_store.py --peers {loaders}",
        "--rounds 1 --megabytes 512 --latency 0",
        "--rounds 1 --megabytes 16 --latency 0",
        4.0,
    ),
    Workload(
        "tf.train.Example",
        "examples.py --peers {tensorflow}",
        "--rounds 1 --records 200000",
        "--rounds 1 --records 4000",
        2.0,
    ),
    Workload(
        "Writing images",
        "writing.py images --python peers={loaders} --python tensorflow={tensorflow}",
        "--rounds 1",
        "--rounds 1 --count 60",
        1.5,
    ),
    Workload(
        "Writing small records",
        "writing.py small --python peers={loaders} --python tensorflow={tensorflow}",
        "--rounds 3",
        "--rounds 1 --count 10000",
        3.0,
    ),
    Workload(
        "Adoption",
        "adoption.py --tfrecord-python {tensorflow}",
        "--repeat 3",
        "--repeat 1 --megabytes 16",
        1.0,
    ),
    Workload(
        "Memory",
        "memory.py",
        "--epochs 20",
        "--epochs 3 --megabytes 64",
        1.0,
    ),
]


def make_environments(wanted: set[str]) -> tuple[dict[str, str], list[str]]:
    """Return the interpreters of the environments, and what could not be installed."""
    pythons, missing = {}, []
    for name in sorted(wanted):
        folder = ROOT / ".build" / "bench" / name
        python = folder / "bin" / "python"
        done = folder / ".stamp"
        packages = ENVIRONMENTS[name]
        if not done.exists() or done.read_text() != " ".join(packages):
            print(
                f"installing {' '.join(packages)} into {folder.relative_to(ROOT)}",
                file=sys.stderr,
                flush=True,
            )
            if install(folder, packages):
                done.write_text(" ".join(packages))
            else:
                # One that fails takes the others with it, so each is tried alone.
                missing += [package for package in packages if not install(folder, [package])]
        pythons[name] = str(python) if python.exists() else ""
    return pythons, missing


def install(folder: Path, packages: list[str]) -> bool:
    """Install packages into an environment, made first where it is missing; False where that failed."""
    command = [ROOT / ".ci" / "install", folder, *packages]
    return subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr).returncode == 0


def run(
    workload: Workload, words: str, pythons: dict[str, str], minutes: float
) -> tuple[list[str], list[str]]:
    """Return the lines that a benchmark has printed, and what is to be said of it."""
    for name, python in pythons.items():
        words = words.replace(f"{{{name}}}", python)
    file, *arguments = words.split()
    command = [sys.executable, str(ROOT / "benchmarks" / file), *arguments]
    print(f"\n{workload.title}: {file} {' '.join(arguments)}", file=sys.stderr, flush=True)
    said: list[str] = []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=60 * minutes)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 15)  # its own session: the benchmark and what it has started
        out, errors = process.communicate()
        said.append(f"ended after {minutes:.1f} minutes")
    said += [line for line in errors.splitlines() if line.startswith("not measured") or " failed: " in line]
    if process.returncode and not any(line.startswith("ended") for line in said):
        said.append("failed: " + (errors.strip().splitlines() or ["it said nothing"])[-1])
    for line in said:
        print(line, file=sys.stderr, flush=True)
    return out.splitlines(), said


def tables(lines: list[str]) -> str:
    """Return what was printed as Markdown: tables as they are, other lines as code."""
    parts: list[tuple[bool, list[str]]] = []
    for line in lines:
        table = line.startswith("|")
        if line.strip():
            if not parts or parts[-1][0] is not table:
                parts.append((table, []))
            parts[-1][1].append(line)
    return "\n\n".join("\n".join(part if table else ["```", *part, "```"]) for table, part in parts)


def bars(lines: list[str]) -> list[tuple[str, str, float]]:
    """Return column, row and value of the first column of figures of each table."""
    found, heads = [], []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            heads = []
        elif not heads:
            heads = cells
        elif not cells[0].startswith("---") and len(cells) > 1:
            try:
                found.append((heads[1], cells[0], float(cells[1].replace(",", ""))))
            except ValueError:
                continue
    return found


def plot(outputs: dict[str, list[str]]) -> bool:
    """Draw the first column of each table as bars; False without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return False
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "shardio"
    panels: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for title, lines in outputs.items():
        for column, row, value in bars(lines):
            panels.setdefault((title, column), []).append((row, value))
    if not panels:
        return False
    heights = [len(rows) + 2 for rows in panels.values()]
    figure = Figure(figsize=(9, 0.24 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axis, ((title, column), rows) in zip(axes[:, 0], panels.items(), strict=True):
        names, values = zip(*reversed(rows), strict=True)
        axis.barh(
            range(len(rows)), values, color=["#2a7fb8" if "shardio" in name else "#b0b7bd" for name in names]
        )
        axis.set_yticks(range(len(rows)), names, fontsize=7)
        axis.set_title(f"{title}: {column}", fontsize=8, loc="left")
        axis.tick_params(axis="x", labelsize=7)
    figure.savefig(PLOTS / "bench.svg", metadata={"Date": None})
    return True


def main() -> None:
    """Make the environments, run, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a trial of the machinery")
    parser.add_argument("--minutes", type=float, default=20.0, help="for all of it, without installing")
    parser.add_argument("--only", default="", help="titles that contain this")
    parser.add_argument("--no-write", action="store_true", help="print the page's part instead")
    options = parser.parse_args()
    chosen = [workload for workload in WORKLOADS if options.only.lower() in workload.title.lower()]
    needed = {name for name in ENVIRONMENTS if any(f"{{{name}}}" in each.command for each in chosen)}
    pythons, missing = make_environments(needed)
    begun, load = time.monotonic(), os.getloadavg()[0]
    outputs: dict[str, list[str]] = {}
    parts: list[str] = []
    for workload in chosen:
        left = options.minutes - (time.monotonic() - begun) / 60
        words = f"{workload.command} {workload.small if options.small else workload.full}"
        shown = words.replace("{", "").replace("}", "/bin/python")
        lines, said = ([], ["no time was left"])
        if left > 0.2:
            # A trial is of the machinery, which also shows on a machine with other work to do.
            limit = left if options.small else min(left, workload.minutes)
            lines, said = run(workload, words, pythons, limit)
        outputs[workload.title] = lines
        notes = "".join(f"\n- {line}" for line in said)
        part = f"### {workload.title}, measured\n\n    python benchmarks/{shown}\n\n{tables(lines)}\n{notes}"
        parts.append(part.rstrip())
    minutes = (time.monotonic() - begun) / 60
    cpus = f"{platform.machine()}, {os.cpu_count()} processors, load {load:.1f} before it began"
    head = (
        f"{datetime.date.today():%d %B %Y}, {cpus}, Python {platform.python_version()}; {minutes:.0f} minutes"  # noqa: DTZ011 - the day here
    )
    absent = ", ".join(missing) or "none"
    drawn = plot(outputs) if not options.no_write else False
    picture = "![the first column of each table as bars](figures/bench.svg)\n\n" if drawn else ""
    body = f"{head}. Packages that could not be installed: {absent}.\n\n{picture}" + "\n\n".join(parts)
    if options.no_write:
        print(body)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} after {minutes:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
