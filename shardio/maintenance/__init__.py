"""Looking after datasets: find every damage there is.  Nothing here changes an object that exists."""

from __future__ import annotations

from shardio.maintenance._fill import FillReport, fill_cache
from shardio.maintenance._findings import UNREADABLE, Finding, Survey, VerifyProgress, VerifyReport
from shardio.maintenance._indexed import check_indexed
from shardio.maintenance._verify import check_keys, check_listed, verify

__all__ = [
    "UNREADABLE",
    "FillReport",
    "Finding",
    "Survey",
    "VerifyProgress",
    "VerifyReport",
    "check_indexed",
    "check_keys",
    "check_listed",
    "fill_cache",
    "verify",
]
