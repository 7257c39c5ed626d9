"""S3: the laws against two servers of different make, with data read by s3fs and by obstore."""

from __future__ import annotations

from typing import Any

import pytest
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import ConnectTimeoutError

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


def test_a_connection_that_fails_within_an_upload_repeats_one_part(moto_endpoint, tmp_path, monkeypatch):
    root = f"s3://{make_bucket(moto_endpoint)}/root"
    store = connect(root, storage_options=options_for(moto_endpoint), engine="fsspec")
    store.put_if_absent("small", b"1")
    send, parts = AIOHTTPSession.send, []

    async def fail_once(self: AIOHTTPSession, request: Any) -> Any:
        if "partNumber" in request.url:
            parts.append(request.url)
            if len(parts) == 2:
                raise ConnectTimeoutError(endpoint_url=request.url)
        return await send(self, request)

    monkeypatch.setattr(AIOHTTPSession, "send", fail_once)
    file = tmp_path / "large"
    with file.open("wb") as out:
        out.truncate((32 << 20) + 1)  # three parts
    assert store.put_if_absent("large", file)
    assert len(parts) == 4
    assert len({*parts}) == 3
