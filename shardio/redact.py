"""Secrets in URLs: which URLs are refused, and how others are shown.

A password in a URL would be copied into manifests, messages and logs, so such a URL is refused where it
enters.  The query of a web address may be a signature that the address does not work without: it is kept for
requests, and replaced wherever a URL is shown or stored.
"""

from __future__ import annotations

import logging
import re

__all__ = ["redact", "refuse_password"]

# A user alone is no secret (`abfs://container@account`, `sftp://me@host`); on web servers it may be a token.
_USER = re.compile(r"(?i)(https?://)[^/?#\s]*@")
_PASSWORD = re.compile(r"(://[^/?#\s:@]*):[^/?#\s]*@")
_WEB_QUERY = re.compile(r"(?i)(https?://[^\s?#'\"<>]*)[?#][^\s'\"<>]*[^\s'\"<>,;:.)\]}]")
# Elsewhere a question mark may be a pattern, so only parameters that carry secrets are replaced. Clients
# quote what is in a key, once or twice, before they show the address that they asked.
_PARAMETER = re.compile(
    r"(?i)((?:[?&]|%(?:25)*(?:3f|26))(?:sig|signature|token|access_token|key|api_?key|password|secret|credential"
    r"|policy|awsaccesskeyid|x-(?:amz|goog|oss|cos)-(?:signature|credential|security-token))(?:=|%(?:25)*3d))"
    r"[^\s&'\"<>]+?(?=%(?:25)*26|[\s&'\"<>]|$)"
)


def redact(text: str) -> str:
    """Return a URL, or text with URLs, without passwords, signatures and other queries of web addresses.

    Examples:
        >>> redact("https://me:secret@host/birds?sig=abc")
        'https://host/birds?***'
        >>> redact("s3://bucket/part-?.tfrecord")
        's3://bucket/part-?.tfrecord'
    """
    shown = text
    if "://" in text:
        shown = _PASSWORD.sub(r"\1:***@", _USER.sub(r"\1", shown))
        shown = _WEB_QUERY.sub(r"\1?***", shown)
    if "=" in text or "%" in text:
        shown = _PARAMETER.sub(r"\1***", shown)
    return text if shown == text else shown  # the same object, so that callers see that nothing was changed


def refuse_password(url: str) -> str:
    """Return a URL that holds no password.

    Raises:
        ValueError: it holds one.
    """
    if "://" in url and (_USER.search(url) or _PASSWORD.search(url)):
        raise ValueError(
            f"{redact(url)!r} was given with a user or password, which manifests, messages and logs would "
            "show; remove it from the URL and give it in storage_options= (for web servers, "
            "headers with Authorization)"
        )
    return url


class _RedactingFilter(logging.Filter):
    """Replaces secrets of URLs in log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        return True


logging.getLogger("shardio").addFilter(_RedactingFilter())
