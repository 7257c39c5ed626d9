"""Every test of the kernels runs on the kernels and on the reference that they are compared with."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.kernels.differential import IMPLEMENTATIONS


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return request.param
