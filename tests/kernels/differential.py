"""Say what a parser makes of records in a form that two parsers can be compared in."""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

from shardio import kernels
from shardio.errors import FormatError
from shardio.kernels import Column, FeatureRequest, Parsed
from tests.kernels import reference
from tests.kernels.messages import Writer, description, mutate

# Of functions that read hostile bytes; what is right comes first.
IMPLEMENTATIONS: list[ModuleType] = [reference, kernels]


def plain(column: Column) -> dict[str, Any]:
    """Turn a column into bytes and lists, wherever its bytes are."""
    fields: dict[str, Any] = {"kind": column.kind, "present": column.present.tolist()}
    for name in ("offsets", "steps"):
        array = getattr(column, name)
        fields[name] = None if array is None else (str(array.dtype), array.tolist())
    if column.values is not None:
        fields["values"] = (str(column.values.dtype), column.values.shape, column.values.tobytes())
    else:
        assert column.starts is not None
        assert column.stops is not None
        starts, stops = column.starts, column.stops
        fields["shape"] = (str(starts.dtype), str(stops.dtype), starts.shape, stops.shape)
        fields["values"] = kernels.slice_records(column.source, starts.ravel(), stops.ravel())
    return fields


def outcome(
    module: ModuleType, records: Any, features: list[FeatureRequest], lists: list[FeatureRequest] | None
) -> Any:
    """Parse, and return values, the mismatch or the row that was refused."""
    try:
        if lists is None:
            parsed: Parsed = module.parse_examples(records, features)
        else:
            parsed = module.parse_sequence_examples(records, features, lists)
    except FormatError as error:
        return ("refused", error.row)
    if parsed.mismatch is not None:
        assert not parsed.columns
        assert not parsed.lists
        return ("mismatch", parsed.mismatch)
    sides = (parsed.columns, parsed.lists)
    return ("values", *({name: plain(column) for name, column in side.items()} for side in sides))


def draw(random: Random) -> tuple[list[bytes], list[FeatureRequest], list[FeatureRequest] | None]:
    """Draw a few records of one kind and a description."""
    writer = Writer(random, random.choice((0.0, 0.0, 0.01, 0.05, 0.2)))
    sequence = random.random() < 0.4
    records = []
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        record = writer.sequence_example() if sequence else writer.example()
        records.append(mutate(random, record) if random.random() < 0.2 else record)
    return records, description(random), description(random, lists=True) if sequence else None
