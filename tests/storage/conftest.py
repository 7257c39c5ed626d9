"""The server that tests of object stores alone talk to: started when first asked for, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import s3


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as often as usual between two attempts, and a twentieth as long."""
    monkeypatch.setattr("shardio.storage._remote._BACKOFF", 0.01)


@pytest.fixture(scope="session")
def ministack_endpoint() -> Iterator[str]:
    with s3.ministack() as endpoint:
        yield endpoint
