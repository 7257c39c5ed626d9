"""Records whose images come decoded: around the codec of any encoding, which gives the images' bytes."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shardio.codecs._codec import Payloads, RecordCodec
from shardio.codecs._columns import RaggedColumn
from shardio.codecs._images import ImageOptions, decode_image, sized_image
from shardio.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardio.metadata import Feature, Schema

    Generators = Callable[[int], np.random.Generator]


def with_images(codec: RecordCodec, options: ImageOptions | None) -> RecordCodec:
    """Return a codec that decodes images too; the same one where there are none, or `options` is None."""
    if options is None or codec.schema is None:
        return codec
    found = ImageCodec(codec, options)
    return found if found.has_images else codec


class ImageCodec(RecordCodec):
    """A codec that decodes the images of another one's values.

    Args:
        inner: gives bytes for features that are images.
        options: how they are decoded.
    """

    inner: RecordCodec

    def __init__(self, inner: RecordCodec, options: ImageOptions) -> None:
        schema = inner.schema
        self.inner = inner
        self.schema: Schema | None = schema
        self.features = inner.features
        self.options = options
        groups = schema.groups if schema is not None else ()
        self._images = [{name: f for name, f in group.items() if f.kind == "image"} for group in groups]
        self._nested = schema is not None and schema.encoding == "sequence_example"
        self._generators: Generators | None = None

    @property
    def has_images(self) -> bool:
        """Whether there is anything to decode."""
        return any(self._images)

    @property
    def random(self) -> bool:
        """Whether a record's images depend on more than its bytes: see `keyed`."""
        return self.options.random

    def keyed(self, generators: Generators) -> Self:
        """Return this codec for one call, whose random crops are drawn from a generator for each row.

        Args:
            generators: returns the generator of a row of the call, again each time.
        """
        other = copy(self)
        other._generators = generators  # noqa: SLF001 - its own
        return other

    def encode(self, value: Any) -> bytes:
        """Encode as the inner codec does."""
        return self.inner.encode(value)

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to values with uint8 arrays [height, width, channels] for images."""
        values = self.inner.decode_many(payloads, features=self._asked(features))
        for row, value in enumerate(values):
            self._decode_value(value, row)
        return values

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to columns.

        Images of one size are one array uint8 [n, height, width, channels], those of several sizes a list.
        With a size in the options each image is decoded into its place in that array.
        """
        columns = self.inner.decode_batch(payloads, features=self._asked(features))
        for part, name, feature in self._found(columns):
            column, rows = part[name], None
            if isinstance(column, RaggedColumn):  # the steps of a feature list
                rows = np.repeat(np.arange(len(column)), np.diff(column.offsets))
                part[name] = RaggedColumn(self._column(name, feature, column.values, rows), column.offsets)
            else:
                part[name] = self._column(name, feature, column)
        return columns

    def _decode_one(self, payload: bytes, features: Sequence[str] | None) -> Any:
        value = self.inner.decode(payload, features=self._asked(features))
        self._decode_value(value, 0)
        return value

    def _asked(self, features: Sequence[str] | None) -> Sequence[str] | None:
        return self.features if features is None else features

    def _decode_value(self, value: Any, row: int) -> None:
        for part, name, _ in self._found(value):
            part[name] = self._item(name, part[name], row)

    def _found(self, value: Any) -> Iterator[tuple[dict[str, Any], str, Feature]]:
        """Yield where the images of a value, or of columns, are."""
        parts = (value["context"], value["feature_lists"]) if self._nested else (value,)
        for part, images in zip(parts, self._images, strict=False):
            for name, feature in images.items():
                if name in part:
                    yield part, name, feature

    def _item(self, name: str, item: Any, row: int) -> Any:
        """Return an image, or a list of them; nothing stays nothing."""
        if item is None:
            return None
        return (
            [self._item(name, each, row) for each in item]
            if isinstance(item, list)
            else self._one(name, item, row)
        )

    def _one(self, name: str, data: bytes, row: int, out: Any = None) -> Any:
        options, size, generators = self.options, self.options.size, self._generators
        try:
            if size is None:
                return decode_image(data, channels=options.channels)
            made = np.empty((*size, options.channels or 3), np.uint8) if out is None else out
            sized_image(data, options, made, None if generators is None else lambda: generators(row))
        except FormatError as error:
            error.what = f"feature {name!r}: {error.what}"
            raise error.located(row=row) from error.__cause__
        return made

    def _column(self, name: str, feature: Feature, items: list[Any], rows: Any = None) -> Any:
        """Return the column of images; `rows` are those of the items where they are steps of a list."""
        places = range(len(items)) if rows is None else rows.tolist()
        whole = not feature.shape and None not in items
        if whole and self.options.size is not None:
            out = np.empty((len(items), *self.options.size, self.options.channels or 3), np.uint8)
            for image, data, row in zip(out, items, places, strict=True):
                self._one(name, data, row, image)
            return out
        made = [self._item(name, item, row) for item, row in zip(items, places, strict=True)]
        return np.stack(made) if whole and len({image.shape for image in made}) == 1 else made
