"""The options of a stream, which `stream` and `StreamingDataset` share, and the numbers that are none."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from shardio.arguments import integer, no_option
from shardio.order import Plan
from shardio.reader import open as open_dataset

MIXINGS = {"cheap": 4.0, "default": 1.0, "best": 0.25}  # bytes of a chunk, as a multiple of the default's
# By option, the least that it may be; None where that is said elsewhere, beside what it depends on.
_INTEGERS = {
    "global_batch": None,
    "batch_size": 1,
    "seed": None,
    "epoch": None,
    "rank": None,
    "world_size": 1,
    "memory_bytes": None,
    "num_threads": 0,
    "ahead_bytes": 1,
}

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of `shardio.stream` and `shardio.torch.StreamingDataset`.

    Attributes:
        split: to open from a URL; None for the only one, or if the dataset is open already.
        global_batch: records of a step over all ranks; give this, or else `batch_size`.
        batch_size: records of a step of one rank; the global batch is this times `world_size`.
        shuffle: shuffle the records. False is storage order.
        seed: random seed for shuffling.
        epoch: number of the first epoch.
        rank, world_size: which slice of each global batch to deliver; None is 0 of 1 for `stream`, and
            detected by `StreamingDataset`.
        remainder: "drop" skips a short last step, "pad" fills it up, "keep" delivers it short.
        positions: add the int64 column `_position`.
        valid: with "pad", add the bool column `_valid`.
        plan: shape of the order, or some numbers of it; the others follow from the dataset, the global batch
            and what comes next.
        memory_bytes: what a process may hold beside its batches, if it delivers whole global batches; each of
            several ranks holds its part of it. The default plan is made to fit, and a warning says where not
            even one record does; a plan that was given is refused if it does not. Default: 512 MiB.
        scratch: where a stream from a bucket keeps open chunks that do not fit in `memory_bytes`: in an
            unnamed file on a local disk, at most 4 GiB for all ranks together. A path sets its folder, and
            False uses memory alone. "auto" tries the folder of the cache, then that of temporary files, needs
            four times the room there, and uses no disk for datasets that are marked as shuffled. Windows has
            no scratch.
        mixing: "best" mixes more, and "cheap" sends fewer requests, than the "default".
        transform: `f(value)` for every record.
        random_transform: `f(value, rng)`, the generator keyed by seed, epoch and the record's position: the
            same augmentation wherever the record is delivered.
        batch_transform: `f(columns)` for every batch.
        drop_none: skip a record for which `transform` or `random_transform` returns None: its batch gets
            shorter, and `stats.records_dropped` counts it. By default None is an error.
        num_threads: threads that fetch, check, decode and transform; 0 does it all in the caller's thread. A
            `StreamingDataLoader` has its own `num_threads` instead.
        ahead_bytes: decoded bytes of the batches that are fetched ahead of the consumer. By default 32 MiB,
            up to 128 MiB if the store's latency is high; less where `memory_bytes` leaves less.
        progress: True for a display on stderr, or a function of how far the epoch has come: `done` and
            `total` steps, and `records`. Worker processes need a function that pickles.

    Raises:
        ValueError, TypeError: an option that makes no sense; names it and both numbers.
    """

    split: str | None = None
    global_batch: int | None = None
    batch_size: int | None = None
    shuffle: bool = True
    seed: int = 0
    epoch: int = 0
    rank: int | None = None
    world_size: int | None = None
    remainder: Literal["drop", "pad", "keep"] = "drop"
    positions: bool = False
    valid: bool = False
    plan: Plan | Sequence[Plan] | None = None
    memory_bytes: int | None = None
    scratch: str | os.PathLike[str] | Literal[False] = "auto"
    mixing: Literal["default", "best", "cheap"] = "default"
    transform: Callable[[Any], Any] | None = None
    random_transform: Callable[[Any, np.random.Generator], Any] | None = None
    batch_transform: Callable[[dict[str, Any]], Any] | None = None
    drop_none: bool = False
    num_threads: int = 2
    ahead_bytes: int | None = None
    progress: bool | Callable[[Any], None] = False

    def __post_init__(self) -> None:
        """Refuse what makes no sense, by name."""
        for name in ("transform", "random_transform", "batch_transform"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise TypeError(f"{name}= must be a function, found {type(given).__name__}")
        self._check_integers()
        self._check_scratch()
        if self.mixing not in MIXINGS:
            raise ValueError(f"mixing must be one of {', '.join(map(repr, MIXINGS))}, found {self.mixing!r}")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ValueError(f"memory_bytes must be at least 1, found {self.memory_bytes}")
        if self.transform is not None and self.random_transform is not None:
            raise ValueError(
                "give transform= or random_transform=, not both: the second one can do the work of both"
            )
        if self.drop_none and not self.transforms_records:
            raise ValueError("drop_none=True needs a transform= or random_transform= that may return None")
        if self.valid and self.remainder != "pad":
            raise ValueError('valid=True needs remainder="pad": without it every row is valid')
        if (self.global_batch is None) == (self.batch_size is None):
            raise ValueError("give global_batch= or batch_size=, exactly one of them")

    def _check_integers(self) -> None:
        """Make plain integers of what is one, and refuse by name what is none."""
        for name, least in _INTEGERS.items():
            value = getattr(self, name)
            if value is None and StreamOptions.__dataclass_fields__[name].default is None:
                continue
            number = integer(name, value)
            if least is not None and number < least:
                raise ValueError(f"{name}={number} must be an integer of at least {least}")
            object.__setattr__(self, name, number)

    def _check_scratch(self) -> None:
        scratch = self.scratch
        if scratch is False:
            return
        if not isinstance(scratch, str | os.PathLike):
            raise TypeError(f'scratch= must be "auto", a folder, or False for none; found {scratch!r}')
        if not os.fspath(scratch):
            raise ValueError('scratch="" names no folder; "auto" chooses one')

    @classmethod
    def from_options(cls, function: str, given: Mapping[str, Any]) -> StreamOptions:
        """Return the options that a caller gave to a function.

        Raises:
            TypeError: there is no such option; names it, and where it goes or which one it may stand for.
        """
        for name in given:
            if name not in cls.__dataclass_fields__:
                of_open = name in inspect.signature(open_dataset).parameters
                raise no_option(function, name, cls.__dataclass_fields__, "shardio.open" if of_open else None)
        return cls(**given)

    @property
    def rank_and_world_size(self) -> tuple[int, int]:
        """Rank and world size.

        Raises:
            ValueError: the rank is not one of the world.
        """
        rank, world_size = self.rank or 0, 1 if self.world_size is None else self.world_size
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be in [0, world_size={world_size})")
        return rank, world_size

    @property
    def first_global_batch(self) -> int:
        """Records of a global batch, as given or worked out from `batch_size`.

        Raises:
            ValueError: there are more ranks than records.
        """
        world_size = self.rank_and_world_size[1]
        batch = self.global_batch
        if batch is None:
            assert self.batch_size is not None  # noqa: S101 - one of the two was given
            batch = self.batch_size * world_size
        if 0 < batch < world_size:
            message = f"world_size={world_size} is larger than global_batch={batch}: a rank would get no row"
            raise ValueError(message)
        return batch

    @property
    def transforms_records(self) -> bool:
        """Whether a function of the caller's sees every record."""
        return self.transform is not None or self.random_transform is not None


@dataclass(frozen=True, kw_only=True)
class StreamTuning:
    """Numbers that steer a pass; what follows from one is a multiple of it where it is used.

    Attributes:
        group_rows: of a group of steps: enough that NumPy's overhead is small, few enough that the first
            batches come soon.
        group_rows_by_value: where each row costs a call of the caller's function, or an image, that overhead
            is small anyway.
        group_bytes: of a group.
        most_steps: of a group, and groups ahead.
        ahead_bytes: planned ahead, which evens out how long requests take; up to four times as much from a
            store that is far.
        bytes_per_second: of requests that are under way, which is what two processors take; half of what is
            ahead is under way, the other half is built.
        task_bytes: of the chunks that one call opens.
        run_bytes: stored bytes of a chunk of several windows from a bucket: the blocks at both its ends are a
            thirtieth of that.
        built_bytes: of groups that are built, or wait to be taken, if they are more than two.
        large_step_bytes: chunks and batches of two steps this large would take more than a process may hold.
        first_rows: records of the first batch that one call opens from a bucket.
        first_bytes: decoded bytes of a dataset in a bucket up to which the first batch waits for its windows,
            which takes fewer requests than to open its records alone.
        read_row_bytes: from this mean of a record on, those of mapped shards are read past the map: looking
            into a page for the first time costs more.
        mapped_bytes: of mapped shards that are gathered before their pages are given back.
        mapped_blocks: of the mapped shards that are kept open, by their indexes, which are mapped, too.
        io_threads: that fetch from a network, where most of the time is waiting: each has a group under way.
            Four times as many at most.
        ending_seconds: threads end with the record, block or request that they are at; one that hangs is left
            behind. A tenth of that for Ctrl-C, which must not seem to do nothing.
    """

    group_rows: int = 4096
    group_rows_by_value: int = 256
    group_bytes: int = 8 << 20
    most_steps: int = 64
    ahead_bytes: int = 32 << 20
    bytes_per_second: int = 600 << 20
    task_bytes: int = 4 << 20
    run_bytes: int = 2 << 20
    built_bytes: int = 256 << 20
    large_step_bytes: int = 128 << 20
    first_rows: int = 64
    first_bytes: int = 160 << 20
    read_row_bytes: int = 4096
    mapped_bytes: int = 64 << 20
    mapped_blocks: int = 4 << 20
    io_threads: int = 4
    ending_seconds: float = 5.0


TUNING = StreamTuning()


def with_stream_options(
    options: Callable[P, StreamOptions],
) -> Callable[[Callable[Concatenate[A, ...], R]], Callable[Concatenate[A, P], R]]:
    """Give a function of one argument and `**options` the options of a stream as its signature.

    Type checkers, editors and `help()` then show every option, which is in `StreamOptions` alone.
    """

    def decorate(function: Callable[Concatenate[A, ...], R]) -> Callable[Concatenate[A, P], R]:
        _show_options(function, options)
        return function

    return decorate


def method_with_stream_options(
    options: Callable[P, StreamOptions],
) -> Callable[[Callable[Concatenate[A, B, ...], R]], Callable[Concatenate[A, B, P], R]]:
    """Do what `with_stream_options` does for a method of one argument."""

    def decorate(function: Callable[Concatenate[A, B, ...], R]) -> Callable[Concatenate[A, B, P], R]:
        _show_options(function, options)
        return function

    return decorate


def _show_options(function: Any, options: Callable[..., Any]) -> None:
    own = inspect.signature(function)
    keywords = inspect.signature(options).parameters.values()
    kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = own.replace(parameters=[*kept, *keywords])
