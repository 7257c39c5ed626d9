"""What the promises share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch) -> None:
    """Flushing guards against power failures, which no test here makes; kills leave the page cache alone."""
    monkeypatch.setattr("os.fsync", lambda _number: None)
