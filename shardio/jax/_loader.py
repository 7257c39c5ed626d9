"""A loader whose batches are global arrays: each process reads the rows that are on its devices."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from shardio.streaming import (
    Mix,
    Stream,
    StreamLoader,
    StreamOptions,
    agree,
    method_with_stream_options,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardio.reader import DatasetReader


class StreamingLoader(StreamLoader):
    """Load a stream as global `jax.Array`s, ahead and in order, and resume exactly.

    The order is that of `shardio.stream`: the global batch of step s holds the same records on any number of
    devices and processes. Which rows a process reads follows from the sharding, so processes that share a
    batch (model parallelism) read the same ones. Arrays are made, and copied to devices, in the threads that
    build batches. Iterating again begins the next epoch.

    Args:
        ds: from `shardio.open`, a part of it, or `shardio.mix`; in every process.
        sharding: how the first axis of every array is laid out, say
            `NamedSharding(mesh, PartitionSpec("data"))`; None: on the default device.
        options: see `shardio.StreamOptions`; `rank` and `world_size` come from the sharding, `remainder` is
            "drop" or "pad".

    Numeric columns become arrays [global_batch, ...] of the dtype that JAX makes of theirs: without
    `jax_enable_x64` 64 bits become 32, and integers that do not fit are an error. Text, bytes and ragged
    columns stay as this process's rows. A `batch_transform=` may change the number of rows only where one
    process holds the whole batch.

    Raises:
        ValueError: the global batch does not divide by the shards of its axis, or the layout gives processes
            no slice of it. In all processes: one of them cannot read the version of process 0, or has other
            data or another plan, seed or batch. From the iterator: a column has other than this process's
            share of rows.

    Examples:
        >>> import shardio, tempfile
        >>> from shardio.jax import StreamingLoader
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> with shardio.DatasetWriter(url, schema={"n": "int32"}) as out:
        ...     for n in range(100):
        ...         out.write({"n": n})
        >>> loader = StreamingLoader(shardio.open(url), global_batch=10, seed=0)
        >>> len(loader), next(iter(loader))["n"].shape
        (10, (10,))
    """

    @method_with_stream_options(StreamOptions)
    def __init__(
        self,
        ds: DatasetReader | Mix | str | Path,
        sharding: jax.sharding.Sharding | None = None,
        **options: Any,
    ) -> None:
        ds, given = prepare(ds, StreamOptions.from_options("StreamingLoader", options))
        if given.rank is not None or given.world_size is not None:
            raise ValueError("rank= and world_size= come from the sharding")
        if given.remainder == "keep":
            raise ValueError('remainder="keep" makes a short last step, which no sharding fits: take "pad"')
        if given.global_batch is None:
            raise ValueError("give global_batch=: records of a step over all devices")
        self.sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        self.stream = _agreed_stream(ds, self.sharding, given, given.global_batch)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that remain; after an epoch that came to its end, those of the next one."""
        stream = self.stream
        number = stream.begin()
        with contextlib.closing(stream.batches(finish=self._placed)) as batches:
            for batch in stream.with_progress(batches):
                stream.delivered(number, batch.step, batch.rows)
                yield batch.columns
        stream.end(number)

    def _placed(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return {name: self._placed_as(name, column) for name, column in batch.items()}
        return self._placed_as("the batch", batch)

    def _placed_as(self, name: str, column: Any) -> Any:
        if isinstance(column, dict):
            return {inner: self._placed_as(inner, item) for inner, item in column.items()}
        if isinstance(column, tuple):
            items = [self._placed_as(name, item) for item in column]
            return type(column)(*items) if hasattr(column, "_fields") else tuple(items)
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc":
            return column
        world_size = self.stream.world_size
        wanted = self.stream.global_batch // world_size
        # Of local rows that are as many as JAX was told there are in all, it takes a part, in silence.
        if world_size > 1 and len(column) != wanted:
            raise ValueError(
                f"{name!r} has {len(column)} rows in this process, expected {wanted} of a global batch of "
                f"{self.stream.global_batch}: make as many in batch_transform=, such as by rows={wanted} of "
                "shardio.pack_columns"
            )
        shape = (len(column) * world_size, *column.shape[1:])
        make: Any = jax.make_array_from_process_local_data
        return make(self.sharding, _fitting(name, column), shape)


def _fitting(name: str, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a column with the dtype that JAX has for it.

    Raises:
        ValueError: an integer does not fit.
    """
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(column.dtype))
    if dtype == column.dtype:
        return column
    if dtype.kind in "iu" and column.size:
        limits, least, most = np.iinfo(dtype), int(column.min()), int(column.max())
        if least < limits.min or most > limits.max:
            raise ValueError(
                f"{name!r} holds {least if least < limits.min else most}, which does not fit into {dtype}, "
                "JAX's integer: "
                'jax.config.update("jax_enable_x64", True), or make it smaller in batch_transform='
            )
    return column.astype(dtype)


def _place(sharding: jax.sharding.Sharding, rows: int) -> tuple[int, int]:
    """Return which slice of a global batch is on this process's devices, and how many slices there are.

    Raises:
        ValueError: it does not divide, or the rows of this process are not such a slice.
    """
    try:
        sharding.shard_shape((rows,))
    except ValueError as error:
        raise ValueError(f"global_batch={rows} does not divide by the shards of its axis: {error}") from error
    indices: Any = sharding.addressable_devices_indices_map((rows,)).values()
    spans = {index[0].indices(rows)[:2] for index in indices}
    first, last = min(start for start, _ in spans), max(stop for _, stop in spans)
    count = last - first
    if sum(stop - start for start, stop in spans) != count or rows % count or first % count:
        raise ValueError(
            f"this process's devices hold the rows {sorted(spans)} of a global batch of {rows}, which are no "
            "slice of it: arrange the mesh so that devices of a process are side by side on the axis of the "
            "batch, as jax.make_mesh does"
        )
    return first // count, rows // count


def _agreed_stream(
    data: DatasetReader | Mix, sharding: jax.sharding.Sharding, options: StreamOptions, rows: int
) -> Stream:
    """Return the stream of this process, at the versions that process 0 has found; all processes call this.

    Raises:
        ValueError: in all processes, where one cannot read those versions or make its stream, or would share
            other batches.
    """

    def placed(data: DatasetReader | Mix) -> Stream:
        rank, world_size = _place(sharding, rows)
        return Stream(data, replace(options, rank=rank, world_size=world_size))

    if jax.process_count() == 1:
        return placed(data)
    return agree(data, placed, _gathered, unit="process")


def _gathered(text: str) -> list[str]:
    """Return the text of each process; all processes call this."""
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(len(data)))).tolist()
    rows = np.zeros(max(*sizes, 1), np.uint8)  # arrays that are gathered have one shape
    rows[: len(data)] = data
    found = np.asarray(multihost_utils.process_allgather(rows))
    return [bytes(row[:size]).decode() for row, size in zip(found, sizes, strict=True)]
