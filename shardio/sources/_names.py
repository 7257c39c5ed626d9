"""Which names are data, and which format a name tells: the one rule of adoption and conversion.

Spark, Hive, pyarrow and pandas all ignore names that begin with `_` or `.`.  Temporary, partial and backup
names come from tools that copy or edit files.  TensorBoard's event files are framed as TFRecord.
"""

from __future__ import annotations

import re

# Endings of temporary, partial, backup and lock files, on files and on folders.
_TEMPORARY = re.compile(
    r"~$|\.(?:te?mp|gstmp)(?:[-._]?\w*)?$|^#.*#$|\.(?:bak|backup|old|orig|save|part|partial|filepart|crdownload|"
    r"download|incomplete|inprogress|lock|lck|sw[nop]|_COPYING_)$",
    re.IGNORECASE,
)
# What systems and network drives leave beside data.
_CLUTTER = frozenset(
    {
        "Thumbs.db", "desktop.ini", "__MACOSX", "@eaDir", "#recycle", "#snapshot", "$RECYCLE.BIN",
        "System Volume Information", "lost+found",
    }
)  # fmt: skip
_EVENTS = ".tfevents."
# Names without an ending that describe data and are not data.
_DESCRIBES = re.compile(
    r"(?:readme|licen[cs]e|copying|notice|changelog|authors|metadata|makefile|dockerfile|manifest|"
    r"(?:md5|sha\d+)sums?|checksums?|version)$",
    re.IGNORECASE,
)

COMPRESSED = re.compile(r"\.(?:gz|gzip|zst|zstd|zz|zlib|bgz)$", re.IGNORECASE)
# What writers put behind a name when there are several files: `-00000-of-00002`, `.00001`, `_7`.
_PART = r"(?:[-._]?\d+(?:-of-\d+)?)?$"
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm")
_TFRECORD = re.compile(
    rf"(?:^|[-._])(?:tfrecords?|tfrec|tfr){_PART}|tfrecord.*-\d+-of-\d+$|\.(?:records?|recordio){_PART}",
    re.IGNORECASE,
)
# Of an ending the kind of source, the format that a framer cuts in place, and whether the file may be
# compressed as a whole.
_BY_ENDING = {
    ending: facts
    for endings, facts in (
        ("tar tgz tzst", ("webdataset", "tar", True)),
        ("jsonl ndjson jsonlines", ("jsonl", "jsonl", True)),
        ("csv", ("csv", "text", True)),
        ("tsv", ("tsv", "text", True)),
        ("txt text", ("text", "text", False)),
        ("md rst", ("text", None, False)),
        ("lst", ("list", None, False)),
        ("parquet pq arrow feather ipc arrows", ("parquet", None, False)),
        (" ".join(IMAGE_ENDINGS).replace(".", ""), ("images", None, False)),
        ("data", ("codewithgpu", "codewithgpu", True)),
    )
    for ending in endings.split()
}
# What stands where an ending would: a number, as in `data.00001`, `train-00000-of-00002` or `part.0`.
_ENDING = re.compile(r"\.[^.]*[^.\d][^.]*$")
_NUMBERED = re.compile(r"-\d+-of-\d+$")


def is_data(key: str) -> bool:
    """Tell whether a key may be data by the names of its folders and file.

    Hidden names (`.x`, `_x`, but not `_key=value`), temporary and backup names, what systems leave beside
    data, and TensorBoard's event files are not.
    """
    return all(map(_is_data_part, key.split("/"))) and _EVENTS not in key.rpartition("/")[2]


def _is_data_part(part: str) -> bool:
    hidden = part.startswith(("_", ".")) and "=" not in part
    return not (hidden or part in _CLUTTER or _TEMPORARY.search(part))


def without_compression(name: str) -> str:
    """Return the name of a file without the ending of its compression."""
    return COMPRESSED.sub("", name.rpartition("/")[2])


def kind_of_name(key: str) -> str | None:
    """Return the kind of source that a file's name tells, or None."""
    kind, _, compressible = _told(key)
    return kind if compressible or not COMPRESSED.search(key) else None


def format_of_name(name: str) -> str | None:
    """Return the format that a file's name tells, see `shardio_indexer.ScanOptions`, or None."""
    return _told(name)[1]


def _told(name: str) -> tuple[str | None, str | None, bool]:
    """Return kind, format, and whether sources of the kind may be compressed as a whole."""
    last = name.rpartition("/")[2]
    plain = COMPRESSED.sub("", last)
    _, dot, ending = plain.lower().rpartition(".")
    # `.json` alone is one document; C4, Dolma and others call compressed JSON lines `.json.gz`.
    ending = "jsonl" if ending == "json" and plain != last else ending
    if dot and ending in _BY_ENDING:
        return _BY_ENDING[ending]
    return ("tfrecord", "tfrecord", True) if _TFRECORD.search(plain) else (None, None, False)


def is_description(name: str) -> bool:
    """Tell whether a text file is named like a description, as `README.md`."""
    return _DESCRIBES.match(without_compression(name).partition(".")[0]) is not None


def is_nameless(name: str) -> bool:
    """Tell whether a name tells nothing, as `part-r-00000`: the first bytes have to."""
    plain = without_compression(name)
    bare = _ENDING.search(_NUMBERED.sub("", plain)) is None
    return bare and format_of_name(name) is None and _DESCRIBES.match(plain) is None
