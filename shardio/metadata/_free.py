"""Free metadata: what callers say about a dataset, as a JSON object of bounded size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Limits, check_json_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["decode_metadata", "encode_metadata"]


def encode_metadata(metadata: Mapping[str, Any], *, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return free metadata as JSON.

    Raises:
        ValueError: it is no mapping of strings to what JSON knows, or over the limit.
    """
    try:
        # Before it is sorted by them: keys of two kinds cannot be compared.
        check_json_keys(dict(metadata))
        data = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"metadata must be a mapping that JSON can hold: {error}"
        raise ValueError(message) from error
    if len(data) > limits.metadata:
        message = f"metadata has {len(data)} bytes as JSON, over the limit of {limits.metadata}"
        raise ValueError(message)
    return data


def decode_metadata(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Return free metadata from JSON; no bytes are an empty mapping.

    Raises:
        FormatError: over the limit, no JSON, nested beyond reason, or no object.
    """
    if len(data) > limits.metadata:
        raise FormatError("the free metadata is over the limit", expected=limits.metadata, found=len(data))
    try:
        metadata = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise FormatError("the free metadata is no JSON", found=str(error)) from error
    if not isinstance(metadata, dict):
        raise FormatError("the free metadata is no JSON object", found=type(metadata).__name__)
    return metadata
