"""Damage: refused with address and reason; left out on request, and never half a record returned."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings, strategies as st

import shardio
import shardio_indexer
from shardio.adoption import _scan
from shardio.errors import CorruptRecordError, FormatError
from shardio.metadata import parse_head
from tests.indexer.shards import frames_of, members, samples_of, scan, tar, tfrecord
from tests.suites.errors import refused

PAYLOADS = [bytes([65 + i]) * (20 + i) for i in range(10)]
FRAMES = [tfrecord([payload]) for payload in PAYLOADS]


def salvaged(folder, data: bytes, name: str = "x.tfrecord"):
    """Adopt one damaged file with salvage and return what is left of it."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    report = shardio_indexer.adopt(folder / name, salvage=True)
    assert report.ok, report
    ds = shardio.open(folder, decode=False)
    assert shardio.verify(folder).ok
    return list(ds), report.skipped


@pytest.mark.parametrize("what", ["rows", "index"])
def test_temporary_files_that_cannot_be_written(tmp_path, monkeypatch, what) -> None:
    """A full disk under TMPDIR: a bare OSError says neither which disk nor what to do."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if what == "rows":
        monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", refuse)
    else:
        monkeypatch.setattr(_scan, "_HELD", 0)
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "a.tfrecord").write_bytes(b"".join(FRAMES))
    with ThreadPoolExecutor(1) as pool:
        report = shardio_indexer.adopt(shards, executor=pool)
    assert not report.ok
    assert [path.name for path in shards.rglob("*") if path.is_file()] == ["a.tfrecord"]
    (refusal,) = report.refused
    assert "No space left" in str(refusal.error)
    assert str(tmp_path / "scratch") in str(refusal.error)
    assert "TMPDIR" in str(refusal.error)


def test_a_truncated_last_record(tmp_path) -> None:
    """Where the file ends in the middle of a record, the row and the byte are named."""
    data = b"".join(FRAMES)[:-5]
    with pytest.raises(CorruptRecordError) as error:
        scan(data)
    assert (error.value.row, error.value.start) == (9, len(b"".join(FRAMES[:9])))
    records, left = salvaged(tmp_path / "d", data)
    assert records == PAYLOADS[:9]
    assert [(part.start, part.stop) for part in left] == [(error.value.start, len(data))]


def test_a_bad_payload_in_the_middle(tmp_path) -> None:
    frame = bytearray(FRAMES[4])
    frame[15] ^= 0x10
    data = b"".join([*FRAMES[:4], bytes(frame), *FRAMES[5:]])
    with pytest.raises(CorruptRecordError) as error:
        scan(data)
    assert (error.value.row, error.value.start) == (4, len(b"".join(FRAMES[:4])))
    records, left = salvaged(tmp_path / "d", data)
    assert records == PAYLOADS[:4] + PAYLOADS[5:]
    assert [part.stop - part.start for part in left] == [len(frame)]


def test_a_bad_length_in_the_middle(tmp_path) -> None:
    frame = bytearray(FRAMES[4])
    frame[0] ^= 0xFF
    data = b"".join([*FRAMES[:4], bytes(frame), *FRAMES[5:]])
    with pytest.raises(CorruptRecordError):
        scan(data)
    assert salvaged(tmp_path / "d", data)[0] == PAYLOADS[:4] + PAYLOADS[5:]


def test_garbage_between_frames(tmp_path) -> None:
    data = b"".join([*FRAMES[:4], b"not a frame at all, but text", *FRAMES[4:]])
    with pytest.raises(FormatError):
        scan(data)
    records, left = salvaged(tmp_path / "d", data)
    assert records == PAYLOADS
    assert [part.stop - part.start for part in left] == [28]


def test_a_file_cut_short_and_followed_by_another(tmp_path) -> None:
    """A length that runs on into what follows takes none of that away."""
    data = b"".join([*FRAMES[:5], FRAMES[5][:20], *FRAMES[6:]])
    assert salvaged(tmp_path / "d", data)[0] == PAYLOADS[:5] + PAYLOADS[6:]


def test_a_length_that_runs_past_the_end(tmp_path) -> None:
    import struct

    import crc32c

    from tests.indexer.shards import masked

    head = struct.pack("<Q", 1 << 29)
    lying = head + struct.pack("<I", masked(crc32c.crc32c(head)))
    data = b"".join([*FRAMES[:3], lying, *FRAMES[3:]])
    with pytest.raises(FormatError):
        scan(data)
    assert salvaged(tmp_path / "d", data)[0][:3] == PAYLOADS[:3]
    with pytest.raises(FormatError):
        huge = struct.pack("<Q", 1 << 60)
        scan(b"".join(FRAMES) + huge + struct.pack("<I", masked(crc32c.crc32c(huge))))


@settings(max_examples=max(30, settings().max_examples // 5))
@given(st.data())
def test_salvage_never_invents_a_record(data) -> None:
    """Whatever is flipped, cut or put in between, what is left are records that were written, in order."""
    stored = bytearray(b"".join(FRAMES))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(stored)))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip" and place < len(stored):
            stored[place] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del stored[place : place + data.draw(st.integers(1, 60))]
        else:
            stored[place:place] = data.draw(st.binary(min_size=1, max_size=40))
    scanned = scan(bytes(stored), salvage=True)
    head, frames = frames_of(scanned.index.data)
    left = iter(PAYLOADS)
    gaps = sum(int(head.block_decoded_bytes[block]) for block in head.gaps)
    assert sum(b - a for a, b in frames) + gaps == len(stored)
    # A record inserted twice cannot come out of these mutations, so each is found further on.
    for a, b in frames:
        assert bytes(stored[a + 12 : b - 4]) in left


@pytest.mark.parametrize(
    ("data", "name", "reason"),
    [
        (b"this is a text and nothing else, of some length", "x.tfrecord", "this is not a TFRecord file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "x.tfrecord", "this is not a TFRecord file"),
        (b"{}", "part-00000", "the kind of this file is unknown"),
        (b"", "part-00000", "the kind of this file is unknown"),
        (b"short", "x.tfrecord", "this is not a TFRecord file"),
        (b"text where a tar file should be" * 40, "x.tar", "tar"),
        (bytes(10), "x.tar", "cut short"),
    ],
)
def test_a_file_that_is_something_else(data, name, reason) -> None:
    with pytest.raises(FormatError, match=reason):
        scan(data, name)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "zlib"])
def test_compressed_files_that_are_cut_short(kind, tmp_path) -> None:
    stored = members([tfrecord([bytes(range(256)) * 8] * 40)] * (1 if kind == "zlib" else 3), kind)
    with pytest.raises(FormatError):
        scan(stored[:-7])
    with pytest.raises(FormatError):
        scan(stored[:-7], salvage=True)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "zlib"])
def test_bytes_that_follow_a_compressed_file(kind) -> None:
    stored = members([tfrecord([b"a"])], kind)
    with pytest.raises(FormatError):
        scan(stored + b"garbage and more of it")
    with pytest.raises(FormatError):
        scan(stored + b"garbage and more of it", salvage=True)


def test_flipped_bits_in_compressed_files() -> None:
    for kind in ("gzip", "zstd"):
        stored = bytearray(members([tfrecord([b"abc" * 200])] * 2, kind))
        stored[len(stored) // 4] ^= 4
        with pytest.raises(FormatError):
            scan(bytes(stored))


# tar

MEMBERS = [(f"s{i}.{extension}", bytes([i]) * (i * 300)) for i in range(6) for extension in ("jpg", "cls")]


def test_a_damaged_header_in_a_tar(tmp_path) -> None:
    """Of a damaged archive no sample is kept that may lack a member."""
    data = bytearray(tar(MEMBERS))
    place = data.index(b"s3.jpg")
    data[place] ^= 1
    with pytest.raises(FormatError) as error:
        scan(bytes(data), "x.tar")
    assert error.value.start == place
    folder = tmp_path / "d"
    records, left = salvaged(folder, bytes(data), "x.tar")
    keys = [record["__key__"] for record in shardio.open(folder)]
    # s2 may have continued where the damage is; s3 lost its first member.
    assert keys == ["s0", "s1", "s4", "s5"]
    assert len(records) == 4
    assert left[0].reason.startswith("damage: ")


def test_a_tar_that_is_cut_short(tmp_path) -> None:
    data = tar(MEMBERS)
    cut = data[: data.index(b"s5.cls") + 600]
    with pytest.raises(FormatError):
        scan(cut, "x.tar")
    salvaged(tmp_path / "d", cut, "x.tar")
    assert [record["__key__"] for record in shardio.open(tmp_path / "d")] == ["s0", "s1", "s2", "s3", "s4"]


def test_the_zeros_at_the_end_are_no_damage() -> None:
    scanned = scan(tar(MEMBERS) + bytes(20480), "x.tar")
    assert scanned.skipped == ()
    assert list(parse_head(scanned.index.data).gaps.values()) == ["end of the tar archive"]


def test_a_tar_without_an_end_mark() -> None:
    whole = tar(MEMBERS)
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        stop = max(member.offset_data + -(-member.size // 512) * 512 for member in archive)
    scanned = scan(whole[:stop], "x.tar")
    assert scanned.index.head.rows == 6
    assert scanned.notes["the archive has no end mark"] == 1


def test_two_archives_in_one_file(tmp_path) -> None:
    """Others stop at the first end mark; so nothing is indexed behind it unless asked."""
    both = tar(MEMBERS[:4]) + tar(MEMBERS[4:])
    with pytest.raises(FormatError):
        scan(both, "x.tar")
    salvaged(tmp_path / "d", both, "x.tar")
    assert [record["__key__"] for record in shardio.open(tmp_path / "d")] == [f"s{i}" for i in range(6)]


def test_two_members_of_one_extension() -> None:
    data = tar([("a.jpg", b"1"), ("a.JPG", b"2"), ("b.jpg", b"3")])
    with refused(FormatError, "'jpg'"):
        scan(data, "x.tar")
    assert scan(data, "x.tar", salvage=True).index.head.rows == 1


def test_sparse_files_are_refused() -> None:
    info = tarfile.TarInfo("a.jpg")
    info.type = tarfile.GNUTYPE_SPARSE
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(FormatError):
        scan(buffer.getvalue(), "x.tar")
    info = tarfile.TarInfo("a.jpg")
    info.pax_headers = {"GNU.sparse.major": "1"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(info)
    with pytest.raises(FormatError):
        scan(buffer.getvalue(), "x.tar")


def test_folders_and_links_are_skipped_with_a_note(tmp_path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("d/a.jpg", tarfile.REGTYPE),
            ("d/l.jpg", tarfile.SYMTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "a.jpg"
            info.size = 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"abc") if info.size else None)
        for name in ("README", "__meta__/x.json", "d/b.txt"):
            info = tarfile.TarInfo(name)
            archive.addfile(info)
    data = buffer.getvalue()
    scanned = scan(data, "x.tar")
    assert scanned.notes == {"folders, links and devices": 2, "members without a key": 2}
    (tmp_path / "x.tar").write_bytes(data)
    shardio_indexer.adopt(tmp_path, schema=False)
    assert (
        list(shardio.open(tmp_path))
        == samples_of(data)
        == [
            {"__key__": "d/a", "jpg": b"abc"},
            {"__key__": "d/b", "txt": b""},
        ]
    )


def test_a_global_header_that_names_members_is_refused() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", pax_headers={"path": "evil.jpg"}) as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(FormatError):
        scan(buffer.getvalue(), "x.tar")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", pax_headers={"comment": "harmless"}) as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"))
    assert scan(buffer.getvalue(), "x.tar").index.head.rows == 1


@settings(max_examples=max(30, settings().max_examples // 5))
@given(
    st.lists(st.tuples(st.integers(0, 12000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 12000),
)
def test_only_errors_of_the_tree_come_out_of_damaged_tars(flips, stop) -> None:
    data = bytearray(tar(MEMBERS)[:12288])
    for place, value in flips:
        data[place % len(data)] = value
    cut = bytes(data[: max(stop, 600)])
    with contextlib.suppress(FormatError):
        scan(cut, "x.tar")
    scan(cut, "x.tar", salvage=True)
