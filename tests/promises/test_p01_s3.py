"""P1 on S3: a dataset is seen whole or not at all, wherever its writer is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.promises.deeds import DEEDS, beginnings
from tests.promises.places import copied
from tests.promises.test_p01_atomic import check_alive
from tests.servers.proxy import Exchange, Proxy, proxy


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    return beginnings(tmp_path_factory.mktemp("begun"))


class Killer:
    """Kills a process when a numbered request passes by: before the server sees it, or after its reply."""

    def __init__(self, relay: Proxy, at: int, *, answered: bool) -> None:
        self._relay, self._at, self._answered = relay, at, answered
        self.child = 0

    def __call__(self, exchange: Exchange, answered: bool) -> int | None:
        if exchange.number != self._at or answered != self._answered:
            return None
        os.kill(self.child, signal.SIGKILL)
        return 0 if answered else -1


def run_in_child(do: Callable[[], None], relay: Proxy, killer: Killer | None, oracle: Path) -> bool:
    """Do it in a child that talks to the proxy; return whether it lived to acknowledge it."""
    oracle.unlink(missing_ok=True)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(reading, 1)
            os.environ["AWS_ENDPOINT_URL"] = relay.url
            do()
            oracle.write_text("done")
        finally:
            os._exit(0)
    if killer is not None:
        killer.child = child
        relay.plan = killer
    os.write(writing, b"x")
    os.close(reading)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    assert oracle.exists() or os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return oracle.exists()


ON_S3 = [name for name in DEEDS if name not in ("compressed", "session")]


@pytest.mark.sampled(len(ON_S3))
@pytest.mark.parametrize("deed", ON_S3)
def test_killed_at_every_request(deed, begun, s3, tmp_path, long):
    """P1: SIGKILL before any request reaches the store, and after any reply has left it."""
    todo = DEEDS[deed]
    source = todo.source(begun)
    oracle = tmp_path / "oracle"
    with proxy(s3) as relay:
        url = copied(source, "s3", tmp_path)
        assert run_in_child(lambda: todo.do(url), relay, None, oracle)
        said = relay.exchanges
    (commit,) = (each.number for each in said if each.method == "PUT" and "/manifests/" in each.path)
    # In the short run one of the early points, and those before and after the commit.
    points = [(commit // 2, True), (commit, False), (commit, True)]
    if long:
        points = [(at, answered) for at in range(len(said)) for answered in (False, True)]
    for at, answered in points:
        with proxy(s3) as relay:
            url = copied(source, "s3", tmp_path)
            killer = Killer(relay, at, answered=answered)
            done = run_in_child(lambda url=url: todo.do(url), relay, killer, oracle)
            assert not done or long
            check_alive(url, todo, acknowledged=done)
