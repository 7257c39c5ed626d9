"""Image folders: `[split/]class/name.jpg`, the files' bytes as they were stored.

The name is the feature "path" where there is one, else the class and the record's number; the names of
classes are those in the metadata under "labels", else the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.convert._files import split_of
from shardio.convert._guess import image_type
from shardio.convert._target import TargetWriter

if TYPE_CHECKING:
    from shardio.metadata import Schema

__all__ = ["ImageFolderWriter"]

_IMAGES = ("jpeg", "png", "webp", "tiff", "image")
_ENDINGS = {"jpeg": ".jpg", "png": ".png", "webp": ".webp", "tiff": ".tif"}


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

    def add(self, value: Any) -> None:
        """Write a file."""
        (name,) = _image_features(self.schema)
        data = value[name]
        path = value.get("path") if self.schema is not None and "path" in self.schema else None
        if path is None:
            ending = _ENDINGS.get(image_type(data[:16]) or "", ".img")
            path = f"{self._class_of(value)}{self.records:09d}{ending}"
        if self.splits > 1 and not (split_of([path])(path) == self.split and "/" in path):
            path = f"{self.split}/{path}"
        self.outbox.path(path).write_bytes(data)
        self.outbox.finish(path)
        self.records += 1

    def close(self) -> None:
        """Every file is finished already."""

    def _class_of(self, value: Any) -> str:
        label = value.get("label")
        if label is None:
            return ""
        names = self.metadata.get("labels")
        if isinstance(names, list) and 0 <= int(label) < len(names):
            return f"{names[int(label)]}/"
        return f"{label}/"


def _image_features(schema: Schema | None) -> list[str]:
    features = () if schema is None else schema.items()
    return [name for name, feature in features if feature.type in _IMAGES and not feature.shape]
