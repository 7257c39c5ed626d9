"""Tables of small features beside the shards: how they are built, and conditions in SQL over them."""

from __future__ import annotations

from shardio.tables._build import TableReport as TableReport, build_table as build_table
from shardio.tables._where import matching as matching, parse_condition as parse_condition
