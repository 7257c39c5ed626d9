"""One pass over an epoch: what a stream's order, options and place make of a pipeline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from shardio.streaming._bounds import spare_bytes, stride_rows
from shardio.streaming._maker import Maker
from shardio.streaming._pipeline import Pipeline, PipelineOptions, io_threads_for, plan_template
from shardio.streaming._windows import load_window

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.order import Course, Pieces
    from shardio.reader import Damage
    from shardio.streaming._stream import Stream
    from shardio.streaming._windows import WindowData

__all__ = ["make_pipeline"]


def make_pipeline(
    stream: Stream,
    course: Course,
    damage: Damage,
    *,
    worker: int,
    workers: int,
    threads: int,
    finish: Callable[[Any], Any] | None,
) -> Pipeline:
    """Return the pipeline of the batches that loader worker w of W makes.

    Args:
        stream: whose rank, epoch and options count, as they are now.
        course: the epoch, standing at the step to begin with.
        damage: counts what is skipped.
        worker, workers: w and W.
        threads: that fetch and make.
        finish: is called with each batch, in the thread that made it.
    """
    options, members = stream.options, stream.members
    rows = sum(member.order.sizes.total_rows for member in members)
    decoded = sum(member.order.sizes.total_decoded_bytes for member in members)

    def load(source: int, pieces: Pieces) -> WindowData:
        return load_window(members[source], pieces, damage)

    # Lanes of its own: the pass may be asking its own ones meanwhile.
    lanes = partial(stream.order.lanes, stream.epoch, course.changes[0].global_batch)
    maker = Maker(
        members,
        options,
        epoch=stream.epoch,
        damage=damage,
        template=lambda: plan_template(lanes(), load),
        finish=finish,
    )
    stride_bytes, ahead_bytes = spare_bytes(
        stream.order,
        options,
        global_batch=course.global_batch,
        world_size=stream.world_size,
        threads=threads,
    )
    pipeline_options = PipelineOptions(
        rank=stream.rank,
        world_size=stream.world_size,
        worker=worker,
        workers=workers,
        threads=threads,
        io_threads=io_threads_for([member.source.is_local for member in members], threads),
        row_bytes=decoded / rows,
        stride_rows=stride_rows(options, images=members[0].source.options.decode == "image"),
        stride_bytes=stride_bytes,
        ahead_bytes=ahead_bytes,
        records=options.positions or options.random_transform is not None,
    )
    return Pipeline(course, maker, load, pipeline_options)
