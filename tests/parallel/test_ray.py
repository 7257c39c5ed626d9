"""Ray behind the interface of `concurrent.futures`; a stand-in with the calls that are used is Ray here."""

from __future__ import annotations

import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

import shardio
from shardio.parallel import RayExecutor
from tests.parallel import jobs
from tests.suites.errors import refused


@pytest.fixture
def ray(monkeypatch) -> types.SimpleNamespace:
    threads = ThreadPoolExecutor(2)
    state = types.SimpleNamespace(running=False, options=None)

    def remote(**options):
        state.options = options

        def wrap(fn):
            def start(*args):
                future = threads.submit(fn, *args)
                return types.SimpleNamespace(future=lambda: future)

            return types.SimpleNamespace(remote=start)

        return wrap

    def init(**_) -> None:
        state.running = True

    def shutdown() -> None:
        state.running = False

    module = types.ModuleType("ray")
    module.is_initialized = lambda: state.running
    module.init, module.remote, module.shutdown = init, remote, shutdown
    monkeypatch.setitem(sys.modules, "ray", module)
    yield state
    threads.shutdown()


def test_a_write_runs_on_ray(tmp_path, ray) -> None:
    with RayExecutor(num_cpus=2) as executor:
        assert ray.running
        report = shardio.write_dataset(
            tmp_path / "ds", range(100), jobs.number, schema=jobs.SCHEMA, executor=executor
        )
    assert report.records == {"train": 100}
    assert ray.options == {"max_retries": 0, "num_cpus": 2}, "lost tasks are run again by the driver"
    assert not ray.running, "what was started here ends here"
    with refused(RuntimeError, "shut down"):
        executor.submit(int)


def test_a_ray_that_ran_before_runs_on(ray) -> None:
    ray.running = True
    with RayExecutor():
        pass
    assert ray.running


def test_without_ray_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused(ModuleNotFoundError, "shardio[ray]"):
        RayExecutor()
