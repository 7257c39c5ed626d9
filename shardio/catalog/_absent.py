"""Errors of what is not there; they say what is there instead, and what to do with that."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from shardio.errors import NotFoundError, ShardioError
from shardio.metadata import naming

if TYPE_CHECKING:
    from shardio.catalog._version import Version
    from shardio.storage import Store

_LOOKED_AT = 100


def _nothing_here(store: Store) -> NotFoundError:
    """Return the error of a place without a dataset, which says what there is instead."""
    url, names = store.url, list[str]()
    # Where nothing can be listed, the address is all that can be told.
    with contextlib.suppress(ShardioError):
        names = [info.key for info in itertools.islice(store.list(linked=True), _LOOKED_AT)]
    found = None
    advice = (
        f"check the address; `shardio adopt {url}` makes a dataset of TFRecord, tar and JSONL files, "
        f"`shardio convert {url} NEW` of other formats, and `shardio head` reads a single shard"
    )
    sessions = [name.split("/")[2] for name in names if name.startswith(naming.SESSIONS)]
    if sessions and not naming.is_random_session(sessions[0]):
        found = f"the session {sessions[0]!r}, which was not committed"
        advice = (
            f"when its tasks have ended, shardio.commit({url!r}, session={sessions[0]!r}, tasks=N) "
            "makes the dataset; N is how many they are"
        )
    elif names and not any(
        n.startswith(f"{naming.METADATA}/") or n.endswith(naming.INDEX_SUFFIX) for n in names
    ):
        found = f"other files, such as {names[0]!r}"
    return NotFoundError("there is no shardio dataset here", url=url, found=found, advice=advice)


def no_version(store: Store, number: int | str | None = None, latest: Version | None = None) -> NotFoundError:
    """Return the error of a version that is not there, or of a place without a dataset (`latest` is None)."""
    if latest is None:
        return _nothing_here(store)
    expired = number in latest.manifest.expiry.expired_versions
    what = f"version {number} expired" if expired else f"there is no version {number}"
    return NotFoundError(what, url=store.url, advice=f"the latest is version {latest.number}")
