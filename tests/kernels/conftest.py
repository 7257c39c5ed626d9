"""Every test of the kernels runs on every implementation that is here, through the same names."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.kernels.differential import IMPLEMENTATIONS


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition("._")[2])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return request.param
