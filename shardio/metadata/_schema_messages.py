"""Features as the messages that manifests and receipts store, and back.

The normative text is in protos/shardio/v1/manifest.proto; what was stored is checked as if a caller gave it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import UnsupportedVersionError
from shardio.metadata._feature import Feature, Stored, restored
from shardio.metadata._types import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardio.v1 import manifest_pb2 as pb

__all__ = ["features_from", "fill_spec"]


def fill_spec(spec: pb.FeatureSpec, name: str, feature: Feature) -> None:
    """Write a feature into an empty message."""
    spec.name = name
    spec.type = feature.type
    spec.shape.extend(-1 if size is None else size for size in feature.shape)
    spec.optional = feature.optional
    default = feature.stored_default
    if default is not None:
        spec.has_default = True
        if isinstance(default, np.ndarray):
            spec.default.append(default.tobytes())
            spec.default_shape.extend(default.shape)
        else:
            spec.default.extend(default)


def features_from(specs: Iterable[pb.FeatureSpec]) -> dict[str, Feature]:
    """Return the features of stored messages, by name, in order.

    Raises:
        UnsupportedVersionError: a type that this version does not know.
        ValueError: anything else that is no feature; names it.
    """
    features: dict[str, Feature] = {}
    for spec in specs:
        if spec.name in features:
            message = f"feature {spec.name!r} stands there twice"
            raise ValueError(message)
        try:
            kind_of(spec.type)
        except ValueError as error:
            what = f"feature {spec.name!r} has the type {spec.type!r}"
            raise UnsupportedVersionError(what, advice="a newer shardio wrote it: upgrade") from error
        shape = tuple(None if size == -1 else size for size in spec.shape)
        try:
            feature = Feature(spec.type, shape=shape, optional=spec.optional)
            if spec.has_default:
                feature = restored(spec.type, shape, _stored_default(spec, feature), spec.optional)
        except ValueError as error:
            message = f"feature {spec.name!r}: {error}"
            raise ValueError(message) from error
        features[spec.name] = feature
    return features


def _stored_default(spec: pb.FeatureSpec, feature: Feature) -> Stored:
    """Return the stored default after the checks that `fit` makes for a value given by a caller."""
    items = list(spec.default)
    dtype = feature.dtype
    if dtype is None:
        stored: Stored = items
        sizes: tuple[int, ...] = (len(items),) if feature.shape else ()
        right = bool(feature.shape) or len(items) == 1
    else:
        sizes = tuple(spec.default_shape)
        # Python's integers do not overflow, and the product is compared with bytes that are there.
        right = len(items) == 1 and math.prod(sizes) * dtype.itemsize == len(items[0])
        stored = np.frombuffer(items[0], dtype).reshape(sizes) if right else items
    fits = len(sizes) == len(feature.shape) and all(
        want in (None, have) for want, have in zip(feature.shape, sizes, strict=True)
    )
    if not (right and fits):
        message = f"its default does not fit {feature.short}"
        raise ValueError(message)
    feature.restore(stored)  # text must be UTF-8, and json JSON
    return stored
