"""Commands to train."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from shardio.cli._command import OPENING, READING, Given, command
from shardio.cli._console import CLEAN, Console
from shardio.cli._options import Takes
from shardio.cli._plots import Plot, check_plot, plot_bench, plot_order
from shardio.cli._values import Rank, Slice, Urls, Whole
from shardio.display import count, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio import DatasetReader, Plan
    from shardio.streaming import AuditedRecord, Mix


_PLOTTED_STEPS = 256


_SHAPE = ("ranks", "workers", "chunk_rows", "interleave", "window")


@command(
    Takes("shardio:StreamOptions", only=("remainder", "shuffle", "mixing")),
    Takes("shardio:plan_report", only=("workers",)),
    Takes("shardio:Plan", prefix="plan_"),
    OPENING,
    examples={
        "shardio plan s3://bucket/birds --split train --global-batch 256 --ranks 8": "8 processes",
        "shardio plan birds --global-batch 256 --plot order.svg": "where the records of each step are",
        "shardio plan books web --weights 0.7 0.3 --global-batch 512 --ranks 16": "a mixture",
    },
)
def plan(  # noqa: PLR0913 - what a run is given
    given: Given,
    console: Console,
    urls: Urls,
    *,
    global_batch: Annotated[Whole, Parameter(help="records of a step, all ranks")],
    world_size: Annotated[Whole, Parameter(name="--ranks", help="processes that train")] = 1,
    memory_bytes: Annotated[
        Whole | None, Parameter(name="--memory", help="what a process may hold beside its batches")
    ] = None,
    scratch: Annotated[
        str,
        Parameter(
            metavar="auto|FOLDER|no", help="local disk for open chunks that do not fit in memory; no: none"
        ),
    ] = "auto",
    weights: Annotated[
        list[float] | None,
        Parameter(consume_multiple=True, negative=(), help="of a mixture, one a dataset"),
    ] = None,
    stop: Annotated[Literal["first", "all"] | None, Parameter(help="when a mixture ends")] = None,
    plot: Plot = None,
    records: Slice = None,
) -> int:
    import shardio

    # The split is opened before it is streamed: several datasets are a mixture.
    options = given.options(shardio.StreamOptions) | {"plan": _plan(given), "split": None}
    options["world_size"] = world_size
    if scratch == "no":
        options["scratch"] = False
    data = _data_plan(given, urls, weights)
    plans = shardio.stream(data, **options).order.plans
    if plot is not None:
        check_plot(plot)
    figures, advice = shardio.plan_report(data, workers=given.workers, **options)
    facts = {"urls": urls, "plans": [plan.to_dict() for plan in plans], **figures.to_dict()}
    console.facts(facts, document={**facts, "advice": advice})
    if plot is not None:
        plot_order(_places(data, options), figures, plot, console)
    for line in advice:
        console.note(line)
    return CLEAN


def _places(data: DatasetReader | Mix, options: Mapping[str, Any]) -> tuple[list[list[float]], int]:
    """Return where in storage the records of the first steps are, 0 to 1, and how many steps there are."""
    import numpy as np

    import shardio

    stream = shardio.stream(data, **options)
    schedule = stream.order.schedule(0, options["global_batch"])
    rows = [source.sizes.total_rows for source in stream.order.sources]
    before, total = np.concatenate([[0], np.cumsum(rows)]), sum(rows)
    found = []
    for step in range(min(_PLOTTED_STEPS, schedule.stop)):
        batch = schedule.batch(step)
        found.append(((before[batch.sources] + batch.positions) / total).tolist())
    return found, schedule.stop


def _data_plan(given: Given, urls: list[str], weights: list[float] | None) -> DatasetReader | Mix:
    import shardio

    readers = [given.open(url) for url in urls]
    weights = weights or ([1.0] * len(readers) if len(readers) > 1 else [])
    if len(weights) != len(readers) and (weights or len(readers) > 1):
        raise ValueError(f"{len(weights)} --weights for {len(readers)} datasets: give one for each")
    if not weights:
        return readers[0]
    return given.call(shardio.mix, list(zip(readers, weights, strict=True)))


def _plan(given: Given) -> Plan | None:
    import shardio

    typed = {name: getattr(given, f"plan_{name}") for name in _SHAPE}
    named = {name: value for name, value in typed.items() if value is not None}
    return shardio.Plan(**named) if named else None


@command(
    Takes("shardio:open", only=("url", "features")),
    Takes("shardio:bench", without=("ds",)),
    READING,
    examples={
        "shardio bench s3://bucket/birds --split train": "rates of each stage, and what a record costs",
        "shardio bench birds --seconds 30 --plot bench.svg": "longer, and as a figure",
    },
)
def bench(
    given: Given,
    console: Console,
    *,
    decode_images: Annotated[bool, Parameter(help="decode images to pixels")] = False,
    plot: Plot = None,
) -> int:
    import shardio

    if plot is not None:
        check_plot(plot)
    ds = given.open(given.url, **({"decode": "image"} if decode_images else {}))
    result = given.call(shardio.bench, ds)
    console.report(result)
    if plot is not None:
        plot_bench(result, plot, console)
    console.note("data read before may be in the page cache: compare the first pass with the later ones")
    return CLEAN


_LARGEST_STATE = 1 << 28
_STATE = "what state_dict() returned, as JSON"


@command(
    OPENING,
    examples={
        "shardio audit s3://bucket/birds --state state.json --step 1200": "position, shard and row of each",
        "shardio audit s3://bucket/birds --state state.json --step 1200 --rank 3/8": "one rank's share",
        "shardio audit books web --state state.json --step 7": "of a mixture, its datasets in order",
    },
)
def audit(
    given: Given,
    console: Console,
    urls: Urls,
    *,
    state: Annotated[
        str, Parameter(allow_leading_hyphen=True, help=f"file of {_STATE}; - reads it from the pipe")
    ],
    step: Annotated[Whole, Parameter(help="step of the state's epoch, from 0")],
    rank: Annotated[Rank | None, Parameter(help="the share of one rank of N; default: all")] = None,
    records: Slice = None,
) -> int:
    import shardio

    saved = _read_state(given, state)
    number, ranks = rank or (0, 1)
    data = _data_audit(given, saved)
    found = shardio.audit(data, saved, step, rank=number, world_size=ranks)
    if console.json:
        facts = {"urls": urls, "epoch": saved["epoch"], "step": step, "rank": number}
        console.document({**facts, "world_size": ranks, "records": [record._asdict() for record in found]})
        return CLEAN
    _print_audit(console, found, mixed=len(urls) > 1)
    who = f", rank {number} of {ranks}" if ranks > 1 else ""
    console.note(f"epoch {saved['epoch']}, step {count(step)}{who}: {plural(len(found), 'record')}")
    return CLEAN


def _print_audit(console: Console, records: list[AuditedRecord], *, mixed: bool) -> None:
    rows = []
    for record in records:
        row = (count(record.position), record.shard, count(record.row), "" if record.valid else "filled up")
        rows.append((str(record.source), *row) if mixed else row)
    head = ("position", "shard", "row", "")
    console.table(rows, head=("source", *head) if mixed else head, right=(0, 1, 3) if mixed else (0, 2))


def _read_state(given: Given, file: str) -> dict[str, Any]:
    """Return the state in a file, at a URL or on standard input; a URL has the dataset's storage options."""
    from shardio.errors import NotFoundError
    from shardio.storage import connect_folder, files_of_callers

    data: bytes | str
    try:
        if file == "-":
            data = sys.stdin.read()
        elif "://" in file:
            store, key = connect_folder(file, storage_options=given.storage_options_for(file))
            data = store.get(key, max_bytes=_LARGEST_STATE)
        else:
            with files_of_callers(file):
                data = Path(file).read_bytes()
    except NotFoundError as error:
        error.advice = f"name a file that holds {_STATE}"
        raise
    try:
        state = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}): expected {_STATE}") from None
    if not isinstance(state, dict):
        message = f"{file} holds no state: expected {_STATE}, found {type(state).__name__}"
        raise ValueError(message)  # noqa: TRY004 - the text is wrong, not its type
    return state


def _data_audit(given: Given, state: dict[str, Any]) -> DatasetReader | Mix:
    """Open the datasets as the state says, where the command line says nothing else."""
    import shardio

    named = state.get("datasets")
    entries = named if isinstance(named, list) else []
    readers = []
    for number, url in enumerate(given.urls):
        entry = entries[number] if number < len(entries) and isinstance(entries[number], dict) else {}
        readers.append(given.open(url, split=entry.get("split"), version=entry.get("version")))
    # Which shares they have is in the state.
    return readers[0] if len(readers) == 1 else shardio.mix([(reader, 1) for reader in readers])
