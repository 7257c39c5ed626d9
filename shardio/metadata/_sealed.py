"""Sealed objects: manifests, lists of shards and receipts.

    "SHRDMAN1" | u64 length | protobuf | u32 CRC-32C | SHA-256 (32 bytes) | "SHRDEND1"

CRC and SHA-256 cover all bytes before them.  The SHA-256 in the seal is *the* digest of the object: it is
what a parent, a list reference and `digest="sha256:..."` name.  A flipped bit, a cut or an added byte is
`FormatError`; nothing is parsed before both checks passed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from google.protobuf.message import Message

from shardio import kernels
from shardio.errors import FormatError, ShardioError
from shardio.format import Limits
from shardio.metadata._wire import M, check_counts, check_version, parse

# What to do about an object of a dataset that is damaged, gone or another's.
COPY_ADVICE = "`shardio repair --mirror` restores it from a copy of the dataset"

_MAGIC = b"SHRDMAN1"
_END = b"SHRDEND1"
_HEAD = struct.Struct("<8sQ")
_CRC = struct.Struct("<I")
_TAIL_BYTES = _CRC.size + 32 + len(_END)
SEAL_BYTES = _HEAD.size + _TAIL_BYTES


def seal(payload: bytes) -> tuple[bytes, bytes]:
    """Return the sealed bytes of a serialized message, and their SHA-256 (32 bytes)."""
    data = _HEAD.pack(_MAGIC, len(payload)) + payload
    data += _CRC.pack(kernels.crc32c(data))
    digest = hashlib.sha256(data).digest()
    return data + digest + _END, digest


def seal_message(message: Message, *, what: str, limits: Limits, advice: str) -> tuple[bytes, bytes]:
    """Return the sealed bytes of a message, and their SHA-256 (32 bytes).

    Args:
        message: to be stored.
        what: what it is, for messages.
        limits: `manifest` bytes; `items` as `check_counts` counts them.
        advice: what to do about a message that is over a limit.

    Raises:
        FormatError: over a limit, so that no reader would take it.
    """
    payload = message.SerializeToString(deterministic=True)
    check_counts(type(message), payload, what=what, limits=limits, advice=advice)
    size = len(payload) + SEAL_BYTES
    if size > limits.manifest:
        raise FormatError(
            f"a {what} would be larger than a reader takes",
            expected=f"at most {limits.manifest} bytes",
            found=f"{size} bytes",
            advice=advice,
        )
    return seal(payload)


def unseal_message(
    kind: type[M], data: bytes, *, what: str, url: str | None, limits: Limits, critical: Collection[str] = ()
) -> tuple[M, bytes]:
    """Return the message and the digest of sealed bytes; see `unseal` and `parse`.

    `critical` are the critical features that this program reads.

    Raises:
        FormatError, UnsupportedVersionError: damaged, over a limit or newer.
    """
    payload, digest = unseal(data, what=what, url=url)
    message = parse(kind, payload, what=what, url=url, limits=limits)
    unknown = sorted({*getattr(message, "critical_features", ())} - {*critical})
    check_version(message.format_version, unknown, what=what, url=url)  # type: ignore[attr-defined] # of all sealed ones
    return message, digest


@contextmanager
def reading(what: str, url: str | None) -> Iterator[None]:
    """Say where what is wrong with the values of a message was found."""
    try:
        yield
    except ShardioError as error:
        raise error.located(url=url) from error
    except ValueError as error:
        raise FormatError(
            f"a {what} holds what the format does not know", url=url, found=str(error)
        ) from error


def unseal(data: bytes, *, what: str, url: str | None = None) -> tuple[bytes, bytes]:
    """Return the payload and the digest of sealed bytes.

    Args:
        data: the whole object.
        what: what it is, for messages: "manifest", "list of shards", "receipt".
        url: where it is, for messages.

    Raises:
        FormatError: the bytes are not exactly one undamaged sealed object.
    """

    def broken(where: str, expected: object, found: object) -> FormatError:
        return FormatError(
            f"a {what} is damaged: {where}",
            url=url,
            expected=expected,
            found=found,
            advice=COPY_ADVICE,
        )

    if len(data) < SEAL_BYTES:
        raise broken("too short", f"at least {SEAL_BYTES} bytes", f"{len(data)} bytes")
    magic, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise broken("wrong first bytes", _MAGIC, magic)
    if length != len(data) - SEAL_BYTES:
        raise broken("wrong size", f"{length + SEAL_BYTES} bytes", f"{len(data)} bytes")
    if not data.endswith(_END):
        raise broken("wrong last bytes", _END, data[-len(_END) :])
    body = _HEAD.size + length
    (crc,) = _CRC.unpack_from(data, body)
    found_crc = kernels.crc32c(memoryview(data)[:body])
    if crc != found_crc:
        raise broken("wrong CRC-32C", f"{crc:#010x}", f"{found_crc:#010x}")
    digest = data[body + _CRC.size : body + _CRC.size + 32]
    found = hashlib.sha256(memoryview(data)[: body + _CRC.size]).digest()
    if digest != found:
        raise broken("wrong SHA-256", digest.hex(), found.hex())
    return data[_HEAD.size : body], digest
