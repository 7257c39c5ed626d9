"""The hot loops over bytes: pure functions, compiled where possible, one meaning in both implementations.

Checksums and frames of TFRecord, records out of a buffer, tf.train.Example by the batch, orders of random
words, images in another size.  Nothing here does I/O or keeps state; everything that takes long releases the
interpreter lock where it is compiled.

`IMPLEMENTATION` says which one is in use: `"compiled"` (Cython) or `"reference"` (NumPy, crc32c, protobuf,
Pillow). `MISSING` names the functions of a compiled tree that are the reference's, as they were not compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.kernels._arguments import (
    MAX_RECORD as MAX_RECORD,
    Check as Check,
    FoundFrames as FoundFrames,
    Frames as Frames,
    Scan as Scan,
)
from shardio.kernels._checksums import crc32c as crc32c, mask_crc as mask_crc
from shardio.kernels._features import (
    Column as Column,
    FeatureRequest as FeatureRequest,
    Kind as Kind,
    Mismatch as Mismatch,
    Parsed as Parsed,
    Records as Records,
)
from shardio.kernels._interleaving import (
    Interleaved as Interleaved,
    Interleaving as Interleaving,
    InterleavingState as InterleavingState,
    Network as Network,
)

# The reference carries the types and the documentation of both.
from shardio.kernels._reference import *  # noqa: F403 - it lists the names once

if TYPE_CHECKING:
    IMPLEMENTATION: str
    MISSING: tuple[str, ...]
else:
    try:
        from shardio.kernels._compiled import *  # noqa: F403 - the same names
        from shardio.kernels._compiled import MISSING

        IMPLEMENTATION = "compiled"
    except ImportError:
        IMPLEMENTATION, MISSING = "reference", ()
