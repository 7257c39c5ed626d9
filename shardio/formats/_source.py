"""What a converter knows of a source: pieces that workers read, and what comes out of a piece.

A source is a small frozen value: the caller's process makes it and cuts it into pieces, workers receive it
and read piece by piece, so nothing of its size is ever in memory.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from shardio.arguments import mapping, no_option
from shardio.errors import BadRecord, SchemaError, ShardioError, StorageError
from shardio.metadata import Feature, Schema
from shardio.parallel import Note
from shardio.sources import Claim, FolderKey, Listing, Peek, check_partitions, claim_files

INT64_LIMIT = 1 << 63  # what an int64 does not reach
# A schema is inferred of so many records in so many places; of a source below `SMALL_BYTES` in more places.
LOOK_AT = 1000
_LOOK_AT_BYTES = 64 << 20
# The rest of the place of a record after its URL: a byte, or the number of the record.
_WITHIN = re.compile(r"(.*?) ?\b(byte|row|line|document|sample|item|key) (\d+)(?:\.\d+)?", re.DOTALL)
_PLACES = 8
SMALL_BYTES = 16 << 20


class Piece(NamedTuple):
    """A part of a source that one worker reads from its beginning to its end.

    Attributes:
        root, key: the object; its URL is `root/key`.
        split: that the records belong to, unless the caller says otherwise.
        size: stored bytes, as far as known; decides how many tasks there are.
        start, stop: half-open part of it, in units of the source.
        extra: whatever else the source needs.
        keys: what the names of its folders say, `key=value`, as far as that becomes features.
    """

    root: str
    key: str
    split: str = "train"
    size: int = 0
    start: int = 0
    stop: int = 0
    extra: Any = None
    keys: tuple[FolderKey, ...] = ()

    @property
    def url(self) -> str:
        """The object's URL, for messages."""
        return f"{self.root}/{self.key}" if self.key else self.root


class Sample(NamedTuple):
    """One record.

    Attributes:
        where: its place, such as "URL byte 81" or "URL row 3".
        value: by feature, or its payload.
        name: used when splits are drawn if its place may change; "" for the place.
    """

    where: str
    value: Any
    name: str = ""


def place_error(error: ShardioError, where: str, url: str) -> ShardioError:
    """Return the error of a record with its place as fields: `url`, and `start` or `row`.

    Args:
        error: without a place.
        where: the place as `Sample` has it, such as "URL byte 81", "URL line 3" or "item 7".
        url: of the file that is read.
    """
    base = url if f"{where} ".startswith(f"{url} ") else ""
    rest = where.removeprefix(base).strip()
    match = _WITHIN.fullmatch(rest)
    before, unit, number = match.groups() if match else (rest, "", "0")
    if not base:
        base, before = before, ""
    shown = before if unit in ("", "byte", "row") else rest.removeprefix(base).strip()
    fields = {"start" if unit == "byte" else "row": int(number)} if unit else {}
    what = f"{shown}: {error.what}" if shown else error.what
    return type(error)(what, **{**fields, **error.fields(), "url": base or None})


class Unreadable(NamedTuple):
    """A column whose values cannot become those of a feature, unless the caller says how.

    Attributes:
        reason: one sentence that names the column.
        keep: the type that the caller may give it instead, or None where it can only be left out.
    """

    reason: str
    keep: str | None = None

    def advice(self, name: str) -> str:
        """Return what the caller can do."""
        out = f"leave the column out with {keep_as(name, None)}"
        return out if self.keep is None else f"keep it with {keep_as(name, self.keep)}, or {out}"


def keep_as(name: str, kind: str | None) -> str:
    """Return the option that gives a feature a type, or leaves it out, as advice names it."""
    shown = "None" if kind is None else json.dumps(kind)
    return f"schema={{{json.dumps(name, ensure_ascii=False)}: {shown}}}"


def shown_json(value: Any) -> str:
    """Return a value as JSON, as messages show it: cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 400 else text[:400] + " ..."


def exact_integer(text: str) -> int:
    """Return the integer that text spells; ValueError where writing it would give other text."""
    number = int(text)
    if str(number) != text:
        raise ValueError("it would not come back byte for byte")
    return number


def integer_type(items: Iterable[bytes]) -> str | None:
    """Return the type of integers that text spells as Python writes them; None where one is not such.

    That is "int64", or "uint64" where they are larger and none is negative.
    """
    lowest, highest = 0, 0
    for item in items:
        # No number of 64 bits is longer; Python refuses to read numbers of thousands of digits.
        text = item.decode(errors="replace") if len(item) <= len(str(-INT64_LIMIT)) else ""
        if not text.removeprefix("-").isdecimal() or str(int(text)) != text:
            return None
        lowest, highest = min(lowest, int(text)), max(highest, int(text))
    if lowest >= -INT64_LIMIT and highest < INT64_LIMIT:
        return "int64"
    return "uint64" if not lowest and highest < 2 * INT64_LIMIT else None


def misfit(what: str, name: str, feature: Feature, stored: bytes, error: ValueError) -> SchemaError:
    """Return the error for stored bytes, such as a "member", that do not hold what a feature says."""
    return SchemaError(
        f"{what} {name!r} is not {feature.short} ({error})",
        found=repr(bytes(stored[:40])),
        advice=f"keep it as it is with {keep_as(name, 'bytes')}",
    )


@dataclass(frozen=True)
class ReadingOptions:
    """How sources are read; each kind takes those that it can follow.

    Attributes:
        fn: for lists. It is called with each line, row or item in a worker, and with some of them before, to
            see what it makes. It returns a value, several, or none.
        root: for lists, the folder that relative paths start from; None for that of the list.
        classes: names of classes in the order of their labels, for images, lists and tar files; None for
            those found, sorted. In tar files the classes that the numbers of `cls` stand for. A dataset that
            is added to keeps its numbers: new classes get those that follow.
        check_images: decode every image of image folders, lists and tar files once, to find those that
            cannot be decoded.
        partitions: "hive" makes features of the names of folders such as `year=2020`, int64 where all values
            of a key are integers, else text. None leaves them out. A folder `split=test` names the split.
        follow_links: take also files that symbolic links lead to outside of the folder of the source.
        allow_roots: of a source that is a dataset, as in `shardio.open`; of a list, the places besides its
            own folder and `root` that its rows may name, each with storage options.
    """

    fn: Any = None
    root: str | None = None
    classes: Sequence[str] | None = None
    check_images: bool = True
    partitions: str | None = "hive"
    follow_links: bool = False
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if self.fn is not None and not callable(self.fn):
            raise TypeError(f"fn= takes a function, found {self.fn!r:.80}")
        if self.classes is not None:
            if not len(self.classes):
                raise ValueError("classes=[] names no class; leave it out for those found")
            object.__setattr__(self, "classes", tuple(self.classes))
        if self.root is not None:
            object.__setattr__(self, "root", str(self.root))
        check_partitions(self.partitions)


@dataclass(frozen=True)
class SourceOptions(ReadingOptions):
    """What a caller may say about a source, whatever its kind.

    Attributes:
        storage_options: as in fsspec.
        split: name of the one split, or patterns of names by split; None for those that the source tells.
        skips: bad records are skipped, so that a source may continue behind damage.
        listed: what was found at places, by name, so that each is listed once; it stays in this process.
    """

    partitions: str | None = None
    storage_options: Mapping[str, Any] | None = None
    split: str | Mapping[str, str] | None = None
    skips: bool = False
    listed: dict[str, list[Listing]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def peek(self) -> Peek:
        """Looks into files; what it has found stays in this process."""
        return Peek(self.storage_options)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "listed": {}, "peek": Peek(self.storage_options)}


def take_reading_options(options: Mapping[str, Any] | None, beside: dict[str, Any]) -> dict[str, Any]:
    """Return the `ReadingOptions` that a caller gives, in a mapping or as arguments of their own.

    Args:
        options: the mapping.
        beside: other arguments of the call; those that are such options are taken out.

    Raises:
        TypeError: there is no such option, or one is given twice; names the one that it may stand for.
    """
    given = dict(mapping("options", options))
    known = ReadingOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            raise no_option("options", name, known)
        if name in beside:
            raise TypeError(f"{name}= is given twice, as an argument and in options=")
    return {**given, **{name: beside.pop(name) for name in known if name in beside}}


class ForeignSource(ABC):
    """A foreign data set, opened but not read.

    Attributes:
        kind: its name, as `convert_dataset(kind=)` takes it.
        payloads: records are payloads already, and are stored as they are.
        declared: `known` says the types of all features, so no record is looked at for them.
        in_memory: it is a value of this process, and not sent to others.
        fits_text: its values are text, which `fit` turns into what the schema says.
        known_options: names of the `ReadingOptions` that it follows.
        names_classes: its labels are names, which `SourceOptions.classes` numbers; elsewhere that says which
            names its numbers have.
    """

    kind: ClassVar[str]
    known_options: ClassVar[frozenset[str]] = frozenset()
    payloads: ClassVar[bool] = False
    declared: ClassVar[bool] = False
    in_memory: ClassVar[bool] = False
    fits_text: ClassVar[bool] = False
    names_classes: ClassVar[bool] = False
    options: SourceOptions

    @classmethod
    def claim(cls, listings: Sequence[Listing], peek: Peek) -> Claim | None:
        """Claim the files that this kind reads, with a score; None where there are none.

        Args:
            listings: what was found.
            peek: looks into files: `peek.head(file)` returns the first bytes, `peek.whole(file)` all.
        """
        return claim_files(cls.kind, listings, peek)

    def check_options(self, given: Iterable[str]) -> None:
        """Refuse options that this source would not follow.

        Raises:
            ValueError: names one.
        """
        unused = [name for name in given if name not in self.known_options]
        if unused:
            takes = f"; it takes {', '.join(sorted(self.known_options))}" if self.known_options else ""
            raise ValueError(
                f"options: {unused[0]}= says nothing to a source of kind {self.kind!r}{takes}"
                + ('. Name classes in the schema: schema={"label": Feature("int64", classes=[...])}')
                * (unused[0] == "classes")
            )

    def for_writing(self, *, changed: bool) -> ForeignSource:
        """Return the source whose records are written; `changed` where they become others than they are."""
        del changed
        return self

    @abstractmethod
    def pieces(self) -> Sequence[Piece]:
        """Return what there is to read, in the order of the records."""

    @abstractmethod
    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the records of a piece, what cannot become one, and what else deserves attention.

        Raises:
            FormatError: the rest of the piece cannot be read.
            StorageError: the environment failed.
        """

    def keys_of(self, url: str) -> tuple[FolderKey, ...]:
        """Return what the names of the folders of a file say of its records."""
        del url
        return ()

    def key_types(self) -> Mapping[str, Feature]:
        """Return the types of all keys of folders."""
        return {}

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types that the source itself declares; what it leaves out is inferred from values."""
        return {}

    @property
    def schema(self) -> Schema | None:
        """The schema that its payloads were written with, or its values are read by; None for neither."""
        return None

    def schema_notes(self, features: Mapping[str, Feature]) -> list[str]:
        """Return what the caller may not expect of features that were inferred."""
        del features
        return []

    def metadata(self) -> dict[str, Any]:
        """Return free metadata for the dataset, such as the names of the classes."""
        return {}

    def bad_records(self) -> Sequence[BadRecord]:
        """Return what was found wrong before anything was read, such as names that are not text."""
        return ()

    def ignored(self) -> Sequence[str]:
        """Return files that are there and do not belong to the source, by name."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return what was decided that the caller should know, such as the splits."""
        return ()

    def infer(self, name: str, values: Sequence[Any]) -> str | Feature | None:
        """Return the type of a feature whose values say less than the source knows, or None."""
        del name, values
        return None

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a value as the schema wants it, for sources whose values are text or bytes only."""
        del schema
        return value


def read_samples(source: ForeignSource, piece: Piece) -> Iterator[Any]:
    """Yield what a source reads of a piece; running out of memory is an error that names its file.

    Raises:
        StorageError: there is no memory for a record.
        Exception: what the source raises.
    """
    try:
        yield from source.read(piece)
    except MemoryError as error:
        raise StorageError(
            "there is no memory for a record",
            url=piece.url,
            found=str(error) or None,
            advice="the record is within the limits: read it on a machine with more memory",
        ) from error


def sample_records(source: ForeignSource, pieces: Sequence[Piece]) -> list[Sample]:
    """Return some records from up to eight places spread over a source, to infer a schema from.

    Damage is ignored here: the worker that comes to it reports it.
    """
    # Where a piece is a record, eight of them say little.
    small = sum(piece.size for piece in pieces) < SMALL_BYTES
    count = min(LOOK_AT if small else _PLACES, len(pieces))
    samples: list[Sample] = []
    size = 0
    for number in range(count):
        share = -(-LOOK_AT * (number + 1) // count)
        try:
            for found in itertools.islice(
                read_samples(source, pieces[len(pieces) * number // count]), LOOK_AT
            ):
                if isinstance(found, Sample):
                    samples.append(found)
                    size += _size(found.value)
                if len(samples) >= share or size > _LOOK_AT_BYTES:
                    break
        except StorageError:
            raise
        except ShardioError:
            continue
    return samples


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, bytes | str) else 64
