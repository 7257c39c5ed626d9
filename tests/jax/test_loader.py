"""Batches as global arrays of JAX: on one device, on four, in two processes; exact and elastic."""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import shardio

JOB = Path(__file__).with_name("job.py")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    place = tmp_path_factory.mktemp("jax") / "d"
    with shardio.DatasetWriter(
        place, schema={"n": "int64", "x": "float32[3]", "t": "text"}, block_bytes=64
    ) as out:
        for n in range(100):
            out.write({"n": n, "x": np.full(3, n), "t": str(n)})
    return str(place)


@pytest.fixture(scope="module")
def expected(url):
    return [batch["n"].tolist() for batch in shardio.stream(shardio.open(url), global_batch=8, seed=3)]


def run(*jobs):
    """Run processes side by side and return what each has printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    for number, job in enumerate(jobs):
        more = {"coordinator": coordinator, "processes": len(jobs), "process": number}
        command = [sys.executable, str(JOB), json.dumps({**more, **job})]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    done = [(process, *process.communicate(timeout=140)) for process in processes]
    for process, _, errors in done:
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(out.splitlines()[-1]) for _, out, _ in done]


def merged(results, step):
    rows = {}
    for result in results:
        for at, values in result["found"][step]["rows"].items():
            assert rows.setdefault(int(at), values) == values
    return [value for at in sorted(rows) for value in rows[at]]


def test_one_device(url, expected) -> None:
    from shardio.jax import StreamingLoader

    loader = StreamingLoader(shardio.open(url), global_batch=8, seed=3)
    batches = list(loader)
    assert [batch["n"].tolist() for batch in batches] == expected
    assert (len(loader), loader.remaining) == (12, 0)
    assert isinstance(batches[0]["x"], jax.Array)
    assert (batches[0]["x"].shape, str(batches[0]["x"].dtype)) == ((8, 3), "float32")
    assert batches[0]["t"] == [str(n) for n in expected[0]]
    loader.set_epoch(0)
    for _, _batch in zip(range(5), loader, strict=False):
        pass
    other = StreamingLoader(shardio.open(url), global_batch=8, seed=3)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [batch["n"].tolist() for batch in other] == expected[5:]
    assert loader.stats.epoch.records == 40


@pytest.mark.parametrize("mesh", [(4, 1), (2, 2), (1, 4)])
def test_four_devices(url, expected, mesh) -> None:
    (result,) = run({"url": url, "devices": 4, "mesh": mesh})
    assert result["place"] == [0, 1]
    for step, numbers in enumerate(expected):
        assert merged([result], step) == numbers
        assert result["found"][step]["sum"] == sum(numbers)
        assert len(result["found"][step]["rows"]) == mesh[0]


def test_two_processes_and_then_one(url, expected) -> None:
    """P12: a global array is the global batch; after five steps on two processes, the rest on one."""
    job = {"url": url, "devices": 2, "mesh": (4, 1)}
    results = run({**job, "steps": 5}, {**job, "steps": 5})
    assert [result["place"] for result in results] == [[0, 2], [1, 2]]
    for step in range(5):
        assert merged(results, step) == expected[step]
        assert {result["found"][step]["sum"] for result in results} == {sum(expected[step])}
    assert results[0]["state"] == results[1]["state"]
    (rest,) = run({"url": url, "devices": 2, "mesh": (2, 1), "state": results[0]["state"]})
    assert [merged([rest], step) for step in range(7)] == expected[5:]


def test_processes_that_share_a_batch_read_the_same_rows(url, expected) -> None:
    """Two processes along the axis of the model, and a version that one of them opened later."""
    with shardio.DatasetWriter(url + "-grows", schema={"n": "int64"}) as out:
        for n in range(40):
            out.write({"n": n})
    with shardio.DatasetWriter(url + "-grows", mode="append") as out:
        out.write({"n": 40})
    job = {"url": url + "-grows", "devices": 1, "mesh": (1, 2), "steps": 2}
    results = run({**job, "version": 1}, job)
    assert [result["place"] for result in results] == [[0, 1], [0, 1]]
    assert [result["version"] for result in results] == [1, 1]
    assert merged(results, 0) == merged(results[:1], 0) == merged(results[1:], 0)


def test_rows_of_packed_documents(tmp_path) -> None:
    """On one process a global array has the rows that the transform made, be they fewer or more."""
    from shardio.jax import StreamingLoader

    with shardio.DatasetWriter(tmp_path / "d", schema={"tokens": "int32[?]"}) as out:
        for n in range(100):
            out.write({"tokens": range(n % 7 + 1)})
    ds = shardio.open(tmp_path / "d")
    for rows in (None, 12, 20, 30):
        transform = functools.partial(shardio.pack_columns, length=16, rows=rows)
        options = {"global_batch": 20, "seed": 0, "batch_transform": transform}
        for placed, plain in zip(StreamingLoader(ds, **options), shardio.stream(ds, **options), strict=True):
            for name, column in plain.items():
                assert isinstance(placed[name], jax.Array)
                assert placed[name].tolist() == column.tolist()


def test_rows_that_are_not_the_share_of_a_process(url) -> None:
    """JAX would take the first half of them in each process, in silence."""
    job = {"url": url, "devices": 1, "mesh": (2, 1), "double": True, "raises": True}
    words = "'n' has 8 rows in this process, expected 4 of a global batch of 8"
    assert [words in result["error"] for result in run(job, job)] == [True, True]


def test_processes_that_cannot_agree_are_all_told(url, tmp_path) -> None:
    """One that raised alone would leave the other one waiting for it; one that did not would read other records."""
    right = tmp_path / "right"
    for mode, first in (("create", 0), ("overwrite", 1000)):
        with shardio.DatasetWriter(right, mode=mode, schema={"m": "int32"}) as out:
            for n in range(100):
                out.write({"m": first + n})
    grows = tmp_path / "grows"
    for mode in ("create", "append"):
        with shardio.DatasetWriter(grows, mode=mode, schema={"n": "int64"}) as out:
            for n in range(40):
                out.write({"n": n})
    job = {"devices": 1, "mesh": (2, 1)}
    join = {**job, "url": url, "right": str(right), "kind": "join"}
    part = {**job, "url": str(grows), "kind": "slice"}
    for one in (join, part, {**part, "kind": None}):
        others = [{**one, "raises": True}, {**one, "raises": True, "version": 1}]
        for pair in (others, others[::-1]):
            said = [result["error"] for result in run(*pair)]
            assert all("version" in text for text in said), said
            assert "process 1: " in said[0]
    for version, first in ((1, 0), (2, 1000)):
        results = run(*[{**join, "version": version, "steps": 1}] * 2)
        for result in results:
            (rows,) = result["found"][0]["rows"].values()
            assert result["found"][0]["m"] == [first + n for n in rows]


def test_numbers_that_jax_has_no_room_for(tmp_path) -> None:
    from shardio.jax import StreamingLoader

    with shardio.DatasetWriter(tmp_path / "d", schema={"n": "int64"}) as out:
        for n in range(8):
            out.write({"n": (n == 5) << 40})
    with pytest.raises(ValueError, match="'n' holds 1099511627776, which does not fit into int32"):
        list(StreamingLoader(shardio.open(tmp_path / "d"), global_batch=4))
    with jax.enable_x64(True):
        batches = list(
            StreamingLoader(shardio.open(tmp_path / "d"), global_batch=4, shuffle=False, num_threads=0)
        )
    assert batches[1]["n"].tolist() == [0, 1 << 40, 0, 0]


def test_layouts_and_options_that_cannot_be(url) -> None:
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from shardio.jax import StreamingLoader
    from shardio.jax._loader import _place

    ds = shardio.open(url)
    for options, words in (
        ({"remainder": "keep"}, 'take "pad"'), ({"rank": 0}, "come from the sharding"),
        ({"batch_size": 2, "global_batch": None}, "give global_batch="),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            StreamingLoader(ds, **{"global_batch": 8, **options})

    class Strided(NamedSharding):
        """As of a process whose devices do not lie side by side."""

        def addressable_devices_indices_map(self, shape):
            return {0: (slice(0, 2),), 1: (slice(4, 6),)}

    mesh = Mesh(np.array(jax.devices()), ("data",))
    with pytest.raises(ValueError, match=r"rows \[\(0, 2\), \(4, 6\)\] of a global batch of 8"):
        _place(Strided(mesh, PartitionSpec("data")), 8)
