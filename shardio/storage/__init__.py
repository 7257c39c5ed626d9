"""Where bytes live: local folders, memory, object stores; retries, ranges and the cache.

`connect(url)` gives a `Store`: six primitives whose laws hold on every backend.  This is the only room that
imports fsspec and obstore, and it knows nothing of shards or manifests: keys in, bytes out.
"""

from __future__ import annotations

from shardio.storage._address import Address as Address, Place as Place
from shardio.storage._cache import (
    BlockCache as BlockCache,
    CachedBlocks as CachedBlocks,
    CacheOptions as CacheOptions,
)
from shardio.storage._client import on_io_thread as on_io_thread
from shardio.storage._connect import connect as connect, connect_folder as connect_folder
from shardio.storage._create import make_folders as make_folders
from shardio.storage._keys import (
    TEMPORARY as TEMPORARY,
    followed as followed,
    is_link as is_link,
    local_path as local_path,
    url_text as url_text,
)
from shardio.storage._local import (
    LocalStore as LocalStore,
    descriptor_limit as descriptor_limit,
    descriptor_users as descriptor_users,
    files_of_callers as files_of_callers,
    linked_folders as linked_folders,
    temporary_files as temporary_files,
)
from shardio.storage._memory import MemoryStore as MemoryStore
from shardio.storage._obstore import fork_is_meant as fork_is_meant
from shardio.storage._remote import RemoteStore as RemoteStore, unlisted as unlisted
from shardio.storage._store import (
    CannotListError as CannotListError,
    ChangedObjectError as ChangedObjectError,
    DataFile as DataFile,
    DeniedError as DeniedError,
    MissingBucketError as MissingBucketError,
    NotDurableError as NotDurableError,
    ObjectInfo as ObjectInfo,
    ShortReadError as ShortReadError,
    Store as Store,
    StoreNetwork as StoreNetwork,
    UnknownOutcomeError as UnknownOutcomeError,
    holds as holds,
    read_intact as read_intact,
)
from shardio.storage._temporaries import (
    new_temporary as new_temporary,
    remove_temporaries as remove_temporaries,
    remove_temporary as remove_temporary,
)
from shardio.storage._uploads import Uploads as Uploads
