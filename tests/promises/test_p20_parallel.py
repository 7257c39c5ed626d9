"""P20 of parallel writes: garbage collection beside writers that are killed never removes live data."""

from __future__ import annotations

import contextlib
import random

import pytest

import shardio
from shardio.errors import CommitConflictError
from tests.parallel import jobs
from tests.parallel.places import Place
from tests.parallel.programs import driver, finished

COUNT = 240


def collect(url: str, dice: random.Random) -> None:
    """Collect garbage as a caller would that does not know of the others at work."""
    with contextlib.suppress(CommitConflictError):
        shardio.gc(url, keep=dice.choice([1, 2, None]), dry_run=False)


@pytest.mark.slow
def test_collecting_garbage_beside_killed_drivers(tmp_path) -> None:
    """P20: what a session has stored stays until it is given up by name; what is committed stays forever."""
    dice = random.Random(8)
    place = Place(tmp_path, None)
    url = place.url()
    with shardio.DatasetWriter(url, schema=jobs.SCHEMA) as out:
        out.write({"n": -1})
    expected = [-1]
    for k in range(3):
        numbers, go_on = range(1000 * k, 1000 * k + COUNT), tmp_path / f"go on {k}"
        options = {"url": url, "items": jobs.held_back(numbers, go_on), "mode": "append", "session": f"s{k}"}
        options["function"] = "wait_for_a_file"
        with driver(**options) as process:
            process.stdout.readline()
            collect(url, dice)
            stop = dice.randrange(2, 10)
            for line in process.stdout:
                if int(line.split()[1]) >= stop:
                    break
            process.kill()
        collect(url, dice)
        assert place.numbers(url) == expected
        go_on.touch()
        with driver(**options) as process:
            assert finished(process)[1] >= 1, "what the killed driver had stored was kept"
        expected += numbers
        collect(url, dice)
        assert place.numbers(url) == expected


@pytest.mark.slow
def test_a_session_given_up_while_it_is_written_publishes_nothing(tmp_path) -> None:
    """P20: a writer that outlives the word of its abandonment is refused, and loses no data."""
    place = Place(tmp_path, None)
    url = place.url()
    with shardio.DatasetWriter(url, schema=jobs.SCHEMA) as out:
        out.write({"n": -1})
    go_on = tmp_path / "go on"
    options = {
        "url": url,
        "items": jobs.held_back(range(COUNT), go_on),
        "mode": "append",
        "session": "doomed",
    }
    with driver(**options, function="wait_for_a_file") as process:
        for line in process.stdout:
            if int(line.split()[1]) >= 3:
                shardio.gc(url, abandon=["doomed"], dry_run=False)
                go_on.touch()
                break
        _, err = process.communicate(timeout=600)
        assert process.returncode == 1
        assert "abandoned" in err
    assert place.numbers(url) == [-1]
    shardio.gc(url, dry_run=False)
    assert place.numbers(url) == [-1]
    assert "doomed" not in shardio.gc(url).unclaimed
