"""GCS: the laws against an emulator; obstore's client cannot talk to it, so gcsfs reads."""

from __future__ import annotations

import uuid

import pytest

from shardio.storage import Store, connect
from tests.servers.gcs import BUCKET, options_for
from tests.suites.store import StoreLaws


class TestGCS(StoreLaws):
    start_method = "fork"

    @pytest.fixture
    def store(self, gcs_endpoint: str) -> Store:
        return connect(f"gs://{BUCKET}/{uuid.uuid4().hex}/root", storage_options=options_for(gcs_endpoint))
