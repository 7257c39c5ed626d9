"""What a failed request means, read from the errors of five client libraries; without importing any of them.

The libraries disagree on classes (the same 412 is `FileExistsError` here and `OSError(22)` there), so the
status and the service's error code decide wherever they can be found, along the chain of causes too.
"""

from __future__ import annotations

import asyncio
import email.utils
import enum
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BadReplyError", "Diagnosis", "StatusError", "Verdict", "diagnose"]


class Verdict(enum.Enum):
    """What to do about a failed request."""

    ABSENT = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    EXISTS = "an object of that name already exists"
    DENIED = "access is denied"
    EXPIRED = "the credentials have expired"
    SKEWED = "the service refuses the time on this machine's clock"
    INSECURE = "no secure connection can be made"
    PAST_END = "the range lies past the end of the object"
    BUSY = "the service is overloaded or out of order"
    BROKEN = "the connection failed"
    BAD_REPLY = "the reply is not what was asked for"
    REFUSED = "the service refuses the request"
    LOCAL = "the request could not be made"

    @property
    def worth_retrying(self) -> bool:
        """Whether the same request may succeed later."""
        return self in {Verdict.BUSY, Verdict.BROKEN, Verdict.BAD_REPLY, Verdict.EXPIRED}


class Diagnosis(NamedTuple):
    """A failed request, explained.

    Attributes:
        verdict: what it means.
        text: one line for people: status, code and the service's own words.
        status: the HTTP status, if there was a reply.
        retry_after: seconds that the service asked to wait, or 0.
        applied: whether a write may have taken effect all the same.
    """

    verdict: Verdict
    text: str
    status: int | None = None
    retry_after: float = 0.0
    applied: bool = False


class StatusError(Exception):
    """A reply whose status is an error, for clients that look at replies themselves."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status
        self.text = text
        self.headers = headers or {}


class BadReplyError(Exception):
    """A reply that claims success but is not what was asked for."""


class _Facts(NamedTuple):
    status: int | None
    code: str
    text: str
    headers: Mapping[str, str]


_BY_STATUS = {
    301: Verdict.REFUSED,
    401: Verdict.DENIED,
    403: Verdict.DENIED,
    404: Verdict.ABSENT,
    408: Verdict.BUSY,
    409: Verdict.BUSY,
    410: Verdict.ABSENT,
    412: Verdict.EXISTS,
    416: Verdict.PAST_END,
    425: Verdict.BUSY,
    429: Verdict.BUSY,
    # What the service does not implement it will not implement later either.
    501: Verdict.REFUSED,
    505: Verdict.REFUSED,
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


def diagnose(error: BaseException) -> Diagnosis:
    """Explain an error of any client library; what nobody knows counts as refused, and is not retried."""
    for link in _chain(error):
        if isinstance(link, BadReplyError):
            return Diagnosis(Verdict.BAD_REPLY, str(link))
        facts = _facts(link)
        if facts is not None:
            return _judge(facts)
    for link in _chain(error):
        found = _by_class(link)
        if found is not None and found.verdict is Verdict.BROKEN and _INSECURE.search(_words(error)):
            return Diagnosis(Verdict.INSECURE, found.text)
        if found is not None and found.verdict is Verdict.BROKEN:
            return found._replace(applied=not _nothing_sent(error))
        if found is not None:
            return found
    return Diagnosis(Verdict.LOCAL, f"{type(error).__name__}: {_first_line(error)}", applied=True)


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
    # aiohttp gives a status to replies that it could not read, too; those have no history.
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


def _judge(facts: _Facts) -> Diagnosis:
    status = facts.status
    # The words are searched for codes only where the status is an error; a body may hold anything.
    words = f"{facts.code} {facts.text}"
    if status in {400, 401, 403} and _SKEWED.search(words):
        verdict = Verdict.SKEWED
    elif status in {400, 401, 403} and _EXPIRED.search(words):
        verdict = Verdict.EXPIRED
    elif status == 404 and _NO_BUCKET.search(words):
        verdict = Verdict.NO_BUCKET
    elif _BUSY.search(words):
        verdict = Verdict.BUSY
    elif _EXISTS.search(words):
        verdict = Verdict.EXISTS
    elif status is None:
        verdict = Verdict.REFUSED
    else:
        verdict = _BY_STATUS.get(status, Verdict.BUSY if status >= 500 else Verdict.REFUSED)
    text = " ".join(part for part in (f"status {status}", facts.code, facts.text.strip()[:200]) if part)
    # A gateway's 5xx says nothing about what the service behind it did; that it cannot do it says enough.
    applied = status is not None and status >= 500 and verdict is not Verdict.REFUSED
    return Diagnosis(verdict, text, status, _retry_after(facts.headers), applied)


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("retry-after") or headers.get("Retry-After")
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        # A date, of which only the distance from the reply's own date counts: our clock may be wrong.
        moment = email.utils.parsedate_to_datetime(value).timestamp()
        date = headers.get("date") or headers.get("Date")
        start = email.utils.parsedate_to_datetime(date).timestamp() if date else time.time()
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, moment - start)


def _by_class(error: BaseException) -> Diagnosis | None:
    text = f"{type(error).__name__}: {_first_line(error)}"
    names = {cls.__name__ for cls in type(error).__mro__}
    module = type(error).__module__
    # Stores have no folders: what is one elsewhere is no object.
    if isinstance(error, FileNotFoundError) and _NO_BUCKET_CODE.search(str(error)):  # obstore, with the body
        return Diagnosis(Verdict.NO_BUCKET, text, 404)
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return Diagnosis(Verdict.ABSENT, text)
    if isinstance(error, FileExistsError) or "AlreadyExistsError" in names:
        return Diagnosis(Verdict.EXISTS, text)
    if "RefreshError" in names:  # google-auth
        return Diagnosis(Verdict.SKEWED if _SKEWED.search(text) else Verdict.EXPIRED, text)
    if isinstance(error, PermissionError) or names & {"NoCredentialsError", "ClientAuthenticationError"}:
        return Diagnosis(Verdict.DENIED, text)
    if module.startswith("obstore"):
        if _OBSTORE_BAD.search(str(error)):
            return Diagnosis(Verdict.BAD_REPLY, text)
        if "GenericError" in names and "incorrectly configured region" not in str(error):
            return Diagnosis(Verdict.BROKEN, text, applied=True)
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
        return Diagnosis(Verdict.BROKEN, text, applied=True)
    return None


def _nothing_sent(error: BaseException) -> bool:
    """Tell whether no connection came about; botocore says so of connections that broke later, too."""
    return any(
        isinstance(link, ConnectionRefusedError)
        or {cls.__name__ for cls in type(link).__mro__} & {"ClientConnectorError", "ConnectTimeoutError"}
        for link in _chain(error)
    )


def _words(error: BaseException) -> str:
    return " ".join(str(link) for link in _chain(error))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
