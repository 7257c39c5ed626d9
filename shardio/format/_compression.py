"""One block: decoded bytes <-> stored bytes, with every length checked.

Promise: `decompress` returns exactly the number of bytes that the index declares, made from all of the
stored bytes, or raises `CorruptBlockError`.  It never allocates more than was declared.

python-zstandard's one-shot `decompress` ignores `max_output_size` when the frame declares a size, returns the
first of several frames, and allocates what the frame declares; so the frame header is read first.
"""

from __future__ import annotations

import functools
import threading
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from shardio.errors import CorruptBlockError, FormatError, ShardioError, StorageError
from shardio.format._limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import zstandard

    from shardio.format._framing import Buffer

ZSTD_HEAD = 18  # what a Zstandard frame says of itself is within so many bytes

_WINDOW = "a Zstandard frame asks for a window over the limit"
_DICTIONARY = "a Zstandard frame was compressed with a dictionary, which is not in the file"
_WINDOW_LOG = 23  # 8 MiB: levels 20 to 22 would declare more than readers accept
_GZIP_WBITS = 31
_GZIP_LEAST = 18  # bytes of a member's head and tail
_GZIP_FLAGS, _GZIP_RESERVED = 3, 0xE0

# A Zstandard context costs more to make than a small block to decode, and serves one thread at a time.
_contexts = threading.local()


class Compression(IntEnum):
    """How the stored bytes of a block become its decoded bytes."""

    NONE = 1
    ZSTD = 2
    GZIP = 3
    ZLIB = 4  # only as one stream of a whole shard

    @property
    def suffix(self) -> str:
        """The end of a shard's name after `.tfrecord`."""
        return {
            Compression.NONE: "",
            Compression.ZSTD: ".zst",
            Compression.GZIP: ".gz",
            Compression.ZLIB: ".zz",
        }[self]

    @classmethod
    def parse(cls, name: str | None) -> Compression:
        """Return the compression a writer's option names: None, "none", "zstd", "gzip" or "zlib".

        Raises:
            ValueError: any other name.
        """
        known = {None: cls.NONE, "none": cls.NONE, "zstd": cls.ZSTD, "gzip": cls.GZIP, "zlib": cls.ZLIB}
        if name not in known:
            raise ValueError(f'compression must be None, "zstd", "gzip" or "zlib", not {name!r}')
        return known[name]


class Compressor:
    """Compress blocks one after another; not for several threads at once.

    Args:
        compression: of the shard. The blocks of a ZLIB stream stay as they are: TensorFlow reads the first of
            several streams and says nothing about the others, so a shard is one stream.
        level: the library's level, or None for its usual one (Zstandard 3, gzip and ZLIB 6).

    Raises:
        ValueError: a level that the library does not know.
    """

    def __init__(self, compression: Compression, level: int | None = None) -> None:
        self.compression = compression
        self._level = level
        self._zstd: zstandard.ZstdCompressor | None = None
        if compression is Compression.ZSTD:
            import zstandard

            level = 3 if level is None else level
            if not -100 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
                raise ValueError(
                    f"compression level {level} must be between -100 and {zstandard.MAX_COMPRESSION_LEVEL}"
                )
            parameters = zstandard.ZstdCompressionParameters.from_level(level)
            if parameters.window_log > _WINDOW_LOG:
                parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=_WINDOW_LOG)
            self._zstd = zstandard.ZstdCompressor(compression_params=parameters)
        elif compression in (Compression.GZIP, Compression.ZLIB):
            self._level = 6 if level is None else level
            if not 0 <= self._level <= 9:
                message = f"compression level {level} must be between 0 and 9 for {compression.name.lower()}"
                raise ValueError(message)
        elif level is not None:
            raise ValueError(f"compression level {level} was given, but there is no compression")

    def compress(self, decoded: bytes) -> bytes:
        """Return the stored bytes of one block."""
        if self._zstd is not None:
            return self._zstd.compress(decoded)
        if self.compression is Compression.GZIP:
            member = zlib.compressobj(self._level or 0, zlib.DEFLATED, _GZIP_WBITS)
            return member.compress(decoded) + member.flush()
        return decoded


def decompress(
    stored: Buffer, compression: Compression, decoded_bytes: int, *, limits: Limits = DEFAULT_LIMITS
) -> Buffer:
    """Return the decoded bytes of one block.

    Args:
        stored: all stored bytes of the block.
        compression: how they are compressed.
        decoded_bytes: what the index declares; the result has exactly this length.
        limits: only the Zstandard window is looked at; the caller has checked `decoded_bytes`.

    Raises:
        CorruptBlockError: the bytes do not decode to exactly what was declared.
        StorageError: there is no memory for as much as was declared.
    """
    if compression is Compression.NONE:
        if len(stored) != decoded_bytes:
            raise _other_size("a block without compression has", decoded_bytes, len(stored))
        return stored
    try:
        if compression is Compression.ZSTD:
            return _decompress_zstd(stored, decoded_bytes, limits.zstd_window)
        if compression is Compression.GZIP:
            decoded = _decompress_isal(stored, decoded_bytes)
            if decoded is not None:
                return decoded
            return _decompress_zlib(stored, decoded_bytes, _GZIP_WBITS)
        return _decompress_zlib(stored, decoded_bytes, zlib.MAX_WBITS)
    except MemoryError as error:
        raise StorageError(
            "there is no memory for a block",
            expected=f"{decoded_bytes} bytes",
            advice="it is within the limits, so read it where there is more",
        ) from error


def _decompress_zstd(stored: Buffer, decoded_bytes: int, window: int) -> bytes:
    import zstandard

    try:
        header = zstandard.get_frame_parameters(stored)
    except zstandard.ZstdError as error:
        raise CorruptBlockError("a block is not a Zstandard frame", found=str(error)) from error
    if header.content_size != decoded_bytes:
        raise CorruptBlockError(
            "a Zstandard frame declares another size than the index",
            expected=f"{decoded_bytes} bytes",
            found=_declared(header.content_size),
        )
    if header.dict_id:
        raise CorruptBlockError(_DICTIONARY, found=f"dictionary {header.dict_id}")
    # A frame of one segment has no window of its own: its window is its content.
    if header.window_size > max(window, decoded_bytes if header.window_size == header.content_size else 0):
        raise CorruptBlockError(
            _WINDOW, expected=f"at most {window} bytes", found=f"{header.window_size} bytes"
        )
    context: zstandard.ZstdDecompressor | None = getattr(_contexts, "zstd", None)
    if context is None:
        context = _contexts.zstd = zstandard.ZstdDecompressor()
    try:
        decoded = context.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptBlockError("a Zstandard frame does not decode", found=str(error)) from error
    if len(decoded) != decoded_bytes:
        raise _other_size("a Zstandard frame decodes to", decoded_bytes, len(decoded))
    return decoded


def _other_size(what: str, expected: int, found: int) -> CorruptBlockError:
    text = f"{what} another size than declared"
    return CorruptBlockError(text, expected=f"{expected} bytes", found=f"{found} bytes")


def explain_zstd(head: Buffer, window: int, error: Exception) -> ShardioError | None:
    """Return why a whole Zstandard frame does not decode here, or None where it is damaged.

    Args:
        head: its first `ZSTD_HEAD` bytes, or all of it.
        window: the limit that it was decoded with.
        error: what the library said.
    """
    import zstandard

    try:
        facts = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError:
        return None
    if facts.dict_id:
        return FormatError(
            _DICTIONARY,
            found=f"dictionary {facts.dict_id}",
            advice="compress it again without one: zstd -d -D DICTIONARY FILE, then zstd",
        )
    if facts.window_size > window:
        return FormatError(
            _WINDOW,
            expected=f"at most {window} bytes",
            found=f"{facts.window_size} bytes",
            advice="convert it, since `shardio convert` takes windows of any size; or compress it again with "
            "a smaller one: zstd --long=27",
        )
    if "Allocation error" in str(error):
        return StorageError(
            "there is no memory for the window of a Zstandard frame",
            expected=f"{facts.window_size} bytes",
            advice="read it where there is more, or in fewer processes (workers=1); or compress it again "
            "with a smaller window: zstd --long=23",
        )
    return None


def _declared(size: int) -> str:
    import zstandard

    if size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
        return "no declared size"
    return f"{size} bytes"


@functools.cache
def _isal() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return None
    return isal_zlib


def _decompress_isal(stored: Buffer, decoded_bytes: int) -> bytes | None:
    """Return the decoded bytes of a gzip member by `isal`, in a third of zlib's time; None where it is not
    installed, or where anything is not right: zlib says what.
    """  # noqa: D205 - one thought
    isal = _isal()
    # Flags that RFC 1952 reserves are all that it takes and zlib refuses.
    if isal is None or len(stored) < _GZIP_LEAST or stored[_GZIP_FLAGS] & _GZIP_RESERVED:
        return None
    decoder = isal.decompressobj(_GZIP_WBITS)
    try:
        decoded = _decompress_member(decoder, stored, decoded_bytes)
    except isal.error:
        return None
    right = len(decoded) == decoded_bytes and decoder.eof and not decoder.unused_data
    return decoded if right else None


def _decompress_member(decoder: Any, stored: Buffer, decoded_bytes: int) -> bytes:
    # One byte more than declared tells "too long" from "just right" without decoding the rest.
    decoded: bytes = decoder.decompress(stored, decoded_bytes + 1)
    return decoded


def _decompress_zlib(stored: Buffer, decoded_bytes: int, wbits: int) -> bytes:
    decoder = zlib.decompressobj(wbits)
    try:
        decoded = _decompress_member(decoder, stored, decoded_bytes)
    except zlib.error as error:
        raise CorruptBlockError("a compressed block does not decode", found=str(error)) from error
    if len(decoded) != decoded_bytes or not decoder.eof or decoder.unused_data:
        found = f"{len(decoded)} bytes" + ("" if decoder.eof else ", end not reached")
        if decoder.unused_data:
            found += f", {len(decoder.unused_data)} bytes after the end"
        raise CorruptBlockError(
            "a compressed block decodes to something else than declared",
            expected=f"{decoded_bytes} bytes and the end of its only member",
            found=found,
        )
    return decoded
