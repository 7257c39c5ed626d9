"""What a worker does with a piece of a source: read, fit, encode, send each record to its split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardio.convert._source import Odd, Piece, Sample, Source
from shardio.errors import FormatError, SchemaError, ShardioError
from shardio.parallel import Encoded, LeftOut
from shardio.writer import encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardio.convert._splits import Splitter
    from shardio.metadata import Schema

__all__ = ["ConvertWorker"]


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

    def __call__(self, piece: Piece) -> Iterator[tuple[str, Encoded | LeftOut]]:
        """Yield (split, payload) of every record, and what is left out.

        Raises:
            FormatError, SchemaError: something cannot become a record, and the caller wants to hear of it.
        """
        encode = self._encoder()
        names = None if self.schema is None or self.schema.sequence_features else set(self.schema)
        done = 0
        records = self.source.read(piece)
        while True:
            try:
                found = next(records, None)
            except (FormatError, SchemaError) as error:
                # The source cannot go on: what is left of the piece is lost.
                if self.on_error == "raise":
                    raise error.located(url=piece.url) from error
                yield piece.split, LeftOut(piece.url, f"from record {done} of this part on: {error}")
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
        self, found: Sample | Odd, piece: Piece, encode: Callable[[Any], bytes], names: set[str] | None
    ) -> tuple[str, Encoded | LeftOut]:
        if isinstance(found, Odd):
            if self.on_error == "raise":
                raise FormatError(found.reason, url=found.where, advice='on_error="skip" leaves it out')
            return piece.split, LeftOut(found.where, found.reason)
        split = self.splitter(found.where.removeprefix(piece.root), piece.split)
        try:
            value = found.value if self.schema is None else self.source.fit(found.value, self.schema)
            if names is not None and isinstance(value, dict):
                value = self._chosen(value, names)
            return split, Encoded(encode(value))
        except (ShardioError, ValueError, TypeError) as error:
            if self.on_error == "raise":
                if isinstance(error, ShardioError):
                    raise error.located(url=found.where) from error
                raise SchemaError(str(error), url=found.where) from error
            return piece.split, LeftOut(found.where, str(error))

    def _chosen(self, value: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """Return a value without the features left out; those that nobody knew stay, to be refused."""
        dropped = self.dropped
        return {
            name: item
            for name, item in value.items()
            if name in names or (dropped is not None and name not in dropped)
        }
