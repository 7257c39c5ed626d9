"""`shardio audit`: which records were in a step, recomputed from a state on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.cli._command import WHOLE, Command, Option, PlaceParam, Value
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import DATASETS, Given
from shardio.cli._values import rank_of
from shardio.display import count, plural

if TYPE_CHECKING:
    from shardio.reader import DatasetReader
    from shardio.streaming import AuditedRecord, Mix

_STATE = "what state_dict() returned, as JSON"


def _run(given: Given, console: Console) -> int:
    import shardio

    state = _read_state(given)
    rank, ranks = given.rank or (0, 1)
    data = _data(given, state)
    records = shardio.audit(data, state, given.step, rank=rank, world_size=ranks)
    if console.json:
        facts = {"urls": given.urls, "epoch": state["epoch"], "step": given.step, "rank": rank}
        console.document({**facts, "world_size": ranks, "records": [record._asdict() for record in records]})
        return CLEAN
    _print(console, records, mixed=len(given.urls) > 1)
    who = f", rank {rank} of {ranks}" if ranks > 1 else ""
    console.note(f"epoch {state['epoch']}, step {count(given.step)}{who}: {plural(len(records), 'record')}")
    return CLEAN


def _print(console: Console, records: list[AuditedRecord], *, mixed: bool) -> None:
    rows = []
    for record in records:
        row = (count(record.position), record.shard, count(record.row), "" if record.valid else "filled up")
        rows.append((str(record.source), *row) if mixed else row)
    head = ("position", "shard", "row", "")
    console.table(rows, head=("source", *head) if mixed else head, right=(0, 1, 3) if mixed else (0, 2))


def _read_state(given: Given) -> dict[str, Any]:
    state = given.read_json(given.state, _STATE)
    if not isinstance(state, dict):
        message = f"{given.state} holds no state: expected {_STATE}, found {type(state).__name__}"
        raise ValueError(message)  # noqa: TRY004 - the text is wrong, not its type
    return state


def _data(given: Given, state: dict[str, Any]) -> DatasetReader | Mix:
    """Open the datasets as the state says, where the command line says nothing else."""
    from shardio.order import Mixture
    from shardio.streaming import Mix

    named = state.get("datasets")
    entries = named if isinstance(named, list) else []
    readers = []
    for number, url in enumerate(given.urls):
        entry = entries[number] if number < len(entries) and isinstance(entries[number], dict) else {}
        readers.append(given.open(url, split=entry.get("split"), version=entry.get("version")))
    # Which shares they have is in the state.
    return readers[0] if len(readers) == 1 else Mix(readers, Mixture((1,) * len(readers)))


COMMAND = Command(
    name="audit",
    summary="list the records of a training step, from a saved state",
    takes=(
        Option(
            ["--state"],
            metavar="FILE",
            required=True,
            type=PlaceParam(),
            help=f"{_STATE}; - reads it from the pipe",
        ),
        Option(["--step"], metavar="K", type=WHOLE, required=True, help="step of the state's epoch, from 0"),
        Option(
            ["--rank"], metavar="R/N", type=Value(rank_of), help="the share of one rank of N; default: all"
        ),
        *DATASETS,
    ),
    run=_run,
    examples={
        "shardio audit s3://bucket/birds --state state.json --step 1200": "position, shard and row of each",
        "shardio audit s3://bucket/birds --state state.json --step 1200 --rank 3/8": "one rank's share",
        "shardio audit books web --state state.json --step 7": "of a mixture, its datasets in order",
    },
)
