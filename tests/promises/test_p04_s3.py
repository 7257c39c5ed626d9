"""P4 on S3: a writer that fails publishes nothing."""

from __future__ import annotations

import os
import signal
import time

import pytest

import shardio
from tests.promises.places import fresh
from tests.promises.test_p04_nothing import (
    SMALL,
    BoomError,
    begin,
    check_nothing_new,
    fill,
    in_child,
    write_and_wait,
)
from tests.servers.proxy import proxy


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
@pytest.mark.parametrize("error", [BoomError, KeyboardInterrupt])
def test_an_exception_in_the_block(mode, error, s3, tmp_path):
    """P4: an exception or Ctrl-C inside the block: no new visible record."""
    url = fresh("s3", tmp_path)
    before = begin(url, mode)
    with pytest.raises(error), shardio.DatasetWriter(url, mode=mode, **SMALL) as out:
        fill(out)
        raise error
    check_nothing_new(url, before)


def test_a_writer_that_is_dropped(s3, tmp_path):
    """P4: `del`: no new visible record."""
    url = fresh("s3", tmp_path)
    before = begin(url, "append")
    out = shardio.DatasetWriter(url, mode="append", **SMALL)
    fill(out)
    with pytest.warns(ResourceWarning, match="dropped before it was closed: nothing was committed"):
        del out
    check_nothing_new(url, before)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal(number, s3, tmp_path):
    """P4: SIGTERM, Ctrl-C, worker death: no new visible record."""
    url, ready = fresh("s3", tmp_path), tmp_path / "ready"
    before = begin(url, "append")

    child = in_child(lambda: write_and_wait(url, ready, mode="append"), ready)
    os.kill(child, number)
    os.waitpid(child, 0)
    check_nothing_new(url, before, clean=number == signal.SIGINT)


def test_killed_in_the_middle_of_an_upload(s3, tmp_path, monkeypatch):
    """P4: an object whose body was cut off is not an object; nothing half of it is ever listed."""
    url, ready, go_on = fresh("s3", tmp_path), tmp_path / "ready", tmp_path / "go on"
    before = begin(url, "append")
    with proxy(s3) as relay:

        def plan(exchange, _answered):
            # The head of the request has passed by and its body is on its way.
            if exchange.method == "PUT" and ".tfrecord" in exchange.path:
                os.kill(child, signal.SIGKILL)
                return -1
            return None

        def work() -> None:
            ready.touch()
            while not go_on.exists():
                time.sleep(0.005)
            with shardio.DatasetWriter(url, mode="append") as out:
                for _ in range(40):
                    out.write(os.urandom(100_000))

        with monkeypatch.context() as through:
            through.setenv("AWS_ENDPOINT_URL", relay.url)
            child = in_child(work, ready)
        relay.plan = plan
        go_on.touch()
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    check_nothing_new(url, before)
