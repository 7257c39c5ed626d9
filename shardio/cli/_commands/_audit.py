"""`shardio audit`: which records were in a step, recomputed from a state on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.cli._command import WHOLE, Command, Option, PlaceParam, Value
from shardio.cli._console import CLEAN
from shardio.cli._options import DATASETS, open_dataset, read_json, storage_options
from shardio.display import count, plural

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio.reader import DatasetReader
    from shardio.streaming import AuditedRecord, Mix

_STATE = "what state_dict() returned, as JSON"


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    state = _read_state(arguments)
    rank, ranks = arguments.rank
    data = _data(arguments, state)
    records = shardio.audit(data, state, arguments.step, rank=rank, world_size=ranks)
    if console.json:
        facts = {"urls": arguments.urls, "epoch": state["epoch"], "step": arguments.step, "rank": rank}
        console.document({**facts, "world_size": ranks, "records": [record._asdict() for record in records]})
        return CLEAN
    _print(console, records, mixed=len(arguments.urls) > 1)
    who = f", rank {rank} of {ranks}" if ranks > 1 else ""
    console.note(
        f"epoch {state['epoch']}, step {count(arguments.step)}{who}: {plural(len(records), 'record')}"
    )
    return CLEAN


def _print(console: Console, records: list[AuditedRecord], *, mixed: bool) -> None:
    rows = []
    for record in records:
        row = (count(record.position), record.shard, count(record.row), "" if record.valid else "filled up")
        rows.append((str(record.source), *row) if mixed else row)
    head = ("position", "shard", "row", "")
    console.table(rows, head=("source", *head) if mixed else head, right=(0, 1, 3) if mixed else (0, 2))


def _read_state(arguments: SimpleNamespace) -> dict[str, Any]:
    given = storage_options(arguments, arguments.urls[0])
    state = read_json(arguments.state, _STATE, beside=arguments.urls[0], storage_options=given)
    if not isinstance(state, dict):
        message = f"{arguments.state} holds no state: expected {_STATE}, found {type(state).__name__}"
        raise ValueError(message)  # noqa: TRY004 - the text is wrong, not its type
    return state


def _data(arguments: SimpleNamespace, state: dict[str, Any]) -> DatasetReader | Mix:
    """Open the datasets as the state says, where the command line says nothing else."""
    from shardio.order import Mixture
    from shardio.streaming import Mix

    named = state.get("datasets")
    entries = named if isinstance(named, list) else []
    readers = []
    for number, url in enumerate(arguments.urls):
        entry = entries[number] if number < len(entries) and isinstance(entries[number], dict) else {}
        readers.append(open_dataset(arguments, url, split=entry.get("split"), version=entry.get("version")))
    # Which shares they have is in the state.
    return readers[0] if len(readers) == 1 else Mix(readers, Mixture((1,) * len(readers)))


def _rank(text: str) -> tuple[int, int]:
    rank, slash, ranks = text.partition("/")
    if not slash or not rank.isdecimal() or not ranks.isdecimal() or int(rank) >= int(ranks):
        message = f"expected R/N with R below N, found {text!r}"
        raise ValueError(message)
    return int(rank), int(ranks)


_PARAMS = (
    Option(
        ["--state"], metavar="FILE", required=True, type=PlaceParam(),
        help=f"{_STATE}; - reads it from the pipe",
    ),
    Option(
        ["--step"], metavar="K", type=WHOLE, required=True, help="step of the state's epoch, from 0"
    ),
    Option(
        ["--rank"], metavar="R/N", type=Value(_rank), default=(0, 1),
        help="the share of one rank of N; default: all",
    ),
    *DATASETS,
)  # fmt: skip

COMMAND = Command(
    name="audit",
    summary="list the records of a training step, from a saved state",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio audit s3://bucket/birds --state state.json --step 1200": "position, shard and row of each",
        "shardio audit s3://bucket/birds --state state.json --step 1200 --rank 3/8": "one rank's share",
        "shardio audit books web --state state.json --step 7": "of a mixture, its datasets in order",
    },
)
