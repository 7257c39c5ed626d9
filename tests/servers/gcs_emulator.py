"""A GCS emulator with the one precondition that commits need: `gcs_emulator.py PORT BUCKET`.

Run by the interpreter that has `gcp-storage-emulator`, which ignores `ifGenerationMatch`.  Its server handles
one request at a time, so check and insertion are one step.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

_insert = objects.insert


def insert(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
    if request.query.get("ifGenerationMatch") == ["0"] and "upload_id" not in request.query:
        names = request.query.get("name") or [request.data["meta"]["name"]]
        try:
            storage.get_file_obj(request.params["bucket_name"], names[0])
        except NotFound:
            pass
        else:
            response.status = HTTPStatus.PRECONDITION_FAILED
            response.json({"error": {"code": 412, "message": "conditionNotMet"}})
            return
    if request.query.get("uploadType") == ["media"] and request.data is None:
        # An empty body, which the emulator takes for none.
        request._data = b""
    _insert(request, response, storage, *args, **kwargs)


def main() -> None:
    replaced = 0
    for routes in server.HANDLERS:
        for method, handler in routes[1].items():
            if handler is _insert:
                routes[1][method] = insert
                replaced += 1
    if not replaced:
        raise SystemExit("the emulator's table of handlers has changed")
    port, bucket = int(sys.argv[1]), sys.argv[2]
    emulator = server.create_server("127.0.0.1", port, in_memory=True, default_bucket=bucket)
    emulator.run()


main()
