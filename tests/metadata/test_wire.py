"""Metadata bombs: 6 MB that a parser makes hundreds of megabytes of; error messages have a bound."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardio.errors import FormatError
from shardio.format import Limits
from shardio.metadata import Manifest, Schema, parse_manifest, seal_manifest
from tests.metadata.crafted import (
    columns_in,
    columns_of,
    container,
    header_of,
    index_of,
    list_of,
    manifest_message,
    sealed,
)

SIZE = 6 << 20
SPARE = 7 * SIZE

_PARSE = """
import resource, sys
from pathlib import Path
from shardio.errors import ShardioError
from shardio.format import Limits
from shardio.metadata import Receipt, parse_head, parse_list, parse_manifest
# An eighth of the usual ones: what is refused is walked up to them.
limits = Limits(items=1 << 18)
ways = {
    "manifest": lambda data: parse_manifest(data, version=1, limits=limits),
    "list": lambda data: parse_list(data, limits=limits),
    "receipt": lambda data: Receipt.parse(data, limits=limits),
    "index": lambda data: parse_head(data, limits=limits),
}
spare = int(sys.argv[1])
for path in map(Path, sys.argv[2:]):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, resource.RLIM_INFINITY))
    try:
        ways[path.suffix[1:]](path.read_bytes())
        print(path.stem, "parsed")
    except ShardioError as error:
        print(path.stem, type(error).__name__, len(str(error)), str(error)[:100].replace("\\n", " "))
"""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, body: bytes = b"") -> bytes:
    """Return a field of length-delimited bytes."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def many(unit: bytes) -> bytes:
    return unit * (SIZE // len(unit))


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield names, whose suffix says what it is, and files."""
    manifest = manifest_message().SerializeToString()
    for number, name in ((11, "sessions"), (12, "schemas"), (14, "roots"), (15, "lists"), (16, "splits")):
        yield f"{name}.manifest", manifest + many(field(number))
    features = field(12, field(1, b"example") + field(2) * 1000)
    yield "features.manifest", manifest + many(features)
    yield "rows.manifest", manifest + field(11, many(field(5)))
    yield "expired.manifest", manifest + field(17, field(1, b"\x7f" * SIZE))
    yield "doomed.manifest", manifest + field(17, many(field(3, b"a")))
    yield "features-critical.manifest", manifest + many(field(2))
    yield "name.manifest", manifest + field(16, field(1, b"a" * SIZE))
    yield "feature-name.manifest", manifest + field(2, b"a" * SIZE)
    yield "splits.receipt", b"\x08\1" + many(field(7))
    yield "list.receipt", b"\x08\1" + field(6, b"a" * SIZE)


def claims(data: bytes, name: str, items: int) -> bytes:
    """Return a file of columns in which one claims to have other items, with the checksum right."""
    columns = columns_in(data)

    def edit(entries) -> None:
        (entry,) = (entry for entry in entries if entry[0] == name)
        entry[3] = items

    return container(int.from_bytes(data[8:12], "little"), columns, edit=edit)


@pytest.mark.slow
def test_bombs_cost_little(tmp_path):
    """A reader MUST count the fields of a message before it parses it: a parser makes dozens of bytes of
    what takes two in a file.
    """
    paths = []
    for name, payload in bombs():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(sealed(payload))
    index = index_of(header_of(columns_of([[20]])), columns_of([[20]]))
    for items in (1 << 21, 1 << 31, 1 << 63):
        for kind, data, name in (("index", index, "gap_reason"), ("list", list_of(), "key_rest")):
            paths.append(tmp_path / f"{name}-{items}.{kind}")
            paths[-1].write_bytes(claims(data, name, items))
    paths.append(tmp_path / "texts.list")
    paths[-1].write_bytes(list_of(key_rest=[b""] * (SIZE // 4)))
    paths.append(tmp_path / "numbers.list")
    paths[-1].write_bytes(list_of(rows=[1] * (SIZE // 8)))
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, str(SPARE), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    said = [line.split(" ", 3) for line in done.stdout.splitlines()]
    assert len(said) == len(paths)
    for name, kind, *rest in said:
        assert kind.endswith("Error"), (name, kind)
        assert int(rest[0]) < 6000, f"the message of {name} has {rest[0]} characters"


@pytest.mark.parametrize(("number", "of_each"), [(14, 8), (2, 1), (17, 0)])
def test_fields_are_counted(number, of_each):
    """A nested message counts as eight fields, packed numbers as their bytes."""
    units = field(number) * 1000 if of_each else field(17, field(1, b"\1" * 1000))
    data = manifest_message().SerializeToString() + units
    most = 1000 * (of_each or 1) + 8 + len(manifest_message().ListFields())
    for limit, too_many in ((most + 8, False), (most - 100, True)):
        with pytest.raises(FormatError) as caught:  # what it names is no name, besides
            parse_manifest(sealed(data), version=1, limits=Limits(items=limit), url="here")
        assert str(caught.value.expected).startswith(f"at most {limit} fields") == too_many
        assert caught.value.url == "here"


@pytest.mark.slow
def test_what_could_not_be_read_is_not_written():
    """A writer MUST NOT store what it would refuse to read."""
    schema = Schema.parse({f"f{number}": "int64" for number in range(1000)})
    manifest = Manifest(
        dataset_uuid=bytes(16),
        version=1,
        parent_version=0,
        parent_sha256=b"",
        write_id=bytes(16),
        schemas=(schema,) * 501,  # 501,000 features
    )
    with pytest.raises(FormatError):
        seal_manifest(manifest)
