"""Indexes that other programs made: read them, and write them for those programs.

- Text, `.index` or `.idx`: a line per record, offset and length of the whole frame (the `tfrecord` package,
  DALI), or of the payload (codewithgpu).
- DALI's `.idx` of a tar file: `v1.2` and the number of samples, then a line per sample; of each member its
  extension, the offset and size of its contents, and its name (tools/wds2idx.py of github.com/NVIDIA/DALI).
- Energon's `.tar.idx`: little-endian u64, where each sample begins, then where the last one ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio.errors import FormatError, NotFoundError
from shardio.format import TAR_END, Framing, read_member, sample_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from shardio.format import Limits
    from shardio.storage import Store

__all__ = ["Frames", "dali_lines", "dali_tar_lines", "find_existing", "parse_text_index"]


class Frames(NamedTuple):
    """Where frames lie in the decoded bytes.

    Attributes:
        starts, stops: int64, one a record.
        url: of the index that says so.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    url: str


def index_names(key: str, framing: Framing) -> list[str]:
    """Return the keys under which the index of a shard may lie, the likeliest first."""
    folder, slash, name = key.rpartition("/")
    stem = name.rpartition(".")[0] or name
    if framing is Framing.TAR_SAMPLE:
        names = [f"{stem}.tar.idx"]
    elif framing is Framing.RAW:
        names = [f"{stem}.index"]
    else:
        names = [f"{name}.index", f"{stem}.index", f"{name}.idx", f"{stem}.idx"]
    return [f"{folder}{slash}{one}" for one in dict.fromkeys(names)]


def find_existing(store: Store, key: str, framing: Framing, limits: Limits) -> Frames:
    """Read the index that lies beside a shard.

    Raises:
        NotFoundError: there is none.
        FormatError: it is no index of a known form.
    """
    names = index_names(key, framing)
    for name in names:
        try:
            data = store.get(name, max_bytes=limits.index)
        except NotFoundError:
            continue
        url = store.url_of(name)
        return _parse_offsets(data, url) if framing is Framing.TAR_SAMPLE else parse_text_index(data, url)
    raise NotFoundError(
        "the shard has no index beside it",
        url=store.url_of(key),
        expected=" or ".join(name.rpartition("/")[2] for name in names),
    )


def parse_text_index(data: bytes, url: str) -> Frames:
    """Return the frames of a text index: offset and length in decimal, a line each.

    Raises:
        FormatError: a line is something else.
    """
    try:
        numbers = np.array(data.split(), np.int64)
    except (ValueError, OverflowError):
        numbers = np.array([-1])
    lines = data.count(b"\n") + (not data.endswith(b"\n") and len(data) > 0)
    if len(numbers) != 2 * lines or (len(numbers) and int(numbers.min()) < 0):
        raise FormatError(
            "this is no text index", url=url, expected="lines of an offset and a length", found=data[:40]
        )
    starts = numbers[0::2]
    return Frames(starts, starts + numbers[1::2], url)


def _parse_offsets(data: bytes, url: str) -> Frames:
    offsets = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.int64)
    if len(data) % 8 or not len(offsets) or bool((np.diff(offsets) <= 0).any()) or int(offsets[0]) < 0:
        raise FormatError("this is no index of a tar file", url=url, expected="ascending u64 offsets")
    starts = offsets[:-1].copy()
    # What lies before the first sample belongs to it.
    starts[:1] = 0
    return Frames(starts, offsets[1:], url)


def dali_tar_lines(samples: Iterable[tuple[int, bytes]], url: str) -> bytes:
    """Return the text index that DALI reads beside a tar file.

    Args:
        samples: where each begins in the file, and its bytes.
        url: of the tar file, for messages.

    Raises:
        FormatError: a name that this form has no way to write down.
    """
    lines = [_dali_sample(start, data, url) for start, data in samples]
    return f"v1.2 {len(lines)}\n".encode() + b"".join(lines)


def _dali_sample(start: int, data: bytes, url: str) -> bytes:
    words: list[str] = []
    place = 0
    while place < len(data):
        member = read_member(data, place)
        if member is None or member is TAR_END:
            break
        place = member.next
        if not member.regular or sample_name(member.name) is None:
            continue
        if any(c.isspace() or "\ud800" <= c <= "\udfff" for c in member.name):
            raise FormatError(
                "DALI's index has no way to write down a name with white space, or one that is no UTF-8",
                url=url,
                start=start + member.start,
                found=repr(member.name),
                advice="DALI makes an index of its own where there is none",
            )
        # Extensions as they are written: whether their case counts is an option of DALI's reader.
        extension = member.name.rpartition("/")[2].partition(".")[2]
        words += [extension, str(start + member.start), str(member.stop - member.start), member.name]
    return (" ".join(words) + "\n").encode()


def dali_lines(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bytes:
    """Return the text index that DALI reads beside a TFRecord file."""
    lengths = stops - starts
    return b"".join(
        b"%d %d\n" % (start, length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
