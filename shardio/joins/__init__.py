"""Features of a second dataset beside those of a first, without a copy of either."""

from __future__ import annotations

from shardio.joins._join import join as join
from shardio.joins._reader import (
    JoinedReader as JoinedReader,
    JoinedSource as JoinedSource,
    as_stored as as_stored,
    right_digest as right_digest,
)
