"""`shardio restore`: make an earlier version the newest one."""

from __future__ import annotations

from shardio.cli._command import Command, Takes
from shardio.cli._describe import print_change
from shardio.cli._given import reported

COMMAND = Command(
    name="restore",
    summary="make an earlier version the latest again",
    takes=(Takes("shardio:restore", places=("url", "version")),),
    run=reported("shardio:restore", print_change),
    examples={
        "shardio restore s3://bucket/birds 41 --dry-run": "what would change",
        "shardio restore s3://bucket/birds v1": "go back to what the tag v1 names",
    },
)
