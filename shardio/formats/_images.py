"""Images and labels, for folders, lists and tar files alike."""

from __future__ import annotations

from typing import Any

from shardio.codecs import decode_image
from shardio.errors import FormatError, SchemaError
from shardio.formats._fields import LabelColumn
from shardio.formats._source import keep_as
from shardio.metadata import Schema, image_type

# What an ending says of the file, for folders and for members of tar files alike.
IMAGE_TYPES = {
    "jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff",
    "bmp": "image", "gif": "image", "ppm": "image", "pgm": "image",
}  # fmt: skip


def with_label(value: Any, schema: Schema, labels: LabelColumn) -> Any:
    """Return a record whose label, which is text, is what the schema says that it is.

    Raises:
        SchemaError: the schema says that it is a number, and it is none.
    """
    feature = schema.get("label")
    if feature is None or value.get("label") is None:
        return value
    try:
        return {**value, "label": labels.fit(value["label"], feature)}
    except ValueError as error:
        raise SchemaError(
            f"the label is not {feature.short} ({error})",
            found=repr(value["label"][:40]),
            advice=f"keep its text with {keep_as('label', 'text')}",
        ) from error


def image_trouble(data: bytes, *, check: bool) -> str | None:
    """Say why a file is not an image, or None where it is one; `check` decodes it."""
    if not data:
        return "unreadable image: the file is empty"
    if not check:
        return None if image_type(data) or data[:2] in {b"P5", b"P6"} else "unreadable image: unknown format"
    try:
        decode_image(data)
    except FormatError as error:
        return f"unreadable image: {error.what}"
    return None
