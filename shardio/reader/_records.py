"""Records as a `Sequence`, whatever the shards look like; those of a dataset, by version and split."""

from __future__ import annotations

import copy
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import integer, integers, names, need, no_attribute
from shardio.catalog import Version
from shardio.display import html_cell, html_table, plural, size
from shardio.errors import ShardioError
from shardio.metadata import Feature, Schema
from shardio.order import Permutation
from shardio.reader._columns import (
    check_table_columns,
    choose_columns,
    has_table,
    pandas_frame,
    read_columns,
    shards_without_table,
    table_columns,
    table_refusal,
)
from shardio.reader._damage import Damage
from shardio.reader._filter import FilterOptions, check_mask, matching, parts
from shardio.reader._groups import Batches, DatasetDict
from shardio.reader._positions import positions_of
from shardio.reader._rows import in_lists, iterate_pieces, look_up
from shardio.reader._skipping import batches_skipping, decode_skipping, iterate, read_or_errors
from shardio.reader._source import DatasetSource, Location, ShardSource, reopen
from shardio.reader._spans import SPAN_BYTES, Span, arrow_schema, cut_spans
from shardio.reader._subset import Selection, ascending, chosen, positions_at
from shardio.redact import redact
from shardio.storage import Address


class RecordSequence(Sequence[Any]):
    """Records of a source, or some of them, in an order.

    Safe to share among threads, usable in forked and spawned workers, and pickled in a few hundred bytes, and
    a bit for each record of the dataset where a filter has chosen some.

    Attributes:
        source: what slices and streams share.
        selection: which positions of the source it holds: a `range`, an int64 array, or a `Subset` of many
            ascending ones.
    """

    def __init__(self, source: ShardSource, selection: Selection | None = None) -> None:
        self.source = source
        self.selection = range(len(source)) if selection is None else selection
        codec = source.codec
        self._decode: Callable[[bytes], Any] | None = None if codec is None else codec.decode
        self._whole = selection is None
        self._stops = memoryview(source.stops)
        self._direct = len(source) if self._whole and not source.table.holds("deletion_key") else 0
        self._shard = source.pool.get

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, None if self._whole else self.selection)

    def __len__(self) -> int:
        return len(self.selection)

    @overload
    def __getitem__(self, item: int) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> Self: ...
    def __getitem__(self, item: int | slice) -> Any:
        """Return one record, or a reader of a slice (nothing is read then).

        Raises:
            IndexError: out of range.
            TypeError: a list or array, which `read`, `read_batch` and `select` take.
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with the record's address.
        """
        if isinstance(item, slice):
            return type(self)(self.source, self.selection[item])
        # The short way: a whole reader without deletions, and a position that needs no turning.
        if type(item) is not int or not 0 <= item < self._direct:
            payload = self._payload(item)
        else:
            stops = self._stops
            number = bisect_right(stops, item)
            payload = self._shard(number).record(item - stops[number - 1] if number else item)
        if self._decode is None:
            return payload
        decode = self._decode
        try:
            return decode(payload)
        except ShardioError as error:
            error.row = 0
            raise self._located(error, [self._position(item)]) from error

    def __iter__(self) -> Iterator[Any]:
        """Yield the records in order, with read-ahead; about damage it does what `on_error=` said.

        Raises:
            FormatError, SchemaError, StaleIndexError, NotFoundError: damage, with its address.
            StorageError: the environment failed.
        """
        # Chained, not yielded one by one: the loop over a list's records is C's.
        return itertools.chain.from_iterable(self._lists())

    def iter_batches(self, batch_size: int) -> Iterator[Any]:
        """Return an iterator over the records in order, by the batch; the fastest way through all of them.

        Reading ahead, checksums and `on_error=` are those of plain iteration.

        Args:
            batch_size: records of a batch; the last one may have fewer.

        Returns:
            Lists of payload bytes where records are bytes; else columns, as `read_batch` returns them.

        Raises:
            ValueError, TypeError: `batch_size` is not a positive integer.
        """
        size = integer("batch_size", batch_size)
        if size < 1:
            raise ValueError(f"batch_size={size} must be 1 or more")
        source, selection = self.source, self.selection
        if source.codec is None:
            return in_lists(self._lists(), size)
        if source.options.on_error == "raise":
            return self._columns(size)
        return batches_skipping(source, selection, size, self._located, Damage(source, len(self)))

    def read(self, positions: ArrayLike, *, on_error: Literal["raise", "return"] = "raise") -> list[Any]:
        """Return records by their positions, in the order asked, repeats as asked.

        Inside, positions are sorted, near ones read together, and each block is read once.

        Args:
            positions: integers, each within `[-len(self), len(self))`.
            on_error: "raise" raises the first damaged record's error; "return" returns the error, with its
                address, in place of each record that is damaged.

        Raises:
            FormatError, StaleIndexError, NotFoundError: damage, unless errors are returned.
            StorageError: the environment failed.
        """
        if on_error not in ("raise", "return"):
            raise ValueError(f'on_error={on_error!r} must be "raise" or "return"')
        wanted = self._positions(positions)
        if on_error == "return":
            return read_or_errors(self.source, wanted, self._values)
        return self._values(look_up(self.source, wanted), wanted)

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return records by one merged read, as `read` does; torch's `DataLoader` calls this."""
        return self.read(positions)

    _getitems = __getitems__  # the same protocol of Grain, by its name there

    def read_batch(self, positions: ArrayLike) -> dict[str, Any]:
        """Return records as columns.

        Args:
            positions: integers, as in `read`.

        Returns:
            By feature: one array [n, ...] for fixed shapes, a list for text, bytes and images, values and
            offsets for ragged features. Without a schema the one column `"payload"`, a list of bytes.
        """
        wanted = self._positions(positions)
        payloads = look_up(self.source, wanted)
        return {"payload": payloads} if self.source.codec is None else self._decode_columns(payloads, wanted)

    def select(self, positions: ArrayLike) -> Self:
        """Return a reader of these positions, in this order; ascending ones can be streamed, too.

        Args:
            positions: integers, as in `read`.
        """
        return type(self)(self.source, ascending(self._positions(positions), len(self.source)))

    def filter(
        self,
        condition: str | Callable[[dict[str, Any]], Any] | NDArray[np.bool_],
        *,
        features: Sequence[str] | None = None,
        batch_size: int = 4096,
        num_threads: int | None = None,
        progress: bool | Callable[[Any], None] = False,
    ) -> Self:
        """Return a reader of the records that meet a condition; it can be streamed as a dataset can.

        What it holds is fixed now: one bit for each record. `ds.filter(mask)` and `ds.filter(~mask)` are two
        parts without a copy.

        Args:
            condition: a condition in SQL over features and `<feature>_length`, `"label = 3 AND
                caption_length < 50"`, evaluated by DuckDB from the table of small features where shards have
                one (`shardio.build_table`), else from the records, with a warning; what is unknown (NULL)
                does not hold. Or `f(columns)`, called with columns as `read_batch` returns them, that returns
                a bool for each record. Or a mask, bool [len(self)].
            features: which are read for the function; None for those of the reader.
            batch_size: records that the function sees at a time.
            num_threads: threads that read and call it; None for 8 or as many as there are processors,
                whichever is less.
            progress: True for a display on stderr, or a function of how far it has come: `done`, `total` and
                `found`.

        Returns:
            A reader of these records in their order.

        Raises:
            ValueError, TypeError: a mask of another length or type, a feature that the schema does not have,
                text that is not a condition; says where.
            SchemaError: the function uses a column that it is not given; says what to add to `features`.
            ImportError: text, and DuckDB is not installed: `pip install "shardio[table]"`.
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with the record's address; under
                `on_error="skip"` and "quarantine", damaged records are left out, and counted.

        Examples:
            >>> import shardio, tempfile
            >>> url = tempfile.mkdtemp() + "/numbers"
            >>> ds = shardio.from_generator(({"n": n} for n in range(100)), url)
            >>> even = ds.filter(lambda columns: columns["n"] % 2 == 0, features=["n"])
            >>> len(even), next(iter(shardio.stream(even, global_batch=5, shuffle=False)))["n"].tolist()
            (50, [0, 2, 4, 6, 8])
        """
        if isinstance(condition, str) and features is not None:
            raise ValueError("features= is for functions; a condition in SQL names its own")
        if isinstance(condition, str) or features is not None:
            self._refuse_mapped(
                "a condition in SQL" if isinstance(condition, str) else "filter with features="
            )
        if isinstance(condition, str) or callable(condition):
            options = FilterOptions(
                features=features,
                batch_size=integer("batch_size", batch_size),
                num_threads=num_threads,
                progress=progress,
            )
            if isinstance(condition, str):
                from shardio.tables import matching as matching_sql

                mask = matching_sql(self, condition, options)
            else:
                mask = matching(self, condition, options)
        else:
            mask = check_mask(condition, len(self))
        if mask.all():
            return type(self)(self.source, None if self._whole else self.selection)
        return type(self)(self.source, chosen(self.selection, mask, len(self.source)))

    def split_by(
        self,
        fractions: Mapping[str, float],
        *,
        by: str | Callable[[dict[str, Any]], Any] | None = None,
        features: Sequence[str] | None = None,
        seed: int = 0,
        exact: bool = True,
        num_threads: int | None = None,
        progress: bool | Callable[[Any], None] = False,
    ) -> dict[str, Self]:
        """Return readers of disjoint parts, such as train and validation, without a copy.

        Which part a record belongs to follows from the seed and its value of `by` (without it, from its
        position): records of one value are in one part, so that no user, document or duplicate is in two.

        Args:
            fractions: of each part, by name; their sum is 1.
            by: a feature of integers, text or bytes; or `f(columns)` that returns such a value for each
                record, called as in `filter`. Records without the feature are one group.
            features: which are read for a function; None for those of the reader.
            seed: another one divides them another way.
            exact: parts are as near to their fractions as groups allow, exactly so without `by`. False
                compares hashes with the fractions instead: sizes are right on average, and a group stays in
                its part when the dataset grows.
            num_threads, progress: as in `filter`.

        Returns:
            By name, in the order of `fractions`, readers of the records in their order; together all of this
            reader.

        Raises:
            ValueError, TypeError: fractions that make no sense, a feature that the schema does not have, or
                that holds other values.
            CorruptBlockError, FormatError, StaleIndexError, StorageError: as `filter` does; under
                `on_error="skip"` and "quarantine", damaged records are in no part, and counted.

        Examples:
            >>> import shardio, tempfile
            >>> url = tempfile.mkdtemp() + "/clicks"
            >>> with shardio.DatasetWriter(url, schema={"user": "int64"}) as out:
            ...     for n in range(1000):
            ...         out.write({"user": n % 100})
            >>> parts = shardio.open(url).split_by({"train": 0.9, "validation": 0.1}, by="user")
            >>> [len(part) for part in parts.values()]
            [900, 100]
            >>> users = [{int(record["user"]) for record in part} for part in parts.values()]
            >>> users[0] & users[1]
            set()
        """
        if isinstance(by, str) or features is not None:
            self._refuse_mapped("split_by")
        options = FilterOptions(features=features, num_threads=num_threads, progress=progress)
        masks = parts(self, fractions, options, by=by, seed=seed, exact=exact)
        return {name: self.filter(mask) for name, mask in masks.items()}

    def to_arrow(self, features: Sequence[str] | None = None, *, positions: bool = False) -> Any:
        """Return columns of all records as a pyarrow Table, in their order; images and vectors too, if asked.

        Features come from the table of small features where shards have one (`shardio.build_table`), else
        from the records, with a warning where a table would save it. What is returned is all that is held.

        Args:
            features: names of features, or `<feature>_length`: characters of text, bytes of bytes and images,
                items of a ragged feature. None for the features of the reader.
            positions: add the int64 column `_position`: `ds[position]` is the record.

        Raises:
            ValueError, TypeError: there is no such feature, or no schema.
            ImportError: pyarrow is not installed: `pip install "shardio[table]"`.
            CorruptBlockError, FormatError, NotFoundError, StorageError: with the address of the record or
                table.
        """
        self._refuse_mapped("to_arrow")
        if features is None:
            features = self.source.options.features or tuple(self.schema or ())
        columns = choose_columns(self.schema, features, what="to_arrow")
        return read_columns(self, columns, positions=positions)

    def to_pandas(self, features: Sequence[str] | None = None, *, positions: bool = False) -> Any:
        """Return columns of all records as a pandas DataFrame; see `to_arrow`.

        Where records lack an integer, the column holds Python's integers and NaN; they never become floats.

        Raises:
            ImportError: pandas or pyarrow is not installed.
        """
        need("to_pandas", "shardio[table]", "pyarrow")
        need("to_pandas", "pandas", "pandas")
        return pandas_frame(self.to_arrow(features, positions=positions))

    def to_hf(self, features: Sequence[str] | None = None, *, streaming: bool = False, **options: Any) -> Any:
        """Return all records as a `datasets.Dataset` of Hugging Face, in memory; see `to_arrow`.

        With `streaming=True` return a `datasets.IterableDataset` in the order of `shardio.stream`, shuffled
        without a buffer and resumable on any number of processes; see `Stream.to_hf`.

        Images become `Image`, numbers with classes `ClassLabel`, arrays of a fixed shape `Array2D` to
        `Array5D`, lists `List`, JSON `Json`. What `convert_dataset` took from `datasets` becomes what it was
        there, also audio, times and structs. `convert_dataset` is the way in.

        Args:
            features: names of features, or `<feature>_length`; None for the features of the reader.
            streaming: return an `IterableDataset`, of features only.
            options: with `streaming=True`, those of `shardio.stream`, such as `seed=` and `shuffle=`.

        Raises:
            ValueError, TypeError: there is no such feature, no schema, or a feature is of complex numbers.
            ImportError: datasets is not installed: `pip install "shardio[hf]"`.
            CorruptBlockError, FormatError, NotFoundError, StorageError: with the address of the record or
                table.
        """
        need("to_hf", "shardio[hf]", "datasets", "pyarrow")
        from shardio.streaming._huggingface import to_hf

        if not streaming:
            self._refuse_mapped("to_hf")
        return to_hf(self, features, streaming=streaming, **options)

    def take(self, n: int) -> Self:
        """Return a reader of the first `n` records, of all where there are fewer.

        Raises:
            ValueError, TypeError: `n` is not an integer of 0 or more.
        """
        return self[: _count("n", n)]

    def head(self, n: int = 5) -> list[Any]:
        """Return the first `n` records, all where there are fewer.

        Raises:
            ValueError, TypeError: `n` is not an integer of 0 or more.
        """
        return self.read(np.arange(min(_count("n", n), len(self))))

    def shuffle(self, seed: int = 0) -> Self:
        """Return a reader of the records in random order, for lookups; 8 bytes of memory for each.

        To train, give the reader as it is to `shardio.stream` or a loader: they shuffle in bounded memory,
        and read a bucket in large pieces.

        Args:
            seed: another one gives another order.

        Examples:
            >>> import shardio, tempfile
            >>> url = tempfile.mkdtemp() + "/numbers"
            >>> ds = shardio.from_generator(({"n": n} for n in range(5)), url)
            >>> sorted(int(value["n"]) for value in ds.shuffle(seed=1))
            [0, 1, 2, 3, 4]
        """
        order = Permutation(len(self), seed)
        return type(self)(self.source, positions_at(self.selection, order[np.arange(len(self))]))

    def batch(self, batch_size: int, *, drop_last: bool = False) -> Batches:
        """Return the records by the batch: a sequence of columns as `read_batch` returns them.

        Args:
            batch_size: records of a batch; the last one may have fewer.
            drop_last: leave a last batch of fewer records out.

        Raises:
            ValueError, TypeError: `batch_size` is not a positive integer.
        """
        return Batches(self, batch_size, drop_last=drop_last)

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Return a reader that calls a function with each value; nothing is called before values are read.

        Lookups, iteration and streams deliver what the function returns. Batches are its values as columns:
        arrays of one shape and dtype are stacked, numbers become an array, all else a list.

        Args:
            function: `f(value)`; it must be picklable where worker processes are used.

        Raises:
            TypeError: it cannot be called.

        Examples:
            >>> import shardio, tempfile
            >>> url = tempfile.mkdtemp() + "/numbers"
            >>> ds = shardio.from_generator(({"n": n} for n in range(5)), url)
            >>> squares = ds.map(lambda value: {"square": value["n"] ** 2})
            >>> int(squares[3]["square"]), squares.read_batch([1, 2])
            (9, {'square': array([1, 4])})
        """
        if not callable(function):
            raise TypeError(f"map takes a function of one value, found {function!r:.80}")
        return self._decoded_otherwise(functions=(*self.source.options.functions, function))

    def select_columns(self, features: str | Sequence[str]) -> Self:
        """Return a reader that decodes some features, in this order, and leaves the others unparsed.

        Args:
            features: their names, or one name.

        Raises:
            ValueError: there is no such feature, or no schema; or the reader was mapped, and its function may
                need the others.
        """
        chosen = (features,) if isinstance(features, str) else names("features", features)
        self._refuse_mapped("select_columns")
        unknown = [name for name in chosen if name not in self.column_names]
        if unknown or self.schema is None:
            raise ValueError(
                f"there is no feature {(*unknown, *chosen)[0]!r}; there are {', '.join(self.column_names)}"
            )
        return self._decoded_otherwise(features=chosen)

    def find(self, keys: Any, *, feature: str | None = None, default: int | None = None) -> Any:
        """Return where records with some keys are, from the index that `shardio.build_keys` made.

        Every record is read and its own key compared, so that no hash leads to a wrong one. Shards added
        since the index was made are read too, with a warning, if a key is not found without them.

        Args:
            keys: one key, or a sequence of them: str, bytes or int, as the feature is.
            feature: whose values are the keys; None for the only one with an index.
            default: is returned for keys that no record has; None raises for them.

        Returns:
            The position of the record in this reader, `ds[position]`; for a sequence int64 [n], in its order.

        Raises:
            KeyNotFoundError: no record of this reader has such a key; it is a `KeyError`, too.
            NotFoundError: the dataset has no index of keys.
            ValueError: several records have the key; `find_all` returns them.
            TypeError: a key of another type than the feature.
            FormatError, CorruptBlockError, StaleIndexError, StorageError: with the address of the object.

        Examples:
            >>> import shardio, tempfile
            >>> url = tempfile.mkdtemp() + "/birds"
            >>> with shardio.DatasetWriter(url, schema={"id": "text"}) as out:
            ...     for name in ("wren", "robin", "tit"):
            ...         out.write({"id": name})
            >>> report = shardio.build_keys(url, feature="id", workers=1)
            >>> ds = shardio.open(url)
            >>> ds.find("robin"), ds.find(["tit", "owl"], default=-1)
            (1, array([ 2, -1]))
        """
        from shardio.keys import find

        return find(self, keys, feature=feature, default=default)

    def find_all(self, keys: Any, *, feature: str | None = None) -> Any:
        """Return the positions of all records that have a key, int64, ascending; empty where there is none.

        Shards that are in no index of keys are read, with a warning. Arguments and errors are as in `find`;
        for a sequence of keys it returns a list with the positions of each.
        """
        from shardio.keys import find_all

        return find_all(self, keys, feature=feature)

    def locate(self, item: int) -> Location:
        """Return where a record is; reads the shard's index and not the record.

        Raises:
            IndexError: out of range.
        """
        return self.source.locate(self._position(item))

    @property
    def schema(self) -> Schema | None:
        """What a record holds; None where records are bytes, or what a function made (`map`)."""
        return None if self.source.options.functions else self.source.schema

    @property
    def features(self) -> dict[str, Feature]:
        """The features that are read, by name; empty where there is no schema."""
        there: Mapping[str, Feature] = self.schema or {}
        chosen = self.source.options.features
        return {name: there[name] for name in (there if chosen is None else chosen) if name in there}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns of a batch; without a schema those of the first record's batch."""
        if self.schema is not None:
            return list(self.features)
        return list(self.read_batch(range(min(1, len(self)))))

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return len(self)

    @property
    def num_bytes(self) -> int:
        """Stored bytes of the shards."""
        return int(self.source.table.stored_bytes.sum())

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.source.table)

    @property
    def is_local(self) -> bool:
        """Whether all stored bytes are in local files."""
        return self.source.is_local

    @property
    def stats(self) -> dict[str, int]:
        """What reading has done so far in this process: see `ReadStats`."""
        return self.source.stats.to_dict()

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute(f"{type(self).__name__!r} object", name, dir(type(self)))

    def unmapped(self) -> Self:
        """Return a reader of the same records as they are stored: without the functions of `map`."""
        return self._decoded_otherwise(functions=()) if self.source.options.functions else self

    def decoded(self) -> Self:
        """Return a reader of the same records and open shards that decodes them by the schema."""
        return self._decoded_otherwise(decode=True, on_error="raise")

    def decode(self, payload: bytes) -> Any:
        """Return the value that this reader makes of the payload of a record.

        Raises:
            ShardioError: the payload doesn't fit the schema, or an image is damaged.
        """
        return payload if self.source.codec is None else self.source.codec.decode_many([payload])[0]

    def _decoded_otherwise(self, **options: Any) -> Self:
        """Return a reader of the same records and open shards with other options of decoding."""
        source = copy.copy(self.source)
        vars(source).pop("codec", None)
        source.options = replace(source.options, **options)
        return type(self)(source, None if self._whole else self.selection)

    def _refuse_mapped(self, what: str) -> None:
        """Refuse what reads features as they are stored, after `map`."""
        if self.source.options.functions:
            raise ValueError(f"{what} reads features as they are stored: call it before map()")

    def _columns(self, size: int) -> Iterator[dict[str, Any]]:
        """Yield the columns of each batch of `size` records."""
        selection = self.selection
        if not isinstance(selection, range) or selection.step != 1:
            for k in range(0, len(self), size):
                yield self.read_batch(range(k, min(k + size, len(self))))
            return
        done = 0
        for placed in iterate_pieces(self.source, selection, size):
            first, done = done, done + len(placed[1])
            yield self._decode_columns(placed, selection[first:done])

    def _decode_columns(self, payloads: Any, positions: range | NDArray[np.int64]) -> dict[str, Any]:
        try:
            columns: dict[str, Any] = self.source.codec.decode_batch(payloads)
        except ShardioError as error:
            raise self._located(error, positions) from error
        return columns

    def _lists(self) -> Iterator[list[Any]]:
        """Yield lists of values of any length; about damage it does what `on_error=` said."""
        source = self.source
        damage = None if source.options.on_error == "raise" else Damage(source, len(self))
        for payloads, positions in iterate(source, self.selection, damage):
            if damage is None or source.codec is None:
                yield self._values(payloads, positions)
            else:
                yield decode_skipping(source, payloads, positions, self._decode_at, self._located, damage)
            # Not held while the next list is made: its memory is still in the processor's cache.
            del payloads

    def _decode_at(self, payloads: list[bytes], positions: range | NDArray[np.int64]) -> list[Any]:
        del positions  # values are those of the payloads
        values: list[Any] = self.source.codec.decode_many(payloads)
        return values

    def _values(self, payloads: list[bytes], positions: range | NDArray[np.int64]) -> list[Any]:
        if self.source.codec is None:
            return payloads
        try:
            values = self._decode_at(payloads, positions)
        except ShardioError as error:
            raise self._located(error, positions) from error
        return values

    def _located(self, error: ShardioError, positions: Sequence[int] | NDArray[np.int64]) -> ShardioError:
        """Return a decoding error with the address of its record; the codec knows only a row of its call."""
        if error.row is None or error.url is not None:
            return error
        number, row = self.source.shard_of(int(positions[error.row]))
        error.row = None
        return error.located(
            url=self.source.pool.url_of(number), shard=self.source.table.key[number], row=row
        )

    def _payload(self, item: Any) -> bytes:
        try:
            position = self._position(item)
        except TypeError:
            raise TypeError(
                f"a record is looked up by an integer or a slice, not by {type(item).__name__}; "
                "ds.read(positions) returns a list, ds.read_batch(positions) columns, ds.select(positions) a "
                "reader"
            ) from None
        number, row = self.source.shard_of(position)
        return self._shard(number).record(row)

    def _position(self, item: int) -> int:
        """Return the position in the split of one item of this reader."""
        try:
            return int(self.selection[integer("a position", item)])
        except IndexError:
            raise IndexError(f"record {item} is out of range: there are {len(self)}") from None

    def _positions(self, items: ArrayLike) -> NDArray[np.int64]:
        given = integers("positions", items, mask="ds.filter(mask)")
        # Compared as given: a huge unsigned number must not wrap round to a negative one.
        wrong = given[(given < -len(self)) | (given >= len(self))]
        if len(wrong):
            raise IndexError(f"record {wrong[0]} is out of range: there are {len(self)}")
        places: NDArray[np.int64] = given.astype(np.int64)
        places[places < 0] += len(self)
        return positions_at(self.selection, places)


def _count(name: str, value: int) -> int:
    found = integer(name, value)
    if found < 0:
        raise ValueError(f"{name}={found} must not be negative")
    return found


_SHOWN = 3  # records in a notebook's table


class DatasetReader(RecordSequence):
    """One split of one version of a dataset, or part of it; a `Sequence` of records in storage order.

    Made by `shardio.open`; slices of it and `select` give further readers over the same open shards.
    """

    source: DatasetSource

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of live records of every split of this version, by name."""
        return {total.name: total.rows for total in self.source.version.manifest.splits}

    @property
    def split(self) -> str:
        """Name of the split read here, or "all"."""
        return self.source.split

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The free metadata that writers gave."""
        return dict(self.source.version.manifest.metadata)

    @property
    def address(self) -> Address:
        """Where the dataset is and how it is reached; functions take the reader itself in its place."""
        options = self.source.options
        return Address(self.source.url, options.storage_options, options.allow_roots, options.engine)

    @property
    def version(self) -> int:
        """Number of the version read here."""
        return self.source.version.number

    @property
    def log_entry(self) -> Version:
        """The version read here, as `shardio.log` returns it."""
        return self.source.version

    @property
    def digest(self) -> str:
        """`"sha256:..."` of the version's manifest; pins it in `shardio.open(url, digest=...)`."""
        return self.source.version.digest

    @property
    def key_features(self) -> Mapping[str, str]:
        """Features that `find` takes keys of, each with its type: those with an index of keys."""
        from shardio.keys import key_types

        return key_types(self.source.version.manifest)

    def train_test_split(
        self, test_size: float = 0.25, *, by: str | None = None, seed: int = 0
    ) -> DatasetDict:
        """Return readers of two disjoint parts, "train" and "test", without a copy; see `split_by`.

        Args:
            test_size: fraction of the records in "test", between 0 and 1; or how many.
            by: a feature whose records of one value stay together.
            seed: another one divides them another way.

        Returns:
            Readers by name, each in storage order, so that both can be streamed.

        Raises:
            ValueError, TypeError: `test_size` leaves one part empty.
        """
        share = test_size / max(1, len(self)) if isinstance(test_size, int) else test_size
        if not 0 < share < 1:
            message = f"test_size={test_size!r} must be between 0 and 1, or 1 to {len(self) - 1} records"
            raise ValueError(message)
        fractions = {"train": 1 - share, "test": share}
        return DatasetDict(self.split_by(fractions, by=by, seed=seed))

    def table_files(self) -> list[str]:
        """Return the URLs of the Parquet files with the small features of the shards read here, in order.

        Other programs read them as they are. They hold all rows of these shards, deleted ones too, whatever
        this reader has chosen, by the columns `shard` and `row`; `positions_of` tells what this reader holds.
        Shards that have no table yet (`shardio.build_table`) are not among them.

        Raises:
            SchemaError: the schema has changed since, so that columns would have other names or defaults.
        """
        source = self.source
        check_table_columns(source)
        known = table_columns(source)
        return [
            source.pool.stores[0].url_of(key)
            for number, key in enumerate(source.table.table_key)
            if has_table(source.table, number, known)
        ]

    def spans(self, *, bytes: int = SPAN_BYTES) -> list[Span]:  # noqa: A002 - the field's word
        """Cut the records into parts that the workers of an engine read independently.

        Spans pickle to a few hundred bytes and stay with this version of the dataset. Nothing is read to
        make them.

        Args:
            bytes: stored bytes of a span: small shards share one, large shards are cut.

        Returns:
            Spans in storage order; each has `num_rows`, `num_bytes`, `to_arrow(columns)`, and iterates over
            its records.

        Raises:
            ValueError: the reader is mapped, joined or not in storage order.

        Examples:
            >>> import shardio, tempfile
            >>> url = tempfile.mkdtemp() + "/numbers"
            >>> ds = shardio.from_generator(({"n": n} for n in range(1000)), url)
            >>> spans = ds.spans(bytes=4096)
            >>> sum(span.num_rows for span in spans), sum(span.to_arrow(["n"]).num_rows for span in spans)
            (1000, 1000)
        """
        return cut_spans(self, bytes)

    def arrow_schema(self, columns: Sequence[str] | None = None) -> Any:
        """Return the `pyarrow.Schema` of `Span.to_arrow(columns)`, without reading a record."""
        return arrow_schema(self, columns)

    def has_table(self, columns: Sequence[str]) -> bool:
        """Tell whether every shard has a table (`shardio.build_table`) with these columns."""
        source = self.source
        if source.codec is None or not set(columns) <= set(self.column_names):
            return False
        chosen = choose_columns(source.schema, columns, what="a table")
        return not any(map(table_refusal, chosen)) and not shards_without_table(source, chosen).any()

    def positions_of(
        self, shards: Sequence[str], rows: ArrayLike, *, default: int | None = None
    ) -> NDArray[np.int64]:
        """Return the positions in this reader of rows of shards, as tables and `locate` name them.

        Args:
            shards: keys of shards.
            rows: integers, as many; the number of each record in its shard, deleted ones counted.
            default: is returned for records that are not here; None raises for them.

        Returns:
            int64 [n]: `ds[position]` is the record.

        Raises:
            NotFoundError: a record is deleted, or of another split, selection or version.
            ValueError: other numbers of shards and rows, or a key that shards of several roots have.
        """
        return positions_of(self, shards, rows, default=default)

    @property
    def parts(self) -> tuple[DatasetReader, ...]:
        """The readers of datasets that this one is made of: itself, or the sides of a join."""
        return (self,)

    def with_parts(self, parts: Sequence[DatasetReader]) -> DatasetReader:
        """Return the reader made of these instead of its own `parts`."""
        (one,) = parts
        return one

    def at(self, version: int, digest: str) -> DatasetReader:
        """Return this reader at a version that another process has resolved, and stay with it.

        Raises:
            ValueError: this reader was opened with another `version=` or `digest=`, or is a slice of another.
        """
        if digest == self.digest:
            self.source.pinned = True
            return self
        if self.source.pinned or not self._whole:
            raise ValueError(
                f"{redact(self.source.url)}: this process reads version {self.version} and another one "
                f"version {version}; open the same version= everywhere"
            )
        return DatasetReader(reopen(self.source, version, digest))

    def __repr__(self) -> str:
        if self.source.options.functions:
            schema = "mapped"
        else:
            schema = self.source.values_without_schema if self.schema is None else ", ".join(self.features)
        return (
            f"<shardio.DatasetReader {redact(self.source.url)} version {self.version} split {self.split!r}: "
            f"{plural(len(self), 'record')} ({schema})>"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("dataset", self.source.url),
            ("version", f"{self.version}, {self.digest[:19]}"),
            ("split", f"{self.split}: {plural(len(self), 'record')}, {size(self.num_bytes)}"),
        ]
        if self.schema is not None:
            return html_table(rows) + self.schema._repr_html_() + self._first_as_html()
        what = "mapped" if self.source.options.functions else self.source.values_without_schema
        return html_table([*rows, ("schema", f"none: records are {what}")]) + self._first_as_html()

    def _first_as_html(self) -> str:
        """Return the first records as a table, pictures as pictures."""
        try:
            first = self.head(_SHOWN)
        except ShardioError as error:
            return html_table([("first records", f"cannot be read: {error}")])
        if not first:
            return ""
        if not all(isinstance(value, dict) for value in first):
            return html_table([(html_cell(value),) for value in first], head=("first records",))
        columns = list(dict.fromkeys(name for value in first for name in value))
        cells = [[html_cell(value.get(name)) for name in columns] for value in first]
        return html_table(cells, head=columns, title="first records")
