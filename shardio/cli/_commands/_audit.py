"""`shardio audit`: which records were in a step, recomputed from a state on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Command
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import OPENING, Given
from shardio.cli._values import Rank, Slice, Urls, Whole
from shardio.display import count, plural

if TYPE_CHECKING:
    from shardio.reader import DatasetReader
    from shardio.streaming import AuditedRecord, Mix

_STATE = "what state_dict() returned, as JSON"


def _run(
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
    data = _data(given, saved)
    found = shardio.audit(data, saved, step, rank=number, world_size=ranks)
    if console.json:
        facts = {"urls": urls, "epoch": saved["epoch"], "step": step, "rank": number}
        console.document({**facts, "world_size": ranks, "records": [record._asdict() for record in found]})
        return CLEAN
    _print(console, found, mixed=len(urls) > 1)
    who = f", rank {number} of {ranks}" if ranks > 1 else ""
    console.note(f"epoch {saved['epoch']}, step {count(step)}{who}: {plural(len(found), 'record')}")
    return CLEAN


def _print(console: Console, records: list[AuditedRecord], *, mixed: bool) -> None:
    rows = []
    for record in records:
        row = (count(record.position), record.shard, count(record.row), "" if record.valid else "filled up")
        rows.append((str(record.source), *row) if mixed else row)
    head = ("position", "shard", "row", "")
    console.table(rows, head=("source", *head) if mixed else head, right=(0, 1, 3) if mixed else (0, 2))


def _read_state(given: Given, file: str) -> dict[str, Any]:
    state = given.read_json(file, _STATE)
    if not isinstance(state, dict):
        message = f"{file} holds no state: expected {_STATE}, found {type(state).__name__}"
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
    takes=(OPENING,),
    run=_run,
    examples={
        "shardio audit s3://bucket/birds --state state.json --step 1200": "position, shard and row of each",
        "shardio audit s3://bucket/birds --state state.json --step 1200 --rank 3/8": "one rank's share",
        "shardio audit books web --state state.json --step 7": "of a mixture, its datasets in order",
    },
)
