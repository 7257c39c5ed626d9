"""Azure Blob Storage: the laws against Azurite, with data read by adlfs and by obstore."""

from __future__ import annotations

import pytest

from shardio.storage import Store, connect
from tests.servers.azure import make_container, options_for
from tests.suites.store import StoreLaws


class TestAzureWithFsspec(StoreLaws):
    start_method = "fork"
    engine = "fsspec"

    @pytest.fixture
    def store(self, azurite_endpoint: str) -> Store:
        root = f"az://{make_container(azurite_endpoint)}/some/root"
        return connect(root, storage_options=options_for(azurite_endpoint), engine=self.engine)


class TestAzureWithObstore(TestAzureWithFsspec):
    engine = "obstore"
    start_method = None  # told once is enough
    fork_error = "forked after obstore was used"
