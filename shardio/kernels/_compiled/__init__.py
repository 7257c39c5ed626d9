"""The kernels in C, written in Cython's pure-Python mode; importable only where they were compiled.

Raises:
    ImportError: nothing was compiled here; `shardio.kernels` then takes `_reference`.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_HERE = Path(__file__).parent
_SOURCES = (
    "_encode",
    "_entries",
    "_frames",
    "_lists",
    "_memory",
    "_messages",
    "_orders",
    "_parse",
    "_rows",
    "_slices",
    "_wire",
)


def _is_built(name: str) -> bool:
    return any((_HERE / (name + suffix)).exists() for suffix in EXTENSION_SUFFIXES)


# Without this question a development environment, where Cython is installed, would run the sources as Python:
# right and a thousand times slower than the reference.
if not all(map(_is_built, _SOURCES)):
    message = "the kernels were not compiled here"
    raise ImportError(message)

from shardio.kernels._compiled._encode import encode_example, encode_examples  # noqa: E402 (the same)
from shardio.kernels._compiled._frames import (  # noqa: E402 (after the question whether they are there)
    check_frames,
    crc32c_many,
    encode_frames,
    scan_frames,
)
from shardio.kernels._compiled._orders import argsort_words  # noqa: E402 (the same)
from shardio.kernels._compiled._parse import (  # noqa: E402 (the same)
    parse_examples,
    parse_sequence_examples,
)
from shardio.kernels._compiled._slices import gather, gather_fixed, gather_from, slice_records  # noqa: E402 (the same)

MISSING: tuple[str, ...] = ()
# Its C needs more of a compiler than the rest, which does not depend on it.
if _is_built("_images"):
    from shardio.kernels._compiled._images import resize_image
else:
    from shardio.kernels._reference._images import resize_image

    MISSING += ("resize_image",)
# A tree that was compiled before these came has the others.
if _is_built("_shuffles"):
    from shardio.kernels._compiled._shuffles import shuffle_ranges
else:
    from shardio.kernels._reference._orders import shuffle_ranges

    MISSING += ("shuffle_ranges",)
if _is_built("_interleave"):
    from shardio.kernels._compiled._interleave import interleave, permute
else:
    from shardio.kernels._reference._orders import interleave, permute

    MISSING += ("interleave", "permute")
if _is_built("_gather"):
    from shardio.kernels._compiled._gather import deal_frames, gather_into, gather_rows, slice_rows
else:
    from shardio.kernels._reference._slices import deal_frames, gather_into, gather_rows, slice_rows

    MISSING += ("deal_frames", "gather_into", "gather_rows", "slice_rows")

# Likewise.
if _is_built("_framing"):
    from shardio.kernels._compiled._framing import FrameBuffer, crc32c_joined
else:
    from shardio.kernels._reference._frames import FrameBuffer, crc32c_joined

    MISSING += ("FrameBuffer", "crc32c_joined")
if all(map(_is_built, ("_blocks", "_columns", "_lookups", "_runs"))):
    from shardio.kernels._compiled._blocks import RecordLists, slice_frames
    from shardio.kernels._compiled._lookups import RecordLookup
    from shardio.kernels._compiled._runs import FrameRuns, take_frames
else:
    from shardio.kernels._reference._blocks import RecordLists, slice_frames
    from shardio.kernels._reference._lookups import RecordLookup
    from shardio.kernels._reference._runs import FrameRuns, take_frames

    MISSING += ("RecordLists", "RecordLookup", "FrameRuns", "slice_frames", "take_frames")

__all__ = [
    "FrameBuffer",
    "FrameRuns",
    "RecordLists",
    "RecordLookup",
    "argsort_words",
    "check_frames",
    "crc32c_joined",
    "crc32c_many",
    "deal_frames",
    "encode_example",
    "encode_examples",
    "encode_frames",
    "gather",
    "gather_fixed",
    "gather_from",
    "gather_into",
    "gather_rows",
    "interleave",
    "parse_examples",
    "parse_sequence_examples",
    "permute",
    "resize_image",
    "scan_frames",
    "shuffle_ranges",
    "slice_frames",
    "slice_records",
    "slice_rows",
    "take_frames",
]
