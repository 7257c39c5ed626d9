"""Compressed objects without an index: decode a stream of stored bytes in constant memory.

TensorFlow's whole-file GZIP and ZLIB streams, and gzip members or Zstandard frames one after another.  A
stream that ends in the middle of a member is `FormatError`, never a quiet end.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

from shardio import kernels
from shardio.errors import FormatError
from shardio.format._compression import ZSTD_HEAD, Compression, explain_zstd
from shardio.format._framing import TFRECORD_HEAD
from shardio.format._limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    import zstandard


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 20
_SIP = 1 << 10
_SWALLOW = 64 << 10
_ZLIB = type(zlib.decompressobj())


def sniff_compression(head: bytes) -> Compression:
    """Tell from the first 12 or more bytes of a TFRecord file how it is compressed.

    A plain file is recognised first, by the checksum of its first length: a ZLIB header is only two bytes
    and too weak a witness.
    """
    if len(head) >= TFRECORD_HEAD:
        (crc,) = struct.unpack_from("<I", head, 8)
        if kernels.mask_crc(kernels.crc32c(head[:8])) == crc:
            return Compression.NONE
    if head.startswith(_ZSTD_MAGIC):
        return Compression.ZSTD
    if head.startswith(_GZIP_MAGIC):
        return Compression.GZIP
    # RFC 1950: method 8, window at most 32 KiB, and the two bytes are a multiple of 31.
    if len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:
        return Compression.ZLIB
    return Compression.NONE


def decode_stream(
    pieces: Iterable[bytes], compression: Compression, *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[bytes]:
    """Yield the decoded bytes of a whole object, piece by piece.

    Args:
        pieces: the stored bytes in order, in pieces of any size.
        compression: of the object; several gzip members or Zstandard frames may follow one another.
        limits: the Zstandard window (`stream_window`).

    Raises:
        FormatError: the bytes do not decode, end in the middle, or continue after a ZLIB stream; or a
            Zstandard frame asks for a larger window or a dictionary.
        StorageError: there is no memory for its window.
    """
    if compression is Compression.NONE:
        yield from pieces
        return
    # Named now: a generator may be closed when the interpreter is, and nothing can be imported.
    errors = (zlib.error, _zstd_error()) if compression is Compression.ZSTD else zlib.error
    decoder: Any = None
    offset = begin = 0
    head = b""
    for swallow in _swallows(pieces):
        piece = swallow
        while piece:
            if decoder is None and offset and compression is Compression.GZIP:
                # Zeros behind a member are padding, as gzip and Python's gzip take them.
                size = len(piece)
                piece = piece.lstrip(b"\0")
                offset += size - len(piece)
                if not piece:
                    break
            if decoder is None:
                decoder, begin, head = _new_decoder(compression, limits), offset, b""
            head += piece[: ZSTD_HEAD - len(head)]
            try:
                rest = yield from _inflate(decoder, piece)
            except errors as error:
                known = (
                    explain_zstd(head, limits.stream_window, error)
                    if compression is Compression.ZSTD
                    else None
                )
                if known is not None:
                    raise known.located(start=begin) from error
                raise FormatError(
                    f"a {compression.name} stream does not decode",
                    start=offset,
                    found=str(error),
                    advice="fetch the file again",
                ) from error
            if not decoder.eof:
                offset += len(piece)
                break
            offset += len(piece) - len(rest)
            if rest and compression is Compression.ZLIB:
                raise FormatError(
                    "bytes follow the end of a ZLIB stream",
                    start=offset,
                    found=f"{len(rest)} bytes or more",
                    advice="TensorFlow would ignore them silently; cut the file there if that is right",
                )
            piece = rest
            decoder = None
    if decoder is not None and not decoder.eof:
        raise FormatError(
            f"a {compression.name} stream is cut short", start=offset, advice="fetch the file again"
        )


def _swallows(pieces: Iterable[bytes]) -> Iterator[bytes]:
    # What a decoder has not used is copied once for each mebibyte that comes out and once for each member: of
    # large pieces that would be time in the square of their size, for a bomb or for many short members.
    for whole in pieces:
        for start in range(0, len(whole), _SWALLOW):
            yield bytes(whole[start : start + _SWALLOW])


def _inflate(decoder: Any, piece: bytes) -> Generator[bytes, None, bytes]:
    """Yield what a piece decodes to, about a mebibyte at a time; return what follows the member."""
    if not isinstance(decoder, _ZLIB):
        return (yield from _inflate_zstd(decoder, piece))
    while piece and not decoder.eof:
        data = decoder.decompress(piece, _PIECE)
        piece = decoder.unconsumed_tail
        if data:
            yield data
    return decoder.unused_data


def _inflate_zstd(decoder: zstandard.ZstdDecompressionObj, piece: bytes) -> Generator[bytes, None, bytes]:
    # There is no way to bound what one call returns but to give it little: 4 bytes can stand for 128 KiB.
    pending: list[bytes] = []
    size = 0
    for start in range(0, len(piece), _SIP):
        data = decoder.decompress(piece[start : start + _SIP])
        pending.append(data)
        size += len(data)
        if size >= _PIECE:
            yield b"".join(pending)
            pending, size = [], 0
        if decoder.eof:
            break
    if size:
        yield b"".join(pending)
    return decoder.unused_data + piece[start + _SIP :] if decoder.eof else b""


def _zstd_error() -> type[Exception]:
    import zstandard

    return zstandard.ZstdError


def _new_decoder(compression: Compression, limits: Limits) -> Any:
    if compression is Compression.ZSTD:
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=limits.stream_window).decompressobj()
    return zlib.decompressobj(31 if compression is Compression.GZIP else zlib.MAX_WBITS)


def frame_sides(problem: str, expected: object, found: object) -> tuple[object, object]:
    """Return both sides of what is wrong with a frame: checksums in hexadecimal, lengths as they are."""
    if problem.endswith("crc") and isinstance(expected, int) and isinstance(found, int):
        return f"{expected:#010x}", f"{found:#010x}"
    return expected, found
