"""Items into tasks: the same items give the same tasks, whoever runs them and how often."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Cut", "Part", "cut_items"]

_TASKS = 32
_MAX_TASKS = 512
_ITEMS_PER_TASK = 4096
_STREAMED_ITEMS_PER_TASK = 256


class Part(NamedTuple):
    """The items of one task; `first` is the number of the first of them among all."""

    task: int
    first: int
    items: list[Any]


class Cut(NamedTuple):
    """Tasks one after another, and how many there are (0: not known yet)."""

    parts: Iterator[Part]
    tasks: int


def cut_items(items: Iterable[Any], tasks: int | None) -> Cut:
    """Cut items into tasks of consecutive items; at least one task, also where there is no item.

    Args:
        items: a sequence is sliced, whatever else has a length is gone through, an iterator is taken by 256.
        tasks: how many; None for 32 up to 131,072 items, then one per 4,096, at most 512.

    Raises:
        ValueError: `tasks` is given, and the number of items is not known.
    """
    if isinstance(items, Sized):
        total = len(items)
        usual = min(max(_TASKS, total // _ITEMS_PER_TASK), _MAX_TASKS)
        count = max(1, min(total, tasks or usual))
        edges = [total * task // count for task in range(count + 1)]
        return Cut(_known(items, edges), count)
    if tasks is not None:
        raise ValueError("tasks= needs items whose number is known; give a sequence, or leave tasks= out")
    return Cut(_streamed(iter(items)), 0)


def _known(items: Iterable[Any], edges: list[int]) -> Iterator[Part]:
    source = None if isinstance(items, Sequence) else iter(items)
    for task, (start, stop) in enumerate(itertools.pairwise(edges)):
        if source is None:
            yield Part(task, start, list(items[start:stop]))  # type: ignore[index] # a sequence, as was asked
        else:
            yield Part(task, start, list(itertools.islice(source, stop - start)))


def _streamed(items: Iterator[Any]) -> Iterator[Part]:
    for task in itertools.count():
        part = list(itertools.islice(items, _STREAMED_ITEMS_PER_TASK))
        if part or not task:
            yield Part(task, task * _STREAMED_ITEMS_PER_TASK, part)
        if len(part) < _STREAMED_ITEMS_PER_TASK:
            return
