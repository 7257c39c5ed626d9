"""What processes that share the batches of one stream must have in common, and that they fail together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.streaming._stream import Stream

__all__ = ["check_same", "in_all"]

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
        message = f"{what}: {'; '.join(wrong)}"
        raise ValueError(message)
    return made[0]


def check_same(stream: Stream, gather: Callable[[str], list[str]], *, unit: str) -> None:
    """Compare what decides which records a process gets, but for its rank, with the other processes.

    Raises:
        ValueError: in all processes, where something differs; says what, and in which process.
    """
    terms = {**stream.state_dict(), "world_size": stream.world_size}
    terms.pop("seal")
    found = [json.loads(text) for text in gather(json.dumps(terms))]
    first = found[0]
    differing = [
        f"{name} of {unit} 0 is {_short(first.get(name))}, of {unit} {number} {_short(other.get(name))}"
        for number, other in enumerate(found)
        for name in sorted({*first, *other})
        if first.get(name) != other.get(name)
    ]
    if differing:
        more = f"; and {len(differing) - 4} more" if len(differing) > 4 else ""
        message = (
            f"these streams would not share the same batches: {'; '.join(differing[:4])}{more}; give the "
            "same data and options everywhere (the default plan depends on memory_bytes= and on where the "
            "data is), or one plan="
        )
        raise ValueError(message)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else f"{text[:397]}..."
