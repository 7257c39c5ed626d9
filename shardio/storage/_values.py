"""What passes between a store and its callers: bytes, offsets, facts about objects, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardio.errors import NotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Buffer",
    "CannotListError",
    "ChangedObjectError",
    "DeniedError",
    "MissingBucketError",
    "NotDurableError",
    "ObjectInfo",
    "Offsets",
    "ShortReadError",
    "UnknownOutcomeError",
]

Buffer: TypeAlias = "bytes | memoryview"
Offsets: TypeAlias = "Sequence[int] | NDArray[np.int64]"


class CannotListError(StorageError):
    """This kind of place has no listings, as web servers have none."""


class DeniedError(StorageError):
    """The service answered 403: what was asked for is forbidden, or absent where nothing may be listed."""


class MissingBucketError(NotFoundError):
    """There is no such bucket or container."""


class UnknownOutcomeError(StorageError):
    """The request was sent and no answer came back: it may have taken effect, now or later."""


class NotDurableError(UnknownOutcomeError):
    """The object has its name, but the disk failed to make that permanent: a crash may undo it."""


class ShortReadError(StorageError):
    """The object ends before the range asked for; `expected` and `found` are numbers of bytes."""


class ChangedObjectError(StorageError):
    """The object is not the one that was opened: another size or stamp; `expected` and `found` say which."""


class ObjectInfo(NamedTuple):
    """What a store knows about one object without reading it.

    Attributes:
        key: key relative to the store's root.
        size: bytes.
        stamp: text that changes when the object does (ETag, generation, mtime in ns); "" where there is none.
    """

    key: str
    size: int
    stamp: str
