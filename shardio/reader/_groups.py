"""A reader by the batch, and readers of several splits by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

from shardio.arguments import integer, no_attribute
from shardio.display import html_table, plural
from shardio.metadata import Schema

if TYPE_CHECKING:
    from shardio.reader._records import DatasetReader, RecordSequence


class Batches(Sequence[Any]):
    """The records of a reader by the batch; made by `DatasetReader.batch`."""

    def __init__(self, records: RecordSequence, batch_size: int, *, drop_last: bool = False) -> None:
        self._size = integer("batch_size", batch_size)
        if self._size < 1:
            raise ValueError(f"batch_size={batch_size} must be 1 or more")
        self._records = records[: len(records) // self._size * self._size] if drop_last else records

    def __len__(self) -> int:
        return (len(self._records) + self._size - 1) // self._size

    @overload
    def __getitem__(self, item: int) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: int | slice) -> Any:
        """Return a batch, or a list of those of a slice."""
        numbers = range(len(self))[item]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        first = numbers * self._size
        positions = range(first, min(first + self._size, len(self._records)))
        return (
            self._records.read(positions)
            if self._records.source.codec is None
            else self._records.read_batch(positions)
        )

    def __iter__(self) -> Iterator[Any]:
        return self._records.iter_batches(self._size)

    def __repr__(self) -> str:
        return f"<shardio.Batches of {self._size}: {len(self):,} of {self._records!r}>"


class DatasetDict(dict[str, "DatasetReader"]):
    """Readers of splits by name: "train" first, the others in the order of their names.

    `shardio.open` returns it for a dataset of several splits, `train_test_split` for the two that it makes.
    What it does to readers it does to each: `filter`, `map`, `select_columns`, `shuffle`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> with shardio.DatasetWriter(url, schema={"n": "int64"}) as out:
        ...     for n in range(100):
        ...         out.write({"n": n}, split="test" if n % 10 == 0 else "train")
        >>> ds = shardio.open(url)
        >>> ds.num_rows, int(ds["train"][0]["n"])
        ({'train': 90, 'test': 10}, 1)
    """

    def __init__(self, readers: Mapping[str, DatasetReader]) -> None:
        super().__init__(readers)

    def __missing__(self, name: object) -> NoReturn:
        if isinstance(name, str):
            raise KeyError(f"there is no split {name!r}; the splits are {', '.join(self)}")
        first = next(iter(self), "train")
        raise TypeError(f"choose a split first: ds[{first!r}][{name!r}]; the splits are {', '.join(self)}")

    def __getattr__(self, name: str) -> NoReturn:
        hint = None
        if not name.startswith("_") and self and hasattr(next(iter(self.values())), name):
            hint = f"a split has: ds[{next(iter(self))!r}].{name}"
        raise no_attribute(f"{type(self).__name__!r} object", name, dir(type(self)), hint)

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of records of every split, by name."""
        return self.num_rows

    @property
    def num_rows(self) -> dict[str, int]:
        """Number of records of every split, by name."""
        return {name: len(reader) for name, reader in self.items()}

    @property
    def column_names(self) -> dict[str, list[str]]:
        """Names of the features of every split, by name of the split."""
        return {name: reader.column_names for name, reader in self.items()}

    @property
    def schema(self) -> Schema | None:
        """What a record holds, or None where records are bytes."""
        return next(iter(self.values())).schema

    @property
    def version(self) -> int:
        """Number of the version read here."""
        return next(iter(self.values())).version

    @property
    def digest(self) -> str:
        """`"sha256:..."` of the version's manifest; pins it in `shardio.open(url, digest=...)`."""
        return next(iter(self.values())).digest

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The free metadata that writers gave."""
        return next(iter(self.values())).metadata

    def filter(self, condition: Any, **options: Any) -> DatasetDict:
        """Return readers of the records of every split that meet a condition; see `DatasetReader.filter`."""
        return self._each(lambda reader: reader.filter(condition, **options))

    def map(self, function: Callable[[Any], Any]) -> DatasetDict:
        """Return readers that call a function for each record; see `DatasetReader.map`."""
        return self._each(lambda reader: reader.map(function))

    def select_columns(self, features: str | Sequence[str]) -> DatasetDict:
        """Return readers that decode some features only; see `DatasetReader.select_columns`."""
        return self._each(lambda reader: reader.select_columns(features))

    def shuffle(self, seed: int = 0) -> DatasetDict:
        """Return readers of every split in random order; see `DatasetReader.shuffle`."""
        return self._each(lambda reader: reader.shuffle(seed))

    def _each(self, change: Callable[[DatasetReader], DatasetReader]) -> DatasetDict:
        return type(self)({name: change(reader) for name, reader in self.items()})

    def __repr__(self) -> str:
        inside = "".join(f"\n    {name}: {reader!r}" for name, reader in self.items())
        return f"shardio.DatasetDict({{{inside}\n}})"

    def _repr_html_(self) -> str:
        rows = [(name, plural(len(reader), "record")) for name, reader in self.items()]
        schema = self.schema
        return html_table(rows, head=("split", "records")) + ("" if schema is None else schema._repr_html_())
