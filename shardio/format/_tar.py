"""Members of a tar file, and the samples that WebDataset makes of them.

Bytes in, values out: `read_member` parses the headers that begin at an offset, `sample_name` splits the name
of a member into the key of its sample and its extension, `read_sample` finds the members of one frame.  Names
and sizes mean what `tarfile` of Python says they mean: ustar prefixes, GNU long names, pax headers.
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
https://www.gnu.org/software/tar/manual/html_node/Standard.html
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from shardio.errors import CorruptRecordError, FormatError
from shardio.format._framing import Buffer

TAR_BLOCK = 512
# What the webdataset library gives every sample; no member may be called so.
SAMPLE_NAMES = frozenset({"__key__", "__url__"})
_ZEROS = bytes(TAR_BLOCK)
# Longer extension headers than this hold no names that were written on purpose.
_MOST_EXTENSION = 1 << 20
_MOST_EXTENSIONS = 64
_ADLER = 65521
_EXTENSIONS = frozenset({b"L", b"K", b"x", b"X", b"g"})
_REGULAR = frozenset({b"0", b"\0", b"7"})
_KNOWN = _REGULAR | {b"1", b"2", b"3", b"4", b"5", b"6"}
_PAX = re.compile(rb"(\d{1,20}) ([^=]+)=")
_META = re.compile(r"__(?:[^/]*__(?:$|/)|MACOSX/)")


class TarMember(NamedTuple):
    """One member of a tar file; offsets are those of the buffer that it was parsed from.

    Attributes:
        name: as `tarfile` gives it; bytes that are no UTF-8 become surrogates.
        regular: it is a file with contents, and no folder, link or device.
        start, stop: half-open range of its contents, which may be beyond the buffer.
        next: where the headers of the member after it begin.
        folder: it is a folder.
    """

    name: str
    regular: bool
    start: int
    stop: int
    next: int
    folder: bool = False


TAR_END = TarMember("", regular=False, start=0, stop=0, next=0)


def read_member(data: Buffer, offset: int) -> TarMember | None:
    """Parse the headers that begin at `offset`.

    Returns:
        The member; `TAR_END` where a block of zeros ends the archive; None where `data` ends before the
        headers do.

    Raises:
        FormatError: no header, a damaged one, or a sparse file; `start` is the offset in `data`.
    """
    names: dict[str, str] = {}
    place = offset
    for _ in range(_MOST_EXTENSIONS):
        start = place + TAR_BLOCK
        header = bytes(data[place:start])
        if len(header) < TAR_BLOCK:
            return None
        if not header[0] and header == _ZEROS:
            if place > offset:
                raise _damaged("a tar file ends after an extension header", place)
            return TAR_END
        _check(header, place)
        kind = header[156:157]
        size = _number(header[124:136], place)
        if kind not in _EXTENSIONS:
            return _member(header, kind, size, start, names)
        if size > _MOST_EXTENSION:
            raise _damaged("an extension header of a tar file is too long", place, _MOST_EXTENSION, size)
        body = bytes(data[start : start + size])
        place = start + _padded(size)
        if len(data) < place:
            return None
        _extend(names, kind, body, start)
    raise _damaged("a tar file has too many extension headers before a member", offset)


def is_tar_header(block: Buffer) -> bool:
    """Tell whether 512 bytes are the header of a member: its magic and its checksum fit."""
    header = bytes(block)
    if len(header) != TAR_BLOCK or header[257:262] != b"ustar":
        return False
    try:
        _check(header, 0)
    except FormatError:
        return False
    return True


def sample_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into the sample's key and the member's extension, in lower case.

    The extension begins after the first dot of the last component. None stands for members that belong to no
    sample: without a dot, hidden (`dir/._0.jpg`, as macOS stores beside each file), or inside of names like
    `__index__` and `__MACOSX`.
    """
    if name.startswith("__") and _META.match(name):
        return None
    begin = name.rfind("/") + 1
    dot = name.find(".", begin)
    return (name[:dot], name[dot + 1 :].lower()) if dot > begin else None


def read_sample(frame: Buffer) -> tuple[str, dict[str, tuple[int, int]]]:
    """Return the key of the sample in one frame, and where the contents of each member are in it.

    Raises:
        CorruptRecordError: the frame is not a sample of a tar file.
    """
    place, key = 0, ""
    members: dict[str, tuple[int, int]] = {}
    try:
        while place < len(frame):
            member = read_member(frame, place)
            if member is None or member is TAR_END or member.next > len(frame):
                break
            place = member.next
            parts = sample_name(member.name) if member.regular else None
            if parts is not None:
                key, extension = parts
                members[extension] = (member.start, member.stop)
    except FormatError as error:
        raise CorruptRecordError(error.what, start=error.start, found=error.found) from error
    if place != len(frame) or not members:
        raise CorruptRecordError(
            "a record is not a sample of a tar file", expected=f"members up to byte {len(frame)}", found=place
        )
    return key, members


def _damaged(what: str, place: int, expected: object = None, found: object = None) -> FormatError:
    return FormatError(what, start=place, expected=expected, found=found)


def _padded(size: int) -> int:
    return -(-size // TAR_BLOCK) * TAR_BLOCK


def _check(header: bytes, place: int) -> None:
    """Compare a header with its checksum: the sum of its bytes, those of the checksum counted as blanks."""
    stored = _number(header[148:156], place)
    # The low half of Adler-32 is 1 + the sum of all bytes modulo 65521, at the speed of C.
    summed = (zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 256
    if (stored - summed) % _ADLER and not _signed_sum_fits(header, stored):
        raise _damaged("the header of a member does not match its checksum", place, stored, "another sum")


def _signed_sum_fits(header: bytes, stored: int) -> bool:
    # Some old programs added the bytes as signed characters.
    rest = header[:148] + header[156:]
    return sum(rest) - 256 * sum(byte > 127 for byte in rest) + 256 == stored


def _number(field: bytes, place: int) -> int:
    """Return a number: octal digits, or base 256 where the first byte says so."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0]
    try:
        value = int(digits, 8)
    except ValueError:
        value = -1 if digits.strip() else 0
    if value < 0:
        raise _damaged("a number in the header of a member is damaged", place, "octal digits", field)
    return value


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _member(header: bytes, kind: bytes, size: int, start: int, names: dict[str, str]) -> TarMember:
    name = _text(header[:100])
    if kind == b"S" or "sparse" in names:
        raise _damaged("a sparse file in a tar file is not supported", start - TAR_BLOCK)
    # What the oldest format writes for folders.
    if kind == b"\0" and name.endswith("/"):
        kind = b"5"
    if header[345]:
        name = f"{_text(header[345:500])}/{name}"
    if names:
        size = int(names.get("size", size))
        name = names.get("path", name)
    regular = kind in _REGULAR
    # Folders, links and devices have no contents, whatever their size says.
    held = size if regular or kind not in _KNOWN else 0
    return TarMember(name, regular, start, start + held, start + _padded(held), kind == b"5")


def _extend(names: dict[str, str], kind: bytes, body: bytes, place: int) -> None:
    """Note what an extension header says of the member after it; the first of two counts."""
    if kind == b"L":
        names.setdefault("path", _text(body))
    elif kind != b"K":
        found = _pax_records(body, place)
        if kind == b"g":
            if found:
                raise _damaged("a global header of a tar file names or measures members", place)
            return
        for name, value in found.items():
            names.setdefault(name, value)


def _pax_records(body: bytes, place: int) -> dict[str, str]:
    """Return path, size and whether the file is sparse, where the records of a pax header say so."""
    found: dict[str, str] = {}
    at = 0
    while match := _PAX.match(body, at):
        length = int(match[1])
        stop = at + length
        if length == 0 or stop > len(body) or body[stop - 1 : stop] != b"\n":
            raise _damaged("a record of a pax header is damaged", place + at, "a line", match[1])
        key, value = match[2], body[match.end() : stop - 1]
        if key == b"path":
            found["path"] = value.decode("utf-8", "surrogateescape").rstrip("/")
        elif key == b"size":
            if not value.isdigit() or len(value) > 20:
                raise _damaged("a pax header gives no size", place + at, "digits", value[:20])
            found["size"] = value.decode()
        elif key.startswith(b"GNU.sparse."):
            found["sparse"] = "1"
        at = stop
    if body[at:].strip(b"\0"):
        raise _damaged("a pax header is damaged", place + at)
    return found
