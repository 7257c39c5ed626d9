"""Azure Blob Storage: the laws against Azurite, with data read by adlfs and by obstore."""

from __future__ import annotations

import pytest
from azure.storage.blob import BlobServiceClient

from shardio.errors import StorageError
from shardio.storage import Store, connect, unlisted, upload_of
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


def test_blocks_that_were_never_committed_are_listed(azurite_endpoint: str) -> None:
    """What Azure tells of uploads that were broken off; it alone can remove them."""
    container, options = make_container(azurite_endpoint), options_for(azurite_endpoint)
    store = connect(f"az://{container}/root", storage_options=options)
    assert store.put_if_absent("data/empty", b"")
    with BlobServiceClient.from_connection_string(options["connection_string"]) as service:
        for name in ("root/data/lost", "elsewhere/data/lost"):
            service.get_blob_client(container, name).stage_block("AAAA", b"a part")
    (left,) = store.list_temporaries()
    upload = upload_of(left)
    assert upload is not None
    assert (upload.key, upload.id) == ("data/lost", "")
    assert "after a week" in str(unlisted(store))
    with pytest.raises(StorageError, match="after a week"):
        store.delete_temporary(left)
    assert [info.key for info in store.list()] == ["data/empty"]
