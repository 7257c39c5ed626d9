"""P8, by the field: golden metadata changed field by field, every checksum right.

Flipped bits are found by checksums; here the attacker has computed them.  Each mutant changes one to three
fields of a manifest, list, receipt or index: numbers to the ends of their ranges, texts to what parsers
stumble over, items left out, doubled, swapped, whole messages repeated.  Only ShardioError comes out.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

import shardio
from shardio.errors import ShardioError
from shardio.metadata import Receipt, pack_list, parse_head, parse_list, parse_manifest
from shardio.v1 import manifest_pb2
from tests.metadata.crafted import columns_in, container, sealed
from tests.promises.places import DATASETS, GOLDEN, copied

TEXTS = [
    *("", "all", "..", "a/../b", "/", "~", "\0", "\u202e", "a" * 300, "9" * 5000, "{" * 3000, "[" * 3000),
    *("int64", "image", "float32", "json", "text", "bool", "example", "array", "tensors", "stream", "gaps"),
    *(
        "_shardio/lists/a.list",
        "data/x.tfrecord",
        "s3://a/b",
        "file:///",
        "deletions",
        "foreign_roots",
        "u32",
    ),
]
BYTES = [
    *(b"", b"\0", b"\xff" * 32, bytes(16), bytes(32), b"{}", b"[]", b'{"a": 1}', b'{"a": NaN}'),
    *(
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 5000,
        b'{"a": "\\ud800"}',
        b'{"a": 1e999}',
        b"null",
        b"\xff\xfe",
    ),
]
NUMBERS = [0, 1, 2, 3, 5, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53]
NUMBERS += [(1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -(1 << 63)]


class Dice:
    """Chance that can be thrown again."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))

    def below(self, stop: int) -> int:
        return int(self._generator.integers(0, stop))

    def one(self, items: Any) -> Any:
        return items[self.below(len(items))]


def value_of(dice: Dice, kind: type, before: Any) -> Any:
    if kind is bool:
        return not before
    if kind is str:
        return dice.one([*TEXTS, before[::-1], before + before, before[:-1]])
    if kind is bytes:
        return dice.one([*BYTES, before + before, before[:-1], before[::-1]])
    return dice.one([*NUMBERS, before + 1, before - 1, before * 2])


def mutate(dice: Dice, message: Message) -> None:
    """Change one field, here or in a nested message."""
    descriptor = dice.one(message.DESCRIPTOR.fields)
    name, value = descriptor.name, getattr(message, descriptor.name)
    # A value out of a field's range is not a message at all.
    with contextlib.suppress(ValueError, TypeError):
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
            value[dice.one(TEXTS)] = dice.one(NUMBERS)
        elif descriptor.message_type is not None:
            if not descriptor.is_repeated:
                mutate(dice, value)
            elif not len(value) or dice.below(5) == 0:
                mutate(dice, value.add())
            elif dice.below(4):
                mutate(dice, dice.one(value))
            else:
                value.append(dice.one(value)) if dice.below(2) else value.pop(dice.below(len(value)))
        elif not descriptor.is_repeated:
            setattr(message, name, value_of(dice, type(value), value))
        elif not len(value):
            kind = {"split_names": "a", "key": "a"}.get(name)
            value.append(dice.one(TEXTS) if kind or descriptor.cpp_type == 9 else dice.one(NUMBERS))
        else:
            place = dice.below(len(value))
            way = dice.below(4)
            if way == 0:
                value.pop(place)
            elif way == 1:
                value.append(value[place])
            else:
                value[place] = value_of(dice, type(value[place]), value[place])


def mutant(dice: Dice, data: bytes, kind: type[Message] | None) -> bytes:
    """Return a changed object with its checksums right; `kind` is None for lists and indexes of shards."""
    if data.startswith(b"SHRDCOL1"):
        return mutant_columns(dice, data)
    # Lists of sessions, which are sealed, have the same ending as those of shards.
    message = (kind or manifest_pb2.SessionList).FromString(data[16:-44])
    for _ in range(1 + dice.below(3)):
        mutate(dice, message)
    return sealed(message)


def mutant_columns(dice: Dice, data: bytes) -> bytes:
    """Return a file of columns in which values, items or the directory's claims are others."""
    columns = columns_in(data)
    claims = []
    for _ in range(1 + dice.below(3)):
        name = dice.one(sorted(columns))
        dtype, values = columns[name]
        way = dice.below(4)
        if way == 0:
            claims.append((dice.below(len(columns)), 3 + dice.below(2), dice.one(NUMBERS) % (1 << 64)))
        elif isinstance(values, bytes):
            columns[name] = dtype, dice.one([values[::-1], values + values, values[: len(values) // 2], b""])
        elif way == 1 and values:
            columns[name] = dtype, values[:-1]
        elif way == 2 or not values:
            columns[name] = dtype, [*values, *(values[-1:] or [b"a" if dtype == "text" else 1])]
        else:
            values = [*values]
            place = dice.below(len(values))
            if dtype == "text":
                values[place] = dice.one([*(text.encode() for text in TEXTS), *BYTES])
            else:
                values[place] = dice.one([*NUMBERS, values[place] + 1, values[place] * 2]) % (
                    1 << int(dtype[1:])
                )
            columns[name] = dtype, values

    def edit(entries: list[list[Any]]) -> None:
        for entry, field, value in claims:
            entries[entry][field] = value

    return container(int.from_bytes(data[8:12], "little"), columns, edit=edit)


def objects(suffix: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(GOLDEN.rglob(f"*{suffix}"))]
    # Lists of sessions, which are sealed, have the same ending as those of shards.
    return [data for data in found if suffix != ".list" or data.startswith(b"SHRDCOL1")]


PARSERS: dict[str, tuple[type[Message] | None, Callable[[bytes], object]]] = {
    ".manifest": (manifest_pb2.Manifest, lambda data: parse_manifest(data, version=1, url="here")),
    ".list": (None, lambda data: parse_list(data, url="here")),
    ".receipt": (manifest_pb2.Receipt, lambda data: Receipt.parse(data, url="here")),
    ".shardidx": (None, lambda data: parse_head(data, url="here")),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", list(PARSERS))
def test_mutants_of_metadata_are_refused_or_read(suffix, long):
    """P8: only ShardioError comes out of a parser, whatever a field holds, and no message is long."""
    kind, parse = PARSERS[suffix]
    originals = objects(suffix)
    assert originals
    refused = 0
    for seed in range(30_000 if long else 1500):
        dice = Dice(seed)
        data = mutant(dice, dice.one(originals), kind)
        try:
            parse(data)
        except ShardioError as error:
            refused += 1
            assert len(str(error)) < 10_000, f"seed {seed}"  # noqa: PT017
            assert error.url == "here", f"seed {seed}: {error}"  # noqa: PT017
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__} from {parse}") from error
    assert refused > 300, "mutants that do no harm find nothing"


def refer(root: Path) -> None:
    """Make lists name their indexes, and manifests their lists and parents, by what they hold now."""
    for listed in root.rglob("*.list"):
        try:
            table, _ = parse_list(listed.read_bytes())
        except ShardioError:
            continue
        digests = table.index_head_sha256.copy()
        for number, entry in enumerate(table):
            with contextlib.suppress(OSError, ValueError):
                data = (root / entry.usual_index_key).read_bytes()[: entry.index_head_bytes]
                digests[number] = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
        with contextlib.suppress(ShardioError):
            listed.write_bytes(pack_list(table.with_columns(index_head_sha256=digests))[0])
    parent = b""
    for path in sorted(root.rglob("*.manifest")):
        version = manifest_pb2.Manifest.FromString(path.read_bytes()[16:-44])
        for ref in version.lists:
            with contextlib.suppress(OSError, ValueError):
                data = (root / ref.key).read_bytes()
                ref.bytes, ref.sha256 = len(data), hashlib.sha256(data).digest()
        version.parent_sha256 = parent if version.parent_version else b""
        path.write_bytes(data := sealed(version))
        parent = data[-40:-8]


def deeds(root: Path) -> dict[str, Callable[[], object]]:
    def read() -> None:
        ds = shardio.open(root, "all", decode=False)
        for _ in ds:
            pass
        ds.read([k for k in (0, len(ds) - 1) if 0 <= k < len(ds)])

    def decode() -> None:
        for split in shardio.open(root, "all", decode=False).splits:
            for _ in shardio.open(root, split):
                pass

    return {"read": read, "decode": decode, "log": lambda: shardio.log(root)}


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".manifest", ".list", ".shardidx"])
def test_mutants_of_datasets_are_listed_by_verify(suffix, tmp_path, long):
    """P8: `verify` lists what is wrong and does not raise; whatever reads raises only ShardioError."""
    for seed in range(4000 if long else 60):
        dice = Dice(seed)
        name = dice.one([name for name in DATASETS if name not in ("empty", "tasks")])
        root = Path(copied(GOLDEN / name, "local", tmp_path))
        path = dice.one(sorted(path for path in root.rglob(f"*{suffix}") if path.is_file()))
        path.write_bytes(mutant(dice, path.read_bytes(), PARSERS[suffix][0]))
        with contextlib.suppress(Exception):
            refer(root)
        said = {}
        for way, deed in deeds(root).items():
            try:
                deed()
            except ShardioError as error:
                said[way] = error
                assert len(str(error)) < 10_000  # noqa: PT017
            except Exception as error:
                raise AssertionError(f"seed {seed} of {name}: {way} raised {type(error).__name__}") from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report = shardio.verify(root)
        except shardio.errors.UnsupportedVersionError:
            continue  # a newer shardio wrote it, and that is not damage
        except shardio.errors.StorageError as error:
            assert "not allowed" in str(error), f"seed {seed} of {name}: {error}"  # noqa: PT017
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed} of {name}: verify raised {type(error).__name__}") from error
        if "read" in said:
            assert report.findings, (
                f"seed {seed} of {name}: verify finds nothing, and reading says {said['read']}"
            )
