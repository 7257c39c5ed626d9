"""The driver of a parallel write: run its tasks, count what they did, say which task was lost.

What counts is the receipts that tasks leave, so a driver may die at any moment too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.errors import BadRecord, CommitConflictError, StorageError
from shardio.parallel._jobs import JobRunner, LostJob
from shardio.parallel._pool import check_travels
from shardio.parallel._task import Note, TaskItems, TaskResult, TaskSpec, run_task

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


def _known(items: Iterable[Any], edges: list[int]) -> Iterator[TaskItems]:
    source = items if isinstance(items, Sequence) else iter(items)
    for task, (start, stop) in enumerate(itertools.pairwise(edges)):
        if isinstance(source, Sequence):
            yield TaskItems(task, start, list(source[start:stop]))
        else:
            yield TaskItems(task, start, list(itertools.islice(source, stop - start)))


def _streamed(items: Iterator[Any]) -> Iterator[TaskItems]:
    for task in itertools.count():
        part = list(itertools.islice(items, _STREAMED_ITEMS_PER_TASK))
        if part or not task:
            yield TaskItems(task, task * _STREAMED_ITEMS_PER_TASK, part)
        if len(part) < _STREAMED_ITEMS_PER_TASK:
            return


# Parts of a stream under way on an executor that does not say how many workers it has: they wait in memory.
_MOST_STREAMED = 128
_MOST_KNOWN = 1024
_ADVICE = "nothing was published; give the same session= again to continue with the tasks that are missing"


class Progress(NamedTuple):
    """How far a write has come.

    Attributes:
        done, total: tasks that ended, and all; `total` is 0 while it is not known.
        records, stored_bytes: of the tasks that ended in this run.
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


class Driver:
    """Runs the tasks of one write.

    Args:
        spec: what they share.
        executor: where they run; None for a process pool of our own.
        workers: processes of that pool; None for one per processor, 1 for this process itself.
        show: called with the progress.

    Attributes:
        tasks: how many there are, as far as is known.
        skipped: what was left out so far.
        notes: what else the tasks have to say.
    """

    def __init__(
        self,
        spec: TaskSpec,
        executor: Executor | None,
        show: Callable[[Progress], None] | None,
        *,
        workers: int | None = None,
    ) -> None:
        if executor is None and workers != 1:
            check_travels(spec.function)
        self.tasks = 0
        self.skipped: list[BadRecord] = []
        self.notes: list[Note] = []
        self._spec = spec
        self._runner: JobRunner[TaskItems, TaskResult] = JobRunner(
            functools.partial(run_task, spec), executor=executor, workers=workers
        )
        self._show = show
        self._progress = Progress(0, 0, 0, 0)
        self._all_seen = False

    def run(self, cut: Cut, done: Mapping[int, Collection[bytes]]) -> None:
        """Run all tasks but those done to their end.

        Args:
            cut: the tasks.
            done: of those that ended before, what their receipts say of their items.

        Raises:
            CommitConflictError: a task was done with other items.
            StorageError: a task was lost too often, or the caller's executor is broken.
            Exception: what a task failed with; no other one runs any more in a pool of our own.
        """
        self.tasks = cut.tasks
        self._all_seen = bool(cut.tasks)
        self._tell()
        most = _MOST_KNOWN if cut.tasks else _MOST_STREAMED
        jobs = self._runner.run(self._skip(cut, done), most_ahead=most, tick=self._tell)
        with closing(jobs):
            for part, result in jobs:
                if isinstance(result, LostJob):
                    raise self._lost(part, result) from result.error
                self._note(result)
        self._tell()

    def _skip(self, cut: Cut, done: Mapping[int, Collection[bytes]]) -> Iterator[TaskItems]:
        for part in cut.parts:
            self.tasks = max(self.tasks, part.task + 1)
            if part.task in done:
                if not {b"", self._spec.items_of(part)}.issuperset(done[part.task]):
                    raise self._other_items(part)
                self._progress = self._progress._replace(done=self._progress.done + 1)
            else:
                yield part
        self._all_seen = True

    def _other_items(self, part: TaskItems) -> CommitConflictError:
        return CommitConflictError(
            f"session {self._spec.write.id!r} has written task {part.task} from other items",
            url=self._spec.write.url,
            expected="the items and tasks= of the run before",
            found=f"others in items {part.first} to {part.first + len(part.items) - 1} of these",
            advice="give the same items, in the same order, and the same tasks= to continue; or another "
            "session= to write these from the start",
        )

    def _note(self, result: TaskResult) -> None:
        self.skipped += result.skipped
        self.notes += result.notes
        done, _, records, stored = self._progress
        self._progress = Progress(done + 1, 0, records + result.records, stored + result.stored_bytes)

    def _tell(self) -> None:
        if self._show is not None:
            self._show(self._progress._replace(total=self.tasks if self._all_seen else 0))

    def _lost(self, part: TaskItems, lost: LostJob) -> StorageError:
        last = part.first + len(part.items) - 1
        what = (
            "the executor broke down"
            if lost.executor_broken
            else f"task {part.task} was lost {lost.tries} times (items {part.first} to {last})"
        )
        found = str(lost.error) or type(lost.error).__name__
        return StorageError(what, url=self._spec.write.url, found=found, advice=_ADVICE)
