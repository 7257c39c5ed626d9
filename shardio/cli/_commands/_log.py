"""`shardio log`: the versions of a dataset, the latest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.cli._command import CLEAN, Command, Option
from shardio.cli._describe import moment
from shardio.cli._humanize import count, size
from shardio.cli._options import STORAGE, storage_options, url_argument

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.catalog import Version
    from shardio.cli._console import Console

__all__ = ["COMMAND"]


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    if arguments.n is not None and arguments.n < 1:
        message = f"-n {arguments.n} must be at least 1"
        raise ValueError(message)
    versions = shardio.log(arguments.url, storage_options=storage_options(arguments))
    expired = set(versions[-1].manifest.expiry.expired_versions)
    shown = [_facts(version, expired) for version in versions[::-1][: arguments.n]]
    if console.json:
        console.document({"url": arguments.url, "versions": shown})
        return CLEAN
    rows = [
        (
            str(facts["version"]),
            moment(facts["created_ms"]).removesuffix(" UTC"),
            facts["operation"] + (" (expired)" if facts["expired"] else ""),
            count(sum(split["records"] for split in facts["splits"].values())),
            count(sum(split["shards"] for split in facts["splits"].values())),
            size(sum(split["stored_bytes"] for split in facts["splits"].values())),
            facts["digest"][:19],
        )
        for facts in shown
    ]
    head = ("version", "committed (UTC)", "by", "records", "shards", "stored", "digest")
    console.table(rows, head=head, right=(0, 3, 4, 5))
    return CLEAN


def _facts(version: Version, expired: set[int]) -> dict[str, Any]:
    manifest = version.manifest
    return {
        "version": version.number,
        "digest": version.digest,
        "operation": manifest.operation,
        "created_ms": manifest.created_ms,
        "writer": manifest.writer,
        "expired": version.number in expired,
        "sessions": [session.session for session in manifest.sessions if session.version == version.number],
        "splits": {
            split.name: {"records": split.rows, "shards": split.shards, "stored_bytes": split.stored_bytes}
            for split in manifest.splits
        },
    }


_PARAMS = (
    url_argument(),
    Option(["-n", "n"], type=int, metavar="N", help="the latest N versions only"),
    *STORAGE,
)  # fmt: skip

COMMAND = Command(
    name="log",
    group="look",
    summary="list the versions, the latest first",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio log s3://bucket/birds -n 5": "the five latest versions",
        "shardio log birds --json": "digests, sessions and sizes in full",
    },
)
