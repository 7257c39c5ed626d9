"""Text files, one document each: `{"text", "path"}`; line ends and everything else stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from shardio.convert._files import File, Found, find_files, read_whole, split_of
from shardio.convert._source import Odd, Piece, Sample, Source, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardio.metadata import Feature

__all__ = ["TEXT_ENDINGS", "TextFiles"]

TEXT_ENDINGS = (".txt", ".text", ".md", ".rst")


@dataclass(frozen=True)
class TextFiles(Source):
    """Text files: of a folder those that are called so, of a pattern or a list all."""

    kind: ClassVar[str] = "text"
    declared: ClassVar[bool] = True
    place: Any
    options: SourceOptions

    @cached_property
    def _found(self) -> Found:
        return find_files(self.place, self.options.storage_options)

    @cached_property
    def _files(self) -> list[File]:
        chosen = (
            not isinstance(self.place, str) or any(mark in self.place for mark in "*?[") or self._found.single
        )
        return [file for file in self._found.files if chosen or file.key.lower().endswith(TEXT_ENDINGS)]

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def pieces(self) -> list[Piece]:
        """Return the files, one by one."""
        splits = split_of([file.key for file in self._files])
        return [Piece(file.root, file.key, splits(file.key), file.size) for file in self._files]

    def read(self, piece: Piece) -> Iterator[Sample | Odd]:
        """Yield the one document of a file."""
        data = read_whole(piece.root, piece.key, self.options.storage_options)
        if not data:
            yield Odd(piece.url, "the file is empty")
            return
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            yield Odd(piece.url, f"the file is not UTF-8 text ({error.reason} at byte {error.start})")
            return
        yield Sample(piece.url, {"text": text, "path": piece.key})

    def known(self) -> Mapping[str, Feature | str]:
        """Return the two features."""
        return {"text": "text", "path": "text"}

    def odd(self) -> Sequence[Odd]:
        """Return files whose names are no text."""
        return self._found.odd

    def ignored(self) -> Sequence[str]:
        """Return files of a folder that are not called like text."""
        taken = set(self._files)
        return [file.key for file in self._found.files if file not in taken]
