"""A shard from its first byte to the last, in bounded pieces: what is compared without a usable index.

That is its size and checksum where a list names them, and its records in order.
"""

from __future__ import annotations

from shardio import kernels
from shardio.errors import CorruptBlockError, CorruptRecordError, FormatError, NotFoundError, StorageError
from shardio.format import (
    DAMAGE_ADVICE,
    Compression,
    Framing,
    Limits,
    decode_stream,
    sniff_compression,
)
from shardio.maintenance._findings import UNREADABLE, Survey
from shardio.metadata import ShardEntry
from shardio.storage import DataFile
from shardio_indexer import salvage_payloads

# What a read can end with that says nothing about the data.
FAILED = (StorageError, NotFoundError)

_PIECE = 16 << 20  # bytes held at once: enough for a bucket to send several requests at a time


def stored_crc32c(data: DataFile) -> int:
    """Return the CRC-32C of an object.

    Raises:
        StorageError, NotFoundError: the environment failed.
    """
    found = 0
    for piece in data.pieces(_PIECE):
        found = kernels.crc32c(piece, found)
    return found


def check_records(
    survey: Survey, data: DataFile, *, shard: str, limits: Limits, compression: Compression | None = None
) -> int:
    """Read a TFRecord file from the start and note every record that is damaged.

    Damage ends where the next frame begins.

    Returns:
        How many records are right.
    """
    good = 0
    row: int | None = 0  # None behind a gap of which the number of records is not known
    try:
        if compression is None:
            compression = sniff_compression(bytes(data.read(0, min(12, data.size))))
        decoded = decode_stream(map(bytes, data.pieces(_PIECE)), compression, limits=limits)
        for found in salvage_payloads(decoded, limits=limits):
            if isinstance(found, list):
                good += len(found)
                row = None if row is None else row + len(found)
            else:
                what = found.reason.removeprefix("damage: ")
                error = CorruptRecordError(what, row=row, start=found.start, stop=found.stop)
                # With its length intact it is one record.
                row_stop = row + 1 if row is not None and what == "payload crc" else None
                survey.note("record", error, url=data.url, shard=shard, row_stop=row_stop)
                row = row_stop
    except FormatError as error:
        survey.note("decode", error, url=data.url, shard=shard)
    except FAILED as error:
        survey.note(UNREADABLE, error, url=data.url, shard=shard)
    return good


def check_listed_bytes(survey: Survey, data: DataFile, entry: ShardEntry, *, limits: Limits) -> None:
    """Compare a shard whose index is of no use with what the list of shards says of its bytes."""
    try:
        wrong = _difference(data, entry)
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


def _difference(data: DataFile, entry: ShardEntry) -> tuple[str, FormatError] | None:
    """Return kind and error where size or checksum are not those of the list."""
    if data.size != entry.stored_bytes:
        return "size", size_error(entry.stored_bytes, data.size)
    crc32c = stored_crc32c(data)
    return None if crc32c == entry.crc32c else ("checksum", checksum_error(entry.crc32c, crc32c))


def size_error(expected: int, found: int) -> CorruptBlockError:
    """Return the error of an object that was cut or grew."""
    return CorruptBlockError(
        "a shard was truncated" if found < expected else "a shard was overwritten or extended",
        expected=f"{expected} bytes",
        found=f"{found} bytes",
        advice=DAMAGE_ADVICE,
    )


def checksum_error(expected: int, found: int) -> CorruptBlockError:
    """Return the error of an object whose bytes are not those that were written."""
    return CorruptBlockError(
        "a shard does not match the checksum of the whole object",
        expected=f"CRC-32C {expected:#010x}",
        found=f"CRC-32C {found:#010x}",
        advice=DAMAGE_ADVICE,
    )
