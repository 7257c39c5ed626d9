"""`write_dataset`: a dataset from many processes, in one commit."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Unpack

from shardio.arguments import integer
from shardio.metadata import Schema, naming
from shardio.parallel._jobs import check_workers
from shardio.parallel._session import RunOptions, write_session
from shardio.parallel._shuffle import write_twice
from shardio.parallel._write_session import WriteReport
from shardio.storage import url_text
from shardio.writer import (
    DEFAULT_SHARD_BYTES,
    WriterOptions,
    check_options,
    check_shards,
    check_writer_options,
    split_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from shardio.codecs import RecordCodec
    from shardio.parallel._driver import Progress


class WriteOptions(WriterOptions, total=False):
    """The options of `write_dataset` that `convert_dataset` hands on as they are."""

    mode: str
    session: str | None
    workers: int | None
    shards: int | None
    shuffle: bool
    seed: int
    progress: bool | Callable[[Progress], None]
    spool_dir: str | Path | None


def write_dataset(  # noqa: PLR0913 - the options are the public contract
    url: str | Path,
    items: Iterable[Any],
    fn: Callable[[Any], Any],
    *,
    schema: Mapping[str, Any] | Schema | RecordCodec | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    session: str | None = None,
    ordered: bool = False,
    mode: str = "create",
    tasks: int | None = None,
    shards: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
    progress: bool | Callable[[Progress], None] = False,
    spool_dir: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **writer: Unpack[WriterOptions],
) -> WriteReport:
    """Write a dataset from many processes, in one commit.

    Each task writes its own shards under one session; the caller's process commits once, at the end. Tasks
    whose worker died are run again; a driver that died is started again with the same `session` and runs
    only the tasks that had not ended. Until the commit nothing is visible.

    Args:
        url: of the dataset.
        items: what `fn` is called with; a sequence, or any iterable.
        fn: called with each item, in a worker, and importable there; returns a value, an iterable of values
            (it may be a generator), or None for none. A value may come as `(split, value)`, with a tuple.
        schema: mapping of feature names to types, a `Schema`, a codec, or None: records are bytes then.
        executor: any `concurrent.futures.Executor`: a process pool (default), `dask.distributed`'s
            `Client.get_executor()`, `mpi4py.futures.MPIPoolExecutor`, `shardio.parallel.RayExecutor`.
        workers: processes of the default pool; None for one per processor, 1 for this process itself.
        session: the caller's own id of this write, by which a rerun continues; items, `fn`, `tasks`, `shards`
            and `seed` must be the same then. Other items are refused, as far as they are text, bytes,
            numbers, paths, arrays, or lists, mappings and dataclasses of these.
        ordered: promise that records stand in the order of their items; they do in any case, unless
            `shuffle` is given, which this refuses.
        mode: "create", "append" or "overwrite".
        tasks: how many tasks to cut the items into, each with shards of its own; by default 32 to 512, or one
            per 256 items where their number is not known. Without `tasks` and `session`, shards much smaller
            than `shard_bytes` become large ones before the commit, in the same order.
        shards: cut each split into so many shards, whose numbers of records differ by one at most. A split of
            fewer records gets one shard per record. It takes two passes in bounded memory.
        shuffle: a global shuffle while writing, in bounded memory: a first pass through a spool dataset in
            `spool_dir`, a second one in random order. On several machines `spool_dir` must be shared. A
            dataset that is written so, not one that is added to, gets `"shuffled": True` in its metadata.
        seed: of the shuffle; the same seed gives the same order again.
        on_error: what happens to an item for which `fn` raises, or whose value does not fit the schema:
            "raise" ends the write, "skip" leaves the item out and lists it in the report.
        progress: True for a bar on a terminal and lines in a log, or a function of a `Progress`.
        spool_dir: folder for shards under construction, in each worker; by default beside the data where that
            is local, else the system's temporary folder.
        storage_options: as in fsspec.
        writer: further options of `DatasetWriter`: `compression`, `level`, `shard_bytes`, `block_bytes`,
            `encoding`, `metadata`, `splits`, `single_writer`.

    Raises:
        Exception: the first error of `fn`, with a note that names the item; nothing was published, and a
            rerun with the same `session` continues.
        TypeError: `fn` cannot be sent to another process.
        ValueError: an option that makes no sense, by name.
        CommitConflictError: `session` was begun with other items; else, with CommitOutcomeUnknownError and
            StorageError, as `DatasetWriter`.

    Examples:
        >>> import shardio, tempfile
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> def squares(start):
        ...     for n in range(start, start + 3):
        ...         yield {"n": n, "square": n * n}
        >>> url = tempfile.mkdtemp() + "/squares"
        >>> schema = {"n": "int64", "square": "int64"}
        >>> with ThreadPoolExecutor(2) as executor:
        ...     report = shardio.write_dataset(url, [0, 3, 6], squares, schema=schema, executor=executor)
        >>> report.records
        {'train': 9}
        >>> int(shardio.open(url)[7]["square"])
        49
    """
    check_workers(workers, executor)
    check_shuffle(shuffle, seed)
    check_writer_options(writer, "shardio.write_dataset", signature(write_dataset).parameters)
    splits = split_names(writer.get("splits"))
    if splits is not None:
        writer["splits"] = sorted(splits)
    options: dict[str, Any] = {"schema": schema, "mode": mode, "storage_options": storage_options, **writer}
    _check(ordered=ordered, tasks=tasks, shuffle=shuffle, on_error=on_error, session=session, writer=options)
    check_shards(shards, writer.get("shard_bytes", DEFAULT_SHARD_BYTES))
    if shards is not None and tasks is not None:
        message = f"shards={shards} makes a task of each shard: leave tasks={tasks} out"
        raise ValueError(message)
    if spool_dir is not None:
        options["spool_dir"] = spool_dir
    run = RunOptions(executor=executor, workers=workers, tasks=tasks, on_error=on_error, progress=progress)
    if shuffle and mode != "append":
        options["metadata"] = {"shuffled": True, **(options.get("metadata") or {})}
    if shuffle or shards is not None:
        order = seed if shuffle else None
        return write_twice(
            url_text(url), items, fn, seed=order, shards=shards, session=session, run=run, writer=options
        )
    return write_session(url_text(url), items, fn, session=session, run=run, writer=options)


def check_shuffle(shuffle: bool, seed: int) -> None:  # noqa: FBT001 - the value is what is checked
    """Refuse a seed in place of True or False, and anything else in place of a seed.

    Raises:
        TypeError: says how to write it.
    """
    if not isinstance(shuffle, bool):
        message = (
            f"shuffle={shuffle!r} must be True or False; a seed is given as shuffle=True, seed={shuffle!r}"
        )
        raise TypeError(message)
    integer("seed", seed)


def _check(
    *,
    ordered: bool,
    tasks: int | None,
    shuffle: bool,
    on_error: str,
    session: str | None,
    writer: Mapping[str, Any],
) -> None:
    """Refuse options that make no sense, by name, before any process is started."""
    if on_error not in ("raise", "skip"):
        message = f'on_error={on_error!r} must be "raise" or "skip"'
        raise ValueError(message)
    if ordered and shuffle:
        raise ValueError("ordered=True keeps the order of the items and shuffle= breaks it: give one of them")
    if tasks is not None:
        naming.check_tasks(tasks)
    check_options(writer["mode"], session, 0, commit=True, shard_bytes=writer.get("shard_bytes", 1))
