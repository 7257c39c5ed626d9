"""The kernels in C, written in Cython's pure-Python mode; importable only where they were compiled.

Raises:
    ImportError: nothing was compiled here; `shardio.kernels` then takes `_reference`.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_HERE = Path(__file__).parent
_MODULES = ("_blocks", "_cyutility", "_encode", "_frames", "_messages", "_orders", "_parse", "_slices")


def _is_built(name: str) -> bool:
    return any((_HERE / (name + suffix)).exists() for suffix in EXTENSION_SUFFIXES)


# Without this question a development environment, where Cython is installed, would run the sources as Python:
# right and a thousand times slower than the reference.
if not all(map(_is_built, _MODULES)):
    raise ImportError("the kernels were not compiled here")

from shardio.kernels._compiled._blocks import (  # noqa: E402 (after the question whether they are there)
    MappedRecords,
    OpenBlock,
    ShardIndex,
    cut_frames,
    take_frames,
)
from shardio.kernels._compiled._encode import (  # noqa: E402 (the same)
    encode_example,
    encode_examples,
    pack_list,
)
from shardio.kernels._compiled._frames import (  # noqa: E402 (the same)
    FrameBuffer,
    check_frames,
    crc32c_joined,
    crc32c_many,
    encode_frames,
    scan_frames,
)
from shardio.kernels._compiled._orders import (  # noqa: E402 (the same)
    argsort_words,
    interleave,
    permute,
    shuffle_ranges,
)
from shardio.kernels._compiled._parse import (  # noqa: E402 (the same)
    parse_examples,
    parse_sequence_examples,
)
from shardio.kernels._compiled._slices import (  # noqa: E402 (the same)
    gather,
    gather_fixed,
    gather_from,
    gather_into,
    gather_rows,
    partition_frames,
    slice_records,
    slice_rows,
)
from shardio.kernels._reference import __all__, encode_sequence_example  # noqa: E402 (the same)

MISSING: tuple[str, ...] = ()
# Its C needs more of a compiler than the rest, which does not depend on it.
if _is_built("_images"):
    from shardio.kernels._compiled._images import resize_image
else:
    from shardio.kernels._reference._images import resize_image

    MISSING += ("resize_image",)
