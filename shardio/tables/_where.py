"""Conditions in SQL over the features of a dataset: answered by tables where shards have them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.metadata import Schema
from shardio.reader import (
    LENGTH,
    ChosenColumn,
    FilterOptions,
    RecordSequence,
    arrow_batch,
    choose_columns,
    count_below,
    is_ascending,
    look_at_spans,
    shards_without_table,
    sources_of,
    table_rows,
    warn_of_records,
    with_features,
)
from shardio.sql import Column, Condition

_BATCHES = 16  # of records, that a thread takes at a time


def parse_condition(text: str, schema: Schema | None) -> tuple[Condition, list[ChosenColumn]]:
    """Return a condition in SQL over the columns of a dataset, and these columns.

    Raises:
        ValueError: it is not a condition over columns of this dataset; says what and where.
    """
    what = "a condition in SQL"

    def find_column(name: str) -> Column:
        if schema is not None and name not in schema:
            # SQL does not see case.
            known = [*schema, *(f"{each}{LENGTH}" for each in schema)]
            folded = [each for each in known if each.casefold() == name.casefold()]
            name = folded[0] if len(folded) == 1 else name
        (column,) = choose_columns(schema, [name], what=what)
        feature = column.feature
        if column.derived:
            return Column(column.name, column.type)
        return Column(column.name, column.type, feature.classes, feature.kind in ("text", "json"))

    condition = Condition(text, find_column)
    return condition, choose_columns(schema, condition.names, what=what)


def matching(records: RecordSequence, text: str, options: FilterOptions) -> NDArray[np.bool_]:
    """Return the mask of the records for which a condition in SQL holds.

    Shards with a table of its columns are not read; others are, with a warning.
    """
    source, selection = records.source, records.selection
    if not is_ascending(selection):
        held, order = np.unique(np.asarray(selection, np.int64), return_inverse=True)
        return matching(type(records)(source, held), text, options)[order]
    condition, columns = parse_condition(text, source.schema)
    lacking = shards_without_table(source, columns)
    edges = count_below(selection, np.concatenate([np.zeros(1, np.int64), source.stops]))
    warn_of_records(source, lacking & (np.diff(edges) > 0), columns)
    size, spans = options.batch_size, list[range]()
    concerned = np.flatnonzero(np.diff(edges)).tolist()
    for reads, group in itertools.groupby(concerned, lambda number: bool(lacking[number])):
        numbers = list(group)
        if reads:
            low, stop, step = int(edges[numbers[0]]), int(edges[numbers[-1] + 1]), _BATCHES * size
            spans += [range(first, min(first + step, stop), size) for first in range(low, stop, step)]
        else:
            bounds = [edges[n : n + 2].tolist() for n in numbers]
            spans += [range(low, stop, stop - low) for low, stop in bounds]

    def look(some: RecordSequence, positions: Any, check: Any) -> NDArray[np.bool_]:
        number = int(np.searchsorted(edges, positions[0], side="right")) - 1
        if lacking[number]:
            table = arrow_batch(some, positions, columns)
        else:
            table = table_rows(some, columns, number, positions[0], positions[-1] + 1)
        return condition.evaluate(table, check)

    wanted = type(records)(with_features(source, sources_of(columns), values=True), selection)
    return look_at_spans(records, wanted, spans, look, options, "filter", np.bool_)[0]
