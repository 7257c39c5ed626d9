"""What an export knows of a kind of target: values in, files into the outbox."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from shardio.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardio.convert._outbox import Outbox
    from shardio.metadata import Feature, Schema
    from shardio.reader import DatasetReader

__all__ = ["NumberedFiles", "TargetWriter", "as_lists", "json_text"]


class TargetWriter(ABC):
    """Write the records of one split; files are complete when the block is left.

    Args:
        outbox: takes the files.
        split: its name.
        reader: whose schema and metadata say what the values are.
        compression: of the files, or None.
        shard_bytes: bytes after which a new file is begun.
        splits: how many splits are exported.

    Attributes:
        decode: whether values are wanted, or payloads.
        compressions: that it knows.
    """

    decode: ClassVar[bool] = True
    compressions: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        outbox: Outbox,
        split: str,
        reader: DatasetReader,
        *,
        compression: str | None,
        shard_bytes: int,
        splits: int,
    ) -> None:
        self.outbox = outbox
        self.split = split
        self.schema = reader.schema
        self.metadata: Mapping[str, Any] = reader.metadata
        self.compression = compression
        self.shard_bytes = shard_bytes
        self.splits = splits
        self.records = 0

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse what this kind cannot hold, before anything is made.

        Raises:
            ValueError: says which feature, or that the compression is unknown.
        """
        del schema
        if compression not in (None, *cls.compressions):
            known = "".join(f" or {name!r}" for name in cls.compressions)
            message = f"compression={compression!r} must be None{known}"
            raise ValueError(message)

    @classmethod
    def notes(cls, schema: Schema | None) -> list[str]:
        """Return what the files do not hold of records with this schema."""
        del schema
        return []

    @abstractmethod
    def add(self, value: Any) -> None:
        """Write one record, or nothing of it.

        Raises:
            SchemaError: the kind cannot hold this value; names the feature.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the last file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def abandon(self) -> None:  # noqa: B027 - most kinds have nothing open between records
        """Let go of an open file; the outbox removes it."""


def json_text(value: Any) -> str:
    """Return a JSON document; what has no UTF-8 is escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if _has_utf8(text) else json.dumps(value, allow_nan=False)


def _has_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def as_lists(value: Any, name: str, feature: Feature) -> Any:
    """Return an array as nested lists, or a number; bfloat16 as the float that it is.

    Raises:
        SchemaError: an array without elements whose sizes nested lists cannot tell.
    """
    array = np.asarray(value)
    if feature.type == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    lists = array.tolist()
    if array.size == 0 and array.ndim > 1:
        try:
            kept = np.shape(feature.fit(lists, name)) == array.shape
        except SchemaError:
            kept = False
        if not kept:
            what = f"feature {name!r} has no elements, and nested lists cannot tell its sizes"
            raise SchemaError(what, found=f"shape {list(array.shape)}")
    return lists


class NumberedFiles(TargetWriter):
    """Write one split into files that follow each other; one is open at a time.

    Attributes:
        pattern: of their names, with `{split}` and `{number}`.
    """

    pattern: ClassVar[str]
    _file: Any = None
    _name = ""
    _number = 0

    def next_path(self, ending: str = "") -> Path:
        """Return where the next file is to be written; its name ends with `ending`."""
        self._name = self.pattern.format(split=self.split, number=self._number) + ending
        self._number += 1
        return self.outbox.path(self._name)

    def finish(self) -> None:
        """Close the file that is open, if there is one, and hand it over."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.outbox.finish(self._name)

    def close(self) -> None:
        """Finish the last file; a split without records has none."""
        self.finish()

    def abandon(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
