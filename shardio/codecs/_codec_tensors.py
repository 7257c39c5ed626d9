"""Codec of the encoding "tensors": a record is a TensorProtos message, one named tensor per feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.codecs._codec import RecordCodec, as_list, fitting_parts
from shardio.codecs._collate import collate, each, item_decoder
from shardio.codecs._tensors import Tensor, fill_tensor, read_tensors
from shardio.errors import FormatError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.codecs._codec import Payloads
    from shardio.metadata import Feature, Schema

__all__ = ["TensorsCodec"]


class TensorsCodec(RecordCodec):
    """Records of named tensors; values are dicts by the schema.

    Text, json, bytes and images are string tensors, bfloat16 its bits as UINT16.  Tensors without names, as
    other writers make them, are taken in the order of the schema.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema: Schema = schema

    def encode(self, value: Any) -> bytes:
        """Encode a dict; None stands for a missing optional feature."""
        from shardio.v1 import tensor_pb2

        given = fitting_parts(value, self.schema, "the record")
        message = tensor_pb2.TensorProtos()
        for name, feature in self.schema.items():
            item = given.get(name)
            if item is None and feature.optional:
                continue
            stored = feature.fit(item, name)
            proto = message.protos.add()
            if isinstance(stored, list):
                proto.data_type = tensor_pb2.TensorProto.STRING
                proto.dims.append(len(stored))
                proto.string_data.extend(stored)
            else:
                fill_tensor(proto, name, stored)
            proto.name = feature.stored_name or name
        data: bytes = message.SerializeToString()
        return data

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to dicts by feature."""
        chosen = self._selected(self.schema, features)
        names = frozenset(self.schema) if chosen is None else chosen
        values: list[Any] = []
        try:
            values.extend(self._value(read_tensors(payload), names) for payload in as_list(payloads))
        except (SchemaError, FormatError) as error:
            # Rows of the errors of single items are all 0: there was one.
            error.row = len(values)
            raise
        return values

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to columns by feature."""
        rows = self.decode_many(payloads, features=features)
        names = self._selected(self.schema, features)
        return {
            name: collate(name, feature, [row[name] for row in rows])
            for name, feature in self.schema.items()
            if names is None or name in names
        }

    def _value(self, tensors: list[Tensor], names: frozenset[str]) -> dict[str, Any]:
        if tensors and not any(tensor.name for tensor in tensors):
            stored = (feature.stored_name or name for name, feature in self.schema.items())
            by_name = dict(zip(stored, tensors, strict=False))
        else:
            by_name = {tensor.name: tensor for tensor in tensors}
        return {
            name: self._item(name, feature, by_name.get(feature.stored_name or name))
            for name, feature in self.schema.items()
            if name in names
        }

    def _item(self, name: str, feature: Feature, tensor: Tensor | None) -> Any:
        if tensor is None:
            if not feature.optional:
                advice = "make the feature optional in the schema if it may be missing"
                raise SchemaError(f"feature {name!r} is required and the record lacks it", advice=advice)
            return feature.default
        if isinstance(tensor.values, list):
            return self._items(name, feature, tensor.values)
        if feature.dtype is None and tensor.values.dtype == np.uint8:
            return self._items(name, feature, [tensor.values.tobytes()])
        values = tensor.shaped()
        fits = isinstance(values, np.ndarray) and values.dtype == feature.dtype and _fits(feature, values)
        if not fits or not isinstance(values, np.ndarray):
            found = f"{tensor.values.dtype.name}, sizes {list(tensor.dims)}"
            raise SchemaError(
                f"feature {name!r} does not fit the schema", expected=feature.short, found=found
            )
        return values if feature.shape else values[()]

    def _items(self, name: str, feature: Feature, items: list[bytes]) -> Any:
        if feature.dtype is not None:
            what = f"feature {name!r} does not fit the schema"
            raise SchemaError(what, expected=feature.short, found="strings")
        if len(items) != 1 if not feature.shape else feature.shape[0] not in (None, len(items)):
            what = f"feature {name!r} has the wrong number of values"
            raise SchemaError(what, expected=feature.short, found=len(items))
        decode = item_decoder(feature)
        values = items if decode is None else each(name, decode, items, [0] * len(items))
        return values if feature.shape else values[0]


def _fits(feature: Feature, values: np.ndarray[Any, Any]) -> bool:
    return len(feature.shape) == values.ndim and all(
        want in (None, have) for want, have in zip(feature.shape, values.shape, strict=True)
    )
