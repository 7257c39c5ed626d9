"""The table of services: by protocol, the functions of each.  Adding one is a line here and its functions.

Any other filesystem is used by fsspec's contract alone: read, and written where there is one writer.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

from shardio.storage import _azure, _gcs, _http, _s3
from shardio.storage._client import Client, Service, fetch_by
from shardio.storage._errors import BadResponseError
from shardio.storage._keys import TEMPORARY
from shardio.storage._store import ObjectInfo, Reply


def _filesystem(options: Mapping[str, Any], root: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    fs, path = url_to_fs(root, **options)
    return fs, path.rstrip("/")


def _describer(client: Client) -> Any:
    """Return the filesystem below any cache; a cache lists the folder for a size, which fails on the web."""
    from fsspec.implementations.cached import CachingFileSystem

    fs = client.fs
    while isinstance(fs, CachingFileSystem):
        fs = fs.fs
    return fs


def _fetch(client: Client, path: str, start: int, stop: int) -> Reply:
    # `cat_file` names one file; `cat` would expand patterns.
    data = client.fs.cat_file(path, start=start, end=stop)
    if len(data) > stop - start:
        raise BadResponseError(f"the response holds {len(data)} bytes where {stop - start} were asked for")
    return Reply(data, None, "")


def _describe(client: Client, path: str) -> tuple[ObjectInfo, str | None]:
    info = _describer(client).info(path)
    if info.get("type") == "directory":
        raise FileNotFoundError(path)
    return _of_info(path, info), None


def _find(client: Client, prefix: str) -> list[ObjectInfo]:
    folder = prefix.rpartition("/")[0]
    try:
        found = client.fs.find(folder, detail=True)
    except FileNotFoundError:
        return []
    # Some filesystems put a slash before what they list, whether they were asked with one or not.
    bare = folder.lstrip("/")
    named = {folder + name.lstrip("/")[len(bare) :]: info for name, info in found.items()}
    return [_of_info(path, info) for path, info in named.items() if path.startswith(prefix)]


def _put(client: Client, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
    fs = client.fs
    taken = _describer(client).isfile(path)
    if exclusive and taken:
        raise FileExistsError(path)
    folder = path.rpartition("/")[0]
    temporary = f"{folder}/{TEMPORARY}{token}"
    fs.makedirs(folder, exist_ok=True)
    try:
        if isinstance(data, pathlib.Path):
            fs.put_file(str(data), temporary)
        else:
            fs.pipe_file(temporary, data)
        if taken:
            fs.rm_file(path)
        fs.mv(temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error counts
            fs.rm_file(temporary)
        raise
    # Filesystems have no answers to be mistaken for theirs.
    return True


def _delete(client: Client, path: str) -> None:
    client.fs.rm_file(path)


def _of_info(path: str, info: Mapping[str, Any]) -> ObjectInfo:
    etag = next(
        (info[name] for name in ("ETag", "etag", "mtime", "modified", "created") if info.get(name)), ""
    )
    return ObjectInfo(path, int(info.get("size") or 0), str(etag))


def _row(module: Any, **facts: Any) -> Service:
    """Return the row of a service whose functions are a module."""
    return Service(
        module.filesystem, fetch_by(module.open_range), module.describe, module.find, module.put,
        module.delete, by_options=module.by_options, by_filesystem=module.by_filesystem,
        etag_of=module.etag_of, **facts,
    )  # fmt: skip


GENERIC = Service(
    _filesystem, _fetch, _describe, _find, _put, _delete,
    has_buckets=False, resends=False,
    read_only_reason="it is not known whether this kind of storage can create an object only if it is absent",
    lifecycle="this kind of storage does not tell whether uploads were left unfinished",
)  # fmt: skip
S3 = _row(
    _s3, package="s3fs", extra="shardio[s3]",
    lifecycle="unfinished uploads in parts are left to the bucket: give it a lifecycle rule that aborts them",
)  # fmt: skip
GCS = _row(
    _gcs, package="gcsfs", extra="shardio[gcs]",
    resends=False,  # uploads are POST
    lifecycle="GCS removes uploads that were not finished after a week",
)  # fmt: skip
AZURE = _row(
    _azure, package="adlfs", extra="shardio[azure]",
    lifecycle="Azure removes the blocks of uploads that were not finished after a week",
)  # fmt: skip
WEB = _row(
    _http, package="aiohttp", extra="aiohttp",
    has_buckets=False, can_list=False, read_only_reason="a web server takes no objects",
)  # fmt: skip

SERVICES = {
    **dict.fromkeys(("s3", "s3a"), S3),
    **dict.fromkeys(("gs", "gcs"), GCS),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), AZURE),
    **dict.fromkeys(("http", "https"), WEB),
}
