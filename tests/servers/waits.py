"""Short waits between two attempts at a request, of shardio's and of the client libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as often as usual, and a fiftieth as long."""
    monkeypatch.setattr("shardio.storage._remote._BACKOFF", 0.01)
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda base, growth_factor, attempts: 0.02)
    monkeypatch.setattr(
        "azure.storage.blob._shared.policies_async.ExponentialRetry.get_backoff_time", lambda *_: 0.02
    )
