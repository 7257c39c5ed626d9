"""The law of tar files: the webdataset library, conversion and adoption find the same samples."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings, strategies as st

import shardio
import shardio_indexer
from shardio.errors import FormatError
from tests.convert.conftest import library_samples

Members = list[tuple[str, bytes, bytes]]  # type, name, content

STEMS = ["a", "b", "A", "__a", "__a__", "a__", ".a", "__", ".", "..a", "\u00fc", "./a", "x" * 120]
ENDINGS = [".txt", ".TXT", ".bin", ".seg.bin", "", ".", ".a b", ".__key__", ".__url__", ".__x__"]
FOLDERS = ["", "", "", "d/", "__m__/", "d/__m__/", ".d/", "./"]
NAMES = st.builds(
    lambda folder, stem, ending: folder + stem + ending,
    st.sampled_from(FOLDERS),
    st.sampled_from(STEMS),
    st.sampled_from(ENDINGS),
)
ODD_KINDS = [tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
KINDS = st.sampled_from([tarfile.REGTYPE] * 8 + ODD_KINDS)
PLAIN = tarfile.REGTYPE


def archive(path: Path, members: list[tuple[bytes, str, bytes]]) -> Path:
    with tarfile.open(path, "w") as out:
        for kind, name, data in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "a.txt" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            info.size = len(data) if info.isreg() else 0
            out.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


def by_the_library(path: Path) -> list[dict[str, Any]] | None:
    try:
        return library_samples(path)
    except ValueError:
        return None


def by_conversion(path: Path, url: Path, names: set[str]) -> list[dict[str, Any]] | None:
    features: dict[str, Any] = {name: shardio.Feature("bytes", optional=True) for name in sorted(names)}
    schema = shardio.Schema.parse({"__key__": "text", **features})
    try:
        shardio.convert_dataset(path, url, schema=schema)
    except FormatError as error:
        return None if "duplicate key" in str(error) or "no ending" in str(error) else [{"": str(error)}]
    return [{name: item for name, item in value.items() if item is not None} for value in shardio.open(url)]


def by_adoption(path: Path) -> list[dict[str, Any]] | None:
    report = shardio_indexer.adopt(path, workers=1, schema=False)
    if report.refused:
        error = str(report.refused[0].error)
        return None if "two members" in error else [{"": error}]
    return list(shardio.open(path.parent))


@settings(
    deadline=None,
    max_examples=max(12, settings().max_examples // 10),
    suppress_health_check=list(HealthCheck),
)
@given(members=st.lists(st.tuples(KINDS, NAMES, st.binary(max_size=3)), min_size=1, max_size=6))
@example(members=[(PLAIN, "a.txt", b"1"), (PLAIN, "b.txt", b"2"), (PLAIN, "a.txt", b"3")])
@example(members=[(PLAIN, "a.txt", b"1"), (PLAIN, "a.TXT", b"2")])
@example(members=[(PLAIN, "a.txt", b""), (PLAIN, "README", b"2"), (PLAIN, "a.bin", b"")])
@example(members=[(PLAIN, "a.txt", b"1"), (tarfile.SYMTYPE, "a.bin", b""), (tarfile.DIRTYPE, "d", b"")])
@example(members=[(PLAIN, "a.txt", b"1"), (PLAIN, "a.__key__", b"2")])
@example(members=[(PLAIN, "__a.txt", b"1"), (PLAIN, "__a__.txt", b"2"), (PLAIN, "__m__/a.txt", b"3")])
def test_all_three_find_the_same_samples(tmp_path_factory, members) -> None:
    """Where the library refuses, all do; conversion also refuses the name "", which is not a feature."""
    folder = tmp_path_factory.mktemp("tar")
    (folder / "in").mkdir()
    path = archive(folder / "in" / "x.tar", members)
    wanted = by_the_library(path)
    names = {name for sample in wanted or [] for name in sample if name != "__key__"}
    if wanted == []:
        # Nothing to have: the dataset would be empty.
        return
    assert by_adoption(path) == wanted
    converted = by_conversion(path, folder / "converted", names - {""})
    assert converted == (None if "" in names else wanted)


def test_what_belongs_to_no_sample_is_said(tmp_path) -> None:
    members = [
        (PLAIN, "a.txt", b"1"),
        (PLAIN, "README", b"2"),
        (PLAIN, ".hidden", b"2"),
        (tarfile.SYMTYPE, "a.bin", b""),
        (PLAIN, "b.txt", b"2"),
        (PLAIN, "a.txt", b"3"),
    ]
    path = archive(tmp_path / "x.tar", members)
    report = shardio.convert_dataset(path, tmp_path / "out")
    assert report.skipped == []
    told = " | ".join(report.notes)
    assert "1 samples have the name" in told
    for notes in (told, " | ".join(shardio_indexer.adopt(path, into=str(tmp_path)).notes)):
        assert "members without a key: 2" in notes
        assert "folders, links and devices: 1" in notes
