"""Azurite as a program of its own, and storage_options for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

from tests.servers.processes import NODE, held_port, running

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

ACCOUNT = "devstoreaccount1"
# The well-known key of every Azurite; no secret.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_numbers = itertools.count()


def options_for(endpoint: str) -> dict[str, str]:
    parts = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": ACCOUNT,
        "AccountKey": KEY,
        "BlobEndpoint": endpoint,
    }
    return {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}


@contextlib.contextmanager
def azurite(folder: pathlib.Path) -> Iterator[str]:
    """Run Azurite with its data in `folder`; yield its endpoint."""
    with held_port() as port:
        command = [str(NODE / "azurite-blob"), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
        command += ["--location", str(folder), "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        with running(command, port):
            yield f"http://127.0.0.1:{port}/{ACCOUNT}"


def make_container(endpoint: str) -> str:
    from azure.storage.blob.aio import BlobServiceClient

    name = f"container-{next(_numbers)}"

    async def create() -> None:
        async with BlobServiceClient(endpoint, credential={"account_name": ACCOUNT, "account_key": KEY}) as c:
            await c.create_container(name)

    asyncio.run(create())
    return name
