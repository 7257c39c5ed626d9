"""The laws of a store, written once; each backend's test inherits `StoreLaws` and brings its own `store`.

A class that inherits gives a fixture `store` (an empty root, writable) and, where they differ, its facts.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pathlib
import pickle
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardio.errors import FormatError, NotFoundError, UnsafeNameError
from shardio.storage import ObjectInfo, ShortReadError, Store, connect
from tests.suites.errors import refused
from tests.suites.processes import answer_of_child

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

CONTENT = np.random.default_rng(7).integers(0, 256, 20_000, np.uint8).tobytes()

# Names that some client somewhere expands, decodes, or cuts.
NAMES = [
    "plain.bin",
    "with space.bin",
    "per%20cent%2F.bin",
    "plus+and&equals=.bin",
    "hash#question?.bin",
    "ünïcødé-名前.bin",
    "star[1]*{a,b}.bin",
    "~tilde.bin",
    "colon::chain.bin",
    "a::b",
    "tab\tin/a\tname.bin",
    "quote'\"`$HOME.bin",
    "deep/er/and/deeper.bin",
    ".hidden",
    "data/x=1/part-0.bin",
]


def read_ranges(store: Store, key: str, starts: ArrayLike, stops: ArrayLike) -> list[memoryview]:
    """Return the bytes of many ranges of an object, in the order asked."""
    with store.open(key) as file:
        return file.read_many(starts, stops)


def put_from_process(pickled: bytes, key: str, data: bytes) -> bool:
    return pickle.loads(pickled).put_if_absent(key, data)


class StoreLaws:
    """Every law of `Store`; method names are the laws."""

    # How many racers a backend's test server takes, and how new processes begin if they can reach the store.
    threads = 16
    processes = 4
    start_method: str | None = "spawn"
    # What a forked child is told where it cannot use what it inherited.
    fork_error = ""
    # Whether the backend's real service allows such names; emulators differ.
    names = NAMES

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    # Creation

    def test_put_if_absent_creates_once_and_never_replaces(self, store: Store) -> None:
        assert store.put_if_absent("a/b.bin", b"first") is True
        assert store.put_if_absent("a/b.bin", b"second") is False
        assert store.get("a/b.bin", max_bytes=100) == b"first"

    def test_put_if_absent_takes_memoryviews(self, store: Store) -> None:
        assert store.put_if_absent("a", memoryview(b"xhellox")[1:-1])
        assert store.get("a", max_bytes=100) == b"hello"

    def test_put_if_absent_uploads_a_spool_file_and_leaves_it(
        self, store: Store, tmp_path: pathlib.Path
    ) -> None:
        spool = tmp_path / "spool"
        spool.write_bytes(CONTENT)
        assert store.put_if_absent("data/a.bin", spool)
        assert spool.exists()
        assert store.get("data/a.bin", max_bytes=len(CONTENT)) == CONTENT
        assert not store.put_if_absent("data/a.bin", spool)

    def test_put_if_absent_consumes_a_spool_file_if_told(self, store: Store, tmp_path: pathlib.Path) -> None:
        spool = tmp_path / "spool"
        spool.write_bytes(CONTENT)
        assert store.put_if_absent("data/a.bin", spool, move=True)
        assert not spool.exists()
        assert store.get("data/a.bin", max_bytes=len(CONTENT)) == CONTENT
        spool.write_bytes(CONTENT)
        assert not store.put_if_absent("data/a.bin", spool, move=True)
        assert spool.exists(), "another one is there"

    def test_of_racing_threads_one_wins(self, store: Store) -> None:
        start = threading.Barrier(self.threads)

        def race(number: int) -> bool:
            start.wait()
            return store.put_if_absent("race/v1", f"writer {number}".encode())

        with concurrent.futures.ThreadPoolExecutor(self.threads) as pool:
            won = list(pool.map(race, range(self.threads)))
        assert won.count(True) == 1
        assert store.get("race/v1", max_bytes=100) == f"writer {won.index(True)}".encode()

    def test_of_racing_processes_one_wins(self, store: Store) -> None:
        if self.start_method is None:
            pickle.dumps(store)
            return
        context = multiprocessing.get_context(self.start_method)
        with concurrent.futures.ProcessPoolExecutor(self.processes, mp_context=context) as pool:
            jobs = [
                pool.submit(put_from_process, pickle.dumps(store), f"race/{k}", f"writer {number}".encode())
                for k in range(3)
                for number in range(self.processes)
            ]
            won = [job.result() for job in jobs]
        for k in range(3):
            racers = won[k * self.processes : (k + 1) * self.processes]
            assert racers.count(True) == 1
            assert store.get(f"race/{k}", max_bytes=100) == f"writer {racers.index(True)}".encode()

    def test_a_hint_is_overwritten(self, store: Store) -> None:
        store.overwrite("_shardio/latest", b"1")
        store.overwrite("_shardio/latest", b"22")
        assert store.get("_shardio/latest", max_bytes=20) == b"22"

    def test_objects_may_be_empty(self, store: Store) -> None:
        assert store.put_if_absent("empty", b"")
        assert not store.put_if_absent("empty", b"more")
        assert store.get("empty", max_bytes=0) == b""
        assert read_ranges(store, "empty", [0], [0]) == [b""]

    # Reading

    def test_what_is_absent_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFoundError):
            store.get("no/such", max_bytes=10)
        with pytest.raises(NotFoundError):
            read_ranges(store, "no/such", [0], [1])[0]
        assert store.head("no/such") is None
        assert store.delete("no/such") is False

    def test_a_folder_is_not_an_object(self, store: Store) -> None:
        store.put_if_absent("folder/file", b"1")
        assert store.head("folder") is None
        with pytest.raises(NotFoundError):
            store.get("folder", max_bytes=10)
        assert store.delete("folder") is False
        assert store.head("folder/file") is not None

    def test_get_refuses_what_is_larger_than_allowed(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        assert store.get("a", max_bytes=len(CONTENT)) == CONTENT
        with refused(FormatError, "larger"):
            store.get("a", max_bytes=len(CONTENT) - 1)

    def test_ranges_come_back_exactly_and_in_the_order_asked(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        starts = np.array([19_000, 5, 5, 0, 7_000, 20_000, 300, 12_345])
        stops = np.array([20_000, 9, 9, 1, 7_000, 20_000, 900, 12_346])
        got = read_ranges(store, "a", starts, stops)
        assert [bytes(view) for view in got] == [CONTENT[a:b] for a, b in zip(starts, stops, strict=True)]
        assert read_ranges(store, "a", [17], [4_711])[0] == CONTENT[17:4_711]
        assert read_ranges(store, "a", [], []) == []

    def test_a_range_past_the_end_is_an_error(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        for start, stop in [(19_999, 20_001), (20_000, 20_001), (30_000, 30_001)]:
            with pytest.raises(ShortReadError) as caught:
                read_ranges(store, "a", [start], [stop])[0]
            assert caught.value.expected == stop - start

    def test_a_senseless_range_is_the_callers_mistake(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        for start, stop in [(-1, 3), (5, 4)]:
            with refused(ValueError, "start"):
                read_ranges(store, "a", [start], [stop])[0]

    def test_an_open_file_reads_like_the_store(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        for size in (None, len(CONTENT)):
            with store.open("a", size=size) as file:
                assert file.size == len(CONTENT)
                assert bytes(file.read(3, 4_000)) == CONTENT[3:4_000]
                assert bytes(file.read(9, 9)) == b""
                views = file.read_many(np.array([8, 2]), np.array([9, 7]))
                assert [bytes(view) for view in views] == [CONTENT[8:9], CONTENT[2:7]]
                with pytest.raises(ShortReadError):
                    file.read(19_000, 20_001)
            file.close()

    def test_an_adopted_file_is_never_mapped(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        with store.open("a") as file:
            assert file.map() is None
        with store.open("a", stable=True) as file:
            assert store.is_local == (file.map() is not None)

    def test_threads_may_share_a_file(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        with store.open("a", size=len(CONTENT)) as file:

            def read(seed: int) -> bool:
                starts = np.random.default_rng(seed).integers(0, 19_000, 20)
                got = file.read_many(starts, starts + 999)
                return all(bytes(view) == CONTENT[s : s + 999] for view, s in zip(got, starts, strict=True))

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                assert all(pool.map(read, range(16)))

    # Names

    def test_any_name_names_one_object(self, store: Store) -> None:
        for number, name in enumerate(self.names):
            assert store.put_if_absent(name, str(number).encode()), name
        for number, name in enumerate(self.names):
            assert store.get(name, max_bytes=9) == str(number).encode()
            assert read_ranges(store, name, [0], [1])[0] == str(number).encode()[:1]
            # With the engine for data, which has rules of its own for names.
            with store.open(name) as file:
                assert bytes(file.read(0, 1)) == str(number).encode()[:1], name
            assert store.head(name) == next(info for info in store.list(name) if info.key == name)
        assert [info.key for info in store.list("")] == sorted(self.names)
        for number, name in enumerate(self.names):
            assert store.delete(name) is True
            assert len(list(store.list(""))) == len(self.names) - number - 1

    @pytest.mark.parametrize(
        "key",
        ["", "/", "/etc/passwd", "a//b", "a/../b", "..", ".", "a/.", "a/", "a\\b", "a\0b", "a\nb", "\ud800"],
    )
    def test_a_name_that_could_leave_the_root_is_refused(self, store: Store, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.put_if_absent(key, b""),
            lambda: store.overwrite(key, b""),
            lambda: store.get(key, max_bytes=1),
            lambda: read_ranges(store, key, [0], [1])[0],
            lambda: store.head(key),
            lambda: store.delete(key),
            lambda: store.open(key),
        ]
        for call in calls:
            with pytest.raises(UnsafeNameError):
                call()

    # Listing

    def test_list_is_sorted_and_bounded_by_its_prefix(self, store: Store) -> None:
        keys = ["a.bin", "a/1", "a/10", "a/2", "a/b/3", "a0", "ab/1", "b"]
        for key in reversed(keys):
            store.put_if_absent(key, key.encode())
        listed = list(store.list(""))
        assert [info.key for info in listed] == keys
        assert [info.size for info in listed] == [len(key) for key in keys]
        assert [info.key for info in store.list("a/")] == ["a/1", "a/10", "a/2", "a/b/3"]
        assert [info.key for info in store.list("a")] == keys[:-1]
        assert [info.key for info in store.list("a/1")] == ["a/1", "a/10"]
        assert list(store.list("c/")) == []
        assert list(store.list("a/b/c/d")) == []

    def test_head_and_list_agree(self, store: Store) -> None:
        store.put_if_absent("d/a", CONTENT)
        info = store.head("d/a")
        assert isinstance(info, ObjectInfo)
        assert (info.key, info.size) == ("d/a", len(CONTENT))
        assert info.etag
        assert list(store.list("d/")) == [info]

    def test_an_etag_changes_with_the_object(self, store: Store) -> None:
        store.overwrite("h", b"1111")
        before = store.head("h")
        store.overwrite("h", b"2222")
        assert store.head("h") != before

    def test_a_deleted_name_is_gone_and_free(self, store: Store) -> None:
        store.put_if_absent("a", b"1")
        assert store.delete("a") is True
        assert store.delete("a") is False
        assert store.head("a") is None
        assert store.put_if_absent("a", b"2") is True

    def test_nothing_is_left_behind(self, store: Store, tmp_path: pathlib.Path) -> None:
        spool = tmp_path / "spool"
        spool.write_bytes(b"x")
        for data in (b"x", spool):
            store.put_if_absent("a/b", data)
        assert list(store.list_temporaries()) == []
        assert [info.key for info in store.list("")] == ["a/b"]

    # Laziness, processes

    def test_pickles_to_a_store_of_the_same_root(self, store: Store) -> None:
        store.put_if_absent("a", CONTENT)
        copy = pickle.loads(pickle.dumps(store))
        assert copy.url == store.url
        assert read_ranges(copy, "a", [1], [99])[0] == CONTENT[1:99]

    def test_a_forked_child_may_go_on(self, store: Store) -> None:
        """P15: safe after fork, or a clear error; never a hang."""
        store.put_if_absent("a", CONTENT)
        file = store.open("a", size=len(CONTENT))
        assert bytes(file.read(0, 10)) == CONTENT[:10]
        assert answer_of_child(lambda: store.get("a", max_bytes=1 << 20)) == CONTENT
        answer = answer_of_child(lambda: bytes(file.read(5, 500)))
        if self.fork_error:
            assert self.fork_error in answer.decode()
        else:
            assert answer == CONTENT[5:500]
        assert bytes(file.read(0, 10)) == CONTENT[:10]
        file.close()

    def test_url_of_leads_to_the_object(self, store: Store) -> None:
        assert store.url_of("a/b") == f"{store.url}/a/b"
        assert not store.url.endswith("/")
        assert store.url in repr(store)


__all__ = ["CONTENT", "NAMES", "StoreLaws", "connect"]
