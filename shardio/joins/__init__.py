"""Features of a second dataset beside those of a first, without a copy of either."""

from __future__ import annotations

from shardio.joins._join import join as join
