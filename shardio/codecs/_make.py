"""The one place that knows which encoding has which codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardio.codecs._codec import RecordCodec
from shardio.codecs._codec_example import ExampleCodec, SequenceExampleCodec
from shardio.codecs._codec_plain import ArrayCodec, BytesCodec
from shardio.codecs._images import ImageOptions, with_images
from shardio.codecs._tensors import TensorsCodec
from shardio.metadata import Schema, mds_layout


def record_codec(
    schema: Any = None,
    *,
    encoding: str | None = None,
    features: Sequence[str] | None = None,
    images: ImageOptions | None = None,
) -> RecordCodec:
    """Return the codec for the records of a schema.

    Args:
        schema: a Schema, a mapping that `Schema.parse` takes, a codec (such as `Message(cls)`, returned as it
            is), or None: records are bytes.
        encoding: how values are in a record; None is the schema's own, or "example".
        features: the only ones to decode; None means all.
        images: how images become uint8 [height, width, channels]; None: they stay the files' bytes.

    Raises:
        ValueError, TypeError: no schema, or no such feature; names it.

    Examples:
        >>> codec = record_codec({"label": "int64", "box": "float32[2]"})
        >>> codec.decode(codec.encode({"label": 3, "box": [0.5, 1]}))["box"]
        array([0.5, 1. ], dtype=float32)
    """
    if isinstance(schema, RecordCodec):
        return schema
    codec = _codec(schema, encoding)
    if features is not None:
        codec.decode_batch([], features=features)  # names the feature that does not exist
        codec.features = tuple(features)
    return with_images(codec, images)


def _codec(schema: Any, encoding: str | None) -> RecordCodec:
    if schema is None:
        if encoding not in (None, "bytes"):
            raise ValueError(f"the encoding {encoding!r} needs a schema")
        return BytesCodec(None)
    parsed = Schema.parse(schema, encoding=encoding)
    if mds_layout(parsed.encoding) is not None:
        raise ValueError(
            "samples of MDS are read where they are and never written: convert them into a dataset of their "
            "own to add records"
        )
    if parsed.encoding == "array":
        return ArrayCodec(parsed)
    makers: dict[str, Any] = {
        "example": ExampleCodec,
        "sequence_example": SequenceExampleCodec,
        "tensors": TensorsCodec,
        "bytes": BytesCodec,
    }
    codec: RecordCodec = makers[parsed.encoding](parsed)
    return codec
