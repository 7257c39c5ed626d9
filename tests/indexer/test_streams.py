"""Compressed streams: ascending access decodes every byte once, anything else from the start, said once."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import threading
import warnings
import zlib

import pytest
import zstandard

import shardio
import shardio_indexer
from shardio.cli import main
from shardio.errors import FormatError, StaleIndexError
from shardio.format import DEFAULT_LIMITS, Compression
from shardio.kernels import crc32c
from shardio.reader._files import StreamFile
from shardio.reader._options import ReadStats
from shardio.storage import ShortReadError, connect
from tests.format.test_streams import with_window
from tests.indexer.shards import members, tfrecord

PAYLOADS = [hashlib.shake_128(b"%d" % i).digest(4000) for i in range(2000)]


@pytest.fixture
def stream(tmp_path):
    data = tfrecord(PAYLOADS)
    (tmp_path / "x.tfrecord").write_bytes(gzip.compress(data, 1, mtime=0))
    assert shardio_indexer.adopt(tmp_path).ok
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """Bytes that decoders were made to give out."""
    from shardio.reader import _files

    counts = []
    real = _files.decode_stream

    def counted(*args, **kwargs):
        for piece in real(*args, **kwargs):
            counts.append(len(piece))
            yield piece

    monkeypatch.setattr(_files, "decode_stream", counted)
    return counts


def test_ascending_access_is_linear(stream, decoded) -> None:
    """A random lookup decodes from the start; ascending lookups decode every byte once."""
    ds = shardio.open(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [ds[i] for i in range(len(ds))] == PAYLOADS
        assert sum(decoded) == len(tfrecord(PAYLOADS))
        decoded.clear()
        assert list(shardio.open(stream)) == PAYLOADS
        assert sum(decoded) == len(tfrecord(PAYLOADS))


@pytest.mark.filterwarnings("ignore:.*is one compressed stream")
def test_sizes_and_checksums_are_those_of_the_object(stream) -> None:
    """`stored_bytes` and `crc32c` in the header of the index and in the list of shards are the object's."""
    stored = (stream / "x.tfrecord").read_bytes()
    ds = shardio.open(stream)
    (entry,) = ds.source.table
    assert (entry.stored_bytes, entry.crc32c) == (len(stored), crc32c(stored))
    assert (entry.decoded_bytes, ds.num_bytes) == (len(tfrecord(PAYLOADS)), len(stored))
    head = ds._shard(0).head
    assert (head.stored_bytes, head.crc32c, head.blocks > 1) == (len(stored), crc32c(stored), True)
    (total,) = shardio.log(stream)[0].manifest.splits
    assert total.stored_bytes == len(stored)
    assert shardio.verify(stream).stored_bytes == len(stored)
    alone = shardio.open_shard(stream / "x.tfrecord")
    assert [alone[0], alone[1999], len(alone)] == [PAYLOADS[0], PAYLOADS[1999], 2000]
    # Without its index it can still be told whole from damaged.
    (stream / "x.tfrecord.shardidx").unlink()
    report = shardio.verify(stream)
    assert [finding.kind for finding in report.findings] == ["missing"]
    assert report.good_records == 2000


def test_going_back_is_said_once(stream) -> None:
    ds = shardio.open(stream)
    with pytest.warns(UserWarning, match="one compressed stream") as said:  # noqa: PT031 - said once for all
        assert ds[1500] == PAYLOADS[1500]
        assert ds[700] == PAYLOADS[700]
        assert ds[10] == PAYLOADS[10]
    assert len(said) == 1
    assert ds.stats["streams_restarted"] == 2, "the first block needs no decoding of what comes before it"


def test_read_sorts_so_that_one_pass_is_enough(stream, decoded) -> None:
    ds = shardio.open(stream)
    with pytest.warns(UserWarning, match="one compressed stream"):  # noqa: PT031 - the second read may say nothing
        assert ds.read([1999, 1, 1000]) == [PAYLOADS[1999], PAYLOADS[1], PAYLOADS[1000]]
        assert ds.read([1999, 1000]) == [PAYLOADS[1999], PAYLOADS[1000]]
    assert sum(decoded) <= 2 * len(tfrecord(PAYLOADS))


def test_memory_stays_small(stream) -> None:
    ds = shardio.open(stream)
    for i in range(0, 2000, 20):
        _ = ds[i]
    (cursor,) = ds._shard(0).stored_bytes.file._cursors
    assert len(cursor._held) < 4 << 20


def test_threads_each_read_on_in_their_own_place(stream) -> None:
    ds = shardio.open(stream)
    wrong = []

    def run(first: int) -> None:
        got = [ds[i] for i in range(first, 2000, 3)]
        if got != PAYLOADS[first::3]:
            wrong.append(first)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_stream_counts_as_one_block_for_plans(stream) -> None:
    ds = shardio.open(stream)
    assert ds.source.table.blocks.tolist() == [1]
    assert ds._shard(0).head.blocks > 100


@pytest.mark.filterwarnings("ignore:.*is one compressed stream")
def test_streaming_and_pickling(stream) -> None:
    ds = pickle.loads(pickle.dumps(shardio.open(stream)))
    got = [one for batch in shardio.stream(ds, global_batch=100, seed=1) for one in batch["payload"]]
    assert sorted(got) == sorted(PAYLOADS)


def test_damage_and_change_are_noticed(stream) -> None:
    path = stream / "x.tfrecord"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError) as error:
        list(shardio.open(stream))
    assert error.value.url == str(path)
    assert not shardio.verify(stream).ok
    # Other contents in the same number of stored bytes do not pass either.
    other = gzip.compress(tfrecord([payload[::-1] + b"" for payload in PAYLOADS[::-1]]), 1, mtime=0)
    path.write_bytes((other + bytes(len(data)))[: len(data)])
    with pytest.raises(FormatError):
        list(shardio.open(stream))
    path.write_bytes(b"short")
    with pytest.raises(StaleIndexError):
        list(shardio.open(stream))


@pytest.mark.filterwarnings("ignore:.*is one compressed stream")
@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZLIB, Compression.ZSTD])
def test_a_stream_that_ends_early(tmp_path, compression) -> None:
    content = bytes(range(256)) * 100
    kinds = {Compression.GZIP: "gzip", Compression.ZSTD: "zstd"}
    stored = (
        zlib.compress(content) if compression is Compression.ZLIB else members([content], kinds[compression])
    )
    (tmp_path / "x").write_bytes(stored)
    with connect(tmp_path).open("x") as file:
        view = StreamFile(file, compression, 30000, DEFAULT_LIMITS, ReadStats())
        assert bytes(view.read(100, 200)) == content[100:200]
        with pytest.raises(ShortReadError):
            view.read(25000, 30000)
        assert [bytes(part) for part in view.read_many([500, 3], [510, 5])] == [
            content[500:510],
            content[3:5],
        ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("log", [23, 27, 28])
def test_zstandard_with_large_windows(tmp_path, log) -> None:
    """`zstd --long` and `--ultra`: adopted as far as `zstd -d` takes them, else named, and converted."""
    payloads = PAYLOADS * 3
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "x.tfrecord.zst").write_bytes(with_window(tfrecord(payloads), log))
    (folder / "y.tfrecord.zst").write_bytes(members([tfrecord(payloads[:5])], "zstd"))
    report = shardio_indexer.adopt(folder)
    if log <= 27:
        assert report.ok
        ds = shardio.open(folder)
        assert list(ds) == [*payloads, *payloads[:5]]
        assert shardio.verify(folder).ok
        return
    (refusal,) = report.refused
    assert refusal.error.found == f"{1 << 28} bytes"
    assert "over the limit" in refusal.error.what
    assert "shardio convert" in refusal.error.advice
    assert main(["convert", str(folder / "x.tfrecord.zst"), str(tmp_path / "new"), "--quiet"]) == 0
    assert list(shardio.open(tmp_path / "new")) == payloads


@pytest.mark.filterwarnings("ignore:.*has no index")
def test_zstandard_dictionaries_are_named(tmp_path) -> None:
    words = zstandard.train_dictionary(2000, [b"wren %d robin" % n * 9 for n in range(500)])
    stored = zstandard.ZstdCompressor(dict_data=words).compress(tfrecord(PAYLOADS[:5]))
    (tmp_path / "x.tfrecord.zst").write_bytes(stored)
    (refusal,) = shardio_indexer.adopt(tmp_path).refused
    assert "was compressed with a dictionary" in refusal.error.what
    with pytest.raises(FormatError):
        shardio.convert_dataset(tmp_path / "x.tfrecord.zst", tmp_path / "new")
    with pytest.raises(FormatError):
        list(shardio.open_shard(tmp_path / "x.tfrecord.zst"))
