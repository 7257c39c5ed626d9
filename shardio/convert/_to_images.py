"""Image folders: `[split/]class/name.jpg`, the files' bytes as they were stored.

The name is the feature "path" where there is one, else the class and the record's number; the names of
classes are those in the metadata under "labels", else the numbers.  A folder holds images and classes and
nothing else: the report says which features stayed behind, and a path that says another class than the
label, or a file that no reader of image folders would take for an image, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.convert._files import split_of
from shardio.convert._guess import image_type
from shardio.convert._images import IMAGE_ENDINGS
from shardio.convert._target import TargetWriter
from shardio.errors import SchemaError
from shardio.sources import is_clutter

if TYPE_CHECKING:
    from shardio.metadata import Schema

__all__ = ["ImageFolderWriter"]

_IMAGES = ("jpeg", "png", "webp", "tiff", "image")
_ENDINGS = {"jpeg": ".jpg", "png": ".png", "webp": ".webp", "tiff": ".tif"}
_STARTS = {b"GI": ".gif", b"BM": ".bmp", b"P5": ".pgm", b"P6": ".ppm"}
_HELD = ("path", "label")


class ImageFolderWriter(TargetWriter):
    """Write one file a record."""

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without exactly one image."""
        super().check(schema, compression)
        found = _image_features(schema)
        if len(found) != 1:
            message = f"an image folder needs records with one image; found {', '.join(found) or 'none'}"
            raise ValueError(message)

    @classmethod
    def notes(cls, schema: Schema | None) -> list[str]:
        """Return the features that a folder of images does not hold."""
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
            ending = _ENDINGS.get(image_type(data[:16]) or "") or _STARTS.get(bytes(data[:2]))
            if ending is None:
                raise SchemaError(f"feature {name!r} is no image of a known format", found=repr(data[:16]))
            path = f"{folder}/" * (folder is not None) + f"{self.records:09d}{ending}"
        path = self.outbox.check(str(path))
        if not path.lower().endswith(IMAGE_ENDINGS) or is_clutter(path):
            what = "feature 'path' names a file that readers of image folders pass over"
            raise SchemaError(what, expected=" ".join(IMAGE_ENDINGS), found=path)
        parts = path.split("/")[:-1]
        in_split = bool(parts) and split_of([path])(path) == self.split
        if folder is not None and folder not in (parts[:1] + parts[1:2] * in_split):
            what = "feature 'path' lies in the folder of another class than 'label' says"
            raise SchemaError(what, expected=f"{folder}/...", found=path)
        if self.splits > 1 and not in_split:
            path = f"{self.split}/{path}"
        self.outbox.path(path).write_bytes(data)
        self.outbox.finish(path)
        self.records += 1

    def close(self) -> None:
        """Every file is finished already."""

    def _class_of(self, value: Any) -> str | None:
        label = value.get("label")
        if label is None:
            return None
        names = self.metadata.get("labels")
        integer = self.schema is not None and self.schema["label"].kind == "number"
        if isinstance(names, list) and integer and 0 <= int(label) < len(names):
            return str(names[int(label)])
        return str(label)


def _image_features(schema: Schema | None) -> list[str]:
    features = () if schema is None else schema.items()
    return [name for name, feature in features if feature.type in _IMAGES and not feature.shape]
