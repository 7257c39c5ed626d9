"""Tables of small features beside the shards: how they are built."""

from __future__ import annotations

from shardio.tables._build import TableReport as TableReport, build_table as build_table
