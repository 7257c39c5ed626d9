"""Looking after datasets: find every damage there is.  Nothing here changes an object that exists."""

from __future__ import annotations

from shardio.maintenance._fill import FillReport as FillReport, fill_cache as fill_cache
from shardio.maintenance._findings import (
    UNREADABLE as UNREADABLE,
    Finding as Finding,
    Survey as Survey,
    VerifyProgress as VerifyProgress,
    VerifyReport as VerifyReport,
)
from shardio.maintenance._indexed import CheckedBlock as CheckedBlock, check_indexed as check_indexed
from shardio.maintenance._stored_bytes import stored_crc32c as stored_crc32c
from shardio.maintenance._verify import (
    check_keys as check_keys,
    check_listed as check_listed,
    verify as verify,
)
