"""WebDataset tar files, `<split>-000000.tar`: a member a feature, `key.name` or `key.name.ending`.

The key is the feature `__key__` where there is one, else the record's number.  A feature whose name ends as
its type asks keeps its name (`jpg`, `seg.png`, `cls`); others get an ending: `label.cls`, `boxes.npy`.
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shardio.convert._target import NumberedFiles
from shardio.errors import SchemaError
from shardio.metadata import check_foreign_key

if TYPE_CHECKING:
    from shardio.metadata import Feature, Schema

__all__ = ["WebDatasetWriter"]

_ENDINGS = {
    "jpeg": ("jpg", "jpeg"), "png": ("png",), "webp": ("webp",), "tiff": ("tif", "tiff"),
    "image": ("jpg", "jpeg", "png", "webp", "tif", "tiff", "img"),
    "text": ("txt", "text", "transcript", "cls", "id"),
    "json": ("json",), "int64": ("cls", "id", "index", "count", "inx", "cls2"),
}  # fmt: skip
_KEY = "__key__"


class WebDatasetWriter(NumberedFiles):
    """Write tar files that webdataset reads."""

    pattern: ClassVar[str] = "{split}-{number:06d}.tar"

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without features, and feature names that no member can have."""
        super().check(schema, compression)
        if schema is None or schema.sequence_features:
            raise ValueError("WebDataset needs members: a schema with features, and no feature lists")
        for name in schema:
            if "/" in name or name.startswith("."):
                message = f"feature {name!r} cannot be the ending of a file name"
                raise ValueError(message)

    def add(self, value: Any) -> None:
        """Write the members of a sample, one after another."""
        assert self.schema is not None  # noqa: S101 - as `check` found
        key = str(value.get(_KEY) or f"{self.records:09d}")
        check_foreign_key(key)
        if "." in key.rpartition("/")[2]:
            advice = "WebDataset cuts names at their first dot: write keys without"
            raise SchemaError("a key has a dot in its last part", found=key, advice=advice)
        archive = self._opened()
        for name, feature in self.schema.items():
            item = value.get(name)
            if name != _KEY and item is not None:
                data, ending = _member(name, item, feature)
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size, info.mode, info.mtime = len(data), 0o444, 0
                archive.addfile(info, io.BytesIO(data))
        self.records += 1
        if archive.offset >= self.shard_bytes:
            self.finish()

    def _opened(self) -> tarfile.TarFile:
        if self._file is None:
            self._file = tarfile.open(self.next_path(), "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - till `finish`
        archive: tarfile.TarFile = self._file
        archive.members = []  # type: ignore[attr-defined] # or it would remember every member
        return archive

    def abandon(self) -> None:
        """Close the file that is open, without the blocks that end an archive."""
        if self._file is not None:
            self._file.fileobj.close()


def _member(name: str, value: Any, feature: Feature) -> tuple[bytes, str]:
    """Return a member's bytes and the ending of its name."""
    if feature.kind == "number":
        if feature.type == "int64" and not feature.shape:
            return str(int(value)).encode(), _ending(name, _ENDINGS["int64"])
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return buffer.getvalue(), _ending(name, ("npy",))
    if feature.shape or feature.kind == "json":
        if any(isinstance(item, bytes) for item in value if feature.shape):
            message = f"feature {name!r} is a list of bytes, which no member can hold"
            raise SchemaError(message)
        return json.dumps(value, ensure_ascii=False).encode(), _ending(name, ("json",))
    if feature.kind == "text":
        return value.encode(), _ending(name, _ENDINGS["text"])
    if feature.type == "bytes":
        return value, name if "." in name or len(name) <= 5 else f"{name}.bin"
    return value, _ending(name, _ENDINGS[feature.type])


def _ending(name: str, endings: tuple[str, ...]) -> str:
    return name if name.rpartition(".")[2] in endings else f"{name}.{endings[0]}"
