"""How the tests run: the same examples everywhere, unless a long search is asked for."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from shardio.storage import Tuning
from tests.promises.places import PLACES, S3_BUCKET

if TYPE_CHECKING:
    from tests.servers.faults import FaultServer

# `ci` is the default, so that a run at home is the run of CI: the same examples every time, and no deadline,
# because shared machines are slow at times.  `pytest --hypothesis-profile=long` searches at random and for
# long.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("ci")

ROOT = Path(__file__).resolve().parents[1]
_JAX_SEEN = pytest.StashKey[bool]()
_COMMIT = pytest.StashKey[str]()

# A shell that starts the tests in the background, or under nohup, has them ignore these, and with them every
# program that they start: such a program would never hear the Ctrl-C that a test sends.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


class _Backwards(pytest.Dir):
    """A folder whose files are read from the last to the first."""

    def collect(self):
        return reversed([*super().collect()])


def pytest_collect_directory(path, parent) -> pytest.Collector | None:
    """Have every other worker read the files from the end.

    On a fresh clone each compiles what it reads, and finds the second half as the others have kept it.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return _Backwards.from_parent(parent, path=path) if int(worker[2:]) % 2 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items) -> None:
    """Put the files into one order, and leave most cases of some tests to `make test-slow`.

    Those are of a `sampled(n)` or `drawn(n)` test all but one in n.

    Of `sampled` ones the first of each n stays. Of `drawn` ones it is one that follows from the commit: the
    cases are of one kind and cost about the same, so each commit tries others. Of what is left out
    `make test-slow` runs a quarter, another on each commit; the rest is `rare`: left to `make long`.
    """
    items.sort(key=lambda item: item.path)
    _draw_places(config, [item for item in items if not {"sampled", "drawn"} & {*item.keywords}])
    cases: dict[str, int] = {}
    for item in items:
        sampled, drawn = item.get_closest_marker("sampled"), item.get_closest_marker("drawn")
        marker = drawn or sampled
        if marker is None:
            continue
        function = item.nodeid.partition("[")[0]
        number = cases[function] = cases.get(function, -1) + 1
        group, place = divmod(number, marker.args[0])
        seed = f"{_commit(config)} {function} {group}"
        if place != (random.Random(seed).randrange(marker.args[0]) if drawn else 0):
            item.add_marker(pytest.mark.slow)
            if random.Random(f"{seed} {place}").random() < 0.75:
                item.add_marker(pytest.mark.rare)


def _draw_places(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of two cases that differ in their place alone, on the disk or in memory, leave one to `make long`.

    Both keep the laws of stores (`tests/storage`).
    So too of two laws of a bucket that differ in what reads it.
    """
    pairs: dict[str, list[pytest.Item]] = {}
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        name = re.sub("With(Fsspec|Obstore)::", "*", item.nodeid)
        if given.get("place", given.get("url")) in PLACES:
            name = re.sub(rf"(?<=[-\[])({'|'.join(PLACES)})(?=[-\]])", "*", name)
        if name != item.nodeid:
            pairs.setdefault(name, []).append(item)
    for name, pair in pairs.items():
        pair.remove(random.Random(f"{_commit(config)} {name}").choice(pair))
        for item in pair:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.rare)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported and collected: a round of it takes most of a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # compiled modules count what of them is left at the end


@pytest.fixture
def draw(request) -> random.Random:
    """Return random numbers that follow from the commit and the test, so that each commit tries others."""
    return random.Random(f"{_commit(request.config)} {request.node.nodeid}")


def _commit(config: pytest.Config) -> str:
    """Return the commit that is tested; the process that starts workers looks, so that all draw the same."""
    given = getattr(config, "workerinput", None)
    if given is not None:
        return str(given["commit"])
    if _COMMIT not in config.stash:
        command = ["git", "rev-parse", "HEAD"]
        with contextlib.suppress(OSError):  # away from a checkout nothing is drawn again
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            config.stash[_COMMIT] = done.stdout.strip()
    return config.stash.setdefault(_COMMIT, "")


class _Workers:
    """What only runs with pytest-xdist know."""

    @pytest.hookimpl
    def pytest_configure_node(self, node) -> None:
        node.workerinput["commit"] = _commit(node.config)


def pytest_configure(config) -> None:
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Workers())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Fail a test that leaves JAX in the process of the tests, as it warns at every fork of the next ones."""
    yield
    if "jax" in sys.modules and item.path.name != "in_jax.py" and not item.config.stash.get(_JAX_SEEN, False):
        item.config.stash[_JAX_SEEN] = True
        pytest.fail("JAX was imported into the process of the tests; run what needs it in one of its own")


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Flushing guards against power failures, which programs under strace meet (`promises/power.py`)."""
    with mock.patch("os.fsync", return_value=None):
        yield


@pytest.fixture(autouse=True, scope="session")
def no_second_requests() -> Iterator[None]:
    """Which answers are late is chance, and requests are counted; `storage/test_hedge.py` makes late ones."""
    with mock.patch.dict(Tuning.__init__.__kwdefaults__, hedge_quantile=1.0):
        yield


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """An S3 server in this process, one for all tests of a run; each test makes buckets of its own."""
    from tests.servers import s3

    with s3.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    from tests.servers import gcs

    with gcs.gcs_emulator() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite_endpoint(tmp_path_factory) -> Iterator[str]:
    from tests.servers import azure

    with azure.azurite(tmp_path_factory.mktemp("azurite")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def running_server() -> Iterator[FaultServer]:
    """A server whose answers a test chooses."""
    from tests.servers.faults import fault_server

    with fault_server() as server:
        yield server


@pytest.fixture(scope="session")
def long(request) -> bool:
    """Whether the long variants were asked for."""
    return bool(request.config.getoption("--hypothesis-profile", default=None) == "long")


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
