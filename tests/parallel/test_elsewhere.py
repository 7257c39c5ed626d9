"""Every operation that takes `executor=`, on workers of which one dies: what is left is as without them."""

from __future__ import annotations

import inspect

import pytest

import shardio
from tests.parallel.elsewhere import OPERATIONS, hold
from tests.parallel.places import dask_cluster


def test_all_of_them_are_here() -> None:
    taking = {
        name
        for name in shardio.__all__
        if inspect.isfunction(function := getattr(shardio, name))
        and "executor" in inspect.signature(function).parameters
    }
    assert taking == OPERATIONS.keys()


@pytest.fixture
def dask():
    with dask_cluster() as cluster, cluster.get_client() as client:
        yield client.get_executor()


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dask_worker_that_dies_costs_nothing(dask, tmp_path, name, seeded) -> None:
    hold(name, tmp_path, dask, seeded)
