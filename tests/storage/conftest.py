"""The servers that the tests of object stores talk to: started when first asked for, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import azure, gcs, s3
from tests.servers.faults import FaultServer, fault_server


@pytest.fixture(scope="session")
def ministack_endpoint() -> Iterator[str]:
    with s3.ministack() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    with gcs.gcs_emulator() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azure.azurite(tmp_path_factory.mktemp("azurite")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def running_server() -> Iterator[FaultServer]:
    with fault_server() as server:
        yield server
