"""Records as a `datasets.Dataset` in memory, or as a `datasets.IterableDataset` in the order of a stream.

Both have the same features and values: those of the schema, and those that conversions from `datasets` kept
for columns that the schema describes in part.

Example `i` after the stream's position belongs to process `i % world_size`.  So the examples of `n` steps are
the same on any number of processes with the same total batch size, and where to continue is one number: how
many examples all processes have consumed.  `datasets` keeps that number in its own state dict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets.iterable_dataset import _BaseExamplesIterable
from datasets.table import InMemoryTable

from shardio.codecs import HF_METADATA, arrow_array, arrow_type_of, hf_feature, with_names
from shardio.format import parse_json
from shardio.metadata import Feature
from shardio.reader import choose_columns, read_columns
from shardio.streaming._options import StreamOptions
from shardio.streaming._stream import Stream, stream

_EXAMPLE = "example"
_Convert = Callable[[Any], dict[str, Any]]
# `datasets` gives a process its share of a dataset if the number of processes divides that of the shards, and
# else has each process read everything.  Any number of processes can share a stream; this one is divided by
# all up to 10, by 12, 14, 15, 16 and so on, and by powers of two up to 1,024.
_SHARDS = 1024 * 9 * 5 * 7


class _StreamExamples(_BaseExamplesIterable):  # type: ignore[misc]
    """Examples of one process; what `datasets` calls an examples iterable.

    Args:
        stream: gives dataset, order and options; the first epoch begins at its position.
        convert: makes an example of a record's value; None where they are the same.
        rank, world_size: which examples: those with `i % world_size == rank`.
        epoch: number of the epoch as `datasets` counts; 0 is that of the stream.
    """

    def __init__(
        self, stream: Stream, convert: _Convert | None, rank: int = 0, world_size: int = 1, epoch: int = 0
    ) -> None:
        super().__init__()
        self._sleep_on_threads_shutdown = False  # read where datasets are interleaved
        self._stream, self._convert = stream, convert
        self._rank, self._world_size, self._epoch = rank, world_size, epoch

    @property
    def num_shards(self) -> int:
        """A number that the usual numbers of processes divide."""
        return _SHARDS

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> _StreamExamples:  # noqa: FBT001, FBT002
        """Return the part of one of `num_shards` processes or loader workers that share these examples."""
        del contiguous
        rank = self._rank + self._world_size * index
        return _StreamExamples(self._stream, self._convert, rank, self._world_size * num_shards, self._epoch)

    def shuffle_data_sources(self, generator: np.random.Generator) -> _StreamExamples:
        """Return the examples of another epoch: `datasets` seeds the generator with the epoch's number."""
        entropy = getattr(generator.bit_generator.seed_seq, "entropy", None)
        if not isinstance(entropy, int):
            raise TypeError("a stream is shuffled by to_hf(seed=...); set_epoch(n) changes the order")
        return _StreamExamples(self._stream, self._convert, self._rank, self._world_size, entropy)

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
            transform=None if random is not None else _Example(given.transform or self._convert),
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


def to_hf(reader: Any, names: Sequence[str] | None, *, streaming: bool, **options: Any) -> Any:
    """Return a reader's records for `datasets`; see `DatasetReader.to_hf`."""
    if streaming:
        records = reader if names is None else reader.select_columns(names)
        # By default without scratch: the plan is then the same on all machines of a job.
        return to_hf_stream(stream(records, **{"global_batch": 1, "scratch": False, **options}))
    if options:
        raise TypeError(f"{next(iter(options))}= is for streaming=True")
    schema = reader.schema
    if names is None:
        names = reader.source.options.features or tuple(schema or ())
    columns = choose_columns(schema, names, what="to_hf")
    table = read_columns(reader, columns, positions=False, warn=False)
    known = {column.name: column.feature for column in columns if not column.derived}
    hub = _HubFeatures(known, table.column_names, getattr(reader, "metadata", {}))
    target = hub.features.arrow_schema
    batches = [
        pa.record_batch([_column(batch, each.name, each.type, known)[0] for each in target], schema=target)
        for batch in table.to_batches()
    ]
    whole = InMemoryTable(pa.Table.from_batches(batches, schema=target))
    split = getattr(reader, "split", None)
    return datasets.Dataset(
        whole,
        info=datasets.DatasetInfo(features=hub.features),
        split=None if split is None else datasets.NamedSplit(split),
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
    hub = None
    if len(schemas) == 1 and None not in schemas and not options.transforms_records:
        # Images that are decoded are no longer the files that conversions described.
        metadata = readers[0].metadata if readers[0].source.options.images is None else None
        hub = _HubFeatures(readers[0].features, list(readers[0].features), metadata)
    return _StreamDataset(
        _StreamExamples(stream, hub.example if hub is not None and hub.restored else None),
        info=datasets.DatasetInfo(features=None if hub is None else hub.features),
        split=datasets.NamedSplit(readers[0].split),
    )


class _HubFeatures:
    """What columns are for `datasets`.

    Args:
        known: the feature of each column; those without are lengths.
        names: of the columns.
        metadata: of the dataset; None to keep each column as it is.

    Attributes:
        features: a `datasets.Features`; those that conversions kept where all columns of one are there.
        restored: the columns of each of these.
    """

    def __init__(
        self, known: Mapping[str, Feature], names: Sequence[str], metadata: Mapping[str, Any] | None
    ) -> None:
        kept: dict[str, Any] = {}
        if metadata is not None:
            images = (name for name in known if known[name].kind == "image" and f"{name}.path" in known)
            kept = {name: hf_feature(known[name]) for name in images}
            described = metadata.get(HF_METADATA)
            kept |= described if isinstance(described, dict) else {}
        self._known = known
        self.features, self.restored = datasets.Features(), {}
        taken: set[str] = set()
        for name in names:
            if name in taken:
                continue
            top = next((each for each in kept if name == each or name.startswith(f"{each}.")), None)
            if top is not None and top not in self.features:
                parts = [each for each in names if each == top or each.startswith(f"{top}.")]
                feature = self._restore(top, parts, kept[top])
                if feature is not None:
                    self.features[top], self.restored[top] = feature, parts
                    taken.update(parts)
                    continue
            default = {"dtype": "int64", "_type": "Value"} if name not in known else hf_feature(known[name])
            self.features[name] = datasets.Features.from_dict({name: default})[name]

    def _restore(self, top: str, parts: Sequence[str], node: Any) -> Any:
        """Return the feature that conversions kept for some columns; None if it is not theirs any more."""
        try:
            feature = datasets.Features.from_dict({top: with_names(node, top, self._known)})
            empty = pa.record_batch({each: pa.array([], arrow_type_of(self._known[each])) for each in parts})
            _, used = _column(empty, top, feature.arrow_schema.field(top).type, self._known)
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
            # Another schema has been set since, or another version of `datasets` described it.
            return None
        return feature[top] if used == set(parts) else None

    def example(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record's value with what conversions kept."""
        made = dict(value)
        for top, parts in self.restored.items():
            arrays = {each: arrow_array([made.pop(each, None)], self._known[each]) for each in parts}
            kind = datasets.Features({top: self.features[top]}).arrow_schema.field(top).type
            array, _ = _column(pa.record_batch(arrays), top, kind, self._known)
            made[top] = _parsed(array[0].as_py(), self.features[top])
        return made


def _parsed(value: Any, feature: Any) -> Any:
    """Return a value of Arrow with its JSON parsed, as `datasets` takes it."""
    if isinstance(feature, datasets.Json) and isinstance(value, str):
        return parse_json(value.encode())
    if isinstance(feature, dict) and value is not None:
        return {name: _parsed(value[name], inner) for name, inner in feature.items()}
    inner = getattr(feature, "feature", None)
    return (
        [_parsed(each, inner) for each in value] if isinstance(value, list) and inner is not None else value
    )


def _column(batch: Any, name: str, kind: Any, known: Mapping[str, Feature]) -> tuple[Any, set[str]]:
    """Return the array of a column of `datasets`, and the names of the columns that it is made of.

    Raises:
        KeyError: one of them is not there.
        pyarrow.ArrowException: one of them is of another type.
    """
    names = batch.schema.names
    if name in names and _is_file(kind):
        paths = batch.column(f"{name}.path") if f"{name}.path" in names else None
        used = {name} if paths is None else {name, f"{name}.path"}
        return _files(batch.column(name), paths, kind), used
    if name in names:
        return _cast(batch.column(name), kind, known.get(name)), {name}
    if not pa.types.is_struct(kind):
        raise KeyError(name)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    parts = [_column(batch, f"{name}.{field.name}", field.type, known) for field in fields]
    arrays = [array for array, _ in parts]
    return pa.StructArray.from_arrays(arrays, fields=fields), set().union(*(used for _, used in parts))


def _is_file(kind: Any) -> bool:
    """Return whether a type is that of `Image` and `Audio`, or of a list of them."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not pa.types.is_struct(kind):
        return False
    return sorted(kind.field(number).name for number in range(kind.num_fields)) == ["bytes", "path"]


def _files(contents: Any, paths: Any, kind: Any) -> Any:
    if not pa.types.is_struct(kind):
        given = contents.to_pylist()
        named = [None] * len(given) if paths is None else paths.to_pylist()
        # Some of a list may have no path: conversions keep lists of paths as JSON.
        named = [parse_json(each.encode()) if isinstance(each, str) else each for each in named]
        rows = [
            None
            if row is None
            else [
                {"bytes": data, "path": path}
                for data, path in zip(row, row_paths or [None] * len(row), strict=True)
            ]
            for row, row_paths in zip(given, named, strict=True)
        ]
        return pa.array(rows, kind)
    if paths is None:
        paths = pa.nulls(len(contents), pa.string())
    values = {"bytes": contents, "path": paths}
    fields = [kind.field(number) for number in range(kind.num_fields)]
    missing = pc.and_(contents.is_null(), paths.is_null())
    return pa.StructArray.from_arrays(
        [values[field.name].cast(field.type) for field in fields], fields=fields, mask=missing
    )


def _cast(array: Any, kind: Any, feature: Feature | None) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        storage = _cast(array, kind.storage_type, feature)
        return pa.ExtensionArray.from_storage(kind, storage)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if feature is not None and feature.kind == "json" and not text:
        values = [None if text is None else parse_json(text.encode()) for text in array.to_pylist()]
        return pa.array(values, kind)
    return array.cast(kind)
