"""What the promises share: the long search is asked for by hand, `pytest --hypothesis-profile=long`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.promises.places import S3_BUCKET


@pytest.fixture(scope="session")
def long(request) -> bool:
    """Whether the long variants were asked for."""
    return bool(request.config.getoption("--hypothesis-profile", default=None) == "long")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch) -> None:
    """Flushing guards against power failures, which no test here makes; kills leave the page cache alone."""
    monkeypatch.setattr("os.fsync", lambda _number: None)


@pytest.fixture(scope="session")
def s3_endpoint(long, request) -> Iterator[str]:
    """An S3 server: moto in every run, a server of another make in the long one."""
    from tests.servers import s3

    if long:
        with s3.ministack() as endpoint:
            s3.make_bucket(endpoint, S3_BUCKET)
            yield endpoint
    else:
        endpoint = request.getfixturevalue("moto_endpoint")
        s3.make_bucket(endpoint, S3_BUCKET)
        yield endpoint


@pytest.fixture
def s3(s3_endpoint, monkeypatch, tmp_path) -> str:
    """The endpoint, which all code in this process finds by the variables of AWS."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    return s3_endpoint
