"""P2: an acknowledged commit is never lost and never applied twice."""

from __future__ import annotations

import contextlib

import pytest

import shardio
from shardio.errors import CommitOutcomeUnknownError, StorageError
from shardio.metadata import naming
from shardio.storage import connect
from tests.promises.appends import append_at_once, check_none_lost_or_doubled
from tests.promises.places import PLACES, fresh
from tests.promises.stores import Counting, Dropping, FaultyStore, faulty

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


@EVERY_PLACE
def test_no_commit_is_lost_or_doubled_when_replies_are(place, tmp_path, long, seeded):
    """P2: 30 % of the replies lost; 8 writers x many appends; exact multiset of records."""
    url = fresh(place, tmp_path)
    shardio.DatasetWriter(url).close()
    dropping = Dropping(seed=seeded.getrandbits(32))
    with faulty(dropping):
        appended = append_at_once(url, rounds=40 if long else 4)
    assert dropping.lost > 10
    check_none_lost_or_doubled(url, *appended)


@EVERY_PLACE
def test_a_named_session_is_run_again_until_it_is_known(place, tmp_path):
    """P2: after an unknown outcome the same session is run again, and is there once."""
    dropping = Dropping(seed=3, share=0.8, before=0.9)
    unknown = 0
    for k in range(6):
        url = fresh(place, tmp_path)
        shardio.DatasetWriter(url).close()
        for _ in range(50):
            with faulty(dropping):
                try:
                    with shardio.DatasetWriter(url, mode="append", session=f"s{k}") as out:
                        for record in [b"wren", b"robin"][sum(out.written.values()) :]:
                            out.write(record)
                    break
                except (CommitOutcomeUnknownError, shardio.errors.StorageError):
                    unknown += 1
        assert list(shardio.open(url)) == [b"wren", b"robin"]
        assert shardio.open(url).version == 2
    assert unknown > 0, "too few replies were lost to learn anything"


@EVERY_PLACE
def test_when_no_reply_ever_comes_the_outcome_is_unknown(place, tmp_path):
    """Giving up is `CommitOutcomeUnknownError`, and it MUST NOT delete anything then.

    After a lost reply a writer MUST read the manifest back: its own write id means committed, another's a
    lost race, none that the same bytes are put again.
    """
    url = fresh(place, tmp_path)
    shardio.DatasetWriter(url).close()
    calls: list[tuple[str, str]] = []

    def lose(verb: str, key: str) -> str:
        calls.append((verb, key))
        return "lost before" if verb == "put_if_absent" and key.endswith(".manifest") else ""

    with faulty(lose):
        out = shardio.DatasetWriter(url, mode="append")
        out.write(b"wren")
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            out.close()
    assert "write id" in str(caught.value.expected)
    assert not [key for verb, key in calls if verb == "delete"]
    puts = [key for verb, key in calls if verb == "put_if_absent" and key.endswith(".manifest")]
    looks = [key for verb, key in calls if verb == "get" and key == puts[0]]
    assert len(puts) == 5
    assert len(looks) >= 5
    assert shardio.open(url).version == 1


@EVERY_PLACE
def test_a_lost_reply_and_then_anothers_commit(place, tmp_path):
    """P2: after a lost reply a writer finds its own commit, though another's follows it by then."""
    url = fresh(place, tmp_path)
    shardio.DatasetWriter(url).close()
    state = ["waiting"]

    def lose_then_let_another_in(verb: str, key: str) -> str:
        if state[0] == "waiting" and verb == "put_if_absent" and key == naming.manifest_key(2):
            state[0] = "lost"
            return "lost after"
        if state[0] == "lost":
            state[0] = "done"
            with shardio.DatasetWriter(url, mode="append") as another:
                another.write(b"robin")
        return ""

    with faulty(lose_then_let_another_in), shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"wren")
    assert state == ["done"]
    assert list(shardio.open(url)) == [b"wren", b"robin"]
    assert (out.version, shardio.open(url).version) == (2, 3)


@EVERY_PLACE
def test_a_commit_that_happened_and_could_not_be_looked_up(place, tmp_path):
    """P2: the outcome is unknown, the session is run again, and is there once."""
    url = fresh(place, tmp_path)
    shardio.DatasetWriter(url).close()

    def blind(verb: str, key: str) -> str:
        if key != naming.manifest_key(2):
            return ""
        if verb == "put_if_absent":
            blinded.append(True)
            return "lost after"
        return "before" if blinded else ""

    blinded: list[bool] = []
    for attempt in range(2):
        with contextlib.ExitStack() as stack:
            if attempt == 0:
                stack.enter_context(faulty(blind))
                stack.enter_context(pytest.raises(CommitOutcomeUnknownError))
            out = shardio.DatasetWriter(url, mode="append", session="mine")
            out.write(b"wren")
            out.close()
    assert list(shardio.open(url)) == [b"wren"]
    assert shardio.open(url).version == 2


@EVERY_PLACE
def test_a_moved_file_whose_reply_was_lost_is_stored(place, tmp_path):
    """P2: the file is gone only where the object was made of it, so it is looked for and not sent again."""
    url, spool = fresh(place, tmp_path), tmp_path / "spool"
    spool.write_bytes(b"records")
    policy = Counting(0, "lost after")
    assert FaultyStore(connect(url), policy).put_idempotent(("data/a", spool)) is True
    assert [verb for verb, _ in policy.calls] == ["put_if_absent", "head"]
    assert not spool.exists()
    assert connect(url).get("data/a", max_bytes=100) == b"records"


@EVERY_PLACE
@pytest.mark.parametrize(
    ("faults", "stored"),
    [
        (["lost before"] * 2, True),
        (["lost before"] * 4, True),
        (["lost before", "lost after"], True),
        (["lost before"] * 5, False),
    ],
)
def test_an_object_of_its_own_name_is_sent_again(place, tmp_path, faults, stored):
    """P2: as often as a manifest; two lost requests in succession are no reason to give up."""
    store, left = connect(fresh(place, tmp_path)), list(faults)

    def lose(verb: str, key: str) -> str:
        del key
        return left.pop(0) if verb == "put_if_absent" and left else ""

    outcome = contextlib.nullcontext() if stored else pytest.raises(StorageError)
    with outcome:
        assert FaultyStore(store, lose).put_idempotent(("list", b"shards")) is True
    assert not left
    assert (store.head("list") is not None) == stored


def test_a_service_that_is_down_is_not_written_to_again(tmp_path):
    """A create without an answer is looked for first: where that fails too, another would only wait."""
    calls = []

    def fail(verb: str, key: str) -> str:
        calls.append(verb)
        return "lost before" if verb == "put_if_absent" else "before"

    with pytest.raises(StorageError):
        FaultyStore(connect(str(tmp_path / "ds")), fail).put_idempotent(("list", b"shards"))
    assert calls == ["put_if_absent", "head"]


def test_a_moved_file_that_is_gone_without_an_object_is_a_failure(tmp_path):
    """P2: what is not there is not acknowledged."""
    spool = tmp_path / "spool"
    spool.write_bytes(b"records")

    def lose(verb: str, key: str) -> str:
        del key
        if verb == "put_if_absent":
            spool.unlink()
            return "lost before"
        return ""

    store = FaultyStore(connect(str(tmp_path / "ds")), lose)
    with pytest.raises(StorageError):
        store.put_idempotent(("data/a", spool))
