"""Where bytes live: local folders, memory, object stores; retries, ranges and the cache.

`connect(url)` gives a `Store`: six primitives whose laws hold on every backend.  This is the only room that
imports fsspec and obstore, and it knows nothing of shards or manifests: keys in, bytes out.
"""

from __future__ import annotations

from shardio.storage._cache import BlockCache, CachedBlocks, CacheOptions, CacheUsage
from shardio.storage._connect import connect, connect_folder
from shardio.storage._create import begin_write_back, make_folders
from shardio.storage._keys import TEMPORARY, followed, local_path, public_url, url_text
from shardio.storage._local import (
    READS_COMPILED,
    LocalStore,
    OpenFiles,
    advise_need,
    descriptor_limit,
    descriptor_users,
    files_of_callers,
    locked,
    temporary_files,
)
from shardio.storage._memory import MemoryStore
from shardio.storage._obstore import fork_is_meant
from shardio.storage._remote import RemoteStore, Upload, begin_together, unlisted, upload_of
from shardio.storage._requests import on_io_thread
from shardio.storage._store import (
    CannotListError,
    ChangedObjectError,
    DataFile,
    DeniedError,
    MissingBucketError,
    NamedFile,
    NotDurableError,
    ObjectInfo,
    ShortReadError,
    Store,
    UnknownOutcomeError,
)
from shardio.storage._tuning import Tuning
from shardio.storage._uploads import Uploads

__all__ = [
    "READS_COMPILED",
    "TEMPORARY",
    "BlockCache",
    "CacheOptions",
    "CacheUsage",
    "CachedBlocks",
    "CannotListError",
    "ChangedObjectError",
    "DataFile",
    "DeniedError",
    "LocalStore",
    "MemoryStore",
    "MissingBucketError",
    "NamedFile",
    "NotDurableError",
    "ObjectInfo",
    "OpenFiles",
    "RemoteStore",
    "ShortReadError",
    "Store",
    "Tuning",
    "UnknownOutcomeError",
    "Upload",
    "Uploads",
    "advise_need",
    "begin_together",
    "begin_write_back",
    "connect",
    "connect_folder",
    "descriptor_limit",
    "descriptor_users",
    "files_of_callers",
    "followed",
    "fork_is_meant",
    "local_path",
    "locked",
    "make_folders",
    "on_io_thread",
    "public_url",
    "temporary_files",
    "unlisted",
    "upload_of",
    "url_text",
]
