"""Whole files of text: a file is one record, `{"text", "path"}`; line ends and all else stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from shardio.errors import BadRecord
from shardio.formats import FileSource, Piece, Sample, read_whole
from shardio.metadata import Feature


@dataclass(frozen=True)
class TextFiles(FileSource):
    """Text files: of a folder those that are called so, of a pattern or a list all."""

    kind: ClassVar[str] = "text"
    declared: ClassVar[bool] = True

    def pieces(self) -> list[Piece]:
        """Return the files, one by one."""
        return [
            Piece(file.root, file.key, split, file.size, extra=file.name)
            for file, split in self.split_files()
        ]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the one document of a file."""
        data = read_whole(piece.root, piece.key, self.options.storage_options)
        if not data:
            yield BadRecord(piece.url, "the file is empty")
            return
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            yield BadRecord(piece.url, f"the file is not UTF-8 text ({error.reason} at byte {error.start})")
            return
        yield Sample(piece.url, {"text": text, "path": piece.extra})

    def known(self) -> Mapping[str, Feature | str]:
        """Return the two features."""
        return {"text": "text", "path": "text"}
