"""Token ids as text, by the tokenizer file that the metadata of a dataset names.

The metadata key "tokenizer" is the key of a `tokenizer.json` of Hugging Face within the dataset.  A URL or a
path that leads elsewhere is not followed: metadata may be hostile.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardio.errors import ShardioError

METADATA_KEY = "tokenizer"
_FILE_BYTES = 64 << 20
_MOST = {True: 4096, False: 64}  # ids that are decoded for a page of its own, and for a line
_KINDS = frozenset({"int32", "int64", "uint16", "uint32", "uint64"})

Decode = Callable[[list[int]], str | None]


def token_decoder(store: Any, metadata: Mapping[str, Any]) -> Decode | None:
    """Return a decoder of token ids, or None if the metadata names no usable tokenizer file."""
    key = metadata.get(METADATA_KEY)
    if not isinstance(key, str) or importlib.util.find_spec("tokenizers") is None:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(store.get(key, max_bytes=_FILE_BYTES))
    except (ShardioError, ValueError):
        return None
    except Exception as error:
        # The library raises bare `Exception` for a file that it cannot parse.
        if type(error) is not Exception:
            raise
        return None
    size = tokenizer.get_vocab_size()

    def decode(ids: list[int]) -> str | None:
        if not ids or min(ids) < 0 or max(ids) >= size:
            return None  # labels such as -100 are not tokens
        text: str = tokenizer.decode(ids, skip_special_tokens=False)
        return text

    return decode


def add_text(found: dict[str, Any], value: Any, decode: Decode | None, *, full: bool) -> dict[str, Any]:
    """Return a cell with the decoded text added, if its value is a list of token ids."""
    if (
        decode is None
        or not isinstance(value, np.ndarray)
        or value.ndim != 1
        or value.dtype.name not in _KINDS
    ):
        return found
    text = decode(value[: _MOST[full]].tolist())
    return found if text is None else {**found, "tokens": text}
