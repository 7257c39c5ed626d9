"""Run all workloads against their peers, and write what was found: `make bench`.

    python benchmarks/all.py [--small] [--minutes 20] [--only WORDS] [--no-write]

Each peer lives in an environment of its own under `.build/bench`, made here. A package that cannot be
installed, a contestant that fails, and a workload for which no time is left are named, in the page too. The
tables are those that each benchmark prints; they go to .build/bench/results.md, each with its date. With
`--only` those of other workloads stay. A chart and a table of the `COMPARISONS` go to docs/performance.md,
unless one of them was not measured, or its workload did not end by itself.
`--small` takes data so small that it shows no more than that everything runs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / ".build" / "bench" / "results.md"
SUMMARY = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
# Bars where shardio is faster and where it is not, and what is written; for pages of each theme.
THEMES = {"light": ("#0f766e", "#b0b7bd", "#24292f"), "dark": ("#2bb8b0", "#5b6875", "#e6edf3")}
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


class Comparison(NamedTuple):
    """A row of the chart: two cells of one column of what a workload printed.

    Attributes:
        work: what is done, in the reader's words.
        peer: by whom else.
        title: of the workload.
        column: head of the column.
        ours, theirs: the first cells of the two rows.
        unit: of both figures.
        rate: more is better; else less.
    """

    work: str
    peer: str
    title: str
    column: str
    ours: str
    theirs: str
    unit: str
    rate: bool


COMPARISONS = [
    Comparison(
        "Read records of 300 bytes in order",
        "tfrecord, without checksums",
        "Local disk",
        "us a record, wall",
        "stream, plain, every block checked (with start-up)",
        "the `tfrecord` package, nothing checked",
        "us per record",
        rate=False,
    ),
    Comparison(
        "The same compressed and shuffled",
        "ArrayRecord",
        "Local disk",
        "us a record, wall",
        "stream, zstd, shuffled by the default plan",
        "ArrayRecord, groups of 256, zstd, shuffled",
        "us per record",
        rate=False,
    ),
    Comparison(
        "Read and parse tf.train.Example",
        "tf.data",
        "tf.train.Example",
        "wall",
        "disk: iter_batches",
        "tf.data batch and parse",
        "us per record",
        rate=False,
    ),
    Comparison(
        "Load JPEGs of 60 KB into PyTorch",
        "DataLoader over LMDB, torchvision",
        "Images",
        "images/s",
        "shardio, 2 threads",
        "torch over LMDB, 2 workers, torchvision.io",
        "images per second",
        rate=True,
    ),
    Comparison(
        "Stream records of 8 KB from a bucket",
        "LitData, over a copy on local disk",
        "Object stores",
        "MB/s",
        "shardio.stream, obstore, default plan",
        "LitData",
        "MB per second",
        rate=True,
    ),
    Comparison(
        "Write records of 300 bytes",
        "TensorFlow",
        "Writing small records",
        "processor us/record",
        "shardio_many",
        "tensorflow",
        "us of CPU per record",
        rate=False,
    ),
]


def figures(lines: list[str]) -> dict[tuple[str, str], float]:
    """Return the figures that a workload printed, by first cell and head of the column; the first counts.

    Rows are those of Markdown tables, or words, two spaces or more, `cpu` and `wall`.
    """
    found: dict[tuple[str, str], float] = {}
    heads: list[str] = []
    for line in lines:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            # A table may follow another without a line between them; its heads are no figures.
            if not heads or (not any(cell[:1].isdigit() for cell in cells[1:]) and "---" not in cells[0]):
                heads = cells
                continue
        else:
            cells, heads = re.split(r"\s{2,}", line.strip()), ["", "cpu", "wall"]
        for head, cell in zip(heads[1:], cells[1:], strict=False):
            with contextlib.suppress(ValueError):
                found.setdefault((cells[0], head), float(cell.replace(",", "")))
        if not line.startswith("|"):
            heads = []
    return found


def kept() -> dict[str, str]:
    """Return the parts that the page has, by title."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    found = re.split(r"^### (.+), measured$", text, flags=re.MULTILINE)
    return {title: part.strip() for title, part in zip(found[1::2], found[2::2], strict=True)}


def compared(parts: dict[str, str]) -> list[tuple[Comparison, float, float, float]] | None:
    """Return the comparisons with our figure, theirs, and how many times as fast; None if one is missing."""
    rows = []
    for each in COMPARISONS:
        part = parts.get(each.title, "")
        found = {} if re.search(r"^- (?:ended|failed)", part, re.MULTILINE) else figures(part.splitlines())
        ours, theirs = (found.get((name, each.column)) for name in (each.ours, each.theirs))
        if ours is None or theirs is None:
            print(f"no figure of {each.title}: {each.ours}, {each.theirs}", file=sys.stderr)
            return None
        rows.append((each, ours, theirs, ours / theirs if each.rate else theirs / ours))
    return rows


def plot(rows: list[tuple[Comparison, float, float, float]]) -> None:
    """Draw how many times as fast as its peer each is."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "shardio"
    ratios = [ratio for *_, ratio in reversed(rows)]
    names = [f"{each.work}\nagainst {each.peer}" for each, *_ in reversed(rows)]
    places = range(len(rows))
    for theme, (faster, slower, text) in THEMES.items():
        figure = Figure(figsize=(8, 0.55 * len(rows) + 0.7), layout="constrained")
        axis = figure.subplots()
        axis.barh(places, ratios, height=0.55, color=[faster if r >= 1 else slower for r in ratios])
        axis.axvline(1, color=text, linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xlim(min(0.4, min(ratios) / 1.3), max(ratios) * 1.8)
        axis.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"], fontsize=8)
        axis.set_yticks(places, names, fontsize=8)
        axis.set_xlabel("times as fast as the peer", fontsize=8, color=text)
        axis.tick_params(which="both", colors=text)
        for place, ratio in zip(places, ratios, strict=True):
            axis.text(max(ratio, 1) * 1.06, place, f"{ratio:.1f}", va="center", fontsize=9, color=text)
        for name, spine in axis.spines.items():
            spine.set_visible(name not in ("top", "right"))
            spine.set_color(text)
        figure.savefig(FIGURES / f"bench-{theme}.svg", transparent=True, metadata={"Date": None})


def summary(rows: list[tuple[Comparison, float, float, float]], parts: dict[str, str]) -> str:
    """Return the table of the page for users."""
    measured = dict.fromkeys(parts[each.title].partition("\n")[0] for each, *_ in rows)
    days = dict.fromkeys(line.partition(",")[0] for line in measured)
    machines = dict.fromkeys(re.sub(r"^[^,]*, |, load [^,]*|; .*", "", line) for line in measured)
    lines = [
        f"Measured on {' and '.join(days)}: {' and '.join(machines)}.",
        "",
        "| work | shardio | peer | | times as fast |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.work}, {each.unit} | {ours:.3g} | {each.peer} | {theirs:.3g} | **{ratio:.1f}** |"
        for each, ours, theirs, ratio in rows
    ]
    return "\n".join(lines)


def write_between(page: Path, body: str) -> None:
    """Put text between the markers of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"wrote {page.relative_to(ROOT)}", file=sys.stderr)


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
    begun = time.monotonic()
    parts = kept() if len(chosen) < len(WORKLOADS) else {}
    for workload in chosen:
        left = options.minutes - (time.monotonic() - begun) / 60
        words = f"{workload.command} {workload.small if options.small else workload.full}"
        shown = words.replace("{", "").replace("}", "/bin/python")
        lines, said = ([], ["no time was left"])
        started, load = time.monotonic(), os.getloadavg()[0]
        if left > 0.2:
            # A trial is of the machinery, which also shows on a machine with other work to do.
            limit = left if options.small else min(left, workload.minutes)
            lines, said = run(workload, words, pythons, limit)
        minutes = (time.monotonic() - started) / 60
        cpus = f"{platform.machine()}, {os.cpu_count()} processors, load {load:.1f} before it began"
        today = datetime.date.today()  # noqa: DTZ011 - the day here
        head = f"{today:%d %B %Y}, {cpus}, Python {platform.python_version()}; {minutes:.1f} minutes"
        notes = "".join(f"\n- {line}" for line in said)
        part = f"{head}\n\n    python benchmarks/{shown}\n\n{tables(lines)}\n{notes}"
        parts[workload.title] = part.rstrip()
    absent = ", ".join(missing) or "none"
    titles = [each.title for each in WORKLOADS if each.title in parts]
    body = f"Packages that could not be installed: {absent}.\n\n" + "\n\n".join(
        f"### {title}, measured\n\n{parts[title]}" for title in titles
    )
    if options.no_write:
        print(body)
        return
    PAGE.write_text(f"{body}\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
    rows = compared(parts)
    if rows is not None and not options.small:
        plot(rows)
        write_between(SUMMARY, summary(rows, parts))


if __name__ == "__main__":
    main()
