"""In this folder JAX runs in the process of the tests, and whatever forks it then could hang for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # As a hook it is given the items of all folders.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("error:os\\.fork\\(\\) was called:RuntimeWarning"))
