"""What a worker does with a piece of a source: read, fit, encode, send each record to its split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardio.convert._guess import SKIP, type_for
from shardio.convert._source import Piece, Sample, Source, keep_as
from shardio.errors import BadRecord, FormatError, SchemaError, ShardioError, StorageError
from shardio.metadata import check_split
from shardio.parallel import Encoded, Note
from shardio.writer import encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardio.metadata import Feature, Schema

__all__ = ["ConvertWorker", "Splitter"]

_WORDS = 1 << 64


@dataclass(frozen=True)
class Splitter:
    """Send records to splits.

    Args:
        wanted: None keeps the source's splits; a name takes all records; a mapping of names to shares
            divides them.
        seed: another seed divides them another way.
    """

    wanted: str | Mapping[str, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.wanted, Mapping):
            shares = list(self.wanted.values())
            if not shares or min(shares) < 0 or not 0.999 < sum(shares) < 1.001:
                message = f"shares={dict(self.wanted)!r} must not be negative, and their sum must be 1"
                raise ValueError(message)
            for name in self.wanted:
                check_split(name)
        elif self.wanted is not None:
            check_split(self.wanted)

    @classmethod
    def of(cls, split: str | None, shares: Mapping[str, float] | None, seed: int) -> Splitter:
        """Return the splitter for what a caller says.

        Raises:
            TypeError: shares in place of a name.
            UnsafeNameError: not a name for a split.
            ValueError: both are given, or shares that make no sense.
        """
        if isinstance(split, Mapping):
            message = f"split={dict(split)!r} must be a name; shares are given as shares={dict(split)!r}"
            raise TypeError(message)
        if split is not None and shares is not None:
            raise ValueError("split= names one split and shares= divides among several: give one of them")
        return cls(split if shares is None else dict(shares), seed)

    def __call__(self, where: str, split: str) -> str:
        """Return the split of the record that came from `where`."""
        if self.wanted is None:
            return split
        if isinstance(self.wanted, str):
            return self.wanted
        digest = hashlib.blake2b(f"{self.seed}/{where}".encode(errors="backslashreplace"), digest_size=8)
        place = int.from_bytes(digest.digest(), "little") / _WORDS * sum(self.wanted.values())
        edge = 0.0
        for name, share in self.wanted.items():
            edge += share
            if place < edge:
                return name
        return name


@dataclass(frozen=True)
class ConvertWorker:
    """Turn pieces into payloads; travels to the workers.

    Attributes:
        source: whose pieces come.
        schema: of the records, or None where they are bytes.
        splitter: says which split a record goes to.
        on_error: "raise" or "skip".
        dropped: features that the caller left out; None is all that the schema does not have.
    """

    source: Source
    schema: Schema | None
    splitter: Splitter
    on_error: str
    dropped: frozenset[str] | None = frozenset()

    def __call__(self, piece: Piece) -> Iterator[tuple[str, Encoded | BadRecord | Note]]:
        """Yield (split, payload) of every record, and what is left out.

        Raises:
            FormatError, SchemaError: something cannot become a record, and the caller wants to hear of it.
        """
        encode = self._encoder()
        names = None if self.schema is None or self.schema.sequence_features else set(self.schema)
        done = 0
        records = self.source.records(piece)
        while True:
            try:
                found = next(records, None)
            except (FormatError, SchemaError) as error:
                # The source cannot go on: what is left of the piece is lost.
                if self.on_error == "raise":
                    raise error.located(url=piece.url) from error
                yield piece.split, BadRecord(piece.url, f"from record {done} of this part on: {error}")
                return
            if found is None:
                return
            done += 1
            yield self._record(found, piece, encode, names)

    def _encoder(self) -> Callable[[Any], bytes]:
        """Return what makes a payload; a ready one is looked at, so that the schema tells the truth."""
        if not self.source.payloads:
            return encoder(self.schema)
        if self.schema is None or self.source.trusted:
            return bytes
        from shardio.codecs import record_codec

        codec = record_codec(self.schema)

        def check(payload: bytes) -> bytes:
            codec.decode(payload)
            return payload

        return check

    def _record(
        self,
        found: Sample | BadRecord | Note,
        piece: Piece,
        encode: Callable[[Any], bytes],
        names: set[str] | None,
    ) -> tuple[str, Encoded | BadRecord | Note]:
        if isinstance(found, Note):
            return piece.split, found
        if isinstance(found, BadRecord):
            if self.on_error == "raise":
                advice = f"{found.advice}, or {SKIP}" if found.advice else SKIP
                raise FormatError(found.reason, url=found.where, advice=advice)
            return piece.split, found
        split = self.splitter(found.where.removeprefix(piece.root), piece.split)
        value = found.value
        fitted = False
        try:
            value = value if self.schema is None else self.source.fit(value, self.schema)
            fitted = True
            if names is not None and isinstance(value, dict):
                value = self._chosen(value, names)
            return split, Encoded(encode(value))
        except (ShardioError, ValueError, TypeError) as error:
            if isinstance(error, StorageError):
                raise
            if self.on_error != "raise":
                return piece.split, BadRecord(found.where, str(error))
            told = error if isinstance(error, ShardioError) else SchemaError(str(error))
            if not self.source.payloads:
                # What the encoder advises is meant for somebody who writes values.
                told.advice = self._advice(value) if fitted else f"{told.advice}, or {SKIP}"
            raise told.located(url=found.where) from error

    def _advice(self, value: Any) -> str:
        """Return what makes a conversion go on past a value that does not fit."""
        features: Mapping[str, Feature] = self.schema or {}
        for name, feature in features.items():
            item = value.get(name) if isinstance(value, dict) else None
            if item is None:
                continue
            try:
                feature.fit(item, name)
            except SchemaError:
                return f"{type_for(name, [item])}, or {SKIP}"
        unknown = [name for name in value if name not in features] if isinstance(value, dict) else []
        return f"leave the feature out with {keep_as(unknown[0], None)}, or {SKIP}" if unknown else SKIP

    def _chosen(self, value: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """Return a value without the features left out; those that nobody knew stay, to be refused."""
        dropped = self.dropped
        return {
            name: item
            for name, item in value.items()
            if name in names or (dropped is not None and name not in dropped)
        }
