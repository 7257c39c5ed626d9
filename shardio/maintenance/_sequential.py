"""A shard without a usable index: its size and checksum where a list names them, its records in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.errors import CorruptBlockError, CorruptRecordError, FormatError
from shardio.format import DAMAGE_ADVICE, Framing, iterate_payloads
from shardio.maintenance._findings import UNREADABLE
from shardio.maintenance._stored_bytes import FAILED, StoredBytes

if TYPE_CHECKING:
    from shardio.format import Compression, Limits
    from shardio.maintenance._findings import Survey
    from shardio.metadata import ShardEntry
    from shardio.storage import DataFile


def check_records(
    survey: Survey, data: DataFile, *, shard: str, limits: Limits, compression: Compression | None = None
) -> int:
    """Read a TFRecord file from the start and note every record that is damaged.

    A wrong payload is left behind, because its length is right; after a wrong length nothing tells where the
    next record begins, so what follows stays unknown.

    Returns:
        How many records are right.
    """
    good = 0

    def skip(error: CorruptRecordError) -> None:
        survey.note("record", error, url=data.url, shard=shard, row_stop=(error.row or 0) + 1)

    whole = StoredBytes(survey, data)
    try:
        decoded = whole.decoded(whole.sniff() if compression is None else compression, limits)
        for payloads in iterate_payloads(decoded, limits=limits, skip=skip):
            good += len(payloads)
    except CorruptRecordError as error:
        survey.note("record", error, url=data.url, shard=shard)
    except FormatError as error:
        survey.note("decode", error, url=data.url, shard=shard)
    except FAILED as error:
        survey.note(UNREADABLE, error, url=data.url, shard=shard)
    return good


def check_listed_bytes(survey: Survey, data: DataFile, entry: ShardEntry, *, limits: Limits) -> None:
    """Compare a shard whose index is of no use with what the list of shards says of its bytes."""
    try:
        wrong = _difference(StoredBytes(survey, data), data, entry)
    except FAILED as error:
        survey.note(UNREADABLE, error, url=data.url, shard=entry.key)
        return
    if wrong is None:
        survey.good_records += entry.rows
        return
    survey.note(*wrong, url=data.url, shard=entry.key)
    if entry.framing is Framing.TFRECORD:
        survey.good_records += check_records(
            survey, data, shard=entry.key, limits=limits, compression=entry.compression
        )


def _difference(whole: StoredBytes, data: DataFile, entry: ShardEntry) -> tuple[str, FormatError] | None:
    """Return kind and error where size or checksum are not those of the list."""
    for _ in whole.stored():
        pass
    if data.size != entry.stored_bytes:
        return "size", size_error(entry.stored_bytes, data.size)
    if whole.crc32c != entry.crc32c:
        return "checksum", checksum_error(entry.crc32c, whole.crc32c)
    return None


def size_error(expected: int, found: int) -> CorruptBlockError:
    """Return the error of an object that was cut or grew."""
    verb = "cut short" if found < expected else "overwritten, or something was appended to it"
    return CorruptBlockError(
        "a shard has another size than when it was written or indexed",
        expected=f"{expected} bytes",
        found=f"{found} bytes",
        advice=f"it was {verb}: {DAMAGE_ADVICE}",
    )


def checksum_error(expected: int, found: int) -> CorruptBlockError:
    """Return the error of an object whose bytes are not those that were written."""
    return CorruptBlockError(
        "a shard does not match the checksum of the whole object",
        expected=f"CRC-32C {expected:#010x}",
        found=f"CRC-32C {found:#010x}",
        advice=f"it was damaged or replaced: {DAMAGE_ADVICE}",
    )
