"""Megatron's indexed datasets: `x.idx` says which bytes of `x.bin` are sequences, and which are a document.

A document is a record: its tokens in the source's own type.  Where documents have several sequences, the
feature `lengths` says how long each is.  Of the index only the part of a piece is read at a time.

Source: `megatron/core/datasets/indexed_dataset.py` of https://github.com/NVIDIA/Megatron-LM, version 1 of the
format.  Little-endian: 9 bytes of magic, u64 version, u8 code of the type, u64 sequences S, u64 entries D;
then i32[S] lengths in tokens, i64[S] places in bytes, i64[D] the first sequence of each document and their
end, and for multimodal data i8[S] modes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadRecord, FormatError, NotFoundError
from shardio.formats import RUN_BYTES, File, FileSource, Piece, Sample, Unreadable
from shardio.metadata import Feature
from shardio.sources import MEGATRON_MAGIC, Listing, find_files
from shardio.storage import DataFile, connect

_HEAD = struct.Struct("<9sQBQQ")
_VERSION = 1
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16",
}  # fmt: skip
_LOOK = 1 << 17  # documents whose bounds are looked at in one go


class _MegatronIndex(NamedTuple):
    """The head of an index, compared with the sizes of both files.

    Attributes:
        dtype: of the tokens.
        sequences, documents: how many.
        modes: each sequence has one.
        split: some document is not one sequence.
        stored_bytes: of the tokens.
    """

    dtype: str
    sequences: int
    documents: int
    modes: bool
    split: bool
    stored_bytes: int

    def lengths(self, file: DataFile, first: int, stop: int) -> NDArray[np.int64]:
        """Return the lengths of some sequences."""
        return _numbers(file, _HEAD.size, "<i4", first, stop)

    def places(self, file: DataFile, first: int, stop: int) -> NDArray[np.int64]:
        """Return the byte at which each of some sequences begins."""
        return _numbers(file, _HEAD.size + 4 * self.sequences, "<i8", first, stop)

    def bounds(self, file: DataFile, first: int, stop: int) -> NDArray[np.int64]:
        """Return the first sequence of some documents, and the end of the last."""
        return _numbers(file, _HEAD.size + 12 * self.sequences, "<i8", first, stop + 1)

    def modes_of(self, file: DataFile, first: int, stop: int) -> NDArray[np.int64]:
        """Return the modes of some sequences."""
        start = _HEAD.size + 12 * self.sequences + 8 * (self.documents + 1)
        return _numbers(file, start, "i1", first, stop)


def _numbers(file: DataFile, start: int, dtype: str, first: int, stop: int) -> NDArray[np.int64]:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(file.read(start + size * first, start + size * stop), dtype).astype(np.int64)


@dataclass(frozen=True)
class MegatronDataset(FileSource):
    """One or more pairs of `.idx` and `.bin`; a pair is named by either, or without an ending."""

    kind: ClassVar[str] = "megatron"
    declared: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = (".idx",)

    @cached_property
    def _listings(self) -> list[Listing]:
        places = [self.place] if isinstance(self.place, str) else list(self.place)
        found: list[Listing] = []
        for place in places:
            named = place.removesuffix(".bin") + ".idx" if place.endswith(".bin") else place
            listings = find_files(named, storage_options=self.options.storage_options)
            if isinstance(listings[0].error, NotFoundError):
                listings = find_files(f"{named}.idx", storage_options=self.options.storage_options)
            found += listings
        for listing in found:
            if listing.error is not None:
                raise listing.error
        return found

    @cached_property
    def _indexes(self) -> tuple[dict[str, _MegatronIndex], list[BadRecord]]:
        found: dict[str, _MegatronIndex] = {}
        bad: list[BadRecord] = []
        for file, _ in self.split_files():
            try:
                found[file.url] = self._index(file)
            except FormatError as error:
                bad.append(BadRecord(file.url, str(error)))
        return found, bad

    def _index(self, file: File) -> _MegatronIndex:
        """Read the head of an index, and where its documents begin.

        Raises:
            FormatError: it is not an index of version 1, or contradicts itself or the sizes of the files.
            NotFoundError: the tokens are not there.
        """
        store = connect(file.root, storage_options=self.options.storage_options)
        with store.open(file.key) as index, store.open(_tokens(file.key)) as tokens:
            head = bytes(index.read(0, min(_HEAD.size, index.size)))
            if len(head) < _HEAD.size or not head.startswith(MEGATRON_MAGIC):
                raise FormatError(
                    "this is not the index of a Megatron dataset", found=f"first bytes {head[:9].hex(' ')}"
                )
            _, version, code, sequences, entries = _HEAD.unpack(head)
            if version != _VERSION:
                raise FormatError("the index is of another version", expected=_VERSION, found=version)
            if code not in _DTYPES:
                raise FormatError("the index has a code of no type", expected="1 to 8", found=code)
            size = _HEAD.size + 12 * sequences + 8 * entries
            if not entries or index.size not in (size, size + sequences):
                raise FormatError(
                    f"an index of {sequences} sequences and {entries} bounds has another size",
                    expected=f"{size} bytes, or {size + sequences} with modes",
                    found=f"{index.size} bytes",
                    advice="it was cut or is still being written: fetch or write it again",
                )
            modes = bool(sequences) and index.size > size
            found = _MegatronIndex(
                _DTYPES[code], sequences, entries - 1, modes, split=False, stored_bytes=tokens.size
            )
            return found._replace(split=_check_bounds(found, index))

    def pieces(self) -> list[Piece]:
        """Return runs of documents of about 8 MiB."""
        found = []
        for file, split in self.split_files():
            index = self._indexes[0].get(file.url)
            if index is None:
                continue
            mean = max(1, (index.stored_bytes + 12 * index.sequences) // max(1, index.documents))
            step = max(1, RUN_BYTES // mean)
            found += [
                Piece(
                    file.root, file.key, split, min(step, index.documents - start) * mean, start, stop, index
                )
                for start in range(0, max(1, index.documents), step)
                for stop in [min(start + step, index.documents)]
            ]
        return found

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the documents of a run."""
        index: _MegatronIndex = piece.extra
        store = connect(piece.root, storage_options=self.options.storage_options)
        with store.open(piece.key) as file, store.open(_tokens(piece.key)) as tokens:
            bounds = index.bounds(file, piece.start, piece.stop)
            first, stop = int(bounds[0]), int(bounds[-1])
            lengths, places = index.lengths(file, first, stop), index.places(file, first, stop)
            modes = index.modes_of(file, first, stop) if index.modes else None
            sizes = lengths * np.dtype(index.dtype).itemsize
            for number, (begin, end) in enumerate(zip(bounds - first, bounds[1:] - first, strict=False)):
                rows = slice(int(begin), int(end))
                where = f"{piece.url} document {piece.start + number}"
                reason = _misplaced(places[rows], sizes[rows], tokens.size)
                if reason is not None:
                    yield BadRecord(where, reason)
                    continue
                parts = tokens.read_many(places[rows], places[rows] + sizes[rows])
                whole = np.frombuffer(b"".join(parts), np.dtype(index.dtype).newbyteorder("<"))
                value: dict[str, Any] = {"tokens": whole}
                if index.split or modes is not None:
                    value["lengths"] = lengths[rows]
                if modes is not None:
                    value["modes"] = modes[rows].astype(np.int8)
                yield Sample(where, value)

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types of the features: of the tokens that which holds those of all files."""
        indexes = list(self._indexes[0].values())
        if not indexes:
            return {}
        kind = np.result_type(*(index.dtype for index in indexes)).name
        found: dict[str, Feature | str | Unreadable] = {"tokens": Feature(kind, shape=(None,))}
        for name, type_, has in (
            ("lengths", "int64", [index.split or index.modes for index in indexes]),
            ("modes", "int8", [index.modes for index in indexes]),
        ):
            if any(has):
                found[name] = Feature(type_, shape=(None,), optional=not all(has))
        return found

    def bad_records(self) -> Sequence[BadRecord]:
        """Return names that are not text, and files that are not indexes."""
        return [*super().bad_records(), *self._indexes[1]]

    def ignored(self) -> Sequence[str]:
        """Return the other files, without those that hold the tokens."""
        tokens = {_tokens(file.name) for file in self.files}
        return [name for name in super().ignored() if name not in tokens]


def _tokens(key: str) -> str:
    return key.removesuffix(".idx") + ".bin"


def _check_bounds(index: _MegatronIndex, file: DataFile) -> bool:
    """Compare the bounds of all documents; tell whether some document is not one sequence.

    Raises:
        FormatError: documents overlap, or do not hold all sequences.
    """
    split, last = False, 0
    for start in range(0, index.documents + 1, _LOOK):
        bounds = index.bounds(file, start, min(start + _LOOK, index.documents + 1) - 1)
        steps = np.diff(bounds, prepend=last)
        if (start == 0 and bounds[0] != 0) or steps.min() < 0:
            raise FormatError("documents do not follow one another", start=_HEAD.size + 12 * index.sequences)
        split = split or bool((steps[1 if start == 0 else 0 :] != 1).any())
        last = int(bounds[-1])
    if last != index.sequences:
        raise FormatError(
            "the last sequences belong to no document",
            expected=f"{index.sequences} sequences in documents",
            found=last,
            advice="end the last document when the index is written",
        )
    return split


def _misplaced(places: NDArray[np.int64], sizes: NDArray[np.int64], stored: int) -> str | None:
    """Return what is wrong with where sequences are, or None."""
    if len(places) and (sizes.min() < 0 or places.min() < 0 or int((places + sizes).max()) > stored):
        return f"a sequence is said to be outside of the {stored} bytes of tokens"
    return None
