"""Lists: paths and labels in a text or CSV file, or a Python list, with the caller's function or without.

A line of text is handed to the function as it is, a row of CSV as a dict by its header, an item of a
Python list as it is.  Without a function a line is a path and a label, and the file at the path becomes the
record's image.
"""

from __future__ import annotations

import io
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from shardio.convert._csv import Table
from shardio.display import plural
from shardio.errors import BadRecord, FormatError, NotFoundError, ShardioError, StorageError
from shardio.formats import (
    IMAGE_ENDINGS,
    FileSource,
    LabelColumn,
    Piece,
    Sample,
    Unreadable,
    image_trouble,
    label_of,
    read_whole,
    with_label,
)
from shardio.metadata import Feature, Schema
from shardio.sources import Claim, Listing, Peek, Score, SplitUrl
from shardio.storage import followed

_TABLES = ("list", "csv", "tsv")
_ITEMS = 64
_PATHS = ("path", "file", "filename", "image", "image_path", "file_name", "filepath")
_LABELS = ("label", "class", "target", "category")


@dataclass(frozen=True)
class ListSource(FileSource):
    """A list of what becomes records."""

    kind: ClassVar[str] = "list"
    known_options: ClassVar[frozenset[str]] = FileSource.known_options | {
        "fn", "root", "classes", "check_images", "allow_roots"
    }  # fmt: skip
    names_classes: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".lst", ".txt")

    @classmethod
    def claim(cls, listings: Sequence[Listing], peek: Peek) -> Claim | None:
        """Claim lists by their ending, and one table whose first row names an image and its label."""
        found = {kind: [file for each in listings for file in each.named.get(kind, [])] for kind in _TABLES}
        if found["list"]:
            return Claim(cls.kind, found["list"], Score.TABLE)
        if len(tables := found["csv"] + found["tsv"]) != 1:
            return None
        stream = io.BufferedReader(io.BytesIO(peek.head(tables[0])))
        try:
            table = Table(stream, tables[0].url, tabs=bool(found["tsv"]))
            row = next(iter(table), None)
        except FormatError:
            return None  # the table itself says what is wrong with it
        named = row is not None and _names_images(table.names, row.fields)
        return Claim(cls.kind, tables, Score.BYTES, "each row names an image") if named else None

    def __post_init__(self) -> None:
        if self.options.fn is not None and self.options.classes is not None:
            raise ValueError(
                "options: classes= says nothing of what fn= makes: name the classes in the schema, "
                'schema={"label": Feature("int64", classes=[...])}'
            )

    def notes(self) -> Sequence[str]:
        """Return what the split rests on, where the list is a file."""
        notes = [*super().notes()]
        if self._elsewhere:
            count = plural(len(self._elsewhere), "row")
            notes.append(f"{count} left out, which name files of other places: {self._elsewhere[0]}")
        return notes

    def __getstate__(self) -> dict[str, Any]:
        # The items travel with the pieces that hold them.
        place = None if self._is_given else self.place
        labels = None if self.options.fn is not None else self._labels
        return {"place": place, "options": self.options, "_labels": labels}

    @cached_property
    def _items(self) -> tuple[str, str, list[Any]]:
        """Root and key of the list, and its items."""
        if self._is_given:
            return "", "item", list(self.place)
        if len(self.files) != 1:
            shown = ", ".join(file.name for file in self.files[:3]) or "none"
            message = f"{self.place}: a list is one file, and this stands for {len(self.files)} ({shown})"
            raise ValueError(message)
        (file,) = self.files
        data = read_whole(file.root, file.key, self.options.storage_options)
        if file.key.lower().endswith((".csv", ".tsv")):
            return file.root, file.key, _rows(data, file.url, tabs=file.key.lower().endswith(".tsv"))
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise FormatError("the list is not UTF-8 text", url=file.url, start=error.start) from None
        return file.root, file.key, [line.removesuffix("\r") for line in text.split("\n") if line.strip()]

    @cached_property
    def _kept(self) -> tuple[list[tuple[int, Any]], list[str]]:
        """The items by number, and what is wrong with those of a list that name files of other places."""
        items = list(enumerate(self._items[2]))
        if self._is_given or self.options.fn is not None:
            return items, []
        kept, elsewhere = [], []
        for number, item in items:
            path, _, _ = _parts(item)
            try:
                if path:
                    self._place_of(str(path), self._items[0])
            except ValueError as error:
                elsewhere.append(str(error))
            else:
                kept.append((number, item))
        if elsewhere and not kept:
            raise NotFoundError(
                "no row names a file that may be read", url=str(self.place), found=elsewhere[0]
            )
        return kept, elsewhere

    @property
    def _elsewhere(self) -> list[str]:
        return self._kept[1]

    def ignored(self) -> Sequence[str]:
        """Return files of other kinds, and rows that name files of other places."""
        return [*super().ignored(), *self._elsewhere]

    @cached_property
    def _labels(self) -> LabelColumn:
        """What the labels are."""
        labels = LabelColumn.from_texts(label for _, item in self._kept[0] if (label := _parts(item)[1]))
        return labels if self.options.classes is None else labels._replace(kind="names")

    def pieces(self) -> list[Piece]:
        """Return runs of items."""
        root, key, _ = self._items
        items = self._kept[0]
        # Of a file that no pattern of a split matches, nothing is left.
        split = "train" if self._is_given else next((split for _, split in self.split_files()), None)
        if split is None:
            return []
        runs = []
        for start in range(0, len(items), _ITEMS):
            part = items[start : start + _ITEMS]
            # What an item weighs is not known; a photograph is a fair guess where it names a file.
            runs.append(Piece(root, key, split, len(part) << 16, start, start + len(part), part))
        return runs

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield what the items become."""
        for number, item in piece.extra:
            where = f"{piece.url} item {number}" if piece.root else f"item {number}"
            if self.options.fn is None:
                yield self._load(item, where, piece.root)
                continue
            try:
                made = self.options.fn(item)
                # A function may give one value, several, or none.
                values = [made] if isinstance(made, Mapping | bytes) else list(made or ())
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - the caller's own function; its error is reported
                yield BadRecord(where, f"{item!r:.200}: {type(error).__name__}: {error}")
                continue
            for part, value in enumerate(values):
                yield Sample(f"{where}.{part}" if len(values) > 1 else where, value)

    @cached_property
    def _listings(self) -> list[Listing]:
        return [] if self._is_given else super()._listings

    @property
    def _is_given(self) -> bool:
        """Whether the place is the items themselves."""
        return isinstance(self.place, Sequence) and not isinstance(self.place, str)

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return what the labels are: numbers, or the classes that they name."""
        if self.options.fn is not None or self._labels.kind == "none":
            return {}
        classes = self.options.classes
        return {"label": self._labels.feature if classes is None else label_of(classes)}

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a record with its label as the schema wants it; what a function makes stays as it is.

        Raises:
            SchemaError: the schema says that labels are numbers, and this is none.
        """
        return value if self.options.fn is not None else with_label(value, schema, self._labels)

    def _load(self, item: Any, where: str, list_root: str) -> Sample | BadRecord:
        path, label, others = _parts(item)
        if not path:
            return BadRecord(where, f"missing path in {item!r:.200}")
        if not label:
            return BadRecord(where, f"missing label for {path}")
        if self.options.classes is not None and label not in self.options.classes:
            return BadRecord(where, f"there is no class {label!r}")
        try:
            root, key, options = self._place_of(str(path), list_root)
            data = read_whole(root, key, options)
        except ValueError as error:
            return BadRecord(where, str(error))
        except NotFoundError:
            return BadRecord(where, f"there is no file {path}")
        except ShardioError as error:
            if isinstance(error, StorageError):
                raise
            return BadRecord(where, str(error))
        trouble = image_trouble(data, check=self.options.check_images)
        if trouble is not None:
            return BadRecord(where, f"{path}: {trouble}")
        value = {"image": data, "label": label, "path": path}
        return Sample(where, value | {name: text or None for name, text in others.items()})

    def _place_of(self, path: str, list_root: str) -> tuple[str, str, Mapping[str, Any] | None]:
        """Return root and key of what an item names, and the storage options for it.

        Rows of a list may come from anybody: they name files below the list's folder, the caller's root and
        `allow_roots`, and options go to the place that they were given for.

        Raises:
            ValueError: the file is elsewhere.
        """
        base = SplitUrl.parse(self.options.root or list_root or ".")
        absolute = "://" in path or path.startswith(("/", "~"))
        if not {"..", "."}.isdisjoint(urllib.parse.unquote(path).split("/")):
            if absolute or base.scheme:
                raise ValueError(f"{path} holds '..' or '.', which a list may not name")
            path, absolute = f"{base.url}/{path}", True
        place = SplitUrl.parse(path) if absolute else base.join_key(path)
        given = self.options.storage_options
        source = SplitUrl.parse(list_root) if list_root else None
        for root, options in (self.options.allow_roots or {}).items():
            if _is_below(place, SplitUrl.parse(root)):
                return place.folder.url, place.parts[-1], dict(options) or None
        if source is None:
            # The caller wrote the items, and gave the options for them.
            return place.folder.url, place.parts[-1], given if place.scheme else None
        roots = [source, *([base] if self.options.root else [])]
        if not any(_is_below(place, root) for root in roots):
            shown = f"{place.scheme}{'/'.join(place.parts[:1])}" if place.scheme else place.folder.url
            raise ValueError(
                f"{path} is not below the list's folder, {source.url}: allow_roots={{{shown!r}: {{}}}} "
                f"(--allow-root {shown}) takes files from there, with options of its own"
            )
        own = not source.scheme or (place.scheme, place.parts[:1]) == (source.scheme, source.parts[:1])
        return place.folder.url, place.parts[-1], given if own and place.scheme else None


def _is_below(place: SplitUrl, root: SplitUrl) -> bool:
    """Tell whether a file is below a folder, also where symbolic links lead."""
    if place.below(root) is None:
        return False
    return bool(place.scheme) or f"{followed(place.url)}/".startswith(f"{followed(root.url).rstrip('/')}/")


def _rows(data: bytes, url: str, *, tabs: bool) -> list[dict[str, str]]:
    """Return the rows of a table by its header."""
    table = Table(io.BufferedReader(io.BytesIO(data)), url, tabs=tabs)
    rows = []
    for row in table:
        if row.trouble is not None:
            raise FormatError(f"line {row.line}: {row.trouble}", url=url, row=row.line)
        rows.append(dict(zip(table.names, row.fields, strict=True)))
    return rows


def _parts(item: Any) -> tuple[str | None, str | None, dict[str, Any]]:
    """Return path, label and what else an item has."""
    if isinstance(item, Mapping):
        path = next((name for name in _PATHS if name in item), None)
        label = next((name for name in _LABELS if name in item), None)
        if path is None:
            return None, None, {}
        others = {name: value for name, value in item.items() if name not in (path, label)}
        return item[path], None if label is None else str(item[label]).strip() or None, others
    if isinstance(item, str):
        path, _, label = item.strip().rpartition("\t" if "\t" in item else "," if "," in item else " ")
        return (path.strip(), label.strip(), {}) if path else (label, None, {})
    if isinstance(item, Iterable):
        both = [str(part) for part in item]
        return (both[0], both[1] or None, {}) if len(both) == 2 else (None, None, {})
    return None, None, {}


def _names_images(header: Sequence[str], row: Sequence[str]) -> bool:
    """Tell whether the columns of a table are a path and a label, and the first path is that of an image."""
    value = dict(zip(header, row, strict=False))
    path, label, _ = _parts(value)
    return bool(path) and label is not None and str(path).lower().endswith(IMAGE_ENDINGS)
