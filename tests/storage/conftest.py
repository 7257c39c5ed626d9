"""The server that tests of object stores alone talk to: started when first asked for, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import s3, waits


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits.shorten(monkeypatch)


@pytest.fixture(scope="session")
def ministack_endpoint() -> Iterator[str]:
    with s3.ministack() as endpoint:
        yield endpoint
