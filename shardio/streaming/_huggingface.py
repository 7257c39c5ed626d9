"""A stream as a `datasets.IterableDataset`: examples in the stream's order, with a state that is a count.

Example `i` after the stream's position belongs to process `i % world_size`.  So the examples of `n` steps are
the same on any number of processes with the same total batch size, and where to continue is one number: how
many examples all processes have consumed.  `datasets` keeps that number in its own state dict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
from datasets.iterable_dataset import _BaseExamplesIterable

from shardio.reader import hf_features
from shardio.streaming._options import StreamOptions
from shardio.streaming._stream import Stream

_EXAMPLE = "example"
# `datasets` gives a process its share of a dataset if the number of processes divides that of the shards, and
# else has each process read everything.  Any number of processes can share a stream; this one is divided by
# all up to 10, by 12, 14, 15, 16 and so on, and by powers of two up to 1,024.
_SHARDS = 1024 * 9 * 5 * 7


class _StreamExamples(_BaseExamplesIterable):  # type: ignore[misc]
    """Examples of one process; what `datasets` calls an examples iterable.

    Args:
        stream: gives dataset, order and options; the first epoch begins at its position.
        rank, world_size: which examples: those with `i % world_size == rank`.
        epoch: number of the epoch as `datasets` counts; 0 is that of the stream.
    """

    def __init__(self, stream: Stream, rank: int = 0, world_size: int = 1, epoch: int = 0) -> None:
        super().__init__()
        self._sleep_on_threads_shutdown = False  # read where datasets are interleaved
        self._stream = stream
        self._rank, self._world_size, self._epoch = rank, world_size, epoch

    @property
    def num_shards(self) -> int:
        """A number that the usual numbers of processes divide."""
        return _SHARDS

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> _StreamExamples:  # noqa: FBT001, FBT002
        """Return the part of one of `num_shards` processes or loader workers that share these examples."""
        del contiguous
        rank = self._rank + self._world_size * index
        return _StreamExamples(self._stream, rank, self._world_size * num_shards, self._epoch)

    def shuffle_data_sources(self, generator: np.random.Generator) -> _StreamExamples:
        """Return the examples of another epoch: `datasets` seeds the generator with the epoch's number."""
        entropy = getattr(generator.bit_generator.seed_seq, "entropy", None)
        if not isinstance(entropy, int):
            raise TypeError("a stream is shuffled by to_hf(seed=...); set_epoch(n) changes the order")
        return _StreamExamples(self._stream, self._rank, self._world_size, entropy)

    def reshard_data_sources(self) -> _StreamExamples:
        """Return these examples: they can be shared by any number of processes as they are."""
        return self

    def _init_state_dict(self) -> dict[str, Any]:
        # The plan goes along: another machine may choose another one by default.
        order = self._whole().state_dict()
        self._state_dict = {"examples": 0, "order": json.dumps(order), "type": type(self).__name__}
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the examples from where the state is, with their numbers in the epoch's order."""
        state: dict[str, Any] | None = self._state_dict
        whole, consumed = self._whole(), 0
        dropped = self._dropped(whole)
        if state is not None:
            consumed = state["examples"]
            whole.load_state_dict(json.loads(state["order"]))
        stop = whole.remaining - dropped
        if consumed >= stop:
            return
        whole.go_to(whole.step + consumed)
        share = Stream(self._stream.data, self._options(self._rank, self._world_size))
        share.load_state_dict(whole.state_dict())
        for batch in share:
            for example in batch[_EXAMPLE]:
                key = consumed + self._rank
                if key >= stop:
                    return
                consumed += self._world_size
                if state is not None:
                    state["examples"] = consumed
                yield key, example

    def _whole(self) -> Stream:
        """Return the stream of all examples of the epoch that are left, one a step."""
        whole = Stream(self._stream.data, self._options(0, 1))
        whole.load_state_dict(self._stream.state_dict())
        if self._epoch:
            whole.set_epoch(self._stream.epoch + self._epoch)
        return whole

    def _dropped(self, whole: Stream) -> int:
        """Return how many examples the stream drops at the end of the epoch: a short last batch."""
        if self._stream.options.remainder != "drop":
            return 0
        steps = self._stream.remaining
        if self._epoch:
            steps = self._stream.order.schedule(whole.epoch, self._stream.global_batch).stop
        return whole.remaining - steps * self._stream.global_batch

    def _options(self, rank: int, world_size: int) -> StreamOptions:
        """Return the options of a stream that delivers one value a step to each process."""
        given = self._stream.options
        random = given.random_transform
        return replace(
            given, rank=rank, world_size=world_size, global_batch=world_size, batch_size=None,
            positions=False, valid=False,
            transform=given.transform if random is not None else _Example(given.transform),
            random_transform=None if random is None else _Example(random),
        )  # fmt: skip


class _Example:
    """A transform whose result is delivered as it is, not as columns; a class, so that it pickles."""

    def __init__(self, transform: Callable[..., Any] | None) -> None:
        self._transform = transform

    def __call__(self, value: Any, *generator: Any) -> dict[str, Any]:
        return {_EXAMPLE: value if self._transform is None else self._transform(value, *generator)}


class _StreamDataset(datasets.IterableDataset):  # type: ignore[misc]
    """A stream's examples; refuses what would lose some of them at a resume."""

    def shuffle(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: the examples in a shuffle buffer are in no state.

        Raises:
            ValueError: always.
        """
        del arguments, options
        raise ValueError(
            "a stream is shuffled by to_hf(seed=...); a shuffle buffer would lose its examples at a resume: "
            "leave shuffle() out"
        )


def to_hf_stream(stream: Stream) -> datasets.IterableDataset:
    """Return a stream's examples as a `datasets.IterableDataset`; see `Stream.to_hf`."""
    options = stream.options
    if options.batch_transform is not None:
        raise ValueError("batch_transform= sees batches, and this dataset yields examples: use its map()")
    if options.remainder == "pad":
        raise ValueError('remainder="pad" is for batches, and this dataset yields examples: use "keep"')
    readers = [component.reader for component in stream.components]
    schemas = {reader.schema for reader in readers}
    known = len(schemas) == 1 and None not in schemas and not options.transforms_records
    features = hf_features(readers[0]) if known else None
    examples = _StreamExamples(stream)
    return _StreamDataset(
        examples, info=datasets.DatasetInfo(features=features), split=datasets.NamedSplit(readers[0].split)
    )
