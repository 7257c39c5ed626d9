"""Batches as global arrays of JAX: on one device, on four, in two processes; exact and elastic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import shardio
from tests.servers.processes import held_port

JOB = Path(__file__).with_name("job.py")


def run(*jobs, whole=False):
    """Run processes side by side and return what each has printed."""
    processes = []
    with held_port() as port:
        for number, job in enumerate(jobs):
            more = {"coordinator": f"127.0.0.1:{port}", "processes": len(jobs), "process": number}
            command = [sys.executable, str(JOB), json.dumps({**more, **job})]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, **pipes))
        done = [(process, *process.communicate(timeout=600)) for process in processes]
    for process, _, errors in done:
        assert process.returncode == 0, errors[-3000:]
    # Gloo prints lines of its own.
    found = [[json.loads(line) for line in out.splitlines() if line[:1] == "{"] for _, out, _ in done]
    return found if whole else [results[-1] for results in found]


def run_cases(common, *pairs):
    """Run pairs of cases, one after another, in two processes; return the results of each pair."""
    jobs = [{**common, "cases": list(cases)} for cases in zip(*pairs, strict=True)]
    return list(zip(*run(*jobs, whole=True), strict=True))


def merged(results, step):
    rows = {}
    for result in results:
        for at, values in result["found"][step]["rows"].items():
            assert rows.setdefault(int(at), values) == values
    return [value for at in sorted(rows) for value in rows[at]]


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_four_devices(url, expected) -> None:
    meshes = [(4, 1), (2, 2), (1, 4)]
    results = run_cases({"url": url, "devices": 4}, *[({"mesh": mesh},) for mesh in meshes])
    for mesh, (result,) in zip(meshes, results, strict=True):
        assert result["place"] == [0, 1]
        for step, numbers in enumerate(expected):
            assert merged([result], step) == numbers
            assert result["found"][step]["sum"] == sum(numbers)
            assert len(result["found"][step]["rows"]) == mesh[0]


@pytest.mark.slow
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


@pytest.mark.slow
def test_processes_that_share_a_batch_read_the_same_rows(tmp_path) -> None:
    """Two processes along the axis of the model, and a version that one of them opened later."""
    place = grown(tmp_path / "d")
    job = {"url": place, "devices": 1, "mesh": (1, 2), "steps": 2}
    results = run({**job, "version": 1}, job)
    assert [result["place"] for result in results] == [[0, 1], [0, 1]]
    assert [result["version"] for result in results] == [1, 1]
    assert merged(results, 0) == merged(results[:1], 0) == merged(results[1:], 0)


def grown(place):
    for mode in ("create", "append"):
        with shardio.DatasetWriter(place, mode=mode, schema={"n": "int64"}) as out:
            for n in range(40):
                out.write({"n": n})
    return str(place)


@pytest.mark.slow
def test_what_processes_cannot_agree_on(url, tmp_path) -> None:
    """All are told: were one to raise alone, the others would wait for it, or read other records."""
    right = tmp_path / "right"
    for mode, first in (("create", 0), ("overwrite", 1000)):
        with shardio.DatasetWriter(right, mode=mode, schema={"m": "int32"}) as out:
            for n in range(100):
                out.write({"m": first + n})
    join = {"url": url, "right": str(right), "kind": "join", "steps": 1}
    part = {"url": grown(tmp_path / "grows"), "kind": "slice"}
    versions = [
        (join, {**join, "version": 1}),
        ({**join, "version": 1}, join),
        (part, {**part, "version": 1}),
        ({**part, "version": 1}, part),
        ({**part, "kind": None}, {**part, "kind": None, "version": 1}),
    ]
    twice = {"url": url, "double": True}
    joined = [({**join, "version": version},) * 2 for version in (1, 2)]
    seeds = ({"url": url}, {"url": url, "options": {"seed": 4}})
    plans = ({"url": url}, {"url": url, "options": {"global_batch": 3}})
    cases = [*versions, *joined, (twice, twice), seeds, plans]
    results = run_cases({"devices": 1, "mesh": (2, 1)}, *cases)
    for pair in results[:5]:
        assert all("version" in result["error"] for result in pair), pair
        assert "process 1: " in pair[0]["error"]
    for pair, first in zip(results[5:7], (0, 1000), strict=True):
        for result in pair:
            (rows,) = result["found"][0]["rows"].values()
            assert result["found"][0]["m"] == [first + n for n in rows]
    # JAX would take the first half of them in each process, in silence.
    words = "'n' has 8 rows in this process, expected 4 of a global batch of 8"
    assert [words in result["error"] for result in results[7]] == [True, True]
    assert all("seed of process 0 is 3, of process 1 4" in result["error"] for result in results[8])
    # As many as the whole batch; 3 cannot be laid out on two devices.
    assert "process 1: " in results[9][0]["error"]
    assert "process 1: " not in results[9][1]["error"]
