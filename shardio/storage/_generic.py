"""Any other filesystem of fsspec: read-only, or for a single writer, which creates by renaming."""

from __future__ import annotations

import asyncio
import pathlib
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shardio.storage._client import Client, Response
from shardio.storage._keys import TEMPORARY
from shardio.storage._store import ObjectInfo
from shardio.storage._tuning import Tuning


def connect_generic(url: str, options: Mapping[str, Any], tuning: Tuning) -> tuple[Any, str]:
    """Return the filesystem that fsspec has for a URL, and the root's path on it."""
    del tuning
    from fsspec.core import url_to_fs

    fs, path = url_to_fs(url, **options)
    return fs, path.rstrip("/")


class GenericClient(Client):
    """Requests on a filesystem of which only fsspec's contract is known; blocking ones run in threads."""

    def __init__(self, fs: Any, root: str, url: str) -> None:
        self._fs = fs
        self._root = root
        self._url = url

    def _path(self, path: str) -> str:
        """Return the filesystem's own name for what the store calls by the root's URL and a key."""
        return self._root + path[len(self._url) :]

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if getattr(self._fs, "async_impl", False):
            return await getattr(self._fs, f"_{name}")(*arguments, **options)
        return await asyncio.to_thread(getattr(self._fs, name), *arguments, **options)

    async def fetch(self, path: str, start: int, stop: int) -> Response:
        # `cat_file` names one file; `cat` would expand patterns. Its response makes no claims but its length.
        return Response(await self._call("cat_file", self._path(path), start=start, end=stop), None, "")

    async def head(self, path: str) -> ObjectInfo | None:
        try:
            info = await self._call("info", self._path(path))
        except FileNotFoundError:
            return None
        return None if info.get("type") == "directory" else _describe(path, info)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        wanted = self._path(prefix)
        folder = wanted.rpartition("/")[0]
        try:
            found = await self._call("find", folder, detail=True)
        except FileNotFoundError:
            return
        for name, info in found.items():
            # Some filesystems put a slash before what they list, whether they were asked with one or not.
            path = name if name.startswith(folder) else "/" + name.lstrip("/")
            path = path if folder.startswith("/") else path.lstrip("/")
            if path.startswith(wanted):
                yield _describe((self._url + path[len(self._root) :]), info)

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str = "") -> bool:
        del token
        taken = await self.head(path) is not None
        if exclusive and taken:
            raise FileExistsError(path)
        target = self._path(path)
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/{TEMPORARY}{secrets.token_hex(12)}"
        await self._call("makedirs", folder, exist_ok=True)
        try:
            if isinstance(data, pathlib.Path):
                await self._call("put_file", str(data), temporary)
            else:
                await self._call("pipe_file", temporary, data)
            if taken:
                await self._call("rm_file", target)
            # `mv` is blocking everywhere.
            await asyncio.to_thread(self._fs.mv, temporary, target)
        except BaseException:
            await self._forget(temporary)
            raise
        # Filesystems have no answers to be mistaken for theirs.
        return True

    async def _forget(self, temporary: str) -> None:
        try:
            await self._call("rm_file", temporary)
        except Exception:  # noqa: BLE001 - the first error is the one to be told
            return

    async def delete(self, path: str) -> None:
        await self._call("rm_file", self._path(path))


def _describe(path: str, info: Mapping[str, Any]) -> ObjectInfo:
    etag = next(
        (info[name] for name in ("ETag", "etag", "mtime", "modified", "created") if info.get(name)), ""
    )
    return ObjectInfo(path, int(info.get("size") or 0), str(etag))
