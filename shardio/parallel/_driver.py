"""The driver of a parallel write: run its tasks, count what they did, say which task was lost.

What counts is the receipts that tasks leave, so a driver may die at any moment too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.errors import BadRecord, CommitConflictError
from shardio.parallel._jobs import run
from shardio.parallel._pool import TaskCounts, check_travels
from shardio.parallel._task import Note, TaskItems, TaskSpec, run_task
from shardio.progress import CountProgress

if TYPE_CHECKING:
    from concurrent.futures import Executor


_TASKS = 32
_MAX_TASKS = 512
_ITEMS_PER_TASK = 4096
_STREAMED_ITEMS_PER_TASK = 256


class Cut(NamedTuple):
    """Tasks one after another, and how many there are (0: not known yet)."""

    parts: Iterator[TaskItems]
    tasks: int


def cut_items(items: Iterable[Any], tasks: int | None) -> Cut:
    """Cut items into tasks of consecutive items; at least one task, also where there is no item.

    Args:
        items: those whose number is not known are taken by 256.
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


def _known(items: Iterable[Any], edges: list[int]) -> Iterator[TaskItems]:
    source = iter(items)
    for task, (start, stop) in enumerate(itertools.pairwise(edges)):
        yield TaskItems(task, start, list(itertools.islice(source, stop - start)))


def _streamed(items: Iterator[Any]) -> Iterator[TaskItems]:
    for task in itertools.count():
        part = list(itertools.islice(items, _STREAMED_ITEMS_PER_TASK))
        if part or not task:
            yield TaskItems(task, task * _STREAMED_ITEMS_PER_TASK, part)
        if len(part) < _STREAMED_ITEMS_PER_TASK:
            return


_ADVICE = "nothing was published; give the same session= again to continue with the tasks that are missing"


class Progress(NamedTuple):
    """How far a write has come.

    Attributes:
        done, total: tasks that ended, and all; `total` is 0 while it is not known.
        records: written in this run; by processes of an executor of the caller's, and on other machines,
            those of the tasks that ended.
        stored_bytes: of the tasks that ended in this run.
    """

    done: int
    total: int
    records: int
    stored_bytes: int

    @property
    def unit(self) -> str:
        """What is counted: "tasks"."""
        return "tasks"

    @property
    def amounts(self) -> tuple[tuple[int, str], ...]:
        """Records and stored bytes."""
        return (self.records, "records"), (self.stored_bytes, "B")


@dataclass
class Outcome:
    """What the tasks of a write did.

    Attributes:
        tasks: how many there are, as far as is known.
        skipped: what was left out.
        notes: what else the tasks have to say.
        progress: how far they have come.
    """

    tasks: int = 0
    skipped: list[BadRecord] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0, 0))


def run_tasks(
    spec: TaskSpec,
    cut: Cut,
    done: Mapping[int, Collection[bytes]],
    executor: Executor | None,
    workers: int | None,
    show: Callable[[Progress], None] | None,
) -> Outcome:
    """Run all tasks of a write but those done to their end.

    Args:
        spec: what they share.
        cut: the tasks.
        done: of those that ended before, what their receipts say of their items.
        executor: where they run; None for a process pool of our own.
        workers: processes of that pool; None for one per processor, 1 for this process itself.
        show: called with the progress.

    Raises:
        CommitConflictError: a task was done with other items.
        StorageError: a task was lost too often, or the caller's executor is broken.
        Exception: what a task failed with; no other one runs any more in a pool of our own.
    """
    if executor is None and workers != 1:
        check_travels(spec.function)
    out, all_seen = Outcome(cut.tasks), bool(cut.tasks)

    def tell() -> None:
        if counts is not None and counts.error is not None:
            raise counts.error
        if show is not None and counts is not None:
            records = out.progress.records + counts.total()
            show(out.progress._replace(total=out.tasks if all_seen else 0, records=records))

    counts = None if show is None else TaskCounts(tell)

    def parts() -> Iterator[TaskItems]:
        nonlocal all_seen
        for part in cut.parts:
            out.tasks = max(out.tasks, part.task + 1)
            if part.task not in done:
                yield part
                continue
            if not {b"", spec.items_of(part)}.issuperset(done[part.task]):
                raise _other_items(spec, part)
            out.progress = out.progress._replace(done=out.progress.done + 1)
        all_seen = True

    def watch(_: CountProgress) -> None:
        out.progress = out.progress._replace(done=out.progress.done + 1)
        tell()

    tell()
    results = run(
        functools.partial(run_task, replace(spec, counts=counts)), parts(), spec.write.url,
        executor=executor, workers=workers, progress=watch, advice=_ADVICE,
        on_late=lambda *_: None, counts=counts,
    )  # fmt: skip
    with closing(results):
        for part, result in results:
            if counts is not None:
                counts.clear(part.task)
            out.skipped += result.skipped
            out.notes += result.notes
            records = out.progress.records + result.records
            stored = out.progress.stored_bytes + result.stored_bytes
            out.progress = out.progress._replace(records=records, stored_bytes=stored)
    tell()
    out.skipped.sort(key=lambda each: each.item or 0)
    return out


def _other_items(spec: TaskSpec, part: TaskItems) -> CommitConflictError:
    return CommitConflictError(
        f"session {spec.write.id!r} has written task {part.task} from other items",
        url=spec.write.url,
        expected="the items and tasks= of the run before",
        found=f"others in items {part.first} to {part.first + len(part.items) - 1} of these",
        advice="give the same items, in the same order, and the same tasks= to continue; or another "
        "session= to write these from the start",
    )
