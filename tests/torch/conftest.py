"""Warnings of torch and torchdata about themselves and about machines with few cores."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
THEIRS = (
    "ignore:'set_vital' is deprecated:UserWarning",
    "ignore:This DataLoader will create . worker processes:UserWarning",
    "ignore:some chunks are fetched more than once:UserWarning",
    "ignore:a StreamingDataset in worker processes of another loader:UserWarning",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for text in THEIRS:
                item.add_marker(pytest.mark.filterwarnings(text))
