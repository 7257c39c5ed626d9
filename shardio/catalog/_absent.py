"""Errors of what is not there; they say what is there instead, and what to do with that."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

from shardio.errors import NotFoundError, ShardioError
from shardio.metadata import naming

if TYPE_CHECKING:
    from shardio.catalog._version import Version
    from shardio.storage import Store

# Names that tell what is at an address where no dataset is.
_ADOPTED = re.compile(r"\.tfrecords?\b|\.(tfrec|tar|jsonl|ndjson)(\.\w+)?$")
_TABLE = re.compile(r"\.(parquet|arrow|feather|csv|tsv|jsonl|ndjson|tar)(\.\w+)?$")
_LOOKED_AT = 100


def nothing_here(store: Store, what: str) -> NotFoundError:
    """Return the error of a place without a dataset, which says what there is instead."""
    url = store.url
    names: list[str] = []
    # Where nothing can be listed, the address is all that can be told.
    with contextlib.suppress(ShardioError):
        names = [info.key for info in itertools.islice(store.list(linked=True), _LOOKED_AT)]
    sessions = [name for name in names if name.startswith(naming.SESSIONS)]
    session = sessions[0].removeprefix(naming.SESSIONS).partition("/")[0] if sessions else ""
    if session and not naming.is_random_session(session):
        return NotFoundError(
            what,
            url=url,
            found=f"the session {session!r}, which was not committed",
            advice=f"when its tasks have ended, shardio.commit({url!r}, session={session!r}, tasks=N) "
            "makes the dataset; N is how many they are",
        )
    own = any(name.startswith("_shardio/") or name.endswith(".shardidx") for name in names)
    shards = [name for name in names if _ADOPTED.search(name)]
    found = None
    advice = (
        "check the address; TFRecord files without a dataset around them are adopted with `shardio adopt`"
    )
    if shards and not own:
        found = f"shards of another kind, such as {shards[0]!r}"
        advice = f"`shardio adopt {url}` makes a dataset of them"
    elif names and not own:
        found = f"other files, such as {names[0]!r}"
        advice = f"check the address; `shardio convert {url} NEW` makes a dataset of other formats"
    return NotFoundError(what, url=url, found=found, advice=advice)


def no_version(store: Store, number: int | None = None, latest: Version | None = None) -> NotFoundError:
    """Return the error of a version that is not there, or of a place without a dataset (`latest` is None)."""
    if latest is None:
        folder, _, name = store.url.rstrip("/").rpartition("/")
        # The name alone tells, as in `is_shard`: an error asks for nothing more.
        if _TABLE.search(name):
            return NotFoundError(
                "there is no shardio dataset here: this names one file",
                url=store.url,
                advice=f"`shardio convert {store.url} NEW` makes a dataset of it",
            )
        if ".tfrecord" in name:
            return NotFoundError(
                "there is no shardio dataset here: this names one file",
                url=store.url,
                advice="open the folder of the dataset that holds it; where there is none, "
                f"`shardio adopt {folder}` makes one, and `shardio head` reads a file by itself",
            )
        return nothing_here(store, "there is no shardio dataset here")
    if number in latest.manifest.expiry.expired_versions:
        return NotFoundError(
            f"version {number} expired",
            url=store.url,
            advice=f"the latest is version {latest.number}",
        )
    return NotFoundError(
        f"there is no version {number}",
        url=store.url,
        advice=f"the latest is version {latest.number}",
    )
