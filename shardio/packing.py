"""Packing: documents of differing length become rows of one length, whole, with little room left over.

Best-fit decreasing within a bounded buffer: of the rows with room for a document, the longest document left
goes to the one that it fills most. The result depends on the records and the options alone. Pure: records in,
rows out.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import checked_options, integer, names
from shardio.codecs import RaggedColumn
from shardio.errors import BadRecord, SchemaError
from shardio.metadata import Feature
from shardio.reports import Report

__all__ = ["PackReport", "PackedRows", "best_fit", "pack", "pack_columns", "unpack"]

SEGMENT_IDS, POSITION_IDS = "segment_ids", "position_ids"
_OWN = (SEGMENT_IDS, POSITION_IDS)
# A document costs some hundred bytes beside its tokens, so their number is bounded.
_MOST_DOCUMENTS = 1 << 16
MOST_LISTED = 1000
BUFFER_TOKENS = 1 << 22
# Rows are made by blocks of so many tokens, which fit into a processor's cache.
_BLOCK_TOKENS = 1 << 15


@dataclass
class PackReport(Report):
    """What packing has done so far.

    Attributes:
        length: of a row, in tokens.
        records: documents that stand in rows.
        rows: that were made.
        tokens: of the documents in them.
        records_cut: documents that were longer than a row and are in several pieces.
        records_skipped: documents that were left out, with `on_error="skip"`.
        skipped: the first thousand of them, with the reasons.
    """

    _computed: ClassVar[tuple[str, ...]] = ("fill",)

    length: int
    records: int = 0
    rows: int = 0
    tokens: int = 0
    records_cut: int = 0
    records_skipped: int = 0
    skipped: list[BadRecord] = field(default_factory=list)

    @property
    def fill(self) -> float:
        """Share of the rows' room that holds tokens, from 0 to 1; 1 where there are no rows."""
        return self.tokens / (self.rows * self.length) if self.rows else 1.0

    def __str__(self) -> str:
        documents, rows = f"{self.records:,} documents", f"{self.rows:,} rows of {self.length:,}"
        parts = [f"{documents}, {self.tokens:,} tokens, {rows}, {self.fill:.2%} full"]
        if self.records_cut:
            parts.append(f"{self.records_cut:,} longer documents cut")
        if self.records_skipped:
            parts.append(f"{self.records_skipped:,} left out")
        return "; ".join(parts)


@checked_options
def pack(
    records: Iterable[Any],
    length: int,
    *,
    features: Mapping[str, str] | Sequence[str] | None = None,
    cut: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    pad: Any = 0,
    buffer_tokens: int = BUFFER_TOKENS,
) -> PackedRows:
    """Pack documents into rows of one length, to be written to a dataset.

    Documents are read into a buffer; when it is full, they are packed by best-fit decreasing and its rows
    come out, in the order of their first documents. Within a row documents stand in the order in which they
    came. So endless inputs need bounded memory, and the same records give the same rows.

    Args:
        records: each a mapping of features to the tokens of one document, or the tokens alone, which become
            the feature "tokens". Arrays or lists have one length in all features, such as tokens and a loss
            mask.
        length: tokens of a row.
        features: which features are packed, and their types, `{"tokens": "int32"}`; names alone take the
            types of the first record, None takes all of its features. Other features of the records are left
            out where names are given.
        cut: cut documents that are longer than a row into pieces of `length` tokens and a rest, each a
            segment of its own. Other documents are never cut.
        on_error: what to do about a document that is too long, empty, or of other types: "raise", or "skip":
            left out, counted and listed in the report.
        pad: fills the end of rows; a value, or a mapping of features to values.
        buffer_tokens: tokens in the buffer, at least `length`; besides these it holds at most 65,536
            documents. More makes rows fuller.

    Returns:
        An iterator over rows. A row has an array [length] for each feature, and two more of int32[length].
        `segment_ids` is the number of the document within the row, from 1 on, and 0 where the row is padded.
        `position_ids` is the place within the document, from 0 on. The iterator's `schema` is what the writer
        needs, and its `report` says how full the rows are.

    Raises:
        SchemaError: a document that is too long, empty, lacks a feature, or has other types; names its number
            among the records. From the iterator.
        ValueError, TypeError: an option that makes no sense.

    Examples:
        >>> import shardio
        >>> rows = shardio.pack([[1, 2, 3], [4, 5, 6, 7], [8], [9, 10]], 5, pad=-1)
        >>> rows.schema
        {'tokens': 'int64[5]', 'segment_ids': 'int32[5]', 'position_ids': 'int32[5]'}
        >>> for row in rows:
        ...     print(row["tokens"], row["segment_ids"], row["position_ids"])
        [ 1  2  3  9 10] [1 1 1 2 2] [0 1 2 0 1]
        [4 5 6 7 8] [1 1 1 1 2] [0 1 2 3 0]
        >>> print(rows.report)
        4 documents, 10 tokens, 2 rows of 5, 100.00% full
    """
    return PackedRows(
        records, length, features, cut=cut, on_error=on_error, pad=pad, buffer_tokens=buffer_tokens
    )


class PackedRows(Iterator[dict[str, Any]]):
    """Rows of packed documents; made by `pack`. Documents are numbered from `first`.

    Attributes:
        report: what was packed so far; complete when the iterator has ended.
    """

    def __init__(
        self,
        records: Iterable[Any],
        length: int,
        features: Mapping[str, str] | Sequence[str] | None,
        *,
        cut: bool,
        on_error: str,
        pad: Any,
        buffer_tokens: int = BUFFER_TOKENS,
        first: int = 0,
    ) -> None:
        self._length = _positive("length", length)
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error={on_error!r} must be "raise" or "skip"')
        if (buffer := _positive("buffer_tokens", buffer_tokens)) < length:
            raise ValueError(f"buffer_tokens={buffer} must be at least length={length}")
        self._cut, self._skip, self._pad, self._buffer = bool(cut), on_error == "skip", pad, buffer
        self._types: dict[str, Feature] = {}
        self._names: tuple[str, ...] | None = None
        self._chosen = features is not None
        if isinstance(features, Mapping):
            self._set_types({name: _feature(name, kind) for name, kind in features.items()})
        elif features is not None:
            self._names = names("features", features)
            if not self._names:
                raise ValueError("features=[] names no feature to pack")
        self._records = iter(records)
        self._number = first
        self._rows = self._all_rows()
        self.report = PackReport(length)

    def __next__(self) -> dict[str, Any]:
        return next(self._rows)

    @property
    def schema(self) -> dict[str, str]:
        """Types of a row, as the writer takes them; without types in `features=` it looks at one record.

        Raises:
            ValueError: there is no record to look at.
        """
        seen: list[Any] = []
        while not self._types:
            record = next(self._records, self)
            if record is self and not seen:
                raise ValueError(
                    'there are no records to tell the types by: give them, features={"tokens": "int32"}'
                )
            if record is not self:
                seen.append(record)
            if record is self or not self._is_empty(record):
                self._learn(seen[-1])
        self._records = itertools.chain(seen, self._records)
        lead = f"[{self._length}"
        types = {name: feature.short.replace("[?", lead) for name, feature in self._types.items()}
        return {**types, **dict.fromkeys(_OWN, f"int32{lead}]")}

    def _all_rows(self) -> Iterator[dict[str, Any]]:
        while (record := next(self._records, self)) is not self:
            pieces: list[_Piece] = []
            documents = cut = tokens = 0
            while record is not self:
                added = self._pieces(record)
                pieces += added
                documents, cut = documents + bool(added), cut + (len(added) > 1)
                tokens += sum(map(_size, added))
                if tokens >= self._buffer or len(pieces) >= _MOST_DOCUMENTS:
                    break
                record = next(self._records, self)
            self.report.records += documents
            self.report.records_cut += cut
            yield from self._packed(pieces)

    def _packed(self, pieces: list[_Piece]) -> Iterator[dict[str, Any]]:
        """Yield the rows of pieces, made by blocks that fit into a processor's cache."""
        order, row, sizes = _in_rows(np.array([*map(_size, pieces)], np.int64), self._length)
        step = max(1, _BLOCK_TOKENS // self._length)
        for low in range(0, int(row[-1]) + 1 if len(row) else 0, step):
            first, last = np.searchsorted(row, (low, low + step)).tolist()
            block = [pieces[number] for number in order[first:last].tolist()]
            values = {name: np.concatenate([piece[name] for piece in block]) for name in self._empty}
            within = row[first:last] - low
            columns = _filled(
                values, within, sizes[first:last], int(within[-1]) + 1, self._length, self._padding
            )
            for number, tokens in enumerate(np.bincount(within, sizes[first:last]).tolist()):
                self.report.rows += 1
                self.report.tokens += int(tokens)
                yield {name: column[number] for name, column in columns.items()}

    def _pieces(self, record: Any) -> list[_Piece]:
        """Return a document as pieces that fit into a row; none of one that is skipped.

        Raises:
            SchemaError: it cannot be packed, and is not to be skipped.
        """
        number, self._number = self._number, self._number + 1
        try:
            arrays = self._arrays(record)
        except SchemaError as error:
            if not self._skip:
                raise error.located(row=number) from error
            self.report.records_skipped += 1
            if len(self.report.skipped) < MOST_LISTED:
                self.report.skipped.append(BadRecord(f"record {number}", str(error)))
            return []
        # Copied: the caller may use the array again.
        return [
            {name: array[low : low + self._length].copy() for name, array in arrays.items()}
            for low in range(0, _size(arrays), self._length)
        ]

    def _is_empty(self, record: Any) -> bool:
        """Whether one of the features that are packed has no tokens, so that it tells no type."""
        given = _mapping(record)
        values: list[Any] = [given.get(name) for name in (given if self._names is None else self._names)]
        return any(hasattr(value, "__len__") and not len(value) for value in values)

    def _learn(self, record: Any) -> None:
        """Take the types from a record.

        Raises:
            ValueError: one of its features holds no numbers.
        """
        given = _mapping(record)
        packed = tuple(given) if self._names is None else self._names
        missing = [name for name in packed if name not in given]
        if missing:
            raise ValueError(
                f"the first record lacks the feature {missing[0]!r} of features=; it has {sorted(given)}"
            )
        self._set_types({name: _inferred(name, given[name]) for name in packed})

    def _set_types(self, types: dict[str, Feature]) -> None:
        taken = [name for name in types if name in _OWN]
        if taken:
            raise ValueError(f"packing adds the feature {taken[0]!r} itself: rename the records' own")
        if not types:
            raise ValueError("there is no feature to pack")
        self._empty = {name: np.asarray(feature.fit([], name)) for name, feature in types.items()}
        self._padding = _paddings(self._pad, {name: array.dtype for name, array in self._empty.items()})
        self._types = types

    def _arrays(self, record: Any) -> _Piece:
        """Return the tokens of a document, by feature."""
        given = _mapping(record)
        if not self._types:
            if self._is_empty(record):
                raise _empty()
            self._learn(record)
        arrays: dict[str, NDArray[Any]] = {}
        for name, feature in self._types.items():
            if name not in given:
                what, advice = f"a document lacks the feature {name!r}", "give it to all, or pack without it"
                raise SchemaError(what, found=sorted(map(str, given)), advice=advice)
            arrays[name] = np.asarray(feature.fit(given[name], name))
        if not self._chosen and len(given) > len(arrays):
            raise SchemaError(
                "a document has features that the first one did not have, and they would be lost",
                expected=sorted(arrays),
                found=sorted(str(name) for name in given if name not in arrays),
                advice=f"name what is to be packed: features={sorted(arrays)}",
            )
        _check_lengths({name: len(array) for name, array in arrays.items()}, self._length, cut=self._cut)
        return arrays


# The tokens of a document, or of a piece of one, by feature.
_Piece: TypeAlias = "dict[str, NDArray[Any]]"


def _size(piece: _Piece) -> int:
    return len(next(iter(piece.values())))


def _in_rows(
    lengths: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return documents in the order in which they stand in rows, and the row and length of each."""
    row_of = best_fit(lengths, length)
    order = np.argsort(row_of, kind="stable")
    return order, row_of[order], lengths[order]


def _filled(
    values: Mapping[str, NDArray[Any]],
    row: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rows: int,
    length: int,
    padding: Mapping[str, Any],
) -> dict[str, NDArray[Any]]:
    """Return rows [rows, length, ...]: their documents one after another, and padding.

    Args:
        values: tokens of each feature, of all documents behind one another.
        row: of each document, ascending.
        sizes: its tokens.
        rows: how many are made.
        length: of a row.
        padding: of each feature.
    """
    before = np.cumsum(sizes) - sizes
    first = np.searchsorted(row, row)
    positions = np.arange(int(sizes.sum())) - np.repeat(before, sizes)
    place = positions + np.repeat(row * length + before - before[first], sizes)
    segments = np.repeat(np.arange(1, len(row) + 1) - first, sizes)
    own = {SEGMENT_IDS: segments.astype(np.int32), POSITION_IDS: positions.astype(np.int32)}
    columns = {}
    for name, tokens in {**values, **own}.items():
        flat = np.full((rows * length, *tokens.shape[1:]), padding.get(name, 0), tokens.dtype)
        flat[place] = tokens
        columns[name] = flat.reshape(rows, length, *tokens.shape[1:])
    return columns


def best_fit(lengths: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the row of each document by best-fit decreasing; rows are numbered by their first documents.

    Args:
        lengths: int64[n], each from 1 to `length`.
        length: of a row.
    """
    row_of = np.empty(len(lengths), np.int64)
    opened = 0
    rooms: list[int] = []  # ascending, those that some rows have left
    rows: dict[int, list[int]] = {}  # the rows that have so much room left
    for number in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[number])
        place = bisect_left(rooms, size)
        if place == len(rooms):
            room, row, opened = length, opened, opened + 1
        else:
            room = rooms[place]
            row = rows[room].pop()
            if not rows[room]:
                del rows[room], rooms[place]
        row_of[number] = row
        if left := room - size:
            if left not in rows:
                insort(rooms, left)
                rows[left] = []
            rows[left].append(row)
    _, first, inverse = np.unique(row_of, return_index=True, return_inverse=True)
    rank: NDArray[np.int64] = np.argsort(np.argsort(first))
    return rank[inverse]


@checked_options
def pack_columns(
    columns: Mapping[str, Any],
    length: int,
    *,
    features: Sequence[str] | None = None,
    rows: int | None = None,
    cut: bool = False,
    pad: Any = 0,
) -> dict[str, Any]:
    """Pack the documents of a step into rows of one length; meant as `batch_transform=`.

    Which documents a step holds is settled by the order, so resuming on any number of ranks stays exact; how
    they share rows is each rank's own. Without `rows`, ranks may have different numbers of rows. To train on
    documents without any padding, use the variable-length form instead: `columns["tokens"].varlen()`.

    Args:
        columns: of a batch, with the tokens as ragged columns, or lists of arrays.
        length: tokens of a row.
        features: the columns to pack, which must have the same lengths; None for all ragged columns.
        rows: make exactly so many rows, the last ones empty; None for as many as are needed.
        cut: cut documents that are longer than a row, as `pack` does.
        pad: fills the end of rows; a value, or a mapping of features to values.

    Returns:
        The columns packed, [rows, length], and "segment_ids" and "position_ids" as `pack` makes them. All
        other columns stay as they are, with an entry for each document. Empty documents take no place.

    Raises:
        SchemaError: a document is longer than a row, or has different lengths in the columns; names its row
            in the batch.
        ValueError, TypeError: no such column, one that is not ragged, more documents than `rows` can hold.

    Examples:
        >>> import functools, shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/documents"
        >>> with shardio.DatasetWriter(url, schema={"tokens": "int32[?]"}) as out:
        ...     for n in range(100):
        ...         out.write({"tokens": range(n % 7 + 1)})
        >>> transform = functools.partial(shardio.pack_columns, length=16)
        >>> stream = shardio.stream(shardio.open(url), global_batch=20, batch_transform=transform)
        >>> batch = next(iter(stream))
        >>> sorted(batch), batch["tokens"].shape[1]
        (['position_ids', 'segment_ids', 'tokens'], 16)
    """
    size = _positive("length", length)
    found = _ragged(columns, features)
    first = next(iter(found))
    lengths = found[first].lengths
    for name, column in found.items():
        if len(column) != len(lengths):
            what = "the columns that are packed together have different numbers of documents"
            given = {first: len(lengths), name: len(column)}
            raise SchemaError(what, found=", ".join(f"{n} of {each!r}" for each, n in given.items()))
    documents = np.flatnonzero(np.any([column.lengths for column in found.values()], axis=0))
    lengths = lengths[documents]
    others = [column.lengths[documents] for column in found.values()]
    for number in np.flatnonzero(np.any([other != lengths for other in others], axis=0) | (lengths > size)):
        its = {name: int(other[number]) for name, other in zip(found, others, strict=True)}
        _check_lengths(its, size, cut=cut, row=int(documents[number]))
    counts = -(-lengths // size)
    skipped = size * (np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts))
    order, row, sizes = _in_rows(np.minimum(size, np.repeat(lengths, counts) - skipped), size)
    needed = int(row[-1]) + 1 if len(row) else 0
    if rows is not None and needed > rows:
        raise ValueError(
            f"the {len(row)} documents of this step need {needed} rows of {size} tokens, "
            f"more than rows={rows}: give more rows, or stream fewer records in a step"
        )
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    values = {}
    for name, column in found.items():
        starts = (np.repeat(column.offsets[:-1][documents], counts) + skipped)[order]
        values[name] = column.values[within + np.repeat(starts, sizes)]
    padding = _paddings(pad, {name: array.dtype for name, array in values.items()})
    packed = _filled(values, row, sizes, needed if rows is None else rows, size, padding)
    return {**{name: column for name, column in columns.items() if name not in found}, **packed}


@checked_options
def unpack(values: Any, segment_ids: Any) -> RaggedColumn:
    """Return the documents of packed rows again, one after another, in the order of the rows.

    Args:
        values: array [rows, length, ...]: the tokens, or whatever belongs to each token.
        segment_ids: int [rows, length], as `pack` makes them.

    Examples:
        >>> import numpy as np, shardio
        >>> column = shardio.unpack(np.array([[7, 8, 9, 0]]), np.array([[1, 1, 2, 0]]))
        >>> [document.tolist() for document in column]
        [[7, 8], [9]]
    """
    segments, values = np.asarray(segment_ids), np.asarray(values)
    if segments.ndim != 2 or values.shape[:2] != segments.shape:
        message = f"segment_ids {segments.shape} and values {values.shape} must begin with the same two sizes"
        raise ValueError(message)
    first = np.ones(segments.shape, bool)
    first[:, 1:] = segments[:, 1:] != segments[:, :-1]
    kept = segments > 0
    starts = np.flatnonzero(first[kept])
    return RaggedColumn(values[kept], np.append(starts, np.count_nonzero(kept)).astype(np.int64))


def _positive(name: str, value: Any) -> int:
    if (number := integer(name, value)) < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1")
    return number


def _mapping(record: Any) -> Mapping[str, Any]:
    return record if isinstance(record, Mapping) else {"tokens": record}


def _empty() -> SchemaError:
    return SchemaError(
        "a document has no tokens, so it would have no place in any row",
        advice='leave it out before, or give on_error="skip", which lists it',
    )


def _check_lengths(lengths: Mapping[str, int], most: int, *, cut: bool, row: int | None = None) -> None:
    """Refuse a document that is empty, too long, or of different lengths in its features."""
    name, length = next(iter(lengths.items()))
    for other, its in lengths.items():
        if its != length:
            raise SchemaError(
                "a document has different lengths in the features that are packed together",
                row=row,
                expected=f"{length} of {other!r}, as of {name!r}",
                found=its,
            )
    if not length:
        raise _empty()
    if length > most and not cut:
        raise SchemaError(
            "a document is longer than the row it is packed into, and documents are not cut unless asked",
            row=row,
            expected=f"at most {most} tokens",
            found=length,
            advice="make rows longer, give cut=True, or leave out what is longer",
        )


def _feature(name: str, kind: Any) -> Feature:
    """Return the feature of a document's tokens, e.g. `int32[?]` for "int32"."""
    feature = Feature(kind) if isinstance(kind, str) else kind
    if not isinstance(feature, Feature) or feature.kind != "number":
        message = f"{name!r} is {kind!r}; only numbers are packed, such as features={{{name!r}: 'int32'}}"
        raise ValueError(message)
    if not feature.shape:
        return Feature(feature.type, shape=(None,))
    if feature.shape[0] is not None or feature.unknown_dimensions != 1:
        raise ValueError(
            f"{name!r} is {feature.short!r}; only the first size of a document may differ: {feature.type}[?]"
        )
    return feature


def _inferred(name: str, value: Any) -> Feature:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        array = np.empty(0, object)
    if array.dtype.kind not in "biufc" or not array.ndim:
        raise ValueError(
            f"the feature {name!r} holds no tokens but {array.dtype} of shape {array.shape}: name those that "
            "are packed, features=[...]; the others are left out then"
        )
    return Feature(array.dtype.name, shape=(None, *array.shape[1:]))


def _paddings(pad: Any, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Any]:
    """Return what fills the rows of each feature.

    Raises:
        ValueError: no such feature, or a value that its dtype cannot hold.
    """
    given = dict(pad) if isinstance(pad, Mapping) else dict.fromkeys(dtypes, pad)
    unknown = [name for name in given if name not in dtypes]
    if unknown:
        raise ValueError(f"pad= names {unknown[0]!r}, which is not packed; packed are {sorted(dtypes)}")
    for name, dtype in dtypes.items():
        value = given.setdefault(name, 0)
        try:
            column = RaggedColumn(np.empty(0, dtype), np.zeros(1, np.int64))
            given[name] = column.pad(1, value=value).dtype.type(value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"pad={value!r} does not fit the feature {name!r} of {dtype}") from error
    return given


def _ragged(columns: Mapping[str, Any], features: Sequence[str] | None) -> dict[str, RaggedColumn]:
    """Return the columns that are to be packed, as flat columns of NumPy."""
    if not isinstance(columns, Mapping):
        raise TypeError(f"pack_columns packs the columns of a batch, a dict, found {type(columns).__name__}")
    ragged = (name for name, column in columns.items() if isinstance(column, RaggedColumn))
    packed = tuple(ragged) if features is None else names("features", features)
    if not packed:
        raise ValueError(
            f"there is no ragged column to pack among {sorted(map(str, columns))}: name it, features=[...]"
        )
    taken = [name for name in _OWN if name in columns]
    if taken:
        raise ValueError(f"packing adds the column {taken[0]!r} itself: rename the batch's own")
    return {name: _flat(name, columns) for name in packed}


def _flat(name: str, columns: Mapping[str, Any]) -> RaggedColumn:
    if name not in columns:
        raise ValueError(f"there is no column {name!r} to pack; there are {sorted(map(str, columns))}")
    column = columns[name]
    if isinstance(column, list) and all(hasattr(row, "__array__") for row in column):
        rows = [np.asarray(row) for row in column]
        kinds = {(row.dtype.name, row.shape[1:]) for row in rows}
        if len(kinds) == 1 and all(row.ndim for row in rows):
            column = RaggedColumn.of_rows(rows, rows[0].dtype, (None, *rows[0].shape[1:]))
        elif rows:
            raise TypeError(f"the rows of column {name!r} are of different types: {sorted(map(str, kinds))}")
    if (
        not isinstance(column, RaggedColumn)
        or column.shapes is not None
        or not hasattr(column.values, "dtype")
    ):
        raise TypeError(
            f"column {name!r} is not a ragged column of numbers but {type(column).__name__}; it is not packed"
        )
    column.position_ids()  # refuses negative lengths
    return RaggedColumn(np.asarray(column.values), np.asarray(column.offsets))
