"""Values of adopted records that are not payloads of a schema's encoding: samples of tar files, and lines.

A sample of a tar file is a dict: `"__key__"` and, by extension, the contents of its members, as WebDataset
gives them.  A schema decodes some of them: text, JSON, images, decimal numbers, `.npy` arrays of NumPy.  A
line is a str, or by the schema JSON or bytes.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from shardio import kernels
from shardio.codecs import RecordCodec, collate, record_codec, with_images
from shardio.errors import CorruptRecordError, FormatError, SchemaError
from shardio.format import Framing, read_sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardio.codecs import ImageOptions
    from shardio.metadata import Feature, Schema

__all__ = ["LineCodec", "TarSampleCodec", "foreign_codec", "value_codec"]

_KEY = "__key__"
_FOREIGN = {int(Framing.LINES), int(Framing.TAR_SAMPLE)}


def foreign_codec(
    framings: Iterable[int],
    schema: Schema | None,
    *,
    features: Sequence[str] | None,
    images: ImageOptions | None,
) -> RecordCodec | None:
    """Return the codec that framings ask for; None where the schema's encoding says all.

    Raises:
        SchemaError: records of several kinds in one sequence.
    """
    kinds = set(framings)
    if not kinds & _FOREIGN:
        return None
    if len(kinds) > 1:
        names = ", ".join(sorted(Framing(kind).name for kind in kinds))
        raise SchemaError(
            f"these shards hold records of several kinds ({names})",
            advice="open one split, or with decode=False for payloads",
        )
    codec: RecordCodec = LineCodec(schema) if kinds == {int(Framing.LINES)} else TarSampleCodec(schema)
    if features is not None:
        codec.features = tuple(features)
    return with_images(codec, images)


def value_codec(framings: Iterable[int], schema: Schema) -> RecordCodec:
    """Return the codec of records of some framings with a schema.

    Raises:
        SchemaError: records of several kinds, or a schema that cannot read them.
    """
    return foreign_codec(framings, schema, features=None, images=None) or record_codec(schema)


class _ReadOnlyCodec(RecordCodec):
    """A codec of what others wrote; each way of decoding goes through `_value`."""

    def __init__(self, schema: Schema | None) -> None:
        self.schema = schema

    def encode(self, value: Any) -> NoReturn:
        """Refuse: such shards are adopted, not written."""
        del value
        raise TypeError("tar samples and lines are read, not written; write records with a schema instead")

    def decode_many(self, payloads: Any, *, features: Sequence[str] | None = None) -> list[Any]:
        """Return the values of n records."""
        asked = self.features if features is None else tuple(features)
        values = []
        for row, payload in enumerate(_as_list(payloads)):
            try:
                values.append(self._value(payload, asked))
            except (SchemaError, FormatError) as error:
                raise error.located(row=row) from error
        return values

    @abstractmethod
    def _value(self, payload: bytes, features: tuple[str, ...] | None) -> Any:
        """Return the value of one record."""


class TarSampleCodec(_ReadOnlyCodec):
    """Samples of tar files: `{"__key__": str, extension: bytes}`; a schema names what is decoded further."""

    def decode_batch(self, payloads: Any, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Return columns: `"__key__"` and one list per extension, None where a sample has no such member."""
        samples = self.decode_many(payloads, features=features)
        asked = self.features if features is None else tuple(features)
        names: dict[str, None] = {_KEY: None}
        if asked is None and self.schema is not None:
            names |= dict.fromkeys(self.schema)
        for sample in samples if asked is None else ():
            names |= dict.fromkeys(sample)
        names |= dict.fromkeys(asked or ())
        return {name: self._column(name, [sample.get(name) for sample in samples]) for name in names}

    def _column(self, name: str, values: list[Any]) -> Any:
        feature = self.schema.get(name) if self.schema is not None else None
        return values if feature is None else collate(name, feature, values)

    def _value(self, payload: bytes, features: tuple[str, ...] | None) -> dict[str, Any]:
        key, members = read_sample(payload)
        schema: Mapping[str, Feature] = {} if self.schema is None else self.schema
        names = members if features is None else [name for name in features if name in members]
        sample: dict[str, Any] = {_KEY: key}
        for name in names:
            start, stop = members[name]
            sample[name] = _decode(name, schema.get(name), payload[start:stop])
        for name, feature in schema.items():
            if name not in members and (features is None or name in features):
                if not feature.optional:
                    what = f"sample {key!r} has no member {name!r}, which the schema requires"
                    raise SchemaError(what, advice="make the feature optional in the schema")
                sample[name] = feature.default
        return sample


class LineCodec(_ReadOnlyCodec):
    """Lines without their endings: str, or what the one feature of the schema says: JSON, text or bytes."""

    def __init__(self, schema: Schema | None) -> None:
        super().__init__(schema)
        if schema is not None and (len(schema) != 1 or schema.encoding != "bytes"):
            wanted = 'one text, json or bytes feature, encoding "bytes"'
            message = f"lines are read through a schema of {wanted}, not {schema!r}"
            raise ValueError(message)
        self._name = "text" if schema is None else next(iter(schema))
        self._feature: Feature | None = None if schema is None else schema[self._name]

    def decode_batch(self, payloads: Any, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the one column, named as the schema's feature, or "text"."""
        return {self._name: self.decode_many(payloads, features=features)}

    def _value(self, payload: bytes, features: tuple[str, ...] | None) -> Any:
        del features
        if self._feature is None:
            return _text(self._name, payload)
        return _decode(self._name, self._feature, payload)


def _as_list(payloads: Any) -> list[bytes]:
    if isinstance(payloads, tuple) and len(payloads) == 3 and isinstance(payloads[1], np.ndarray):
        return kernels.slice_records(*payloads)
    return list(payloads)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        advice = "declare it as bytes in the schema, or open with decode=False"
        raise CorruptRecordError(f"{name!r} is no UTF-8", found=str(error), advice=advice) from error


def _decode(name: str, feature: Feature | None, content: bytes) -> Any:
    """Return what a feature of a schema makes of the contents of a member, or of a line."""
    if feature is None or feature.kind in ("bytes", "image"):
        return content
    if feature.kind == "text":
        return _text(name, content)
    try:
        if feature.kind == "number":
            return np.asarray(feature.fit(_number(name, feature, content), name))[()]
        return feature.restore_item(content)
    except SchemaError:
        raise
    except (ValueError, RecursionError) as error:
        what = f"{name!r} is damaged ({type(error).__name__}: {error})"
        raise CorruptRecordError(what, advice="look at the shard with `shardio verify`") from error


def _number(name: str, feature: Feature, content: bytes) -> Any:
    """Return the number that text spells, or the array of a `.npy` file; pickles are never loaded."""
    if name.rpartition(".")[2] == "npy":
        return np.load(io.BytesIO(content), allow_pickle=False)
    if feature.shape:
        what = f"{name!r} is text, and the schema wants {feature.short}"
        raise SchemaError(what, advice="only .npy members hold arrays; declare it as text or bytes")
    spelled = content.decode("ascii").strip()
    return float(spelled) if feature.type.startswith("float") else int(spelled)
