"""What processes that share the batches of one stream must have in common, and that they fail together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shardio.reader import DatasetReader
from shardio.streaming._components import Mix, of_parts, parts_of
from shardio.streaming._stream import Stream

T = TypeVar("T")


def in_all(make: Callable[[], T], gather: Callable[[str], list[str]], *, what: str, unit: str) -> T:
    """Return what a function makes in this process, once it has succeeded in all of them.

    Were only one process to raise, the others would wait for it in their next collective call.

    Args:
        make: what may fail; it makes no collective calls.
        gather: a collective call that returns the text of each process.
        what: what is wrong where it fails.
        unit: what a process is called, "rank" for example.

    Raises:
        Exception: what `make` raised here.
        ValueError: it failed elsewhere; says where and why.
    """
    made, failure = [], None
    try:
        made.append(make())
    except Exception as error:  # noqa: BLE001 - it is raised below, when the others know
        failure = error
    told = "" if failure is None else str(failure) or type(failure).__name__
    # A path may hold half a surrogate pair, with which the collective call would fail in this process alone.
    outcomes = gather(told.encode("utf-8", "backslashreplace").decode())
    if failure is not None:
        raise failure
    wrong = [f"{unit} {number}: {text}" for number, text in enumerate(outcomes) if text]
    if wrong:
        raise ValueError(f"{what}: {'; '.join(wrong)}")
    return made[0]


def agree(
    data: DatasetReader | Mix,
    make: Callable[[DatasetReader | Mix], Stream],
    gather: Callable[[str], list[str]],
    *,
    unit: str,
) -> Stream:
    """Return the stream of this process, of the versions that the first one has found; all call this.

    Args:
        data: of this process.
        make: makes the stream of data.
        gather: a collective call that returns the text of each process.
        unit: what a process is called, "rank" for example.

    Raises:
        ValueError: in all processes, where one cannot read those versions or make its stream, where what
            decides their records differs, or no process has one of the ranks; says what, and in which one.
    """
    parts = parts_of(data)
    versions = json.loads(gather(json.dumps([(part.version, part.digest) for part in parts]))[0])
    data = in_all(
        lambda: of_parts(data, [part.at(*version) for part, version in zip(parts, versions, strict=True)]),
        gather,
        what=f"not every {unit} reads the same version",
        unit=unit,
    )
    stream = in_all(lambda: make(data), gather, what=f"a {unit} cannot make its stream", unit=unit)
    terms = {**stream.state_dict(), "world_size": stream.world_size, "seal": None}
    told = [json.loads(text) for text in gather(json.dumps([stream.rank, terms]))]
    first, *others = (_leaves("", terms) for _, terms in told)
    differing = [
        f"{name} of {unit} 0 is {_short(first.get(name))}, of {unit} {number} {_short(theirs.get(name))}"
        for number, theirs in enumerate(others, 1)
        for name in dict.fromkeys([*first, *theirs])
        if first.get(name) != theirs.get(name)
    ]
    if differing:
        more = f"; and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise ValueError(
            f"these streams would not share the same batches: {'; '.join(differing[:4])}{more}; give the "
            "same data and options everywhere (the default plan depends on memory_bytes=, mixing= and on "
            "where the data is), or one plan="
        )
    ranks = [rank for rank, _ in told]
    missing = sorted({*range(stream.world_size)} - {*ranks})
    # Fewer processes than ranks: those of other jobs may have the others.
    if missing and len(ranks) >= stream.world_size:
        raise ValueError(
            f"no process has rank={missing[0]} of world_size={stream.world_size}, so its records would not "
            f"be seen: the {len(ranks)} processes have rank={ranks}; give each its own place among "
            "those that read different records"
        )
    return stream


def _leaves(name: str, value: Any) -> dict[str, Any]:
    """Return what is in nested dicts and lists, by names such as "plans[0].window"."""
    if isinstance(value, Mapping):
        items = [(f"{name}.{key}" if name else key, item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{number}]", item) for number, item in enumerate(value)]
    else:
        return {name: value}
    return {leaf: found for inner, item in items for leaf, found in _leaves(inner, item).items()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else f"{text[:397]}..."
