"""Looking after datasets: find every damage there is.  Nothing here changes an object that exists."""

from __future__ import annotations

from shardio.maintenance._findings import Finding, VerifyProgress, VerifyReport
from shardio.maintenance._verify import verify

__all__ = ["Finding", "VerifyProgress", "VerifyReport", "verify"]
