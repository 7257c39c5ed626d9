"""Where a dataset is and how it is reached: one value, given once in place of a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from shardio.arguments import mapping, options_by_root
from shardio.storage._connect import connect
from shardio.storage._keys import url_text
from shardio.storage._store import Store


@dataclass(frozen=True)
class Address:
    """Where a dataset is and how it is reached; every function takes it in place of a URL.

    Attributes:
        url: any fsspec URL or local path.
        storage_options: as in fsspec.
        allow_roots: roots of adopted shards that may be read, each with its storage options.
        engine: None for the best available, "fsspec" or "obstore".

    Raises:
        TypeError, ValueError: an option that makes no sense.

    Examples:
        >>> import shardio, tempfile
        >>> birds = shardio.Address(tempfile.mkdtemp() + "/birds", engine="fsspec")
        >>> with shardio.DatasetWriter(birds.url) as out:
        ...     out.write(b"wren")
        >>> shardio.verify(birds).ok
        True
    """

    url: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    allow_roots: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    engine: str | None = None

    def __post_init__(self) -> None:
        """Normalize what was given, and refuse what makes no sense."""
        object.__setattr__(self, "url", url_text(self.url))
        object.__setattr__(self, "storage_options", mapping("storage_options", self.storage_options) or None)
        object.__setattr__(self, "allow_roots", options_by_root(self.allow_roots))

    @classmethod
    def of(cls, place: Place) -> Address:
        """Return the address of a place: of a URL or path, of a reader, or the address itself."""
        if isinstance(place, Address):
            return place
        address = getattr(place, "address", None)
        return address if isinstance(address, Address) else cls(url_text(place))

    def connect(self) -> Store:
        """Return the store of the dataset's root."""
        return connect(self.url, storage_options=self.storage_options, engine=self.engine)


class Addressed(Protocol):
    """What knows its address, as a reader does."""

    @property
    def address(self) -> Address:
        """Where its dataset is."""


# What functions that change or check a dataset take: a URL, a path, an address, or a reader.
Place: TypeAlias = str | Path | Address | Addressed
