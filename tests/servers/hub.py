"""A Hugging Face Hub for a folder of files: the calls that `huggingface_hub`'s file system makes to read.

There is one dataset with one revision.  What it answers is as much of the Hub's answers as that library
reads: what the dataset is, the tree of the revision, what is known of some paths, and files with ranges.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tests.servers.web import serving

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from aiohttp import web

_SHA = "1" * 40
_DATE = "2026-01-01T00:00:00.000Z"


@contextlib.contextmanager
def hub(folder: pathlib.Path, name: str, requests: list[str] | None = None) -> Iterator[str]:
    """Serve the files of a folder as a dataset; yield the endpoint.

    Args:
        folder: whose files are the dataset's.
        name: "owner/name" of the dataset.
        requests: to which "METHOD path" of each request is added.
    """
    from aiohttp import web

    def absent(code: str) -> web.Response:
        return web.json_response({"error": code}, status=404, headers={"X-Error-Code": code})

    def entry(path: pathlib.Path) -> dict[str, Any]:
        about = {"path": path.relative_to(folder).as_posix(), "oid": _SHA}
        if path.is_dir():
            return {**about, "type": "directory", "size": 0}
        return {**about, "type": "file", "size": path.stat().st_size}

    @web.middleware
    async def known(request: web.Request, handler: Any) -> web.StreamResponse:
        if requests is not None:
            requests.append(f"{request.method} {request.path}")
        asked = request.match_info
        if f"{asked.get('owner')}/{asked.get('name')}" != name:
            return absent("RepoNotFound")
        if asked.get("revision", "main") not in ("main", _SHA):
            return absent("RevisionNotFound")
        found: web.StreamResponse = await handler(request)
        return found

    async def about(request: web.Request) -> web.Response:
        del request
        facts = {
            "id": name,
            "sha": _SHA,
            "private": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [],
        }
        return web.json_response(
            facts | {"createdAt": _DATE, "lastModified": _DATE, "disabled": False, "gated": False}
        )

    async def tree(request: web.Request) -> web.Response:
        place = folder / request.match_info["path"]
        if not place.is_dir():
            return absent("EntryNotFound")
        recursive = request.query.get("recursive", "").lower() == "true"
        return web.json_response(
            [entry(path) for path in sorted(place.rglob("*") if recursive else place.iterdir())]
        )

    async def paths(request: web.Request) -> web.Response:
        form = await request.post()
        places = [folder / str(path) for path in form.getall("paths", [])]
        return web.json_response([entry(path) for path in places if path.exists()])

    async def resolve(request: web.Request) -> web.StreamResponse:
        place = folder / request.match_info["path"]
        return web.FileResponse(place) if place.is_file() else absent("EntryNotFound")

    app = web.Application(middlewares=[known])
    api = "/api/datasets/{owner}/{name}"
    app.router.add_get(api, about)
    app.router.add_get(api + "/revision/{revision}", about)
    app.router.add_get(api + "/tree/{revision}{slash:/?}{path:.*}", tree)
    app.router.add_post(api + "/paths-info/{revision}", paths)
    app.router.add_get("/datasets/{owner}/{name}/resolve/{revision}/{path:.*}", resolve)
    with serving(app) as url:
        yield url
