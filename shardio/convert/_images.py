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

from shardio.errors import BadRecord, SchemaError
from shardio.formats import (
    IMAGE_ENDINGS,
    IMAGE_TYPES,
    File,
    FileSource,
    LabelColumn,
    Piece,
    Sample,
    TargetWriter,
    Unreadable,
    image_trouble,
    label_of,
    read_whole,
    with_label,
)
from shardio.metadata import Feature, Schema, image_type
from shardio.sources import Division, folder_key, is_data, split_depth

_IMAGE_FILE_ENDINGS = {"jpeg": ".jpg", "png": ".png", "webp": ".webp", "tiff": ".tif"}
_STARTS = {b"GI": ".gif", b"BM": ".bmp", b"P5": ".pgm", b"P6": ".ppm"}
_HELD = ("path", "label")


@dataclass(frozen=True)
class ImageFolder(FileSource):
    """A folder of images; records are `{"image", "label", "path"}`."""

    kind: ClassVar[str] = "images"
    declared: ClassVar[bool] = True
    known_options: ClassVar[frozenset[str]] = FileSource.known_options | {"classes", "check_images"}
    names_classes: ClassVar[bool] = True
    file_is_record: ClassVar[bool] = True

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        if self.options.classes is not None:
            return tuple(self.options.classes)
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


class ImageFolderWriter(TargetWriter):
    """Write one file a record, `[split/]class/name.jpg`, with the bytes as they were stored.

    The name is the feature "path" where there is one, else the class and the record's number; a class is
    called as the feature "label" says, by its number where that names no classes.  A folder holds images and
    classes alone: the report names the features left behind, and a path that says another class than the
    label, or a file that no reader of image folders would take for an image, is refused.
    """

    holds_classes: ClassVar[bool] = True
    names: ClassVar[str] = "{split}/*"
    file_is_record: ClassVar[bool] = True

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without exactly one image."""
        super().check(schema, compression)
        found = _image_features(schema)
        if len(found) != 1:
            message = f"an image folder needs records with one image; found {', '.join(found) or 'none'}"
            raise ValueError(message)

    @classmethod
    def notes(cls, schema: Schema | None, older: Sequence[Schema]) -> list[str]:
        """Return the features that a folder of images does not hold."""
        del older
        others = [name for name in schema or () if name not in (*_image_features(schema), *_HELD)]
        return [f"an image folder does not hold the features {', '.join(others)}"] if others else []

    def add(self, value: Any) -> None:
        """Write a file."""
        (name,) = _image_features(self.schema)
        data = value[name]
        if data is None:
            raise SchemaError(f"feature {name!r} is missing: there is no image to write")
        folder = self._class_of(value)
        path = value.get("path") if self.schema is not None and "path" in self.schema else None
        if path is None:
            ending = _IMAGE_FILE_ENDINGS.get(image_type(data[:16]) or "") or _STARTS.get(bytes(data[:2]))
            if ending is None:
                raise SchemaError(f"feature {name!r} is not an image of known format", found=repr(data[:16]))
            path = f"{folder}/" * (folder is not None) + f"{self.number:09d}{ending}"
        path = self.output.check(str(path))
        if not path.lower().endswith(IMAGE_ENDINGS) or not is_data(path):
            what = "feature 'path' names a file that readers of image folders pass over"
            raise SchemaError(what, expected=" ".join(IMAGE_ENDINGS), found=path)
        parts = path.split("/")[:-1]
        in_split = bool(parts) and parts[0] == self.split
        if folder is not None and folder not in (parts[:1] + parts[1:2] * in_split):
            what = "feature 'path' is in the folder of another class than 'label' says"
            raise SchemaError(what, expected=f"{folder}/...", found=path)
        if self.splits > 1 and not in_split:
            path = f"{self.split}/{path}"
        self.output.path(path).write_bytes(data)
        self.output.finish(path)
        self.records += 1

    def close(self) -> None:
        """Every file is finished already."""

    def _class_of(self, value: Any) -> str | None:
        label = value.get("label")
        if label is None:
            return None
        assert self.schema is not None  # noqa: S101 - as `check` found
        classes = self.schema["label"].classes
        if classes is None:
            return str(label)
        if not 0 <= int(label) < len(classes):
            what = "feature 'label' is the number of no class: there is no folder for the image"
            raise SchemaError(what, expected=f"0 to {len(classes) - 1}", found=int(label))
        name = classes[int(label)]
        if "/" in name or name.startswith("."):
            what = f"feature 'label': the class {name!r} cannot be the name of a folder"
            raise SchemaError(what, expected="a name without '/', which does not begin with a dot")
        return name


def _image_features(schema: Schema | None) -> list[str]:
    features = () if schema is None else schema.items()
    return [name for name, feature in features if feature.kind == "image" and not feature.shape]
