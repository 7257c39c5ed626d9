"""The datasets of a stream: one, or the components of a mixture, each whole or a part.

And what processes that share the batches of one stream must have in common.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import checked_options, integer
from shardio.joins import JoinedSource, right_digest
from shardio.metadata import Schema
from shardio.order import Identity, Mixture, ShardSizes, Source as OrderSource
from shardio.reader import (
    DatasetDict,
    DatasetReader,
    DatasetSource,
    count_below,
    is_ascending,
    open_split,
    positions_at,
    selection_digest,
)
from shardio.redact import redact
from shardio.streaming._options import StreamOptions

if TYPE_CHECKING:
    from shardio.streaming._stream import Stream

T = TypeVar("T")


class Component:
    """One dataset of a stream.

    Attributes:
        reader: as the caller gave it.
        source: its shards.
        order: sizes and identity, for the arithmetic.
        is_slice: this is a run of live records, not a selection of some.
    """

    def __init__(self, reader: DatasetReader) -> None:
        selection = reader.selection
        if not is_ascending(selection):
            raise ValueError(
                "a stream has an order of its own (shuffle=True), so what is streamed must be in storage "
                "order, each record once: ds.select(numpy.unique(positions)), with positions of 0 or more; "
                "to read records in the order of a list use shardio.torch.MapDataset"
            )
        self.reader = reader
        self.source: DatasetSource = reader.source
        table = self.source.table
        first = self.source.stops - table.live_rows
        if len(selection) == len(self.source):
            selection = range(len(self.source))
        self._selection = selection
        # Of a slice with step 1, the first and the last shard count with a part of their size. Any other
        # selection is a set of live rows, as the rows that deletions leave are: its order is that of the
        # dataset in which all others are deleted.
        self.is_slice = isinstance(selection, range) and selection.step == 1
        rows = np.diff(count_below(selection, np.append(first, len(self.source))))
        digest, skipped = None, np.zeros_like(first)
        if isinstance(selection, range) and self.is_slice:
            start = selection.start if selection else 0
            skipped = np.where(rows > 0, np.maximum(first, start) - first, 0)
        else:
            digest = selection_digest(selection)
        of_shard = rows if digest is None else table.live_rows
        sizes = ShardSizes(
            rows,
            _share(table.stored_bytes, of_shard, table.live_rows),
            _share(table.decoded_bytes, of_shard, table.live_rows),
            _share(table.blocks, of_shard, table.live_rows),
        )
        self.order = OrderSource(sizes, self._identity(of_shard, skipped, digest))

    @property
    def is_shuffled(self) -> bool:
        """Whether the dataset says of itself that it was written in random order."""
        return self.source.version.manifest.metadata.get("shuffled") is True

    def positions(self, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the split of positions of the stream."""
        return positions_at(self._selection, local)

    def position(self, local: int) -> int:
        """Return the position in the split of a position of the stream."""
        return int(self._selection[local])

    def _identity(
        self, rows: NDArray[np.int64], skipped: NDArray[np.int64], selection: str | None
    ) -> Identity:
        return _identity(self.source, rows, skipped, selection, _joined(self.source))


def _identity(
    source: DatasetSource,
    rows: NDArray[np.int64],
    skipped: NDArray[np.int64],
    selection: str | None,
    joined: tuple[Identity, ...] = (),
) -> Identity:
    table = source.table
    digest = hashlib.sha256(b"shardio fingerprint 1")
    for column in (table.uuid, table.rows, table.blocks, table.live_rows, rows, skipped):
        digest.update(np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<")).tobytes())
    digest.update(table.deletion_sha256.tobytes())
    manifest = source.version.manifest
    return Identity(
        manifest.dataset_uuid.hex(), manifest.version, digest.hexdigest(), source.split, selection, joined,
        url=redact(source.url),
    )  # fmt: skip


def _joined(source: DatasetSource) -> tuple[Identity, ...]:
    """Return what is joined to a source, and to that, in the order in which it was."""
    if not isinstance(source, JoinedSource):
        return ()
    right = source.sides.right
    rows = right.source.table.live_rows
    one = _identity(right.source, rows, np.zeros_like(rows), right_digest(right))
    one = replace(one, on=source.sides.on)
    return (*_joined(source.sides.left), one, *_joined(right.source))


def _share(column: NDArray[np.int64], rows: NDArray[np.int64], live: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of a shard's size that falls to the rows of the slice, rounded up."""
    whole = rows == live
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.ceil(column * (rows / np.maximum(live, 1))).astype(np.int64)
    return np.where(whole, column, np.minimum(part, column))


class Mix:
    """Datasets and their proportions; takes the place of a reader in `stream`; made by `mix`.

    Attributes:
        readers: the datasets.
        mixture: counts of each over a period, and when the stream ends.
    """

    def __init__(self, readers: Sequence[DatasetReader], mixture: Mixture) -> None:
        self.readers = tuple(readers)
        self.mixture = mixture

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{count}/{self.mixture.period} {reader!r}"
            for reader, count in zip(self.readers, self.mixture.counts, strict=True)
        )
        return f"<shardio.streaming.Mix {parts}>"


@checked_options
def mix(
    sources: Sequence[tuple[DatasetReader, float]],
    *,
    stop: Literal["first", "all"] | None = None,
    steps: int | None = None,
) -> Mix:
    """Mix datasets by weight.

    Weights become integers over a period, and every period of the stream holds exactly those proportions. The
    stream's seed is the only seed.

    Args:
        sources: (reader, weight) each; weights above 0, only their proportions matter.
        stop: "first" (default): when the first dataset ends; "all": when every one has ended once, ended ones
            beginning again with their next epoch.
        steps: end after so many steps instead, ended datasets beginning again.

    Raises:
        ValueError: weights that are negative, not finite or 0, no source, or both `stop` and `steps`.

    Examples:
        >>> import shardio, tempfile
        >>> readers = []
        >>> for name in ("books", "web"):
        ...     url = f"{tempfile.mkdtemp()}/{name}"
        ...     with shardio.DatasetWriter(url, schema={"from": "text"}) as out:
        ...         for _ in range(70):
        ...             out.write({"from": name})
        ...     readers.append(shardio.open(url))
        >>> mixed = shardio.mix([(readers[0], 0.7), (readers[1], 0.3)])
        >>> batch = next(iter(shardio.stream(mixed, global_batch=10)))
        >>> batch["from"].count("books"), batch["from"].count("web")
        (7, 3)
    """
    if stop is not None and steps is not None:
        raise ValueError("give stop= or steps=, not both")
    for source in sources:
        if not isinstance(source, tuple | list) or len(source) != 2:
            raise TypeError(f"mix takes (reader, weight) pairs, found {source!r}")
        reader = source[0]
        if not isinstance(reader, DatasetReader):
            raise TypeError(f"mix takes (reader, weight) pairs; found {type(reader).__name__}")
    schemas = [reader.schema for reader, _ in sources]
    if not all(_alike(schemas[0], schema) for schema in schemas[1:]):
        raise ValueError(
            "the datasets of a mixture need one schema, so that their records fit into one batch"
        )
    joins = [
        reader.source.sides.names if isinstance(reader.source, JoinedSource) else None
        for reader, _ in sources
    ]
    if any(each != joins[0] for each in joins):
        raise ValueError(
            "the datasets of a mixture must all be joined, with the same features, or none of them"
        )
    if any(
        reader.source.options.functions != sources[0][0].source.options.functions for reader, _ in sources
    ):
        raise ValueError("the datasets of a mixture must be mapped by the same functions: ds.map(f)")
    for name in ("decode", "features", "on_error"):
        given = [getattr(reader.source.options, name) for reader, _ in sources]
        if any(each != given[0] for each in given):
            raise ValueError(f"the datasets of a mixture must be opened with one {name}=, found {given}")
    end = (stop or "first") if steps is None else integer("steps", steps)
    mixture = Mixture.from_weights([weight for _, weight in sources], stop=end)
    return Mix([reader for reader, _ in sources], mixture)


def _alike(one: Schema | None, other: Schema | None) -> bool:
    """Tell whether records of two schemas mean the same: names of classes may be fewer, words may differ."""
    if one is None or other is None:
        return one is other
    return one.differs_in_annotations(other) or other.differs_in_annotations(one)


def _readers_of(data: DatasetReader | Mix) -> Sequence[DatasetReader]:
    if isinstance(data, Mix):
        return data.readers
    if isinstance(data, DatasetDict):
        message = f"choose the split to stream, ds[{next(iter(data))!r}]; the splits are {', '.join(data)}"
        raise TypeError(message)
    if not isinstance(data, DatasetReader):
        raise TypeError(
            f"a stream takes what `shardio.open(url)` or `shardio.mix(...)` returned, found {data!r:.200} "
            f"({type(data).__name__})"
        )
    return (data,)


class _Chain:
    """Functions of one value, one after another, and a last one that may take more."""

    def __init__(self, functions: Sequence[Callable[[Any], Any]], last: Callable[..., Any] | None) -> None:
        self._functions = functions
        self._last = last

    def __call__(self, value: Any, *more: Any) -> Any:
        for function in self._functions:
            value = function(value)
        return value if self._last is None else self._last(value, *more)


def prepare(
    data: DatasetReader | Mix | str | Path, options: StreamOptions
) -> tuple[DatasetReader | Mix, StreamOptions]:
    """Return the data of a stream as readers of stored values; functions of `map` join the transform.

    A URL stands for the dataset there, or for the split that the options name.

    Raises:
        TypeError: a split was named beside something else than a URL.
        ValueError: the dataset at a URL has several splits, or not the one that was named.
    """
    if isinstance(data, str | Path):
        data = open_split(data, options.split)
    elif options.split is not None:
        raise TypeError("split= is for a URL; open the dataset with it: shardio.open(url, split=...)")
    readers = _readers_of(data)
    functions = readers[0].source.options.functions
    if not functions:
        return data, options
    if options.random_transform is None:
        options = replace(options, transform=_Chain(functions, options.transform))
    else:
        options = replace(options, random_transform=_Chain(functions, options.random_transform))
    stored = [reader.unmapped() for reader in readers]
    return Mix(stored, data.mixture) if isinstance(data, Mix) else stored[0], options


def components_of(data: DatasetReader | Mix) -> list[Component]:
    """Return the components of what a stream was given."""
    return [Component(reader) for reader in _readers_of(data)]


def parts_of(data: DatasetReader | Mix) -> list[DatasetReader]:
    """Return the readers of one version each that the data is made of: of a join, those of its sides."""
    return [part for reader in _readers_of(data) for part in reader.parts]


def of_parts(data: DatasetReader | Mix, parts: Sequence[DatasetReader]) -> DatasetReader | Mix:
    """Return the data made of the readers that processes agreed on, in the order of `parts_of`.

    Raises:
        ValueError: a part of a join, whose positions belong to one version.
    """
    left = list(parts)
    made = []
    for reader in _readers_of(data):
        count = len(reader.parts)
        made.append(reader.with_parts(left[:count]))
        del left[:count]
    return Mix(made, data.mixture) if isinstance(data, Mix) else made[0]


def in_all(make: Callable[[], T], gather: Callable[[str], list[str]], *, what: str, unit: str) -> T:
    """Return what a function makes in this process, once it has succeeded in all of them.

    Were only one process to raise, the others would wait for it in their next collective call.

    Args:
        make: what may fail; it makes no collective calls.
        gather: a collective call that returns the text of each process.
        what: what is wrong where it fails.
        unit: what a process is called, "rank" for example.

    Raises:
        Exception: what `make` raised here.
        ValueError: it failed elsewhere; says where and why.
    """
    made, failure = [], None
    try:
        made.append(make())
    except Exception as error:  # noqa: BLE001 - it is raised below, when the others know
        failure = error
    told = "" if failure is None else str(failure) or type(failure).__name__
    # A path may hold half a surrogate pair, with which the collective call would fail in this process alone.
    outcomes = gather(told.encode("utf-8", "backslashreplace").decode())
    if failure is not None:
        raise failure
    wrong = [f"{unit} {number}: {text}" for number, text in enumerate(outcomes) if text]
    if wrong:
        raise ValueError(f"{what}: {'; '.join(wrong)}")
    return made[0]


def agree(
    data: DatasetReader | Mix,
    make: Callable[[DatasetReader | Mix], Stream],
    gather: Callable[[str], list[str]],
    *,
    unit: str,
) -> Stream:
    """Return the stream of this process, of the versions that the first one has found; all call this.

    Args:
        data: of this process.
        make: makes the stream of data.
        gather: a collective call that returns the text of each process.
        unit: what a process is called, "rank" for example.

    Raises:
        ValueError: in all processes, where one cannot read those versions or make its stream, where what
            decides their records differs, or no process has one of the ranks; says what, and in which one.
    """
    parts = parts_of(data)
    versions = json.loads(gather(json.dumps([(part.version, part.digest) for part in parts]))[0])
    data = in_all(
        lambda: of_parts(data, [part.at(*version) for part, version in zip(parts, versions, strict=True)]),
        gather,
        what=f"not every {unit} reads the same version",
        unit=unit,
    )
    stream = in_all(lambda: make(data), gather, what=f"a {unit} cannot make its stream", unit=unit)
    terms = {**stream.state_dict(), "world_size": stream.world_size, "seal": None}
    told = [json.loads(text) for text in gather(json.dumps([stream.rank, terms]))]
    first, *others = (_leaves("", terms) for _, terms in told)
    differing = [
        f"{name} of {unit} 0 is {_short(first.get(name))}, of {unit} {number} {_short(theirs.get(name))}"
        for number, theirs in enumerate(others, 1)
        for name in dict.fromkeys([*first, *theirs])
        if first.get(name) != theirs.get(name)
    ]
    if differing:
        more = f"; and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise ValueError(
            f"these streams would not share the same batches: {'; '.join(differing[:4])}{more}; give the "
            "same data and options everywhere (the default plan depends on memory_bytes=, mixing= and on "
            "where the data is), or one plan="
        )
    ranks = [rank for rank, _ in told]
    missing = sorted({*range(stream.world_size)} - {*ranks})
    # Fewer processes than ranks: those of other jobs may have the others.
    if missing and len(ranks) >= stream.world_size:
        raise ValueError(
            f"no process has rank={missing[0]} of world_size={stream.world_size}, so its records would not "
            f"be seen: the {len(ranks)} processes have rank={ranks}; give each its own place among "
            "those that read different records"
        )
    return stream


def _leaves(name: str, value: Any) -> dict[str, Any]:
    """Return the leaves of nested dicts and lists, by names such as "plans[0].window"."""
    if isinstance(value, Mapping):
        items = [(f"{name}.{key}" if name else key, item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{number}]", item) for number, item in enumerate(value)]
    else:
        return {name: value}
    return {leaf: found for inner, item in items for leaf, found in _leaves(inner, item).items()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else f"{text[:397]}..."
