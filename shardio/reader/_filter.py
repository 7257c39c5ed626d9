"""Which records meet a condition: a function over columns, evaluated by the batch in threads, or a mask."""

from __future__ import annotations

import copy
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from shardio.progress import displayed
from shardio.reader._damage import Damage, SkipCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardio.reader._source import Source
    from shardio.reader._subset import Selection

__all__ = ["FilterProgress", "check_mask", "matching"]

# Batches that a thread takes at a time: enough that it reads in large runs.
_BATCHES = 16


class Columns(Protocol):
    """What is asked of `Records`, which uses this file."""

    source: Source
    selection: Selection

    def __init__(self, source: Source, selection: Selection | None = None) -> None: ...

    def __len__(self) -> int: ...

    def read_batch(self, positions: Any) -> dict[str, Any]:
        """Return records as columns."""


class FilterProgress(NamedTuple):
    """How far a filter has come.

    Attributes:
        done, total: records that were looked at, and all.
        found: of those, how many meet the condition.
    """

    done: int
    total: int
    found: int


def check_mask(mask: Any, records: int) -> NDArray[np.bool_]:
    """Return a mask as it must be, bool [records].

    Raises:
        TypeError: it holds no bools, or is text.
        ValueError: it has another shape.
    """
    if isinstance(mask, str):
        raise TypeError(
            "filter takes a function or a mask, not a condition as text: write "
            'ds.filter(lambda columns: columns["label"] == 3, features=["label"])'
        )
    given = np.asarray(mask)
    if given.dtype != np.bool_:
        message = (
            f"a mask holds a bool for each record, found {given.dtype} of shape {given.shape}; positions go "
            "to ds.select(positions)"
        )
        raise TypeError(message)
    if given.shape != (records,):
        message = f"a mask needs the shape ({records},), one bool for each record, found {given.shape}"
        raise ValueError(message)
    return given


def matching(
    records: Columns,
    function: Callable[[dict[str, Any]], Any],
    *,
    features: Sequence[str] | None,
    batch_size: int,
    num_threads: int | None,
    progress: bool | Callable[[FilterProgress], None],
) -> NDArray[np.bool_]:
    """Return the mask that a function of columns makes; arguments are those of `Records.filter`."""
    if batch_size < 1:
        message = f"batch_size={batch_size} must be 1 or more"
        raise ValueError(message)
    threads = min(8, os.cpu_count() or 1) if num_threads is None else num_threads
    if threads < 1:
        message = f"num_threads={num_threads} must be 1 or more"
        raise ValueError(message)
    source = _for_filter(records.source, features)
    damage = Damage(records.source, len(records))
    wanted = type(records)(source, records.selection)
    total = len(records)
    mask = np.zeros(total, bool)
    stride = batch_size * _BATCHES
    lock = threading.Lock()
    done = found = 0
    failed = False

    def look(start: int) -> None:
        nonlocal done, found
        for low in range(start, min(start + stride, total), batch_size):
            if failed:
                return
            stop = min(low + batch_size, total)
            mask[low:stop] = _evaluate(wanted, low, stop, function, damage)
            with lock:
                done += stop - low
                found += int(np.count_nonzero(mask[low:stop]))
                if show is not None:
                    show(FilterProgress(done, total, found))

    with displayed(progress, "filter") as show, ThreadPoolExecutor(threads, "shardio-filter") as pool:
        try:
            for _ in pool.map(look, range(0, total, stride)):
                pass
        except BaseException:
            failed = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return mask


def _for_filter(source: Source, features: Sequence[str] | None) -> Source:
    """Return the same open shards, of which other features are decoded, and damage is raised."""
    other = copy.copy(source)
    given = replace(source.options, on_error="raise")
    if features is not None:
        if isinstance(features, str):
            message = f"features= takes a list of names, found a string: features=[{features!r}]"
            raise TypeError(message)
        given = replace(given, features=tuple(features))
    other.options = given
    other.__dict__.pop("codec", None)
    _ = other.codec  # refuses features that are missing before anything is read
    return other


def _evaluate(
    wanted: Columns, low: int, stop: int, function: Callable[[dict[str, Any]], Any], damage: Damage
) -> NDArray[np.bool_]:
    """Return a bool for each of the records `low .. stop - 1`: False for damaged ones that may be skipped."""
    with SkipCorrupt(skips=damage.skips) as skipped:
        columns = wanted.read_batch(range(low, stop))
    if skipped.error is not None:
        return _evaluate_skipping(wanted, low, stop, function, damage)
    return _checked(function(columns), stop - low)


def _evaluate_skipping(
    wanted: Columns, low: int, stop: int, function: Callable[[dict[str, Any]], Any], damage: Damage
) -> NDArray[np.bool_]:
    kept = []
    for number in range(low, stop):
        with SkipCorrupt() as skipped:
            wanted.read_batch([number])
        if skipped.error is not None:
            shard, row = wanted.source.shard_of(int(wanted.selection[number]))
            damage.note(skipped.error, wanted.source.table.key[shard], np.array([row]))
            damage.count(1)
        else:
            kept.append(number)
    out = np.zeros(stop - low, bool)
    if kept:
        out[np.array(kept) - low] = _checked(function(wanted.read_batch(kept)), len(kept))
    return out


def _checked(result: Any, rows: int) -> NDArray[np.bool_]:
    given = np.asarray(result)
    if given.dtype != np.bool_ or given.shape != (rows,):
        message = (
            f"the function of a filter must return a bool for each record, shape ({rows},), found "
            f"{given.dtype} of shape {given.shape}; columns of text and bytes are lists: write "
            '[text == "x" for text in columns["name"]]'
        )
        raise TypeError(message)
    return given
