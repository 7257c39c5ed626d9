"""The manifest: one immutable version of a dataset, as a value.

Creating its object is the commit; this module only turns values into sealed bytes and back, and checks them.
Beside it: the lists of sessions that manifests name, and the free metadata of manifests and receipts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Limits, check_json_depth, check_json_keys, parse_json
from shardio.metadata._schema import Schema, schemas_from_messages, schemas_to_messages
from shardio.metadata._sealed import COPY_ADVICE, reading, seal_message, unseal_message
from shardio.metadata._table import SplitTotals
from shardio.metadata._wire import FORMAT_VERSION, MessageLayout, StoredField
from shardio.metadata.naming import (
    check_foreign_key,
    check_key,
    check_session,
    check_split,
    check_tag,
    is_key_run,
    is_own_key,
    is_random_session,
    session_id,
)
from shardio.v1 import manifest_pb2 as pb

_WHAT = "manifest"
_SESSIONS = "list of sessions"


@dataclass(frozen=True)
class ListRef:
    """A list of shards, by key, size in bytes, SHA-256 (32 bytes) and number of shards; or of sessions."""

    key: str
    size: int
    sha256: bytes
    shards: int


@dataclass(frozen=True)
class MergedSession:
    """A session that became part of the dataset in a version; rows by split."""

    session: str
    sha256: bytes
    tasks: int
    version: int
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Expiry:
    """What garbage collection took away: versions and sessions for good, keys in this version.

    `complete` says that the keys are all that only the expired versions name.
    """

    expired_versions: tuple[int, ...] = ()
    abandoned_sessions: tuple[str, ...] = ()
    doomed_keys: tuple[str, ...] = ()
    complete: bool = False

    def abandons(self, session: str) -> bool:
        """Tell whether a session was given up."""
        return session_id(session) in map(session_id, self.abandoned_sessions)


@dataclass(frozen=True)
class TableColumn:
    """A column of the table of small features.

    Attributes:
        name: of the column.
        feature: of the schema.
        derived: "" for the value, "length" for its length.
        type: of the feature, with its shape: `"int64"`, `"int32[?]"`.
        optional: the feature may be missing.
        default_sha256: of its default (32 bytes), empty where it has none.
    """

    name: str
    feature: str
    derived: str
    type: str
    optional: bool
    default_sha256: bytes


@dataclass(frozen=True)
class KeyRunRef:
    """A run of a key index, by key, size in bytes, SHA-256 (32 bytes), shards and entries."""

    key: str
    size: int
    sha256: bytes
    shards: int
    entries: int


@dataclass(frozen=True)
class KeyIndex:
    """What finds records by the values of a feature of some type; its runs, oldest first."""

    feature: str
    type: str
    runs: tuple[KeyRunRef, ...]


@dataclass(frozen=True)
class Rewrite:
    """Shards that were rewritten: UUIDs (16 bytes each) of the old ones and of those in their place."""

    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One version of a dataset; see protos/shardio/v1/manifest.proto for each field.

    The commit sets `version`, `parent_version`, `parent_sha256` and `write_id`.
    """

    dataset_uuid: bytes
    version: int = 0
    parent_version: int = 0
    parent_sha256: bytes = b""
    write_id: bytes = b""
    operation: str = ""
    created_ms: int = 0
    writer: str = ""
    sessions: tuple[MergedSession, ...] = ()
    session_lists: tuple[ListRef, ...] = ()
    schemas: tuple[Schema, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    roots: Mapping[int, str] = field(default_factory=dict)
    lists: tuple[ListRef, ...] = ()
    splits: tuple[SplitTotals, ...] = ()
    expiry: Expiry = Expiry()
    deletions: bool = False
    table: tuple[TableColumn, ...] = ()
    keys: tuple[KeyIndex, ...] = ()
    tags: Mapping[str, int] = field(default_factory=dict)
    rolled_back: tuple[str, ...] = ()
    restored_version: int = 0
    rewrites: tuple[Rewrite, ...] = ()

    @property
    def carried(self) -> Manifest:
        """What the next version begins with: all but what a manifest says of its own commit alone."""
        expiry = replace(self.expiry, doomed_keys=(), complete=False)
        return replace(self, expiry=expiry, restored_version=0, rewrites=())

    @property
    def named_sessions(self) -> tuple[MergedSession, ...]:
        """The merged sessions that callers named; a random id is never committed again, and is not kept."""
        return tuple(each for each in self.sessions if not is_random_session(each.session))

    @property
    def schema(self) -> Schema | None:
        """The newest schema, through which all records are read."""
        return self.schemas[-1] if self.schemas else None

    def session(self, name: str) -> MergedSession | None:
        """Return the merged session of a name, if it is here; earlier ones may stand in lists."""
        return next((session for session in self.sessions if session.session == name), None)


def _check_doomed(key: str) -> str:
    if not is_own_key(check_foreign_key(key)):
        raise FormatError(
            "a manifest dooms a key that is not of shardio's making",
            found=repr(key[:200]),
            expected="a shard under shardio's own name, an index, deleted rows, a list, a receipt, a table "
            "or a key index",
        )
    return key


def _check_run(key: str) -> str:
    if not is_key_run(key):
        raise FormatError("a key index names a run by no name of a run", found=key[:200])
    return key


def _uuids(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[first : first + 16] for first in range(0, len(data), 16))


# How each value is stored; an attribute that is not named here stands in the field of its name.
_BYTES = StoredField("bytes")
_UUIDS = StoredField("", _uuids, b"".join)
_LIST = MessageLayout(ListRef, pb.ListRef, key=StoredField("", check_key), size=_BYTES)
_SESSION = MessageLayout(
    MergedSession, pb.MergedSession, session=StoredField("", check_session), rows=StoredField("", dict, dict)
)
_SPLIT = MessageLayout(SplitTotals, pb.SplitTotals, name=StoredField("", check_split))
_EXPIRY = MessageLayout(
    Expiry,
    pb.Expiry,
    expired_versions=StoredField("", tuple),
    abandoned_sessions=StoredField("", lambda names: tuple(map(check_session, names))),
    doomed_keys=StoredField("", lambda keys: tuple(map(_check_doomed, keys))),
)
_RUN = MessageLayout(KeyRunRef, pb.KeyRunRef, key=StoredField("", _check_run), size=_BYTES)
# Read by `decode_metadata`, which keeps the caller's limits.
METADATA = StoredField("metadata_json", None, lambda given: encode_metadata(given) if given else b"")
_MANIFEST = MessageLayout(
    Manifest,
    pb.Manifest,
    ("deletions",),
    metadata=METADATA,
    sessions=_SESSION.many(),
    session_lists=_LIST.many(),
    schemas=StoredField("", schemas_from_messages, schemas_to_messages),
    roots=StoredField(
        "",
        lambda given: {i.number: i.url for i in given},
        lambda given: [pb.DataRoot(number=number, url=url) for number, url in sorted(given.items())],
    ),
    lists=_LIST.many(),
    splits=_SPLIT.many(),
    expiry=StoredField("", _EXPIRY.read, lambda given: _EXPIRY.write(given) if given != Expiry() else None),
    table=MessageLayout(TableColumn, pb.TableColumn).many(),
    keys=MessageLayout(KeyIndex, pb.KeyIndex, runs=_RUN.many()).many(),
    tags=StoredField(
        "",
        lambda given: {check_tag(i.name): i.version for i in given},
        lambda given: [pb.Tag(name=name, version=version) for name, version in sorted(given.items())],
    ),
    rolled_back=StoredField("rolled_back_sessions", lambda names: tuple(map(check_session, names))),
    rewrites=MessageLayout(Rewrite, pb.Rewrite, old=_UUIDS, new=_UUIDS).many(),
)


# Features that a reader must know to read a manifest: by name, sorted, whether a manifest uses them.
_CRITICAL: dict[str, Callable[[Manifest], bool]] = {
    "deletions": lambda manifest: manifest.deletions,
    "foreign_roots": lambda manifest: bool(manifest.roots),
    "session_lists": lambda manifest: bool(manifest.session_lists),
    "stored_names": lambda manifest: any(schema.stores_other_names for schema in manifest.schemas),
}


def seal_manifest(manifest: Manifest, *, limits: Limits = DEFAULT_LIMITS) -> tuple[bytes, bytes]:
    """Return the sealed bytes of a manifest, and their SHA-256 (32 bytes).

    Raises:
        FormatError: it breaks a rule of the format or is over a limit, so that no reader would take it.
    """
    features = [name for name, uses in _CRITICAL.items() if uses(manifest)]
    message = _MANIFEST.write(manifest, format_version=FORMAT_VERSION, critical_features=features)
    _check(manifest, message, None, limits)
    advice = "write larger shards, less free metadata or fewer splits; or begin another dataset"
    return seal_message(message, what=_WHAT, limits=limits, advice=advice)


def parse_manifest(
    data: bytes, *, version: int, url: str | None = None, limits: Limits = DEFAULT_LIMITS
) -> tuple[Manifest, bytes]:
    """Return the manifest that sealed bytes hold, checked, and its SHA-256.

    Args:
        data: the whole object.
        version: the number in its name; a manifest of another version was moved there and is refused.
        url: where it is, for messages.
        limits: number of rows and shards.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: damaged, newer or hostile.
    """
    message, digest = unseal_message(
        pb.Manifest, data, what=_WHAT, url=url, limits=limits, critical=_CRITICAL
    )
    if message.version != version:
        raise FormatError(
            "a manifest is under another's name",
            url=url,
            expected=version,
            found=message.version,
            advice=COPY_ADVICE,
        )
    with reading(_WHAT, url):
        metadata = decode_metadata(message.metadata_json, limits=limits)
        deletions = "deletions" in message.critical_features
        manifest = _MANIFEST.read(message, metadata=metadata, deletions=deletions)
    _check(manifest, message, url, limits)
    return manifest, digest


def seal_sessions(
    sessions: Sequence[MergedSession], *, limits: Limits = DEFAULT_LIMITS
) -> tuple[bytes, bytes]:
    """Return the sealed bytes of a list of sessions, and their SHA-256 (32 bytes).

    Raises:
        FormatError: `parse_sessions` would refuse it.
    """
    _check_sessions(sessions, None)
    messages = map(_SESSION.write, sessions)
    message = pb.SessionList(format_version=FORMAT_VERSION, sessions=messages)
    return seal_message(message, what=_SESSIONS, limits=limits, advice="store several lists")


def parse_sessions(
    data: bytes, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS
) -> tuple[dict[str, MergedSession], bytes]:
    """Return the sessions that a sealed list holds, checked, by name, and the list's SHA-256.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: damaged, newer or hostile.
    """
    message, digest = unseal_message(pb.SessionList, data, what=_SESSIONS, url=url, limits=limits)
    with reading(_SESSIONS, url):
        sessions = [_SESSION.read(session) for session in message.sessions]
    _check_sessions(sessions, url)
    return {session.session: session for session in sessions}, digest


def _check_sessions(sessions: Sequence[MergedSession], url: str | None) -> None:
    if not _are_sessions(sessions):
        raise FormatError(f"a {_SESSIONS} names one twice, or without a SHA-256 of 32 bytes", url=url)


def _are_sessions(sessions: Sequence[MergedSession]) -> bool:
    """Tell whether each session is there once, with a SHA-256 of 32 bytes."""
    once = len({session.session for session in sessions}) == len(sessions)
    return once and all(len(session.sha256) == 32 for session in sessions)


def _check(manifest: Manifest, message: pb.Manifest, url: str | None, limits: Limits) -> None:
    def need(holds: object, rule: str, found: object = None) -> None:
        if not holds:
            raise FormatError(f"a manifest breaks a rule of the format: {rule}", url=url, found=found)

    version, parent = manifest.version, manifest.parent_version
    need(len(manifest.dataset_uuid) == 16, "a dataset's UUID has 16 bytes", len(manifest.dataset_uuid))
    need(len(manifest.write_id) == 16, "a write id has 16 bytes", len(manifest.write_id))
    need(version >= 1, "versions count from 1", version)
    need(parent == version - 1, "the parent is the version before", parent)
    digest = len(manifest.parent_sha256)
    need(digest == (32 if parent else 0), "a parent has a SHA-256 of 32 bytes", digest)

    digests = [ref.sha256 for ref in (*manifest.lists, *manifest.session_lists)]
    need({*map(len, digests)} <= {32}, "list digests have 32 bytes")
    shards, rows = sum([ref.shards for ref in manifest.lists]), sum([each.rows for each in manifest.splits])
    need(shards <= limits.shards, "shards are within the limit", shards)
    need(rows <= limits.rows, "rows are within the limit", rows)
    splits = [split.name for split in manifest.splits]
    need(splits == sorted(set(splits)), "splits are by name, each once", splits)
    need(_are_sessions(manifest.sessions), "a session is there once, with a SHA-256 of 32 bytes")

    critical = list(message.critical_features)
    need(critical == sorted(set(critical)), "critical features are sorted, each once", critical)
    for feature, uses in _CRITICAL.items():
        rule = f"{feature} is a critical feature where it is used"
        need((feature in critical) == uses(manifest), rule, critical)
    need(len(manifest.roots) == len(message.roots), "roots have one URL each")
    need(0 not in manifest.roots, "root 0 is the dataset's own and is not listed")

    expired, tagged = {*manifest.expiry.expired_versions}, {*manifest.tags.values()}
    for name, versions in (("expired", expired), ("tagged", tagged)):
        earlier = not versions or (min(versions) >= 1 and max(versions) < version)
        need(earlier, f"{name} versions are earlier ones", sorted(versions)[:20])
    tags = [tag.name for tag in message.tags]
    need(tags == sorted(manifest.tags), "tags are by name, each once", tags[:20])
    need(not tagged & expired, "no tag names an expired version", sorted(tagged & expired)[:20])
    need(manifest.restored_version < version, "a restored version is earlier", manifest.restored_version)

    columns = [column.name for column in manifest.table]
    need(len(set(columns)) == len(columns), "columns of the table have names of their own", columns)
    sizes = {len(column.default_sha256) for column in manifest.table}
    need(sizes <= {0, 32}, "digests of defaults have 32 bytes", sizes)
    indexes = [index.feature for index in manifest.keys]
    need(indexes == sorted(set(indexes)), "key indexes are by feature, each once", indexes)
    sizes = {len(run.sha256) for index in manifest.keys for run in index.runs}
    need(sizes <= {32}, "digests of runs have 32 bytes", sizes)
    gone = {*manifest.rolled_back}
    need(list(manifest.rolled_back) == sorted(gone), "rolled back sessions are sorted, each once")
    merged = gone & {session.session for session in manifest.sessions}
    need(not merged, "no rolled back session is merged", sorted(merged)[:20])
    sizes = {len(each) for rewrite in manifest.rewrites for each in (*rewrite.old, *rewrite.new)}
    need(sizes <= {16}, "a rewrite names shards by UUIDs of 16 bytes", sizes)
    need(all(rewrite.old for rewrite in manifest.rewrites), "a rewrite has an old shard")


def encode_metadata(metadata: Mapping[str, Any], *, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return free metadata, what callers say about a dataset, as the bytes of a JSON object.

    Raises:
        ValueError: it is not a mapping of strings to what JSON knows, or over the limit.
    """
    try:
        # Before it is sorted by them: keys of two kinds cannot be compared.
        check_json_keys(dict(metadata))
        data = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, sort_keys=True).encode()
        check_json_depth(data)  # what is written must be read
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata must be a mapping that JSON can hold: {error}") from error
    if len(data) > limits.metadata:
        raise ValueError(f"metadata has {len(data)} bytes as JSON, over the limit of {limits.metadata}")
    return data


def decode_metadata(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Return free metadata from JSON; no bytes are an empty mapping.

    Raises:
        FormatError: over the limit, no JSON (NaN is none), nested beyond reason, or no object.
    """
    if len(data) > limits.metadata:
        raise FormatError("the free metadata is over the limit", expected=limits.metadata, found=len(data))
    try:
        metadata = parse_json(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise FormatError("the free metadata is not JSON", found=str(error)) from error
    if not isinstance(metadata, dict):
        raise FormatError("the free metadata is not a JSON object", found=type(metadata).__name__)
    return metadata
