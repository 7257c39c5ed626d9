"""From a request that failed for good to the error of our tree that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np

from shardio.errors import NotFoundError, StorageError
from shardio.storage._engine import EngineError
from shardio.storage._face import ChangedObjectError, DeniedError, MissingBucketError, ShortReadError
from shardio.storage._fetch import ChangedError, PastEndError
from shardio.storage._verdict import Verdict

if TYPE_CHECKING:
    from shardio.storage._face import Offsets
    from shardio.storage._fetch import Identity
    from shardio.storage._retry import GaveUpError

__all__ = ["explain", "gave_up", "missing_bucket"]

E = TypeVar("E", bound=StorageError)

_ADVICE = {
    Verdict.DENIED: "check the credentials and that they may read (or write) this bucket and prefix",
    Verdict.EXPIRED: "renew the credentials; a long run needs ones that renew themselves",
    Verdict.BUSY: "try again later, or with fewer readers",
    Verdict.BROKEN: "check the network, the endpoint and the proxy",
    Verdict.BAD_REPLY: "a proxy or the server does not honour range requests; read from another place",
    Verdict.REFUSED: "check the URL, the region and the storage_options",
    Verdict.SKEWED: "set the clock of this machine (NTP does); it is too far from the service's",
    Verdict.INSECURE: "check the certificate, the proxy, and whether the endpoint speaks https or http",
    Verdict.LOCAL: "check the storage_options, the environment variables and the profile",
}
_OR_ABSENT = "or that it exists: who may not list the bucket is told 403 of what is absent, too"


def explain(
    error: GaveUpError | PastEndError,
    url: str,
    *,
    identity: Identity | None = None,
    ranges: tuple[Offsets, Offsets] | None = None,
) -> NoReturn:
    """Raise what the failure means.

    Raises:
        MissingBucketError: there is no such bucket.
        DeniedError: the service answered 403.
        NotFoundError: there is no such object.
        ShortReadError: the object ends before the range.
        ChangedObjectError: the object is not the one that was opened.
        StorageError: anything else.
    """
    if isinstance(error, PastEndError):
        raise _short(error.start, error.stop, error.total, url) from None
    cause = error.__cause__
    if isinstance(cause, PastEndError):
        raise _short(cause.start, cause.stop, cause.total, url) from None
    if isinstance(cause, ChangedError):
        what = "the object is not the one that was opened"
        advice = "somebody replaced it; open the dataset again, or index the shard again"
        raise ChangedObjectError(what, url=url, expected=cause.expected, found=cause.found, advice=advice)
    if isinstance(cause, EngineError):
        raise StorageError(str(cause), url=url, advice="or leave the engine to shardio") from None
    verdict = error.last.verdict
    if verdict is Verdict.ABSENT:
        raise NotFoundError(verdict.value, url=url) from error
    if verdict is Verdict.NO_BUCKET:
        raise missing_bucket(url) from error
    if verdict is Verdict.DENIED and error.last.status == 403:
        denied = gave_up(error, url, verdict.value, DeniedError)
        denied.advice = f"{denied.advice}, {_OR_ABSENT}"
        raise denied from error
    if identity is not None and identity.size is not None and ranges is not None:
        starts, stops = (np.asarray(column, np.int64) for column in ranges)
        past = np.flatnonzero(stops > identity.size)
        if past.size:
            i = int(past[0])
            raise _short(int(starts[i]), int(stops[i]), identity.size, url) from error
    if verdict is Verdict.PAST_END and ranges is not None:
        start, stop = int(np.min(ranges[0])), int(np.max(ranges[1]))
        raise _short(start, stop, start, url) from error
    raise gave_up(error, url, verdict.value) from error


def gave_up(error: GaveUpError, url: str, what: str, kind: type[E] = StorageError) -> E:  # type: ignore[assignment] # the default is the bound
    """Return an error that tells what was tried."""
    if error.attempts > 1:
        what = f"{what} (tried {error.attempts} times in {error.seconds:.1f} s)"
    return kind(what, url=url, found=error.last.text, advice=_ADVICE.get(error.last.verdict))


def missing_bucket(url: str) -> MissingBucketError:
    """Return the error for a bucket or container that is not there."""
    protocol, _, rest = url.partition("://")
    kind = "container" if protocol in {"az", "abfs", "abfss", "adl"} else "bucket"
    name = rest.partition("/")[0].partition("@")[0]
    what = f"there is no {kind} {name!r}"
    return MissingBucketError(
        what, url=url, advice="create it, or check the name and the account or endpoint"
    )


def _short(start: int, stop: int, total: int, url: str) -> ShortReadError:
    what = "the object ends before the bytes asked for"
    found = max(0, min(stop, total) - start)
    return ShortReadError(what, url=url, start=start, stop=stop, expected=stop - start, found=found)
