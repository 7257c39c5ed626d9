"""WebDataset tar files, `<split>-000000.tar`: a member a feature, `key.name` or `key.name.ending`.

The key is the feature `__key__` where there is one, else the record's number.  A feature whose name ends as
its type asks keeps its name (`jpg`, `seg.png`, `cls`); others get an ending: `label.cls`, `boxes.npy`.
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shardio.convert._target import NumberedFiles, json_text
from shardio.errors import SchemaError
from shardio.format import sample_name

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
        """Refuse records without features, and features that cannot be members or want the same one."""
        super().check(schema, compression)
        if schema is None or schema.sequence_features or not schema.keys() - {_KEY}:
            raise ValueError("WebDataset needs members: a schema with features, and no feature lists")
        taken: dict[str, str] = {}
        for name, feature in schema.items():
            if name == _KEY:
                continue
            if feature.shape and feature.kind in ("bytes", "image"):
                message = f"feature {name!r} is a list of {feature.type}, which no member can hold"
                raise ValueError(message)
            ending = _ending_of(name, feature)
            if sample_name(f"0.{ending}") != ("0", ending.lower()):
                message = f"feature {name!r} cannot be the ending of a file name"
                raise ValueError(message)
            # Readers compare endings in lower case.
            other = taken.setdefault(ending.lower(), name)
            if other != name:
                message = f"features {other!r} and {name!r} would both be the member {ending!r}"
                raise ValueError(message)

    def add(self, value: Any) -> None:
        """Write the members of a sample, one after another."""
        assert self.schema is not None  # noqa: S101 - as `check` found
        archive = self._opened()
        key = self._key_of(value)
        members = []
        for name, feature in self.schema.items():
            item = value.get(name)
            # The null of a required document is a value of its own.
            if name != _KEY and (item is not None or not feature.optional):
                ending = _ending_of(name, feature)
                if sample_name(f"{key}.{ending}") != (key, ending.lower()):
                    advice = "write keys without dots in their last part, and no names like __x__"
                    what = f"readers would cut or pass over the member {ending!r} of {_KEY!r} {key!r}"
                    raise SchemaError(what, advice=advice)
                members.append((f"{key}.{ending}", _contents(item, feature)))
        if not members:
            names = ", ".join(repr(name) for name in self.schema if name != _KEY)
            raise SchemaError(f"a record without any member cannot be a sample: it has none of {names}")
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o444, 0
            archive.addfile(info, io.BytesIO(data))
        self._keys.add(key)
        self.records += 1
        if archive.offset >= self.shard_bytes:
            self.finish()

    def _key_of(self, value: Any) -> str:
        """Return the key of a record: what readers will take for it, and no other sample's."""
        given = value.get(_KEY)
        key = f"{self.records:09d}" if given is None else str(given)
        self.outbox.check(key.removeprefix("./"))
        if key in self._keys:
            advice = f"write another {_KEY!r}, or leave it out, and records are numbered"
            raise SchemaError(
                f"feature {_KEY!r} holds a key for the second time: readers would take both for one sample",
                found=repr(key), advice=advice,
            )  # fmt: skip
        return key

    def _opened(self) -> tarfile.TarFile:
        if self._file is None:
            self._file = tarfile.open(self.next_path(), "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - till `finish`
            self._keys: set[str] = set()
        archive: tarfile.TarFile = self._file
        archive.members = []  # type: ignore[attr-defined] # or it would remember every member
        return archive

    def abandon(self) -> None:
        """Close the file that is open, without the blocks that end an archive."""
        if self._file is not None:
            self._file.fileobj.close()


def _ending_of(name: str, feature: Feature) -> str:
    """Return the ending of a feature's members."""
    if feature.kind == "number":
        return _ending(name, _ENDINGS["int64"] if _is_integer(feature) else ("npy",))
    if feature.shape:
        return _ending(name, ("json",))
    if feature.type == "bytes":
        return name if "." in name or len(name) <= 5 else f"{name}.bin"
    return _ending(name, _ENDINGS[feature.type])


def _is_integer(feature: Feature) -> bool:
    return feature.type == "int64" and not feature.shape


def _contents(value: Any, feature: Feature) -> bytes:
    """Return the bytes of a member."""
    if feature.kind == "number":
        if _is_integer(feature):
            return str(int(value)).encode()
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return buffer.getvalue()
    if feature.shape or feature.kind == "json":
        return json_text(value).encode()
    data: bytes = value.encode() if feature.kind == "text" else value
    return data


def _ending(name: str, endings: tuple[str, ...]) -> str:
    return name if name.rpartition(".")[2] in endings else f"{name}.{endings[0]}"
