"""The second half of `make demo` on small input: on a server of its own, or where one says."""

from __future__ import annotations

import concurrent.futures
import importlib
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("demo", "demo_bucket"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    # What the demo sets for itself is taken back at the end; what is set already leads nowhere.
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("SHARDIO_DEMO_URL", raising=False)
    found = importlib.import_module("demo_bucket")
    pixels = np.arange(240 * 260 * 3, dtype=np.uint32).astype(np.uint8).reshape(240, 260, 3)
    monkeypatch.setattr(found.demo, "photographs", lambda: {"one": pixels, "two": pixels[::-1]})
    return found


@pytest.mark.slow
def test_the_demo_runs_on_a_server_of_its_own(bucket, monkeypatch, capfd) -> None:
    monkeypatch.setattr(sys, "argv", ["demo_bucket.py", "--photographs", "40"])
    bucket.main()
    said = capfd.readouterr().out
    assert "to s3://shardio-demo/photographs-" in said
    assert "version 1 has 36 records, version 2 37" in said
    assert "second epoch: 37 images" in said
    assert "0.0 MB from the bucket" in said
    assert "everything matches its checksums" in said
    assert "the second epoch read nothing from the bucket" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "gs://told/by-variable"), (["az://told/by-argument"], "az://told/by-argument")],
)
def test_the_demo_goes_where_it_is_told(bucket, monkeypatch, arguments: list[str], expected: str) -> None:
    """`SHARDIO_DEMO_URL` or an argument, which comes first; no server is started then."""
    went: list[Any] = []
    monkeypatch.setattr(bucket, "run", lambda root, count: went.append((root, count)))
    monkeypatch.setattr(bucket, "loopback_s3", lambda: pytest.fail("started a server"))
    monkeypatch.setattr(sys, "argv", ["demo_bucket.py", *arguments])
    monkeypatch.setenv("SHARDIO_DEMO_URL", "gs://told/by-variable")
    bucket.main()
    assert went == [(expected, 800)]


def test_the_server_answers_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request sees another half done, as in S3: of writers that race one wins, and an object is there with
    its metadata or not at all.
    """
    from moto.s3.responses import S3Response

    under_way: list[object] = []
    most: list[int] = []

    def answer(response: object, request: object) -> tuple[object, object]:
        under_way.append(response)
        time.sleep(0.01)
        most.append(len(under_way))
        under_way.remove(response)
        return response, request

    names = ("_bucket_response", "_key_response")
    for name in names:
        monkeypatch.setattr(S3Response, name, answer)
    runpy.run_path(str(EXAMPLES / "s3_server.py"))["answer_one_at_a_time"]()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda k: getattr(S3Response, names[k % 2])(k, -k), range(8)))
    assert answers == [(k, -k) for k in range(8)]
    assert most == [1] * 8
