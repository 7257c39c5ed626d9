"""P5, P6, P7, P21: kinds of damage x kinds of shard x ways to read, one table.

What comes is what was written, or an error that names the object. A new way to read is one line of `WAYS`, a
new kind of shard one of `KINDS`, a new damage one of `DAMAGES`.
"""

from __future__ import annotations

import base64
import itertools
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
from shardio.engines import polars as shardio_polars
from shardio.errors import FormatError, NotFoundError, ShardioError, StaleIndexError
from shardio.storage import connect
from shardio.torch import MapDataset, StreamingDataLoader, StreamingDataset
from shardio.view import Pages
from tests.indexer.shards import members, tar, tfrecord
from tests.promises.damage import Victim
from tests.promises.places import PLACES, copied, fresh

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
Row = tuple[int, str]
ROWS: list[Row] = [(n, f"record {n} " * (n % 4)) for n in range(40)]
SCHEMA = {"n": "int64", "text": "text"}
DELETED = [3, 4, 30]
VALUES = [{"n": n, "text": text} for n, text in ROWS]

# ---------------------------------------------------------------------------------------- kinds of shard


def written(url: Path, **options: Any) -> None:
    with shardio.DatasetWriter(url, SCHEMA, block_bytes=150, shard_bytes=800, **options) as out:
        out.write_many(VALUES)


def deleted(url: Path) -> None:
    written(url)
    shardio.delete(url, positions=DELETED, split="train")


def with_sidecars(url: Path) -> None:
    written(url, compression="zstd")
    shardio.build_table(url, ["n", "text"], workers=1)
    shardio.build_keys(url, "n", workers=1)


def adopted(name: str, make: Callable[[int, int], bytes], **options: Any) -> Callable[[Path], None]:
    """Return what writes files of others and adopts them."""

    def build(url: Path) -> None:
        url.mkdir()
        for number, first in enumerate((0, 25)):
            data = make(first, (25, 40)[number])
            url.joinpath(name.format(number)).write_bytes(data)
        shardio.adopt(url, workers=1, **options)

    return build


def _frames(first: int, stop: int) -> bytes:
    return tfrecord([shardio.codecs.encode_example(value) for value in VALUES[first:stop]])


def _frames_in_members(first: int, stop: int) -> bytes:
    return members([_frames(k, min(k + 5, stop)) for k in range(first, stop, 5)], "gzip")


def _samples(first: int, stop: int) -> bytes:
    return tar((f"{v['n']:03}.{end}", str(v[end]).encode()) for v in VALUES[first:stop] for end in SCHEMA)


def _lines(first: int, stop: int) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in VALUES[first:stop])


KINDS: dict[str, Callable[[Path], None]] = {
    "plain": written,
    "zstd": lambda url: written(url, compression="zstd"),
    "gzip": lambda url: written(url, compression="gzip"),
    "deleted": deleted,
    "with sidecars": with_sidecars,
    "adopted": adopted("part-{}.tfrecord", _frames, schema=SCHEMA),
    "adopted gzip": adopted("part-{}.tfrecord.gz", _frames_in_members, schema=SCHEMA),
    "adopted tar": adopted("part-{}.tar", _samples),
    "adopted lines": adopted("part-{}.jsonl", _lines, schema=SCHEMA),
}

# ---------------------------------------------------------------------------------------- kinds of damage


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "a bit at the start": lambda data, _: flipped(data, 0),
    "a bit in the middle": lambda data, _: flipped(data, len(data) // 2),
    "a bit at the end": lambda data, _: flipped(data, len(data) - 1),
    "zeros": lambda data, _: data[: len(data) // 3] + bytes(len(data) // 3) + data[2 * (len(data) // 3) :],
    "cut": lambda data, _: data[:-5],
    "half": lambda data, _: data[: len(data) // 2],
    "empty": lambda _data, _: b"",
    "longer": lambda data, _: data + bytes(9),
    "gone": lambda _data, _: None,
    "another's": lambda _data, other: other,
}

# ---------------------------------------------------------------------------------------- ways to read


def rows_of(values: Iterable[Any]) -> list[Row]:
    """Return rows of values, whether of a schema or of samples as they are stored."""
    return [(int(value["n"]), _text(value["text"])) for value in values]


def _text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def rows_in(batches: Iterable[Any]) -> list[Row]:
    return [
        row
        for batch in batches
        for row in rows_of({"n": n, "text": text} for n, text in zip(batch["n"], batch["text"], strict=True))
    ]


def streamed(ds: Any, **options: Any) -> list[Row]:
    stream = shardio.stream(ds, global_batch=7, remainder="keep", **options)
    return sorted(rows_in(stream))


def loaded(url: str) -> list[Row]:
    data = StreamingDataset(url, global_batch=7, remainder="keep")
    return sorted(rows_in(StreamingDataLoader(data, num_threads=0)))


def viewed(url: str) -> list[Row]:
    """Return what the pages show; the error that they show in the place of a record is raised."""
    found = Pages(url).records(count=len(ROWS))["records"]
    for each in found:
        if "error" in each:
            told = each["error"]
            raise FormatError(told["error"], url=told["url"], advice=told["advice"])
    cells = [{name: cell["text"] for name, cell in each["cells"]} for each in found]
    return rows_of(cells)


def exported(ds: Any, scratch: Path) -> list[Row]:
    target = scratch / secrets.token_hex(4)
    shardio.export_dataset(ds, target, kind="jsonl")
    lines = [line for path in sorted(target.rglob("*.jsonl*")) for line in path.read_bytes().splitlines()]
    values = [json.loads(line) for line in lines]
    for value in values:
        if isinstance(value["n"], dict):  # of a sample, bytes
            value["n"] = base64.b64decode(value["n"]["$base64"])
    return rows_of(values)


def converted(url: str, scratch: Path) -> list[Row]:
    target = scratch / secrets.token_hex(4)
    shardio.convert_dataset(url, target, workers=1)
    return rows_of(shardio.open(target))


def compacted(url: str, scratch: Path) -> list[Row]:
    target = connect(str(scratch / secrets.token_hex(4)))
    source = connect(url)
    for each in source.list():
        target.put_if_absent(each.key, source.get(each.key, max_bytes=1 << 20))
    shardio.compact(target.url, shard_bytes=5000, workers=1)
    return rows_of(shardio.open(target.url))


def verified(url: str) -> list[Row]:
    """Raise the first finding."""
    for finding in shardio.verify(url).findings:
        raise FormatError(finding.message, url=finding.url, advice="see `shardio verify`")
    return rows_of(shardio.open(url))


def cached(url: str, scratch: Path) -> list[Row]:
    cache = shardio.CacheOptions(scratch / secrets.token_hex(4), max_bytes=1 << 20)
    return rows_of(shardio.open(url, cache=cache))


def all_positions(ds: Any) -> list[int]:
    return list(range(len(ds)))


def by_key(ds: Any) -> list[Row]:
    found = ds.find([n for n, _ in ROWS], default=-1) if ds.key_features else np.arange(len(ds))
    return rows_of(ds.read(found[found >= 0]))


WAYS: dict[str, Callable[[str, Path], list[Row]]] = {
    "iteration": lambda url, _: rows_of(shardio.open(url)),
    "without maps": lambda url, _: rows_of(shardio.open(url, mmap=False)),
    "batches": lambda url, _: rows_in(shardio.open(url).iter_batches(7)),
    "lookup": lambda url, _: rows_of(map((ds := shardio.open(url)).__getitem__, range(len(ds)))),
    "read": lambda url, _: rows_of((ds := shardio.open(url)).read(all_positions(ds)[::-1]))[::-1],
    "read_batch": lambda url, _: rows_in([(ds := shardio.open(url)).read_batch(all_positions(ds))]),
    "backwards": lambda url, _: rows_of(shardio.open(url)[::-1])[::-1],
    "select": lambda url, _: sorted(
        rows_of((ds := shardio.open(url)).select(np.arange(len(ds)) * 7 % len(ds)))
    ),
    "filter": lambda url, _: rows_of(
        shardio.open(url).filter(lambda c: np.ones(len(c["n"]), bool), features=["n"])
    ),
    "SQL": lambda url, _: rows_of(shardio.open(url).filter("text is not null")),
    "split_by": lambda url, _: sorted(
        row
        for part in shardio.open(url).split_by({"a": 0.5, "b": 0.5}, by="text", exact=False).values()
        for row in rows_of(part)
    ),
    "keys": lambda url, _: by_key(shardio.open(url)),
    "arrow": lambda url, _: rows_of(shardio.open(url).to_arrow(["n", "text"]).to_pylist()),
    "pandas": lambda url, _: rows_in([shardio.open(url).to_pandas()]),
    "Polars": lambda url, _: rows_in([shardio_polars.scan(url).collect()]),
    "spans": lambda url, _: rows_of(
        row for span in shardio.open(url).spans(bytes=300) for row in span.to_arrow(["n", "text"]).to_pylist()
    ),
    "stream": lambda url, _: streamed(shardio.open(url), num_threads=0),
    "stream in threads": lambda url, _: streamed(url, num_threads=2, shuffle=False),
    "cache": cached,
    "loader": lambda url, _: loaded(url),
    "map": lambda url, _: rows_of(map((data := MapDataset(shardio.open(url))).__getitem__, range(len(data)))),
    "join": lambda url, _: rows_of(
        shardio.join(shardio.open(url).select_columns(["n"]), shardio.open(url).select_columns(["text"]))
    ),
    "export": lambda url, scratch: exported(shardio.open(url), scratch),
    "convert": converted,
    "compact": compacted,
    "pages": lambda url, _: viewed(url),
    "verify": lambda url, _: verified(url),
}

# ---------------------------------------------------------------------------------------- the law


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Callable[[str], Path]:
    """Return where a sound dataset of a kind is."""
    made: dict[str, Path] = {}

    def dataset(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("sound") / "ds"
            KINDS[kind](made[kind])
            shardio.gc(made[kind], keep=1, dry_run=False)  # of versions before it nothing is left
        return made[kind]

    return dataset


def read_or_error(read: Callable[[str, Path], list[Row]], url: str, scratch: Path) -> tuple[Any, Any]:
    """Return what was read, or the error that damage may give; any other ends the test."""
    try:
        return read(url, scratch), None
    except (FormatError, NotFoundError, StaleIndexError) as error:
        return None, error


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_what_comes_is_right_or_an_error_that_names_the_object(way, kind, sound, tmp_path, long):
    read, right = WAYS[way], [row for row in ROWS if kind != "deleted" or row[0] not in DELETED]
    url = copied(sound(kind), PLACES[(len(way) + len(kind)) % 2], tmp_path)
    victim = Victim(url, [])
    assert read(url, tmp_path) == right
    newest: dict[str, str] = {}
    for key in sorted(victim.objects):
        newest[key.rpartition(".")[2]] = key
    first = list(WAYS).index(way) + list(KINDS).index(kind)
    for number, key in enumerate(newest.values()):
        good = victim.objects[key]
        others = [data for each, data in victim.objects.items() if each[-9:] == key[-9:] and each != key]
        # Each way meets each damage to each object: one of ten in each kind of shard, another in the next.
        damages = list(DAMAGES) if long else [list(DAMAGES)[(first + number) % len(DAMAGES)]]
        for damage in damages:
            if (changed := DAMAGES[damage](good, others[0] if others else b"x")) == good:
                continue
            victim.put(key, changed)
            found, error = read_or_error(read, url, tmp_path)
            if error is None:
                assert found == right, f"{damage} of {key}"
                assert way != "verify", f"{damage} of {key} was not found"
            else:
                place = f"{error.url} {error.shard}"
                assert key.removesuffix(".shardidx") in place, f"{damage} of {key}: {error}"
                assert error.advice, f"{damage} of {key}: {error}"
        victim.restore(key)


# ------------------------------------------------------------------------------- every bit, every size

COMPRESSIONS = pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)
FEW = ROWS[:4]
IN_TURN = ("iteration", "lookup", "read", "verify")


def few(place: str, compression: str | None, tmp_path: Path) -> Victim:
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url, SCHEMA, compression, block_bytes=50) as out:
        out.write_many(VALUES[: len(FEW)])
    return Victim(url, [])


def bits(data: bytes, stride: int) -> Iterator[bytes]:
    for bit in range(0, 8 * len(data), stride):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def sizes(data: bytes, stride: int) -> Iterator[bytes]:
    yield from (data[:size] for size in (*range(0, len(data), stride), len(data) - 1))
    yield from (data + more for more in (b"\0", b"\0" * 64, data, b"SHRDEND1"))


@pytest.mark.sampled(3)
@EVERY_PLACE
@COMPRESSIONS
@pytest.mark.parametrize("end", [".tfrecord", ".shardidx", ".list", ".manifest"])
@pytest.mark.parametrize(("changes", "stride"), [(bits, 17), (sizes, 5)], ids=["bits", "sizes"])
def test_every_flipped_bit_and_every_size_is_an_error(
    end, compression, place, changes, stride, tmp_path, long
):
    """P5, P6: every single flipped bit and every other size is detected before a sample is returned.

    A reader MUST refuse a shard or an index of another size than the head says, wherever it learns the size.
    """
    victim = few(place, compression, tmp_path)
    (key,) = victim.of_kind(end)
    good = victim.objects[key]
    turn = itertools.cycle(IN_TURN)
    for number, changed in enumerate(changes(good, 1 if long else stride)):
        victim.put(key, changed)
        way = next(turn)
        found, error = read_or_error(WAYS[way], victim.url, tmp_path)
        if error is None:
            # In a bucket the zeros and the mark at the end of an index are read by `shardio verify` alone.
            assert (place, end) == ("memory", ".shardidx"), f"change {number} of {key} by {way}"
            assert found == FEW
            assert not shardio.verify(victim.url).ok
    victim.restore(key)
    assert WAYS["verify"](victim.url, tmp_path) == FEW


@EVERY_PLACE
@COMPRESSIONS
def test_a_flipped_bit_harms_nothing_but_its_block(compression, place, tmp_path):
    """What is in other blocks is still handed out, by lookup and by batch."""
    victim = few(place, compression, tmp_path)
    (key,) = victim.of_kind(".tfrecord")
    victim.put(key, flipped(victim.objects[key], len(victim.objects[key]) - 1))
    ds = shardio.open(victim.url)
    assert rows_of([ds[0], *ds.read([1, 0, 1])]) == [FEW[0], FEW[1], FEW[0], FEW[1]]
    for _ in range(2):
        with pytest.raises(FormatError) as caught:
            ds[3]
        assert (caught.value.shard, caught.value.row) == (key, 3)
    assert rows_of([ds[1]]) == [FEW[1]]


@EVERY_PLACE
@COMPRESSIONS
def test_every_size_of_a_single_shard(compression, place, tmp_path):
    """P6, without a dataset around: with its index a shard of another size is refused when it is opened."""
    victim = few(place, compression, tmp_path)
    (key,) = victim.of_kind(".tfrecord")
    for changed in sizes(victim.objects[key], 7):
        victim.put(key, changed)
        with pytest.raises(ShardioError):
            list(shardio.open_shard(f"{victim.url}/{key}"))
        with pytest.raises(ShardioError):
            _ = shardio.open_shard(f"{victim.url}/{key}")[0]
