"""The stream: an epoch of batches for one rank, resumable at every step."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from shardio.order import advice, make_order
from shardio.reader import Damage
from shardio.streaming._bounds import check_bound
from shardio.streaming._members import Member
from shardio.streaming._mix import Mix
from shardio.streaming._pass import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from shardio.order import Course
    from shardio.reader import DatasetReader
    from shardio.streaming._options import StreamOptions
    from shardio.streaming._planned import Batch

__all__ = ["Stream"]


class Stream:
    """Batches of one rank; made by `shardio.stream`.

    Iterating yields the rest of the epoch. The next iteration begins the next epoch where the last one came
    to its end, and the same epoch again where it was left early; after `load_state_dict`, the first one goes
    on from the state.

    Attributes:
        order: everything that decides which record comes next.
        epoch: number of the epoch.
        rank, world_size: which slice of every global batch is delivered here.
        options: as the caller gave them.
        members: the dataset, or those of the mixture.
    """

    def __init__(
        self,
        data: DatasetReader | Mix,
        *,
        global_batch: int,
        epoch: int,
        rank: int,
        world_size: int,
        options: StreamOptions,
    ) -> None:
        if not 0 <= rank < world_size:
            message = f"rank={rank} must lie in [0, world_size={world_size})"
            raise ValueError(message)
        readers = data.readers if isinstance(data, Mix) else (data,)
        self._data = data
        self.rank = rank
        self.world_size = world_size
        self.epoch = epoch
        self.options = options
        self.members = [Member(reader) for reader in readers]
        for reader in readers:
            if not len(reader):
                message = (
                    f"{reader.source.url} has no records in split {reader.split!r}, so none can be streamed"
                )
                raise ValueError(message)
        self.order = make_order(
            [member.order for member in self.members],
            global_batch=global_batch,
            shuffle=options.shuffle,
            seed=options.seed,
            remainder=options.remainder,
            plan=options.plan,
            mixture=data.mixture if isinstance(data, Mix) else None,
        )
        if world_size > global_batch:
            message = (
                f"world_size={world_size} is larger than global_batch={global_batch}: a rank would get no row"
            )
            raise ValueError(message)
        self._batch = global_batch
        self._checked: tuple[int, int] | None = None
        self._passes = 0
        self._worker: int | None = None
        self._go_to(self.order.course(epoch, global_batch))

    def _go_to(self, course: Course) -> None:
        """Stand at the beginning of a course; what an iterator of before still delivers counts no more."""
        if not course.rows:
            raise ValueError(
                "no lane of the plan holds one whole period of the mixture: use a plan with fewer ranks and "
                "workers, weights of smaller terms, or larger datasets"
            )
        options = self.options
        check_bound(self.order, options, global_batch=course.global_batch, world_size=self.world_size)
        self._damage = Damage(self.members[0].source, course.rows)
        self._course = course
        self._step = course.step
        self._fresh = True
        self._over = False
        self._passes += 1

    @property
    def global_batch(self) -> int:
        """Rows of a global batch."""
        return self._course.global_batch

    @property
    def step(self) -> int:
        """Number of the step that is delivered next, counted from the beginning of the epoch."""
        return self._step

    def __len__(self) -> int:
        """Return the steps of the next pass, or of the one under way when it began; equal on all ranks."""
        if self._over and (self._course.step or len(self._course.changes) > 1):
            return len(self.order.course(self.epoch + 1, self._course.global_batch))
        return len(self._course)

    def __repr__(self) -> str:
        urls = " + ".join(member.source.url for member in self.members)
        return (
            f"<shardio.Stream {urls}: epoch {self.epoch}, step {self.step} of {self._course.stop}, "
            f"batches of {self.global_batch}, rank {self.rank} of {self.world_size}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle to addresses and a state; a copy stands where the next pass of this stream would begin."""
        if self._ended:
            course = self.order.course(self.epoch + 1, self._course.global_batch)
            state = self.order.state(course, self.epoch + 1, 0)
        else:
            state = self.order.state(self._course, self.epoch, self._course.step)
        fields = (self._data, self._batch, self.rank, self.world_size, self.options)
        return _rebuild, (*fields, state)

    def __iter__(self) -> Generator[Any, None, None]:
        """Yield the batches that remain, as dicts of columns.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with the address of the damage.
                The batches before it are delivered first.
        """
        number = self.begin()
        for batch in self.batches():
            self.delivered(number, batch.step)
            yield batch.columns
        self.end(number)

    # What `__iter__` does in one piece, in four for loaders that take batches elsewhere: begin, batches,
    # delivered, end.

    def begin(self, *, workers: int = 0) -> int:
        """Make ready for a pass: the next epoch after one that ended, else from where this one began.

        Args:
            workers: loader worker processes; only what is worth a warning depends on it.

        Returns:
            The number of the pass, for `delivered` and `end`: of two passes over one stream the later one
            counts.
        """
        if not self._fresh:
            self.set_epoch(self.epoch + self._ended, restart=True)
        self._fresh = False
        self._passes += 1
        self._warn_once(workers)
        return self._passes

    def begin_in_worker(self, worker: int, workers: int) -> int:
        """Make ready for a pass in a loader worker process that torch runs.

        Every pass but the first is the next epoch there: no worker knows how far its consumer came, and all
        must agree.
        """
        if self._worker != os.getpid():
            self._worker = os.getpid()
        elif not self._fresh:
            self.set_epoch(self.epoch + 1, restart=True)
        if worker:
            self._checked = (self.world_size, workers)  # one of them is enough to warn
        return self.begin(workers=workers)

    @property
    def _ended(self) -> bool:
        return not self._fresh and self._step >= self._course.stop

    @property
    def skipped(self) -> int:
        """Records that were left out because of damage, by all streams over this reader in this process."""
        return self.members[0].source.stats.records_skipped

    def add_skipped(self, rows: int) -> None:
        """Count records that a worker process has left out.

        Raises:
            FormatError: too many records were skipped.
        """
        self._damage.count(rows)

    def delivered(self, number: int, step: int) -> None:
        """Note that the batch of a step reached its consumer."""
        if number == self._passes:
            self._step = min(step + 1, self._course.stop)

    def end(self, number: int) -> None:
        """Note that the pass came to its end."""
        if number == self._passes:
            self._step = self._course.stop
            self._over = True

    def batches(
        self,
        *,
        worker: int = 0,
        workers: int = 1,
        threads: int | None = None,
        finish: Callable[[Any], Any] | None = None,
    ) -> Generator[Batch, None, None]:
        """Yield the batches that loader worker w of W makes, with their steps; moves nothing here.

        Args:
            worker, workers: w and W.
            threads: that fetch and make; None for those of the options.
            finish: is called with each batch, in the thread that made it.
        """
        return iter(
            make_pipeline(
                self,
                self._course,
                self._damage,
                worker=worker,
                workers=workers,
                threads=self.options.num_threads if threads is None else threads,
                finish=finish,
            )
        )

    def set_epoch(self, epoch: int, *, restart: bool = False) -> None:
        """Go to the beginning of an epoch; a state of that very epoch that was loaded stays loaded.

        Args:
            epoch: its number.
            restart: begin it again even so.
        """
        if epoch == self.epoch and self._fresh and not restart:
            return
        course = self.order.course(epoch, self._course.global_batch)
        self.epoch = epoch
        self._go_to(course)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands after what was delivered: small, in clear, fit for JSON."""
        return self.order.state(self._course, self.epoch, self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with this stream's ranks and global batch and the state's plan.

        Raises:
            ResumeError: the state is damaged, or belongs to another dataset, seed, mixture or remainder, or
                the global batch does not fit its plan; names what differs.
            ValueError: the state's plan needs more than `memory_bytes`.
        """
        before = self.order, self.epoch
        self.order, course, self.epoch = self.order.resume(state, global_batch=self._batch)
        try:
            self._go_to(course)
        except ValueError:
            self.order, self.epoch = before
            raise
        self._checked = None

    def _warn_once(self, workers: int = 0) -> None:
        """Say once what other numbers of ranks and workers would save."""
        if self._checked != (self.world_size, workers):
            self._checked = (self.world_size, workers)
            for line in advice(
                self.order, global_batch=self.global_batch, world_size=self.world_size, workers=workers
            ):
                warnings.warn(line, stacklevel=3)


def _rebuild(
    data: DatasetReader | Mix,
    global_batch: int,
    rank: int,
    world_size: int,
    options: StreamOptions,
    state: dict[str, Any],
) -> Stream:
    copy = Stream(data, global_batch=global_batch, epoch=0, rank=rank, world_size=world_size, options=options)
    copy.load_state_dict(state)
    return copy
