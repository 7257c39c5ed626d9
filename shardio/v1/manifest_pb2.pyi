from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeatureSpec(_message.Message):
    __slots__ = ("name", "type", "shape", "optional", "default", "has_default", "default_shape", "classes", "description", "stored_name", "unit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    HAS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SHAPE_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STORED_NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    optional: bool
    default: _containers.RepeatedScalarFieldContainer[bytes]
    has_default: bool
    default_shape: _containers.RepeatedScalarFieldContainer[int]
    classes: _containers.RepeatedScalarFieldContainer[str]
    description: str
    stored_name: str
    unit: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., optional: bool = ..., default: _Optional[_Iterable[bytes]] = ..., has_default: bool = ..., default_shape: _Optional[_Iterable[int]] = ..., classes: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., stored_name: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("encoding", "features", "sequence_features", "feature_numbers", "sequence_numbers")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FEATURES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    encoding: str
    features: _containers.RepeatedCompositeFieldContainer[FeatureSpec]
    sequence_features: _containers.RepeatedCompositeFieldContainer[FeatureSpec]
    feature_numbers: _containers.RepeatedScalarFieldContainer[int]
    sequence_numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, encoding: _Optional[str] = ..., features: _Optional[_Iterable[_Union[FeatureSpec, _Mapping]]] = ..., sequence_features: _Optional[_Iterable[_Union[FeatureSpec, _Mapping]]] = ..., feature_numbers: _Optional[_Iterable[int]] = ..., sequence_numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class MergedSession(_message.Message):
    __slots__ = ("session", "sha256", "tasks", "version", "rows")
    class RowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    session: str
    sha256: bytes
    tasks: int
    version: int
    rows: _containers.ScalarMap[str, int]
    def __init__(self, session: _Optional[str] = ..., sha256: _Optional[bytes] = ..., tasks: _Optional[int] = ..., version: _Optional[int] = ..., rows: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DataRoot(_message.Message):
    __slots__ = ("number", "url")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    number: int
    url: str
    def __init__(self, number: _Optional[int] = ..., url: _Optional[str] = ...) -> None: ...

class SessionList(_message.Message):
    __slots__ = ("format_version", "sessions")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    sessions: _containers.RepeatedCompositeFieldContainer[MergedSession]
    def __init__(self, format_version: _Optional[int] = ..., sessions: _Optional[_Iterable[_Union[MergedSession, _Mapping]]] = ...) -> None: ...

class ListRef(_message.Message):
    __slots__ = ("key", "bytes", "sha256", "shards")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    bytes: int
    sha256: bytes
    shards: int
    def __init__(self, key: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., shards: _Optional[int] = ...) -> None: ...

class SplitTotals(_message.Message):
    __slots__ = ("name", "rows", "shards", "stored_bytes", "decoded_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DECODED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    shards: int
    stored_bytes: int
    decoded_bytes: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., shards: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., decoded_bytes: _Optional[int] = ...) -> None: ...

class Expiry(_message.Message):
    __slots__ = ("expired_versions", "abandoned_sessions", "doomed_keys", "complete")
    EXPIRED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DOOMED_KEYS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    expired_versions: _containers.RepeatedScalarFieldContainer[int]
    abandoned_sessions: _containers.RepeatedScalarFieldContainer[str]
    doomed_keys: _containers.RepeatedScalarFieldContainer[str]
    complete: bool
    def __init__(self, expired_versions: _Optional[_Iterable[int]] = ..., abandoned_sessions: _Optional[_Iterable[str]] = ..., doomed_keys: _Optional[_Iterable[str]] = ..., complete: bool = ...) -> None: ...

class TableColumn(_message.Message):
    __slots__ = ("name", "feature", "derived", "type", "optional", "default_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    DERIVED_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    feature: str
    derived: str
    type: str
    optional: bool
    default_sha256: bytes
    def __init__(self, name: _Optional[str] = ..., feature: _Optional[str] = ..., derived: _Optional[str] = ..., type: _Optional[str] = ..., optional: bool = ..., default_sha256: _Optional[bytes] = ...) -> None: ...

class KeyRunRef(_message.Message):
    __slots__ = ("key", "bytes", "sha256", "shards", "entries")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    key: str
    bytes: int
    sha256: bytes
    shards: int
    entries: int
    def __init__(self, key: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., shards: _Optional[int] = ..., entries: _Optional[int] = ...) -> None: ...

class KeyIndex(_message.Message):
    __slots__ = ("feature", "type", "runs")
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    feature: str
    type: str
    runs: _containers.RepeatedCompositeFieldContainer[KeyRunRef]
    def __init__(self, feature: _Optional[str] = ..., type: _Optional[str] = ..., runs: _Optional[_Iterable[_Union[KeyRunRef, _Mapping]]] = ...) -> None: ...

class Tag(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Rewrite(_message.Message):
    __slots__ = ("old", "new")
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    old: bytes
    new: bytes
    def __init__(self, old: _Optional[bytes] = ..., new: _Optional[bytes] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("format_version", "critical_features", "dataset_uuid", "version", "parent_version", "parent_sha256", "write_id", "operation", "created_ms", "writer", "sessions", "schemas", "metadata_json", "roots", "lists", "splits", "expiry", "session_lists", "table", "keys", "tags", "rolled_back_sessions", "restored_version", "rewrites")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CRITICAL_FEATURES_FIELD_NUMBER: _ClassVar[int]
    DATASET_UUID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_FIELD_NUMBER: _ClassVar[int]
    SESSION_LISTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_VERSION_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    critical_features: _containers.RepeatedScalarFieldContainer[str]
    dataset_uuid: bytes
    version: int
    parent_version: int
    parent_sha256: bytes
    write_id: bytes
    operation: str
    created_ms: int
    writer: str
    sessions: _containers.RepeatedCompositeFieldContainer[MergedSession]
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    metadata_json: bytes
    roots: _containers.RepeatedCompositeFieldContainer[DataRoot]
    lists: _containers.RepeatedCompositeFieldContainer[ListRef]
    splits: _containers.RepeatedCompositeFieldContainer[SplitTotals]
    expiry: Expiry
    session_lists: _containers.RepeatedCompositeFieldContainer[ListRef]
    table: _containers.RepeatedCompositeFieldContainer[TableColumn]
    keys: _containers.RepeatedCompositeFieldContainer[KeyIndex]
    tags: _containers.RepeatedCompositeFieldContainer[Tag]
    rolled_back_sessions: _containers.RepeatedScalarFieldContainer[str]
    restored_version: int
    rewrites: _containers.RepeatedCompositeFieldContainer[Rewrite]
    def __init__(self, format_version: _Optional[int] = ..., critical_features: _Optional[_Iterable[str]] = ..., dataset_uuid: _Optional[bytes] = ..., version: _Optional[int] = ..., parent_version: _Optional[int] = ..., parent_sha256: _Optional[bytes] = ..., write_id: _Optional[bytes] = ..., operation: _Optional[str] = ..., created_ms: _Optional[int] = ..., writer: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[MergedSession, _Mapping]]] = ..., schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ..., metadata_json: _Optional[bytes] = ..., roots: _Optional[_Iterable[_Union[DataRoot, _Mapping]]] = ..., lists: _Optional[_Iterable[_Union[ListRef, _Mapping]]] = ..., splits: _Optional[_Iterable[_Union[SplitTotals, _Mapping]]] = ..., expiry: _Optional[_Union[Expiry, _Mapping]] = ..., session_lists: _Optional[_Iterable[_Union[ListRef, _Mapping]]] = ..., table: _Optional[_Iterable[_Union[TableColumn, _Mapping]]] = ..., keys: _Optional[_Iterable[_Union[KeyIndex, _Mapping]]] = ..., tags: _Optional[_Iterable[_Union[Tag, _Mapping]]] = ..., rolled_back_sessions: _Optional[_Iterable[str]] = ..., restored_version: _Optional[int] = ..., rewrites: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ...) -> None: ...

class SplitReceipt(_message.Message):
    __slots__ = ("name", "rows", "frames_crc32c")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_CRC32C_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    frames_crc32c: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., frames_crc32c: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("format_version", "session", "task", "attempt", "complete", "shards", "splits", "schema", "metadata_json", "mode", "base_version", "sequence", "previous", "items_sha256", "base_sha256")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_SHA256_FIELD_NUMBER: _ClassVar[int]
    BASE_SHA256_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    session: str
    task: int
    attempt: str
    complete: bool
    shards: bytes
    splits: _containers.RepeatedCompositeFieldContainer[SplitReceipt]
    schema: Schema
    metadata_json: bytes
    mode: str
    base_version: int
    sequence: int
    previous: str
    items_sha256: bytes
    base_sha256: bytes
    def __init__(self, format_version: _Optional[int] = ..., session: _Optional[str] = ..., task: _Optional[int] = ..., attempt: _Optional[str] = ..., complete: bool = ..., shards: _Optional[bytes] = ..., splits: _Optional[_Iterable[_Union[SplitReceipt, _Mapping]]] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., metadata_json: _Optional[bytes] = ..., mode: _Optional[str] = ..., base_version: _Optional[int] = ..., sequence: _Optional[int] = ..., previous: _Optional[str] = ..., items_sha256: _Optional[bytes] = ..., base_sha256: _Optional[bytes] = ...) -> None: ...
