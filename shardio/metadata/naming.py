"""Names that are safe: keys, splits, sessions, and the keys of adopted shards.

Keys are not URLs.  They are joined to a root that the reader already has, and none of them can leave that
root, hide in a listing, or mean something to a filesystem.  See "keys are not URLs" in docs/format.md.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from typing import NamedTuple, Self

from shardio.arguments import integer
from shardio.errors import UnsafeNameError

INDEX_SUFFIX = ".shardidx"
METADATA = "_shardio"  # the folder of all that follows
HINT_KEY = "_shardio/latest"
MANIFESTS = "_shardio/manifests/"
LISTS = "_shardio/lists/"
SESSIONS = "_shardio/sessions/"
TABLES = "_shardio/tables/"
KEYS = "_shardio/keys/"
DATA = "data/"
INDEXES = "indexes/"  # of adopted shards that are under other roots
# Folders of all that garbage collection may take; manifests stay.
FOLDERS = (DATA, LISTS, SESSIONS, INDEXES, TABLES, KEYS)

_MAX_COMPONENTS = 8
_COMPONENT = r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,254}"
_KEY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT}){{0,{_MAX_COMPONENTS - 1}}}\Z")
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._="
_DIGITS = re.compile(r"\d+")
_SPLIT = re.compile(r"(?!all\Z)[A-Za-z0-9][A-Za-z0-9._=-]{0,63}\Z")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_TAG = re.compile(r"(?![0-9_]+\Z)(?!latest\Z)[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
_MANIFEST = re.compile(r"_shardio/manifests/([0-9]{20})\.manifest\Z")
_LIST = re.compile(r"_shardio/lists/(?:[0-9a-f]{32}|[0-9a-f]{64})\.list\Z")
# A shard that shardio wrote, and what is beside one: its index, an index remade, deleted rows.
_DATA = re.compile(
    r"data/([A-Za-z0-9][A-Za-z0-9._=-]*)-([a-z2-7]{8})([a-z2-7]{8})(?:-([1-9][0-9]{0,5}))?-([0-9]{4,})"
    r"\.tfrecord(?:\.zst|\.gz|\.zz)?(?:(?:\.[0-9a-f]{16})?\.shardidx)?\Z"
)
_TABLE = re.compile(r"_shardio/tables/([0-9a-f]{32})-[0-9a-f]{16}\.parquet\Z")
_RUN = re.compile(r"_shardio/keys/[0-9a-f]{32}\.run\Z")
# Keys that name no session.
_UNOWNED = (_LIST, _TABLE, _RUN, re.compile(r"data/[0-9a-f]{32}\.rows\Z"))
_ROWS = re.compile(r"data/[A-Za-z0-9_][A-Za-z0-9._=-]{0,249}\.rows\Z")
# What no key may hold, of shardio or of others.
_NO_COMPONENT = re.compile(r"(?:\A|/)(\.{0,2})(?:/|\Z)")
_NO_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\\\ud800-\udfff]")
# Where drives have letters, joining such a name to a root leaves the root. No path begins with "C::".
_DRIVE = re.compile(r".:(?!:)", re.DOTALL)
_MAX_TASKS = 10**6  # each may write any number of shards
_MAX_FOREIGN = 4096  # no filesystem and no bucket takes longer ones
_MAX_SHOWN = 200
_RANDOM_SESSION = "auto."
_REWRITING = "auto.rewritten."
_RANDOM = re.compile(r"auto\.(?:rewritten\.)?([a-z2-7]{8})\Z")
_RECEIPT = re.compile(r"_shardio/sessions/([^/]+)/([0-9]{5,})-([a-z2-7]{8})(?:-([0-9]{5,}))?\.receipt\Z")


def _shown(name: object) -> str:
    return repr(name[:_MAX_SHOWN]) if isinstance(name, str) else repr(name)


def check_key(key: str) -> str:
    """Return a key of shardio's own, or raise `UnsafeNameError`."""
    if _KEY.match(key) is None:
        raise UnsafeNameError(
            "a key could leave the dataset or be misread",
            found=_shown(key),
            expected=f"at most {_MAX_COMPONENTS} components of letters, digits and ._=-, none beginning with "
            "one of .=-",
        )
    return key


def is_key(key: str) -> bool:
    """Tell whether a text is a key of shardio's own."""
    return _KEY.match(key) is not None


def is_plain_rest(data: bytes) -> bool:
    """Tell whether bytes are letters, digits and `._=`: what may follow the last hyphen or slash of a key."""
    return not data.translate(None, _PLAIN)


def unsafe_part(key: str) -> str | None:
    """Return what keeps a text from being a key under any root, in words; None where nothing does.

    The one rule for all keys: a relative path of UTF-8 text without empty, `.` and `..` components, control
    characters but the tab, and backslashes. Formats and stores refuse more.
    """
    component = _NO_COMPONENT.search(key)
    if component is not None:
        return f"the component {component[1]!r}"
    character = _NO_CHARACTER.search(key)
    if character is None:
        return None
    surrogate = character[0] >= "\ud800"
    return "what UTF-8 cannot express" if surrogate else "a backslash or a control character but the tab"


def check_foreign_key(key: str, *, what: str = "the key of an adopted shard") -> str:
    """Return a key that others chose (a UTF-8 path under a root), or raise `UnsafeNameError`.

    Args:
        key: the key.
        what: it is, for the message.
    """
    if unsafe_part(key) is not None or _DRIVE.match(key):
        raise UnsafeNameError(
            f"{what} could leave its root",
            found=_shown(key),
            expected="a relative path without empty, . and .. components, control characters but the tab, "
            "backslashes and a drive letter",
        )
    if len(key) > _MAX_FOREIGN // 4 and len(key.encode("utf-8", "surrogateescape")) > _MAX_FOREIGN:
        raise UnsafeNameError(
            f"{what} is too long",
            found=f"{len(key)} characters, {_shown(key)} ...",
            expected=f"at most {_MAX_FOREIGN} bytes",
        )
    return key


def _check_name(name: str, pattern: re.Pattern[str], what: str, expected: str) -> str:
    if not isinstance(name, str) or not pattern.match(name):
        raise UnsafeNameError(f"not a name for a {what}", found=_shown(name), expected=expected)
    return name


def check_split(name: str) -> str:
    """Return a split's name, or raise `UnsafeNameError`; "all" is what `open` calls all of them."""
    expected = 'letters, digits and ._=-, at most 64, beginning with a letter or digit, and not "all"'
    return _check_name(name, _SPLIT, "split", expected)


def look_alike(name: str, other: str) -> bool:
    """Tell whether one name of a split may be the other one, mistyped.

    It may where they differ in case alone, or by one character that is wrong, missing, too much, or has
    changed places with its neighbour. Names of fewer than four characters, and names that differ in digits
    alone, are never taken for each other.
    """
    if name == other or min(len(name), len(other)) < 4 or _DIGITS.sub("0", name) == _DIGITS.sub("0", other):
        return False
    one, two = sorted((name.casefold(), other.casefold()), key=len)
    begin = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    one, two = one[begin:], two[begin:]
    # What is left behind the first difference: nothing, one wrong, one too much, or two that changed places.
    same_end = one[1:] == two[1:] if len(one) == len(two) else one == two[1:]
    return same_end or (len(one) == len(two) and one[2:] == two[2:] and one[:2] == two[1::-1])


def check_session(name: str) -> str:
    """Return a session's id, or raise `UnsafeNameError`."""
    expected = "letters, digits and ._-, at most 64, beginning with a letter or digit"
    return _check_name(name, _SESSION, "session", expected)


def check_tag(name: str) -> str:
    """Return the name of a tag, or raise `UnsafeNameError`; none of them can be taken for a number."""
    expected = (
        "letters, digits and ._+-, at most 128, beginning with a letter or digit; not a number, and not"
    )
    return _check_name(name, _TAG, "tag", f'{expected} "latest"')


def check_task(task: object) -> int:
    """Return the number of a task, or raise `TypeError` or `ValueError`."""
    return _check_number("task", task, 0)


def check_tasks(tasks: object) -> int:
    """Return how many tasks a session has, or raise `TypeError` or `ValueError`."""
    return _check_number("tasks", tasks, 1)


def _check_number(name: str, given: object, least: int) -> int:
    number, most = integer(name, given), _MAX_TASKS - 1 + least
    if not least <= number <= most:
        raise ValueError(f"{name}={number} must be between {least} and {most}")
    return number


def random_id() -> str:
    """Return 16 random hexadecimal digits."""
    return secrets.token_hex(8)


def random_attempt() -> str:
    """Return 8 random base32 characters, for an attempt at a task."""
    return _base32(secrets.token_bytes(5))


def session_id(session: str) -> str:
    """Return what stands for a session in the names of its shards: 8 base32 characters."""
    random = _RANDOM.match(session)
    return random[1] if random else _base32(hashlib.sha256(session.encode()).digest()[:5])


def session_of_id(identifier: str) -> str:
    """Return a name with this id, for a session of which no more is known."""
    return _RANDOM_SESSION + identifier


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().lower()


def random_session(*, rewriting: bool = False) -> str:
    """Return a name for a session without one, or for one that writes records of other shards again."""
    return (_REWRITING if rewriting else _RANDOM_SESSION) + random_attempt()


def is_random_session(name: str) -> bool:
    """Tell whether this session has no name of the caller's, so that it cannot be run again."""
    return name.startswith(_RANDOM_SESSION)


class DataKey(NamedTuple):
    """The parts of the key of a shard that shardio wrote.

    Two equal names need the same 40 bits of a session's hash and the same 40 random bits of an attempt. Even
    then nothing is lost: a shard is created only if there is none of its name.
    """

    split: str
    session_id: str
    task: int
    attempt: str
    sequence: int

    def key(self, suffix: str = "") -> str:
        """Return `data/<split>-<session id><attempt>[-<task>]-<sequence>.tfrecord<suffix>`; no task for 0."""
        task = f"-{self.task}" if self.task else ""
        writer = f"{self.session_id}{self.attempt}{task}"
        return f"{DATA}{self.split}-{writer}-{self.sequence:04d}.tfrecord{suffix}"

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """Return the parts of a data key (of a shard or of its index), or None for anything else."""
        match = _DATA.match(key)
        return match and cls(match[1], match[2], int(match[4] or 0), match[3], int(match[5]))


def usual_index_key(key: str) -> str:
    """Return the key of a shard's index where the list of shards names no other."""
    return key + INDEX_SUFFIX


def manifest_key(version: int) -> str:
    """Return the key of the manifest of a version."""
    return f"{MANIFESTS}{version:020d}.manifest"


def manifest_version(key: str) -> int | None:
    """Return the version of a manifest's key, or None for any other key."""
    match = _MANIFEST.match(key)
    return int(match[1]) if match else None


def list_key(identifier: str) -> str:
    """Return the key of a list of shards."""
    return f"{LISTS}{identifier}.list"


def rows_key(identifier: str) -> str:
    """Return the key of a sidecar of deleted rows."""
    return f"{DATA}{identifier}.rows"


def is_unowned_key(key: str) -> bool:
    """Tell whether a key names no session: what no version names is garbage then."""
    return any(pattern.match(key) for pattern in _UNOWNED)


def is_own_key(key: str) -> bool:
    """Tell whether a key has the shape of something that shardio makes; nothing else is ever collected.

    That is: shards under shardio's own names, indexes, sidecars of deleted rows, lists, receipts, tables and
    runs and parts of key indexes.
    """
    return (
        _DATA.match(key) is not None
        or _ROWS.match(key) is not None
        or (key.endswith(INDEX_SUFFIX) and key.startswith((DATA, INDEXES)))
        or is_unowned_key(key)
        or ReceiptKey.parse(key) is not None
    )


def table_key(address: str) -> str:
    """Return a new key for the table of a shard, by its address (32 hexadecimal digits)."""
    return f"{TABLES}{address}-{random_id()}.parquet"


def table_address_of(key: str) -> str | None:
    """Return the address in the key of a table, or None for any other key."""
    match = _TABLE.match(key)
    return match[1] if match else None


def key_run_key() -> str:
    """Return a new key for a run of a key index."""
    return f"{KEYS}{random_id()}{random_id()}.run"


def is_key_run(key: str) -> bool:
    """Tell whether a key is that of a run of a key index."""
    return _RUN.match(key) is not None


class ReceiptKey(NamedTuple):
    """The parts of the key of a task's receipt; `sequence` is that of one that a running attempt leaves."""

    session: str
    task: int
    attempt: str
    sequence: int | None = None

    def key(self) -> str:
        """Return the key."""
        middle = "" if self.sequence is None else f"-{self.sequence:05d}"
        return f"{SESSIONS}{self.session}/{self.task:05d}-{self.attempt}{middle}.receipt"

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """Return the parts of a receipt's key, or None for any other key."""
        match = _RECEIPT.match(key)
        if match is None:
            return None
        return cls(match[1], int(match[2]), match[3], None if match[4] is None else int(match[4]))
