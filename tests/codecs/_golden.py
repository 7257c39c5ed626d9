"""What TensorFlow wrote, read without any of the code under test."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent.parent / "golden"
TENSORFLOW = GOLDEN / "tensorflow"


def payloads(name: str) -> list[bytes]:
    data, place, found = (TENSORFLOW / name).read_bytes(), 0, []
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        found.append(data[place + 12 : place + 12 + length])
        place += length + 16
    return found


def expected(part: str) -> list[Any]:
    return json.loads((TENSORFLOW / "expected.json").read_text())[part]


def is_same(found: Any, wanted: dict[str, list[Any]] | None) -> bool:
    """Whether a decoded feature is what the file says of it."""
    if wanted is None:
        return found == []
    if "bytes" in wanted:
        return found == [base64.b64decode(item) for item in wanted["bytes"]]
    if "int64" in wanted:
        return found.dtype == np.int64 and found.tolist() == [int(item) for item in wanted["int64"]]
    return found.dtype == np.float32 and found.view(np.uint32).tolist() == wanted["float_bits"]
