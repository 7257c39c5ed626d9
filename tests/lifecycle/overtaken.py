"""Builds of tables and keys that something overtakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import shardio
from shardio.storage import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def before_commit(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Call something once, when a build has stored its first file; return a list that gets the result."""
    put = Store.put_idempotent
    ran: list[Any] = []

    def late(self: Any, *given: Any) -> Any:
        stored = put(self, *given)
        if not ran and str(given[0][0]).startswith(("_shardio/keys/", "_shardio/tables/")):
            ran.append(None)
            ran[0] = call()
        return stored

    monkeypatch.setattr(Store, "put_idempotent", late)
    return ran


def collect_before_commit(url: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect garbage just before a build first commits; the list that is returned gets the report."""
    return before_commit(lambda: shardio.gc(url, dry_run=False), monkeypatch)
