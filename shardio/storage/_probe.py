"""Does this store refuse to replace an object, as it promises? Asked once, before anything is written."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from shardio.errors import ShardioError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.storage._face import Store

__all__ = ["PROBES", "probe"]

# A probe whose writer was killed stays here, and is listed among the temporaries.
PROBES = "_shardio/probes/"


def probe(store: Store, create: Callable[[str, bytes], bool], refusal: Callable[[], str | None]) -> None:
    """Create an object twice under a random name; the second time must fail and change nothing.

    Args:
        store: where.
        create: the exclusive creation under test.
        refusal: asks the service for a reason why this bucket cannot do it, if it tells.

    Raises:
        StorageError: several writers would lose each other's commits here.
    """
    reason = refusal()
    if reason is None:
        key = PROBES + secrets.token_hex(16)
        try:
            if not create(key, b"first"):
                reason = "it reports an object that nobody created"
            elif create(key, b"second") or store.get(key, max_bytes=16) != b"first":
                reason = "it replaces objects although it was told to create them only if absent"
        finally:
            # Who may create but not delete leaves an object of five bytes.
            with contextlib.suppress(ShardioError):
                store.delete(key)
    if reason is not None:
        what = f"this store cannot commit safely: {reason}"
        advice = "use another bucket, or single_writer=True if nobody else writes here"
        raise StorageError(what, url=store.url, advice=advice)
