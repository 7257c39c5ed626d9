"""Translate errors of client libraries: what a failed request means, and which error is raised for it.

The libraries disagree on classes (the same 412 is `FileExistsError` here and `OSError(22)` there), so the
status and the service's error code decide wherever they can be found, along the chain of causes too.  None of
the libraries is imported.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.redact import redact
from shardio.storage._store import ChangedObjectError, DeniedError, MissingBucketError


class ErrorKind(enum.Enum):
    """What a failed request means; the values begin messages."""

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
    REFUSED = "the service refuses the request"
    LOCAL = "the request could not be made"


class RequestFailure(NamedTuple):
    """A failed request, classified.

    Attributes:
        kind: what it means.
        text: one line for people: status, code and the service's own words.
        status: the HTTP status, if there was a response.
        applied: whether a write may have taken effect all the same.
        again: sending it once more may help: no library has done that already.
        timed_out: no connection came about in time.
    """

    kind: ErrorKind
    text: str
    status: int | None = None
    applied: bool = False
    again: bool = True
    timed_out: bool = False

    @property
    def not_sent(self) -> bool:
        """Whether no connection came about, so that the request was never sent."""
        return self.kind is ErrorKind.CONNECTION and not self.applied


class StatusError(Exception):
    """A response whose status is an error, for services whose responses are looked at here."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status
        self.text = text


class BadResponseError(Exception):
    """A response that claims success but is not what was asked for."""


class ChangedError(BadResponseError):
    """A response of another version of the object than the one that was opened; sizes or ETags."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the object has changed: expected {expected}, found {found}")
        self.expected = expected
        self.found = found


_BY_STATUS = {
    401: ErrorKind.DENIED,
    403: ErrorKind.DENIED,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.UNAVAILABLE,
    409: ErrorKind.EXISTS,  # or it is being created by another
    410: ErrorKind.NOT_FOUND,
    412: ErrorKind.EXISTS,
    416: ErrorKind.PAST_END,
    425: ErrorKind.UNAVAILABLE,
    429: ErrorKind.UNAVAILABLE,
    # What the service does not implement it will not implement later either.
    501: ErrorKind.REFUSED,
    505: ErrorKind.REFUSED,
}
_REFUSED = frozenset({400, 401, 403})
# Codes and words of services that say more than the status with which they come.
_SKEWED = re.compile(  # of S3 (two of them), STS (two), Azure (two) and Google
    r"RequestTimeTooSkewed|difference between the request time|Signature not yet current|Signature expired|"
    r"date header too old|Date header in the request is incorrect|in a reasonable timeframe",
    re.IGNORECASE,
)
_EXPIRED = re.compile(
    r"ExpiredToken|TokenRefreshRequired|RequestExpired|InvalidToken|token (has|is) expired|expired token|"
    r"Invalid Credentials|invalid_token|credentials? (have|has|are) expired|Signature not valid in the spec",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist")
_WORDS: list[tuple[ErrorKind, frozenset[int] | None, re.Pattern[str]]] = [
    (ErrorKind.CLOCK_SKEW, _REFUSED, _SKEWED),
    (ErrorKind.EXPIRED, _REFUSED, _EXPIRED),
    (ErrorKind.NO_BUCKET, frozenset({404}), _NO_BUCKET),
    (
        ErrorKind.UNAVAILABLE,
        None,
        re.compile(r"SlowDown|reduce your request rate|Throttl|ServerBusy|RequestTimeout\b"),
    ),
    (ErrorKind.EXISTS, None, re.compile(r"BlobAlreadyExists|PreconditionFailed|conditionNotMet")),
]
_INSECURE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|invalid peer certificate|WRONG_VERSION_NUMBER|"
    r"record layer failure|received corrupt message|TLSV1_ALERT|no protocols available",
    re.IGNORECASE,
)
_NO_BUCKET_CODE = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
_OBSTORE_STATUS = re.compile(r"status: (\d{3})\b|status code: (\d{3})\b")
_OBSTORE_BAD = re.compile(
    r"hyper::Error\(\s*Parse|UnexpectedRange|NotPartial|RangeNotSupported|InvalidRangeRequest|ParseContentRange|NoContentRange|"
    r"Content-Length Header missing"
)
_CONNECTION_NAMES = {
    "EndpointConnectionError",
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "RequestException",
    "ServiceRequestError",
    "ServiceResponseError",
}


# Packages that repeat lost requests themselves, and those that were refused with these statuses.
_REPEATED = {
    "azure": frozenset(range(400, 600)) - {429},
    "botocore": frozenset({429, 500, 502, 503, 504, 509}),
}
# Errors of requests that were not sent: those of aiohttp, urllib3 and httpx, and those for lack of time.
_UNCONNECTED = {
    "ClientConnectorError",
    "ConnectError",
    "ConnectionRefusedError",
    "NewConnectionError",
    "gaierror",
}
_CONNECT_TIMEOUTS = {"ConnectionTimeoutError", "ConnectTimeoutError", "ConnectTimeout"}


def classify(error: BaseException) -> RequestFailure:
    """Explain an error of any client library."""
    failure = _classify(error)
    if failure.kind not in {ErrorKind.UNAVAILABLE, ErrorKind.CONNECTION}:
        return failure
    links = [link for link in chain(error) if not getattr(link, "not_repeated", False)]
    packages = {type(link).__module__.partition(".")[0] for link in links}
    repeated = any(
        failure.status is None or failure.status in _REPEATED[name] for name in packages & _REPEATED.keys()
    )
    return failure._replace(again=not repeated)


def _classify(error: BaseException) -> RequestFailure:
    for link in chain(error):
        if isinstance(link, BadResponseError):
            # What answers in a service's place may answer the look at the object, too.
            return RequestFailure(ErrorKind.BAD_RESPONSE, str(link), applied=True)
        if type(link.__cause__).__module__ == "aiohttp.http_exceptions":
            # What came was not HTTP; aiohttp gives it the status 400.
            text = f"the response is garbled: {_first_line(link.__cause__ or link)}"
            return RequestFailure(ErrorKind.BAD_RESPONSE, text, applied=True)
        facts = _status_of(link)
        if facts is not None:
            return _classify_status(*facts)
    for link in chain(error):
        found = _by_class(link)
        if found is not None and found.kind is ErrorKind.CONNECTION:
            if _INSECURE.search(" ".join(str(each) for each in chain(error))):
                return RequestFailure(ErrorKind.TLS, found.text)
            names = set().union(*map(_names, chain(error)))
            in_obstore = "ConnectError(" in str(error)
            timed_out = bool(names & _CONNECT_TIMEOUTS) or (in_obstore and "TimedOut" in str(error))
            # botocore gives connections that broke later the same name, so the causes decide.
            not_sent = timed_out or in_obstore or bool(names & _UNCONNECTED)
            return found._replace(applied=not not_sent, timed_out=timed_out)
        if found is not None:
            return found
    return RequestFailure(ErrorKind.LOCAL, f"{type(error).__name__}: {_first_line(error)}", applied=True)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it."""
    seen = 0
    link: BaseException | None = error
    while link is not None and seen < 10:
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        seen += 1


def _status_of(error: BaseException) -> tuple[int | None, str, str] | None:
    """Return status, error code and words of a response that a library reports; None where it is no such."""
    if isinstance(error, StatusError):
        return error.status, "", error.text
    module = type(error).__module__
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        inner = response.get("Error", {})
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status, str(inner.get("Code", "")), str(inner.get("Message", ""))
    status = getattr(error, "status_code", getattr(response, "status_code", None))
    if isinstance(status, int):  # azure; requests, httpx, huggingface_hub
        return status, str(getattr(error, "error_code", "") or ""), _first_line(error)
    status = getattr(error, "status", None)
    if module.startswith("aiohttp") and isinstance(status, int) and status >= 300:
        return status, "", _first_line(error)
    if module.startswith("gcsfs") and str(getattr(error, "code", None)).isdigit():
        return int(str(error.code)), "", str(getattr(error, "message", ""))  # type: ignore[attr-defined] # checked
    match = _OBSTORE_STATUS.search(str(error)) if module.startswith("obstore") else None
    if match:
        words = str(error).partition("\n\nDebug")[0]
        return int(match[1] or match[2]), "", words.partition("status code: ")[2] or words
    return None


def _classify_status(status: int | None, code: str, words: str) -> RequestFailure:
    # The words are searched for codes only where the status is an error; a body may hold anything.
    said = f"{code} {words}"
    found = (
        kind
        for kind, statuses, words_of_kind in _WORDS
        if (statuses is None or status in statuses) and words_of_kind.search(said)
    )
    unknown = ErrorKind.UNAVAILABLE if (status or 0) >= 500 else ErrorKind.REFUSED
    kind = next(found, _BY_STATUS.get(status or 0, unknown))
    # One line, also of a page that a gateway made.
    line = " ".join(words.split())[:200]
    text = " ".join(part for part in (f"status {status}", code, line) if part)
    # A gateway's 5xx says nothing about what the service behind it did; that it cannot do it says enough.
    applied = status is not None and status >= 500 and kind is not ErrorKind.REFUSED
    return RequestFailure(kind, text, status, applied)


def _by_class(error: BaseException) -> RequestFailure | None:
    text = f"{type(error).__name__}: {_first_line(error)}"
    names = _names(error)
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
    # botocore: the body is not what the service's checksum says, or not the XML that it should be
    if names & {"FlexibleChecksumError", "ResponseParserError"}:
        return RequestFailure(ErrorKind.BAD_RESPONSE, text, applied=True)
    if module.startswith("obstore"):
        if _OBSTORE_BAD.search(str(error)):
            return RequestFailure(ErrorKind.BAD_RESPONSE, text)
        if "GenericError" in names and "incorrectly configured region" not in str(error):
            return RequestFailure(ErrorKind.CONNECTION, text, applied=True)
    if (
        isinstance(error, (TimeoutError, ConnectionError, EOFError))
        or names & _CONNECTION_NAMES
        or (module.startswith("aiohttp") and "ClientError" in names)
        or ("TransportError" in names and any(c.__module__.startswith("httpx") for c in type(error).__mro__))
    ):
        return RequestFailure(ErrorKind.CONNECTION, text, applied=True)
    return None


def _names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


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


def explain(error: BaseException, url: str) -> ShardioError:
    """Return the error of `shardio.errors` for a request that failed for good.

    It is a MissingBucketError, NotFoundError, DeniedError, ShortReadError, ChangedObjectError, or else a
    plain StorageError.
    """
    if isinstance(error, ShardioError):
        return error
    for link in chain(error):  # a traceback shows their texts, which hold the address that was asked
        link.args = tuple(redact(each) if isinstance(each, str) else each for each in link.args)
    if isinstance(error, ChangedError):
        what = "the object is not the one that was opened"
        advice = "it was replaced; open the dataset again, or index the shard again"
        return ChangedObjectError(what, url=url, expected=error.expected, found=error.found, advice=advice)
    failure = classify(error)
    if failure.kind is ErrorKind.NOT_FOUND:
        return NotFoundError(failure.kind.value, url=url)
    if failure.kind is ErrorKind.NO_BUCKET:
        return missing_bucket(url)
    if failure.kind is ErrorKind.DENIED and failure.status == 403:
        advice = f"{_ADVICE[ErrorKind.DENIED]}, {_OR_ABSENT}"
        return DeniedError(failure.kind.value, url=url, found=failure.text, advice=advice)
    return failed(failure, url, failure.kind.value)


def failed(
    failure: RequestFailure, url: str, what: str, kind: type[StorageError] = StorageError
) -> StorageError:
    """Return an error with what the service said of it and what to do."""
    return kind(what, url=url, found=failure.text, advice=_ADVICE.get(failure.kind))


def missing_bucket(url: str) -> MissingBucketError:
    """Return the error for a bucket or container that is not there."""
    protocol, _, rest = url.partition("://")
    kind = "container" if protocol in {"az", "abfs", "abfss", "adl"} else "bucket"
    name = rest.partition("/")[0].partition("@")[0]
    what = f"there is no {kind} {name!r}"
    return MissingBucketError(
        what, url=url, advice="create it, or check the name and the account or endpoint"
    )
