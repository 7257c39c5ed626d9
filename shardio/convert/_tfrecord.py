"""TFRecord: files of any writer, or a dataset of shardio's; payloads are copied byte for byte.

Shard size, block size, compression and splits are those that the caller asks for.  The schema is inferred
from `tf.train.Example`s where the records are such; where they are not, or with `schema=None` features left
out by the inference, nothing is lost, since payloads are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from shardio import kernels
from shardio.errors import BadRecord, CorruptRecordError, ShardioError
from shardio.format import Framing
from shardio.formats import (
    FileSource,
    ForeignSource,
    GroupedFiles,
    Piece,
    Sample,
    SourceOptions,
    Unreadable,
    create_file,
    decoded_pieces,
)
from shardio.metadata import Feature, Schema
from shardio.reader import TEXT_METADATA, DatasetReader, open as open_dataset
from shardio.sources import Claim, Listing, Peek, Score
from shardio_indexer import iterate_payloads, salvage_payloads

_RUN = 16 << 20


@dataclass(frozen=True)
class TfRecords(FileSource):
    """TFRecord files: plain, gzip, ZLIB or Zstandard, told by their first bytes."""

    kind: ClassVar[str] = "tfrecord"
    payloads: ClassVar[bool] = True

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the payloads of a file, and its damage, both as adoption finds them."""
        return read_frames(piece, self.options)


def read_frames(piece: Piece, options: SourceOptions) -> Iterator[Sample | BadRecord]:
    """Yield the payloads of a TFRecord file; both checksums of every record are compared.

    With `options.skips`, damage is yielded with its range of bytes, and rows count the readable records.

    Raises:
        CorruptRecordError: the first damage, otherwise.
    """
    url, row = piece.url, 0
    pieces = decoded_pieces(piece.root, piece.key, options.storage_options)
    read = salvage_payloads if options.skips else iterate_payloads
    try:
        for found in read(pieces):
            if isinstance(found, list):
                yield from (Sample(f"{url} row {number}", each) for number, each in enumerate(found, row))
                row += len(found)
            else:
                what = f"the TFRecord file has {found.reason}"
                yield BadRecord(url, what, start=found.start, stop=found.stop)
    except CorruptRecordError as error:
        error.advice = 'fetch the file again, or leave the damage out with on_error="skip"'
        raise


@dataclass(frozen=True)
class ShardioDataset(ForeignSource):
    """A dataset of shardio's, all its splits, to be rewritten."""

    kind: ClassVar[str] = "shardio"
    known_options: ClassVar[frozenset[str]] = frozenset({"allow_roots"})
    payloads: ClassVar[bool] = True
    decode: ClassVar[bool] = False
    place: str
    options: SourceOptions
    pin: tuple[int, str] | None = None

    @classmethod
    def claim(cls, listings: Sequence[Listing], peek: Peek) -> Claim | None:
        """Claim a folder with manifests."""
        del peek
        files = [f for each in listings for f in each.files if f.key.startswith("_shardio/manifests/")]
        return Claim(cls.kind, files, Score.DATASET, "manifests") if files else None

    @cached_property
    def reader(self) -> DatasetReader:
        """Reads all splits."""
        return self._open("all")

    def _open(self, split: str, *, decode: bool = False) -> DatasetReader:
        version, digest = self.pin or (None, None)
        return open_dataset(
            self.place, split=split, version=version, digest=digest, decode=decode,
            storage_options=self.options.storage_options, allow_roots=self.options.allow_roots,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        # Every worker reads the version that this process found.
        return {
            "place": self.place,
            "options": self.options,
            "pin": (self.reader.version, self.reader.digest),
        }

    @property
    def schema(self) -> Schema | None:
        """The schema of its records."""
        return self.reader.schema

    def pieces(self) -> list[Piece]:
        """Return runs of records of each split."""
        total = sum(self.reader.splits.values())
        mean = max(1, self.reader.num_bytes // max(1, total))
        step = max(1, _RUN // mean)
        return [
            Piece(self.place, "", split, min(step, rows - start) * mean, start, min(start + step, rows))
            for split, rows in sorted(self.reader.splits.items())
            for start in range(0, rows, step)
        ]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the records of a run, verified."""
        reader = self._open(piece.split, decode=self.decode)[piece.start : piece.stop]
        number = piece.start
        for start in range(0, len(reader), 256):
            for found in reader.read(range(start, min(start + 256, len(reader))), on_error="return"):
                if isinstance(found, ShardioError):
                    yield BadRecord(f"{found.url or reader.source.url} row {found.row}", str(found))
                else:
                    where = f"{piece.url} {piece.split}"
                    yield Sample(f"{where} row {number}", found, f"{where} {number}")
                number += 1

    def for_writing(self, *, changed: bool) -> ShardioDataset:
        """Return it, whose records are copied, or where others are wanted its values."""
        values = changed and self.payloads and self.schema is not None
        return ShardioValues(self.place, self.options) if values else self

    def metadata(self) -> dict[str, Any]:
        """Return its free metadata, and of adopted lines without a schema that they are text."""
        lines = set(self.reader.source.table.framing.tolist()) == {int(Framing.LINES)}
        return {**self.reader.metadata, **(TEXT_METADATA if lines and self.schema is None else {})}


@dataclass(frozen=True)
class ShardioValues(ShardioDataset):
    """Such a dataset by its values, which are encoded again: for other types, or of tar files and lines."""

    payloads: ClassVar[bool] = False
    decode: ClassVar[bool] = True

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the features of its schema; without one they are inferred from values."""
        return dict(self.schema or {})


class TfRecordWriter(GroupedFiles):
    """Write plain TFRecord files without index or manifest; compressed as by TensorFlow."""

    decode: ClassVar[bool] = False
    group: ClassVar[int] = 256
    group_bytes: ClassVar[int] = 8 << 20
    compressions: ClassVar[tuple[str, ...]] = ("gzip", "zlib")
    pattern: ClassVar[str] = "{split}-{number}.tfrecord"

    @classmethod
    def notes(cls, schema: Schema | None, older: Sequence[Schema]) -> list[str]:
        """Return also where a record's own names are not those that readers of the dataset see."""
        notes = super().notes(schema, older)
        if schema is None:
            return notes
        copied = "records are copied as they are: "
        for group in schema.groups:
            notes += [
                f"{copied}they hold the feature {name!r} as {feature.stored_name!r}"
                for name, feature in group.items()
                if feature.stored_name is not None
            ]
        hidden = {name for each in older for name in each.names_in_records} - schema.names_in_records
        names = ", ".join(map(repr, sorted(hidden)))
        return (
            [*notes, f"{copied}they still hold {names}, which no reader of the dataset sees"]
            if hidden
            else notes
        )

    def add(self, value: Any) -> None:
        """Take a payload."""
        self.hold(value, len(value))

    def write(self, items: list[Any], size: int) -> int:
        """Write frames."""
        del size
        frames, *_ = kernels.encode_frames(items)
        if self._file is None:
            path = self.next_path({None: "", "gzip": ".gz", "zlib": ".zz"}[self.compression])
            self._file = create_file(path, self.compression)
        self._file.write(memoryview(frames))
        return len(frames)
