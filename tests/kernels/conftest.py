"""The kernels that the tests of this folder are about."""

from __future__ import annotations

from types import ModuleType

import pytest

import shardio.kernels


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    return shardio.kernels
