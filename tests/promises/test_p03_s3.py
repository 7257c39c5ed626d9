"""P3 on S3: concurrent writers never lose or mix data; overwrites conflict loudly."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import settings

import shardio
from shardio.errors import StorageError
from shardio.storage._remote import _probed
from tests.promises.places import fresh
from tests.promises.racing import check_overwriters, check_processes, check_racers, race
from tests.promises.test_p03_concurrent import Datasets
from tests.servers.faults import fault_server
from tests.servers.s3 import options_for


def test_of_16_racers_for_one_version_one_wins(s3, tmp_path):
    """P3: 16 racers for one version, one winner."""
    check_racers(fresh("s3", tmp_path))


def test_of_overwriters_one_wins(s3, tmp_path):
    """P3: an overwrite fails with `CommitConflictError` unless its base is still the latest."""
    check_overwriters(fresh("s3", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 2])
def test_appends_of_racing_and_killed_processes_are_whole(kills, s3, tmp_path):
    """P3: appends of processes that race are all there; of those killed, each whole or not at all."""
    check_processes(fresh("s3", tmp_path), kills)


class DatasetsOnS3(Datasets):
    """The state machine of P3 against a server."""

    place = "s3"


DatasetsOnS3.TestCase.settings = settings(
    Datasets.TestCase.settings, max_examples=max(4, settings().max_examples // 100), stateful_step_count=12
)
test_datasets_are_what_a_model_says = pytest.mark.slow(pytest.mark.usefixtures("s3")(DatasetsOnS3.TestCase))


def looking_first(
    looks_first: Callable[[str], float], apart: float = 0.0
) -> tuple[list[bytes], list[Exception], list[bytes]]:
    """Let six writers append to a server that looks first and writes then; return what was acknowledged, the
    errors, and what is there in the end. They begin so many seconds apart.
    """
    with fault_server() as server:
        options = options_for(server.url)
        url = "s3://bucket/ds"
        with shardio.DatasetWriter(url, storage_options=options) as out:
            out.write(b"first")
        server.looks_first = looks_first
        errors: list[Exception] = []

        def append(number: int) -> bytes | None:
            # The probe of the first writer was answered well; processes of their own ask again.
            _probed.forget()
            time.sleep(number * apart)
            try:
                with shardio.DatasetWriter(url, mode="append", storage_options=options) as out:
                    out.write(b"%d" % number)
            except StorageError as error:
                errors.append(error)
                return None
            return b"%d" % number

        done = [record for record in race(6, append) if record is not None]
        return done, errors, list(shardio.open(url, storage_options=options, engine="fsspec"))


def test_a_store_that_looks_first_and_writes_then_takes_no_commit():
    """P3: no acknowledged commit is lost where creation is not one step: the probe finds out."""
    done, errors, found = looking_first(lambda _path: 0.2)
    assert done == []
    assert found == [b"first"]
    assert len(errors) == 6
    assert all("raced to create one object" in str(error) for error in errors)


def test_a_store_that_races_only_sometimes_loses_nothing_that_was_acknowledged():
    """P3: nor where the probe sees nothing: the manifest is read back, once all others have written."""
    done, errors, found = looking_first(lambda path: 0.3 if "/manifests/" in path else 0.0, apart=0.04)
    assert errors == []
    assert len(done) == 6
    assert sorted(found) == sorted([b"first", *done])
