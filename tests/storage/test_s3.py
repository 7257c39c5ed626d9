"""S3: the laws against two servers of different make, with data read by s3fs and by obstore."""

from __future__ import annotations

import pytest

from shardio.storage import Store, connect
from tests.servers.s3 import make_bucket, options_for
from tests.suites.store import StoreLaws


class S3Laws(StoreLaws):
    processes = 2
    start_method = "fork"  # spawned ones cost seconds each; see test_workers_of_every_kind_read
    engine = "fsspec"

    @pytest.fixture
    def endpoint(self, moto_endpoint: str) -> str:
        return moto_endpoint

    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        root = f"s3://{make_bucket(endpoint)}/some/root"
        return connect(root, storage_options=options_for(endpoint), engine=self.engine)


class TestMotoWithFsspec(S3Laws):
    pass


@pytest.mark.slow  # the laws once more
class TestMotoWithObstore(S3Laws):
    engine = "obstore"
    start_method = None  # told once is enough
    fork_error = "forked after obstore was used"


@pytest.mark.slow  # its server takes as long to start as the laws
class TestMinistack(S3Laws):
    # What it lacks is told apart from what we lack: real S3 takes all the names.
    engine = "obstore"
    start_method = None  # told once is enough
    fork_error = "forked after obstore was used"

    @pytest.fixture
    def endpoint(self, ministack_endpoint: str) -> str:
        return ministack_endpoint
