"""What a failed request means: the error of a client library, its kind, the error that is raised.

Five client libraries disagree on classes (the same 412 is `FileExistsError` here and `OSError(22)` there), so
the status and the service's error code decide wherever they can be found, along the chain of causes too.
None of the libraries is imported.
"""

from __future__ import annotations

import asyncio
import email.utils
import enum
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from shardio.errors import NotFoundError, StorageError
from shardio.storage._store import (
    ChangedObjectError,
    DeniedError,
    MissingBucketError,
    Offsets,
    ShortReadError,
)


class ErrorKind(enum.Enum):
    """What to do about a failed request."""

    NOT_FOUND = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    EXISTS = "an object of that name already exists"
    DENIED = "access is denied"
    EXPIRED = "the credentials have expired"
    CLOCK_SKEW = "the service refuses the time on this machine's clock"
    TLS = "no secure connection can be made"
    PAST_END = "the range is past the end of the object"
    UNAVAILABLE = "the service is overloaded or out of order"
    CONNECTION = "the connection failed"
    BAD_RESPONSE = "the response is not what was asked for"
    CHANGED = "the object is not the one that was opened"
    REFUSED = "the service refuses the request"
    LOCAL = "the request could not be made"

    @property
    def worth_retrying(self) -> bool:
        """Whether the same request may succeed later."""
        return self in {
            ErrorKind.UNAVAILABLE,
            ErrorKind.CONNECTION,
            ErrorKind.BAD_RESPONSE,
            ErrorKind.EXPIRED,
        }


class RequestFailure(NamedTuple):
    """A failed request, classified.

    Attributes:
        kind: what it means.
        text: one line for people: status, code and the service's own words.
        status: the HTTP status, if there was a response.
        retry_after: seconds that the service asked to wait, or 0.
        applied: whether a write may have taken effect all the same.
    """

    kind: ErrorKind
    text: str
    status: int | None = None
    retry_after: float = 0.0
    applied: bool = False


class StatusError(Exception):
    """A response whose status is an error, for clients that look at responses themselves."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status
        self.text = text
        self.headers = headers or {}


class NoAnswerError(Exception):
    """A request had no answer in time."""


class BadResponseError(Exception):
    """A response that claims success but is not what was asked for."""


class UnprovenError(BadResponseError):
    """What came of an upload is not proven: something else answered with success, or it was ended."""


class ChangedError(BadResponseError):
    """The response is of another version of the object than the one that was opened.

    Attributes:
        expected, found: sizes or ETags.
        settled: the same was found by all attempts of an earlier request, so that another one is of no use.
        total: the size that the response tells.
    """

    def __init__(self, expected: str, found: str, *, settled: bool = False, total: int | None = None) -> None:
        super().__init__(f"the object has changed: expected {expected}, found {found}")
        self.expected = expected
        self.found = found
        self.settled = settled
        self.total = total


class PastEndError(Exception):
    """The object ends before the range does: an answer, not an accident."""

    def __init__(self, start: int, stop: int, total: int) -> None:
        super().__init__(f"bytes [{start}, {stop}) of an object of {total}")
        self.start = start
        self.stop = stop
        self.total = total


class EngineError(Exception):
    """The engine that was insisted on cannot be used."""


class RetryError(Exception):
    """A request failed for good.

    Attributes:
        last: the last failure, classified.
        attempts: requests sent.
        seconds: time spent.
        applied: some attempt of a write may have taken effect.
    """

    def __init__(self, last: RequestFailure, *, attempts: int, seconds: float, applied: bool) -> None:
        super().__init__(last.text)
        self.last = last
        self.attempts = attempts
        self.seconds = seconds
        self.applied = applied


class _Facts(NamedTuple):
    status: int | None
    code: str
    text: str
    headers: Mapping[str, str]


_BY_STATUS = {
    301: ErrorKind.REFUSED,
    401: ErrorKind.DENIED,
    403: ErrorKind.DENIED,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.UNAVAILABLE,
    409: ErrorKind.UNAVAILABLE,
    410: ErrorKind.NOT_FOUND,
    412: ErrorKind.EXISTS,
    416: ErrorKind.PAST_END,
    425: ErrorKind.UNAVAILABLE,
    429: ErrorKind.UNAVAILABLE,
    # What the service does not implement it will not implement later either.
    501: ErrorKind.REFUSED,
    505: ErrorKind.REFUSED,
}
_EXPIRED = re.compile(
    r"ExpiredToken|TokenRefreshRequired|RequestExpired|InvalidToken|token (has|is) expired|expired token|"
    r"Invalid Credentials|invalid_token|credentials? (have|has|are) expired|Signature not valid in the spec",
    re.IGNORECASE,
)
# In the words of S3 (two of them), STS (two), Azure (two) and Google.
_SKEWED = re.compile(
    r"RequestTimeTooSkewed|difference between the request time|Signature not yet current|Signature expired|"
    r"date header too old|Date header in the request is incorrect|in a reasonable timeframe",
    re.IGNORECASE,
)
_INSECURE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|invalid peer certificate|WRONG_VERSION_NUMBER|"
    r"record layer failure|received corrupt message|TLSV1_ALERT|no protocols available",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist")
_NO_BUCKET_CODE = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
_BUSY = re.compile(r"SlowDown|reduce your request rate|Throttl|ServerBusy|RequestTimeout\b")
_EXISTS = re.compile(r"BlobAlreadyExists|PreconditionFailed|conditionNotMet")
_OBSTORE_STATUS = re.compile(r"status: (\d{3})\b|status code: (\d{3})\b")
_OBSTORE_BAD = re.compile(
    r"UnexpectedRange|NotPartial|RangeNotSupported|InvalidRangeRequest|ParseContentRange|NoContentRange"
)


def classify(error: BaseException) -> RequestFailure:
    """Explain an error of any client library; what is unknown counts as refused, and is not retried."""
    if isinstance(error, NoAnswerError):
        return RequestFailure(ErrorKind.CONNECTION, str(error), applied=True)
    for link in _chain(error):
        if isinstance(link, BadResponseError):
            settled = isinstance(link, ChangedError) and link.settled
            kind = ErrorKind.CHANGED if settled else ErrorKind.BAD_RESPONSE
            # What answers in a service's place may answer the look at the object, too.
            return RequestFailure(kind, str(link), applied=isinstance(link, UnprovenError))
        facts = _facts(link)
        if facts is not None:
            return _classify_status(facts)
    for link in _chain(error):
        found = _by_class(link)
        if found is not None and found.kind is ErrorKind.CONNECTION and _INSECURE.search(_text_of(error)):
            return RequestFailure(ErrorKind.TLS, found.text)
        if found is not None and found.kind is ErrorKind.CONNECTION:
            return found._replace(applied=not _nothing_sent(error))
        if found is not None:
            return found
    return RequestFailure(ErrorKind.LOCAL, f"{type(error).__name__}: {_first_line(error)}", applied=True)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = 0
    link: BaseException | None = error
    while link is not None and seen < 10:
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        seen += 1


def _facts(error: BaseException) -> _Facts | None:
    if isinstance(error, StatusError):
        return _Facts(error.status, "", error.text, error.headers)
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        meta = response.get("ResponseMetadata", {})
        inner = response.get("Error", {})
        status = meta.get("HTTPStatusCode")
        code = str(inner.get("Code", ""))
        return _Facts(status, code, str(inner.get("Message", "")), meta.get("HTTPHeaders", {}))
    status = getattr(error, "status_code", None)
    if isinstance(status, int):  # azure
        headers = getattr(response, "headers", None) or {}
        return _Facts(status, str(getattr(error, "error_code", "") or ""), _first_line(error), headers)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):  # requests, httpx, huggingface_hub
        return _Facts(status, "", _first_line(error), getattr(response, "headers", None) or {})
    module = type(error).__module__
    status = getattr(error, "status", None)
    # aiohttp gives a status to responses that it could not read, too; those have no history.
    if (
        module.startswith("aiohttp")
        and isinstance(status, int)
        and hasattr(error, "history")
        and status >= 300
    ):
        return _Facts(status, "", _first_line(error), getattr(error, "headers", None) or {})
    if module.startswith("gcsfs"):
        status = getattr(error, "code", None)
        if str(status).isdigit():
            return _Facts(int(str(status)), "", str(getattr(error, "message", "")), {})
    if module.startswith("obstore"):
        match = _OBSTORE_STATUS.search(str(error))
        if match:
            words = str(error).partition("\n\nDebug")[0]
            return _Facts(int(match[1] or match[2]), "", words.partition("status code: ")[2] or words, {})
    return None


def _classify_status(facts: _Facts) -> RequestFailure:
    status = facts.status
    # The words are searched for codes only where the status is an error; a body may hold anything.
    words = f"{facts.code} {facts.text}"
    if status in {400, 401, 403} and _SKEWED.search(words):
        kind = ErrorKind.CLOCK_SKEW
    elif status in {400, 401, 403} and _EXPIRED.search(words):
        kind = ErrorKind.EXPIRED
    elif status == 404 and _NO_BUCKET.search(words):
        kind = ErrorKind.NO_BUCKET
    elif _BUSY.search(words):
        kind = ErrorKind.UNAVAILABLE
    elif _EXISTS.search(words):
        kind = ErrorKind.EXISTS
    elif status is None:
        kind = ErrorKind.REFUSED
    else:
        kind = _BY_STATUS.get(status, ErrorKind.UNAVAILABLE if status >= 500 else ErrorKind.REFUSED)
    # One line, also of a page that a gateway made.
    line = " ".join(facts.text.split())[:200]
    text = " ".join(part for part in (f"status {status}", facts.code, line) if part)
    # A gateway's 5xx says nothing about what the service behind it did; that it cannot do it says enough.
    applied = status is not None and status >= 500 and kind is not ErrorKind.REFUSED
    return RequestFailure(kind, text, status, _retry_after(facts.headers), applied)


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("retry-after") or headers.get("Retry-After")
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        # A date, of which only the distance from the response's own date counts: our clock may be wrong.
        moment = email.utils.parsedate_to_datetime(value).timestamp()
        date = headers.get("date") or headers.get("Date")
        start = email.utils.parsedate_to_datetime(date).timestamp() if date else time.time()
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, moment - start)


def _by_class(error: BaseException) -> RequestFailure | None:
    text = f"{type(error).__name__}: {_first_line(error)}"
    names = {cls.__name__ for cls in type(error).__mro__}
    module = type(error).__module__
    # Stores have no folders: what is one elsewhere is not an object.
    if isinstance(error, FileNotFoundError) and _NO_BUCKET_CODE.search(str(error)):  # obstore, with the body
        return RequestFailure(ErrorKind.NO_BUCKET, text, 404)
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return RequestFailure(ErrorKind.NOT_FOUND, text)
    if isinstance(error, FileExistsError) or "AlreadyExistsError" in names:
        return RequestFailure(ErrorKind.EXISTS, text)
    if "RefreshError" in names:  # google-auth
        return RequestFailure(ErrorKind.CLOCK_SKEW if _SKEWED.search(text) else ErrorKind.EXPIRED, text)
    if isinstance(error, PermissionError) or names & {"NoCredentialsError", "ClientAuthenticationError"}:
        return RequestFailure(ErrorKind.DENIED, text)
    if "FlexibleChecksumError" in names:  # botocore: the body is not what the service's checksum says
        return RequestFailure(ErrorKind.BAD_RESPONSE, text)
    if module.startswith("obstore"):
        if _OBSTORE_BAD.search(str(error)):
            return RequestFailure(ErrorKind.BAD_RESPONSE, text)
        if "GenericError" in names and "incorrectly configured region" not in str(error):
            return RequestFailure(ErrorKind.CONNECTION, text, applied=True)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, ConnectionError, EOFError)) or names & {
        "ClientError" if module.startswith("aiohttp") else "",
        "TransportError" if any(cls.__module__.startswith("httpx") for cls in type(error).__mro__) else "",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteRead",
        "IncompleteReadError",
        "RequestException",
        "ResponseParserError",
        "ServiceRequestError",
        "ServiceResponseError",
    }:
        return RequestFailure(ErrorKind.CONNECTION, text, applied=True)
    return None


def _nothing_sent(error: BaseException) -> bool:
    """Tell whether no connection came about; botocore says so of connections that broke later, too."""
    return any(
        isinstance(link, ConnectionRefusedError)
        or {cls.__name__ for cls in type(link).__mro__} & {"ClientConnectorError", "ConnectTimeoutError"}
        for link in _chain(error)
    )


def _text_of(error: BaseException) -> str:
    return " ".join(str(link) for link in _chain(error))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


E = TypeVar("E", bound=StorageError)

_ADVICE = {
    ErrorKind.DENIED: "check the credentials and that they may read (or write) this bucket and prefix",
    ErrorKind.EXPIRED: "renew the credentials; a long run needs ones that renew themselves",
    ErrorKind.UNAVAILABLE: "try again later, or with fewer readers",
    ErrorKind.CONNECTION: "check the network, the endpoint and the proxy",
    ErrorKind.PAST_END: "the object itself is not damaged: try again, or read from elsewhere",
    ErrorKind.BAD_RESPONSE: "a proxy or the server ignores ranges or compresses answers; read from elsewhere",
    ErrorKind.REFUSED: "check the URL, the region and the storage_options",
    ErrorKind.CLOCK_SKEW: "set the clock of this machine (NTP does); it is too far from the service's",
    ErrorKind.TLS: "check the certificate, the proxy, and whether the endpoint speaks https or http",
    ErrorKind.LOCAL: "check the storage_options, the environment variables and the profile",
}
_OR_ABSENT = "or that it exists: without permission to list the bucket, a missing object gives 403, too"


def raise_storage_error(
    error: RetryError | PastEndError,
    url: str,
    *,
    size: int | None = None,
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
        what = ErrorKind.CHANGED.value
        advice = "it was replaced; open the dataset again, or index the shard again"
        raise ChangedObjectError(what, url=url, expected=cause.expected, found=cause.found, advice=advice)
    if isinstance(cause, EngineError):
        raise StorageError(str(cause), url=url, advice="or leave the engine to shardio") from None
    kind = error.last.kind
    if kind is ErrorKind.NOT_FOUND:
        raise NotFoundError(kind.value, url=url) from error
    if kind is ErrorKind.NO_BUCKET:
        raise missing_bucket(url) from error
    if kind is ErrorKind.DENIED and error.last.status == 403:
        denied = storage_error(error, url, kind.value, DeniedError)
        denied.advice = f"{denied.advice}, {_OR_ABSENT}"
        raise denied from error
    if size is not None and ranges is not None:
        starts, stops = (np.asarray(column, np.int64) for column in ranges)
        past = np.flatnonzero(stops > size)
        if past.size:
            i = int(past[0])
            raise _short(int(starts[i]), int(stops[i]), size, url) from error
    if kind is ErrorKind.PAST_END and ranges is not None:
        start, stop = int(np.min(ranges[0])), int(np.max(ranges[1]))
        if size is None:
            raise _short(start, stop, start, url) from error
        # Not damage: the object is as long as it should be, and its server contradicts itself.
        raise StorageError(
            "the server says that the object ends before bytes that it has",
            url=url,
            start=start,
            stop=stop,
            expected=f"bytes of an object of {size} bytes, as the server itself says",
            found=error.last.text,
            advice=_ADVICE[kind],
        ) from error
    raise storage_error(error, url, kind.value) from error


def storage_error(error: RetryError, url: str, what: str, kind: type[E] = StorageError) -> E:  # type: ignore[assignment] # the default is the bound
    """Return an error that tells what was tried."""
    if error.attempts > 1:
        what = f"{what} (tried {error.attempts} times in {error.seconds:.1f} s)"
    return kind(what, url=url, found=error.last.text, advice=_ADVICE.get(error.last.kind))


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
