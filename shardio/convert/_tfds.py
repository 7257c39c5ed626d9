"""TensorFlow Datasets: a version folder, its splits, and values of the types that its features have.

Payloads are decoded and written again, because an Example of TFDS has other types than the feature:
`shardio.sources` knows which.  Images stay the files that they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from shardio.codecs import infer_schema, record_codec
from shardio.convert._tfrecord import TfRecords, read_frames
from shardio.errors import BadRecord, CorruptRecordError, NotFoundError, SchemaError
from shardio.formats import FileSource, Piece, Sample, Unreadable, found_at, sample_records
from shardio.metadata import Feature, Schema
from shardio.parallel import Note
from shardio.sources import (
    Division,
    FoundFile,
    Listing,
    TfdsFeature,
    TfdsFolder,
    find_tfds,
    tfds_feature,
)


@dataclass(frozen=True)
class TfdsDataset(FileSource):
    """A version folder of TFDS, whose `features.json` says what records hold, or else the records."""

    kind: ClassVar[str] = "tfds"
    declared: ClassVar[bool] = True

    @cached_property
    def _folder(self) -> TfdsFolder:
        for listing in found_at(self.place, self.options):
            found = find_tfds(listing, self.options.peek)
            if found is not None:
                return found if found.features else self._inferred(found, listing)
        raise NotFoundError(
            "there is no dataset_info.json of TFDS",
            url=str(self.place),
            advice="name the folder of one version, such as mnist/3.0.1, or convert the files with "
            'kind="tfrecord"',
        )

    def _inferred(self, folder: TfdsFolder, listing: Listing) -> TfdsFolder:
        """Return a folder without `features.json`, with the features that records of its files show."""
        files = [file for file in listing.files if folder.file_of(file.key) is not None]
        source = TfRecords([file.url for file in files], self.options)
        pieces = [Piece(file.root, file.key, size=file.size) for file in files]
        payloads = [sample.value for sample in sample_records(source, pieces)]
        schema, report = infer_schema(payloads)
        stored = folder.as_stored(schema)
        return replace(
            folder,
            features=[tfds_feature(name, feature) for name, feature in stored.items()],
            unknown={name: "of several kinds" for name, seen in report.features.items() if seen.type is None},
        )

    def __getstate__(self) -> dict[str, Any]:
        # Workers do not read the description again.
        return {**super().__getstate__(), "_folder": self._folder}

    def _divide(self, listing: Listing) -> tuple[list[FoundFile], list[FoundFile]]:
        taken = {file for file in listing.files if self._folder.file_of(file.key) is not None}
        others = [
            file for file in listing.files if file not in taken and not self._folder.describes(file.key)
        ]
        return [file for file in listing.files if file in taken], others

    def divided(self, names: Sequence[str]) -> Division:
        """Return the splits that the folder says, unless the caller says others."""
        if self.options.split is not None:
            return super().divided(names)
        told = {self._folder.prefix + file.name: file.split for file in self._folder.files}
        return Division([told[name] for name in names], [])

    def pieces(self) -> list[Piece]:
        """Return the files of the splits, in the order of their names.

        Raises:
            NotFoundError: one is not there.
        """
        there = {file.key for file in self.files}
        for each in self._folder.files:
            if self._folder.prefix + each.name not in there and self.options.split is None:
                raise NotFoundError(
                    f"a file of split {each.split!r} is not there",
                    url=f"{self._folder.url}/{each.name}",
                    expected="the files that dataset_info.json names",
                    advice='fetch it, or convert the files that are there with kind="tfrecord"',
                )
        rows = {self._folder.prefix + file.name: file.rows for file in self._folder.files}
        return [
            Piece(file.root, file.key, split, file.size, extra=rows[file.key])
            for file, split in self.split_files()
        ]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the records of a file; both checksums of every record are compared."""
        decode = _TfdsRecords(self._folder.features)
        rows = 0
        for found in read_frames(piece, self.options):
            rows += isinstance(found, Sample)
            yield decode(found.where, found.value) if isinstance(found, Sample) else found
        if piece.extra not in (None, rows):
            yield Note(piece.url, f"dataset_info.json says {piece.extra:,} records, found {rows:,}")

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types of the features, by the names that Examples have for them."""
        known: dict[str, Feature | str | Unreadable] = {}
        for each in self._folder.features:
            known |= each.stored if each.typed is None else {each.name: each.typed}
        for name, kind in self._folder.unknown.items():
            known[name] = Unreadable(f"feature {name!r} is {kind}, of which records do not tell the values")
        return known

    def notes(self) -> list[str]:
        """Return what becomes another type than TFDS gives."""
        features = self._folder.features
        stored = [f"{each.name}: {each.note}; they stay so" for each in features if each.typed is None]
        nested = [each.name for each in features if each.typed is not None and each.typed.type == "json"]
        json = [f"{name}: sequences in sequences are json" for name in nested]
        return [*super().notes(), *stored, *json]

    def metadata(self) -> dict[str, Any]:
        """Return name, version, citation and the like, under `tfds`."""
        return {"tfds": dict(self._folder.metadata)}


class _TfdsRecords:
    """Makes values of records."""

    def __init__(self, features: Sequence[TfdsFeature]) -> None:
        self._features = features
        stored = {name: each for feature in features for name, each in feature.stored.items()}
        self._codec = record_codec(Schema(stored))

    def __call__(self, where: str, payload: bytes) -> Sample | BadRecord:
        try:
            held = self._codec.decode(payload)
            value: dict[str, Any] = {}
            for feature in self._features:
                if feature.typed is None or feature.value is None:
                    value |= {name: held[name] for name in feature.stored}
                else:
                    value[feature.name] = feature.value(held)
        except (CorruptRecordError, SchemaError) as error:
            return BadRecord(where, f"the record is not what features.json says: {error}")
        return Sample(where, value)
