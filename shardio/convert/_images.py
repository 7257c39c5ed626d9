"""Folders of images, one folder a class: `root/[split/]class/name.jpg`.

The file's bytes are stored as they are.  Classes are numbered in the order of their names, over all splits;
their names are the classes of the feature "label".  A folder without folders has images without labels, and
so have folders that are all named like splits (`train/1.jpg`, `test/2.jpg`).  Folders `key=value` are no
classes; their keys are features of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from shardio.codecs import decode_image
from shardio.convert._fields import LabelColumn, label_of
from shardio.convert._files import File, FileSource, read_whole
from shardio.convert._source import Piece, Sample, Unreadable, keep_as
from shardio.errors import BadRecord, FormatError, SchemaError
from shardio.metadata import Feature, Schema, image_type
from shardio.sources import Division, folder_key, split_depth

# What an ending says of the file, for folders and for members of tar files alike.
IMAGE_TYPES = {
    "jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff",
    "bmp": "image", "gif": "image", "ppm": "image", "pgm": "image",
}  # fmt: skip
IMAGE_ENDINGS = tuple(f".{ending}" for ending in IMAGE_TYPES)


@dataclass(frozen=True)
class ImageFolder(FileSource):
    """A folder of images; records are `{"image", "label", "path"}`."""

    kind: ClassVar[str] = "images"
    declared: ClassVar[bool] = True
    names_classes: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = IMAGE_ENDINGS
    file_is_record: ClassVar[bool] = True

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        if self.options.classes is not None:
            return self.options.classes
        return tuple(sorted({name for name in map(self._class_of, self.files) if name}))

    def _class_of(self, file: File) -> str | None:
        folders = file.name.split("/")[:-1]
        if self._split_depth is not None:
            folders = folders[self._split_depth + 1 :]
        if self.options.partitions is not None:
            folders = [folder for folder in folders if folder_key(folder) is None]
        return folders[0] if folders else None

    @cached_property
    def _split_depth(self) -> int | None:
        """How many folders are above those that are splits, in which those of classes are; None without."""
        names = [file.name for file in self.files]
        if self._told and all(name.startswith(f"{self._told.get(name)}/") for name in names):
            return 0
        depth = split_depth(names)
        if depth is None or {name.split("/")[depth] for name in names}.issubset(self.options.classes or ()):
            return None
        return depth

    def divided(self, names: Sequence[str]) -> Division:
        """Return the splits, unless folders named like splits are classes."""
        if self.options.split is None and split_depth(names) is not None and self._split_depth is None:
            return Division(["train"] * len(names), [])
        return super().divided(names)

    def notes(self) -> Sequence[str]:
        """Return what the splits rest on, and where one folder that all images are in became their class."""
        deeper = any(file.name.count("/") > 1 for file in self.files)
        if self._split_depth is not None or len(self._classes) != 1 or not deeper or self.options.classes:
            return super().notes()
        note = (
            f"all images are in the folder {self._classes[0]!r}, which became their only class: convert that "
            "folder if those in it are the classes"
        )
        return [*super().notes(), note]

    def pieces(self) -> list[Piece]:
        """Return the images, one by one, split after split as their names are."""
        found = []
        for file, split in self.split_files():
            name = self._class_of(file)
            extra = (name, name in self._classes, bool(self._classes), file.name)
            found.append(Piece(file.root, file.key, split, file.size, extra=extra))
        return found

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the one record of an image."""
        name, is_class, labelled, path = piece.extra
        if labelled and not is_class:
            reason = "the image is in no folder of a class" if name is None else f"there is no class {name!r}"
            yield BadRecord(piece.url, f"missing label: {reason}")
            return
        data = read_whole(piece.root, piece.key, self.options.storage_options)
        trouble = image_trouble(data, check=self.options.check_images)
        if trouble is not None:
            yield BadRecord(piece.url, trouble)
            return
        value = {"image": data, "path": path}
        yield Sample(piece.url, value | ({"label": name} if labelled else {}))

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a record whose label is that of its class, or where the schema says so, the folder's name.

        Raises:
            SchemaError: the schema says that labels are numbers, and the name of the folder is none.
        """
        return with_label(value, schema, LabelColumn("names", frozenset()))

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types, the image's by the endings of all files, and the classes of the label."""
        types = {IMAGE_TYPES.get(file.key.rpartition(".")[2].lower(), "image") for file in self.files}
        image = types.pop() if len(types) == 1 else "image"
        known: dict[str, Feature | str | Unreadable] = {"image": image, "path": "text"}
        if self._classes:
            known["label"] = label_of(self._classes)
        return known


def with_label(value: Any, schema: Schema, labels: LabelColumn) -> Any:
    """Return a record whose label, which is text, is what the schema says that it is.

    Raises:
        SchemaError: the schema says that it is a number, and it is none.
    """
    feature = schema.get("label")
    if feature is None or value.get("label") is None:
        return value
    try:
        return {**value, "label": labels.fit(value["label"], feature)}
    except ValueError as error:
        raise SchemaError(
            f"the label is not {feature.short} ({error})",
            found=repr(value["label"][:40]),
            advice=f"keep its text with {keep_as('label', 'text')}",
        ) from error


def image_trouble(data: bytes, *, check: bool) -> str | None:
    """Say why a file is not an image, or None where it is one; `check` decodes it."""
    if not data:
        return "unreadable image: the file is empty"
    if not check:
        return None if image_type(data) or data[:2] in {b"P5", b"P6"} else "unreadable image: unknown format"
    try:
        decode_image(data)
    except FormatError as error:
        return f"unreadable image: {error.what}"
    return None
