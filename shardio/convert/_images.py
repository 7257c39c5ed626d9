"""Folders of images, one folder a class: `root/[split/]class/name.jpg`.

The file's bytes are stored as they are.  Classes are numbered in the order of their names, over all splits;
their names are in the dataset's metadata under "labels".  A folder without folders has images without
labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from shardio.codecs import decode_image
from shardio.convert._files import File, Found, find_files, read_whole, split_of
from shardio.convert._guess import image_type
from shardio.convert._source import Odd, Piece, Sample, Source, SourceOptions
from shardio.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardio.metadata import Feature

__all__ = ["IMAGE_ENDINGS", "IMAGE_TYPES", "ImageFolder", "image_trouble"]

# What an ending says of the file, for folders and for members of tar files alike.
IMAGE_TYPES = {
    "jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff",
    "bmp": "image", "gif": "image", "ppm": "image", "pgm": "image",
}  # fmt: skip
IMAGE_ENDINGS = tuple(f".{ending}" for ending in IMAGE_TYPES)


@dataclass(frozen=True)
class ImageFolder(Source):
    """A folder of images; records are `{"image", "label", "path"}`."""

    kind: ClassVar[str] = "images"
    declared: ClassVar[bool] = True
    place: Any
    options: SourceOptions

    @cached_property
    def _found(self) -> Found:
        return find_files(self.place, self.options.storage_options)

    @cached_property
    def _files(self) -> list[File]:
        return [file for file in self._found.files if file.key.lower().endswith(IMAGE_ENDINGS)]

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        if self.options.classes is not None:
            return self.options.classes
        return tuple(sorted({name for name in map(self._class_of, self._files) if name}))

    def __getstate__(self) -> dict[str, Any]:
        # The listing stays at home; workers get what they need with each piece.
        return {"place": self.place, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _class_of(self, file: File) -> str | None:
        folders = file.key.split("/")[:-1]
        if self._by_folder:
            folders = folders[1:]
        return folders[0] if folders else None

    @cached_property
    def _by_folder(self) -> bool:
        """Whether the folders at the top are splits with folders of classes in them."""
        splits = split_of([file.key for file in self._files])
        named = splits is not split_of([]) and all(file.key.count("/") >= 1 for file in self._files)
        return named and any(file.key.count("/") >= 2 for file in self._files)

    def pieces(self) -> list[Piece]:
        """Return the images, one by one, split after split as their names are."""
        splits = split_of([file.key for file in self._files]) if self._by_folder else split_of([])
        numbers = {name: number for number, name in enumerate(self._classes)}
        found = []
        for file in self._files:
            name = self._class_of(file)
            extra = (name, numbers.get(name or ""), bool(self._classes))
            found.append(Piece(file.root, file.key, splits(file.key), file.size, extra=extra))
        return found

    def read(self, piece: Piece) -> Iterator[Sample | Odd]:
        """Yield the one record of an image."""
        name, label, labelled = piece.extra
        if labelled and label is None:
            reason = (
                "the image lies in no folder of a class" if name is None else f"there is no class {name!r}"
            )
            yield Odd(piece.url, f"missing label: {reason}")
            return
        data = read_whole(piece.root, piece.key, self.options.storage_options)
        trouble = image_trouble(data, check=self.options.check_images)
        if trouble is not None:
            yield Odd(piece.url, trouble)
            return
        value = {"image": data, "path": piece.key}
        yield Sample(piece.url, value | ({"label": label} if labelled else {}))

    def known(self) -> Mapping[str, Feature | str]:
        """Return the types, the image's by the endings of all files."""
        types = {IMAGE_TYPES[file.key.rpartition(".")[2].lower()] for file in self._files}
        image = types.pop() if len(types) == 1 else "image"
        return {"image": image, "path": "text"} | ({"label": "int64"} if self._classes else {})

    def metadata(self) -> dict[str, Any]:
        """Return the names of the classes."""
        return {"labels": list(self._classes)} if self._classes else {}

    def odd(self) -> Sequence[Odd]:
        """Return files whose names are no text."""
        return self._found.odd

    def ignored(self) -> Sequence[str]:
        """Return files that are no images, by their names."""
        taken = set(self._files)
        return [file.key for file in self._found.files if file not in taken]


def image_trouble(data: bytes, *, check: bool) -> str | None:
    """Say why a file is no image, or None where it is one; `check` decodes it."""
    if not data:
        return "unreadable image: the file is empty"
    if not check:
        return None if image_type(data) or data[:2] in {b"P5", b"P6"} else "unreadable image: unknown format"
    try:
        decode_image(data)
    except FormatError as error:
        return f"unreadable image: {error.what}"
    return None
