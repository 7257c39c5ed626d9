"""How the tests run: the same cases everywhere, unless another seed or a long search is asked for."""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

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

# Servers that `make test` does not install: Azurite is of npm, the emulator of GCS has its own environment.
SLOW_FIXTURES = {"azurite_endpoint", "gcs_endpoint"}
_JAX_SEEN = pytest.StashKey[bool]()

# A shell that starts the tests in the background, or under nohup, has them ignore these, and with them every
# program that they start: such a program would never hear the Ctrl-C that a test sends.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=0, help="which cases of sampled tests run, and on what random data (0)"
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-slow` and `make test-nightly`.

    Of each n cases of a `sampled(n)` test the first runs always, the second is slow, and the others are rare;
    another seed than 0 takes others in their place. Cases in memory repeat those on the disk, so they are
    slow.
    """
    cases: dict[str, int] = {}
    for item in items:
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("place", params.get("url")) == "memory":
            item.add_marker(pytest.mark.slow)
        marker = item.get_closest_marker("sampled")
        if marker is None:
            continue
        size = marker.args[0]
        function = item.nodeid.partition("[")[0]
        number = cases[function] = cases.get(function, -1) + 1
        group, place = divmod(number, size)
        order = list(range(size))
        if seed := config.getoption("--seed"):
            random.Random(f"{seed} {function} {group}").shuffle(order)
        if order[place]:
            item.add_marker(pytest.mark.slow if order[place] == 1 else pytest.mark.rare)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported and collected: a round of it takes most of a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # compiled modules count what of them is left at the end


@pytest.fixture
def seeded(request) -> random.Random:
    """Return random numbers that follow from `--seed` and the test."""
    return random.Random(f"{request.config.getoption('--seed')} {request.node.nodeid}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Fail a test that leaves JAX in the process of the tests, as it warns at every fork of the next ones."""
    yield
    if "jax" in sys.modules and item.path.name != "in_jax.py" and not item.config.stash.get(_JAX_SEEN, False):
        item.config.stash[_JAX_SEEN] = True
        pytest.fail("JAX was imported into the process of the tests; run what needs it in one of its own")


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
    from tests.promises.places import S3_BUCKET
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


@pytest.fixture(autouse=True)
def bucket_of_a_case(request) -> None:
    """Begin the S3 server for a case whose place is a bucket."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if params.get("place") == "s3":
        request.getfixturevalue("s3")


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what changes the numbers that steer reads, so that small datasets have many runs."""

    def change(room: str = "reader", **numbers: Any) -> None:
        for name, module in list(sys.modules.items()):
            known = getattr(module, "TUNING", None) if name.startswith(f"shardio.{room}.") else None
            if known is not None and hasattr(known, next(iter(numbers))):
                monkeypatch.setattr(module, "TUNING", replace(known, **numbers))

    return change
