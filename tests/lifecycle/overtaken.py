"""Builds of tables and keys that garbage collection overtakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import shardio

if TYPE_CHECKING:
    import pytest


def collect_before_commit(build: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect garbage just before a build first commits; the list that is returned gets the report."""
    commit = build.commit
    ran: list[Any] = []

    def late(self: Any) -> Any:
        if not ran:
            ran.append(shardio.gc(url, dry_run=False))
        return commit(self)

    monkeypatch.setattr(build, "commit", late)
    return ran
