"""The GCS emulator as a program of its own, and storage_options for it."""

from __future__ import annotations

import contextlib
import pathlib
from typing import TYPE_CHECKING, Any

from tests.servers.processes import PYTHON, held_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "gcs-bucket"


def options_for(endpoint: str) -> dict[str, Any]:
    return {"endpoint_url": endpoint, "token": "anon", "project": "test"}


@contextlib.contextmanager
def gcs_emulator() -> Iterator[str]:
    """Run the emulator, with one empty bucket; yield its endpoint."""
    script = pathlib.Path(__file__).with_name("gcs_emulator.py")
    with held_port() as port, running([str(PYTHON / "python"), str(script), str(port), BUCKET], port):
        yield f"http://127.0.0.1:{port}"
