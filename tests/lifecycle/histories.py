"""Any history of a dataset against a model of dicts: records, schema, deletions, versions, tables, keys.

`History(folder, seed, encoding).run(steps)` takes random steps and compares ways of reading after each one.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import shardio
from shardio import Feature
from shardio.errors import SchemaError

SMALL = {"block_bytes": 64, "shard_bytes": 200}
ENCODINGS = ("example", "tensors", "sequence_example")
WORDS = ["ant", "bee", "cat", "dog"]


@dataclass
class Column:
    """What readers are told of a feature that records hold under one name."""

    name: str
    type: str
    default: Any = None
    optional: bool = False
    classes: int = 0

    def feature(self) -> Feature:
        return Feature(
            self.type,
            default=self.default,
            optional=self.optional,
            classes=[f"c{k}" for k in range(self.classes)] or None,
        )


@dataclass
class State:
    """A version: columns by the names in records, and what records were written with, by split."""

    columns: dict[str, Column]
    rows: dict[str, list[dict[str, Any]]]
    # Names under which some record of the dataset's history may hold something, with the type.
    used: dict[str, str] = field(default_factory=dict)

    def seen(self, split: str) -> list[dict[str, Any]]:
        return [
            {column.name: row.get(stored, column.default) for stored, column in self.columns.items()}
            for row in self.rows.get(split, [])
        ]


class History:
    """A dataset and its model.

    Args:
        folder: of the dataset, and of those that are appended to it.
        seed: of the steps.
        encoding: of the records.
        url: of the dataset, where that is elsewhere.
    """

    def __init__(self, folder: Path, seed: int, encoding: str, url: str | None = None) -> None:
        self.folder, self.encoding = folder, encoding
        # Of sequence examples the columns are the context; beside them is a list of steps.
        self.nested = encoding == "sequence_example"
        self.url = url or str(folder / "ds")
        self.random = random.Random(seed)
        self.counter = 0
        self.done: list[str] = []
        self.refused: Counter[str] = Counter()
        self.took: Counter[str] = Counter()
        columns = {"id": Column("id", "int64"), "t": Column("t", "text", optional=True)}
        self.state = State(columns, {}, {"id": "int64", "t": "text"})
        self.versions: dict[int, State] = {}
        with self.writer(mode="create"):
            pass
        self.keep()

    def run(self, steps: int, *first: str) -> None:
        """Take some steps, then random ones; raises AssertionError where a reader and the model differ."""
        for name in (*first, *self.random.choices(STEPS_OF_SEQUENCES if self.nested else STEPS, k=steps)):
            before = copy.deepcopy(self.state)
            self.done.append(name)
            try:
                getattr(self, name)()
            except (SchemaError, ValueError) as error:
                # What is refused changes nothing.
                self.refused[f"{name}: {str(error)[:90]}"] += 1
                self.done[-1] += f" refused: {error}"
                self.state = before
            self.took[name] += 1
            self.keep()
            self.check()

    # ------------------------------------------------------------------ steps

    def append(self) -> None:
        """Write values by the dataset's own schema, or by one that leaves out what may be left out."""
        given: dict[str, Any] | None = None
        if self.random.random() < 0.5:
            given = {}
            for column in self.state.columns.values():
                feature = column.feature()
                if column.optional and self.random.random() < 0.5:
                    if self.random.random() < 0.5:
                        continue
                    feature = feature.replace(default=None, optional=True)
                given[column.name] = feature.replace(
                    classes=None if self.random.random() < 0.5 or feature.has_default else feature.classes
                )
        with self.writer(given) as out:
            self.write(out, given)

    def append_while_the_schema_changes(self) -> None:
        out = self.writer()
        try:
            before = copy.deepcopy(self.state)
            known = set(self.state.columns)
            self.random.choice([self.add, self.default, self.rename, self.drop])()
            after, self.state = self.state, before
            self.write(out)
            for split, rows in self.state.rows.items():
                after.rows[split] = rows
            self.state = after
            assert known
        finally:
            out.close()

    def write(self, out: shardio.DatasetWriter, given: dict[str, Any] | None = None) -> None:
        for _ in range(self.random.randrange(1, 5)):
            split = self.random.choice(["train", "train", "test"])
            row = {}
            for stored, column in self.state.columns.items():
                if given is not None and column.name not in given:
                    continue
                if not column.optional or self.random.random() < 0.6:
                    row[stored] = self.value(column)
            value = {self.state.columns[stored].name: value for stored, value in row.items()}
            out.write(self.with_steps(value) if self.nested else value, split)
            self.state.rows.setdefault(split, []).append(row)

    def value(self, column: Column) -> Any:
        if column.type == "text":
            return self.random.choice(WORDS)
        if column.classes:
            return self.random.randrange(column.classes)
        self.counter += 1
        return self.counter if column.name == "id" else self.random.randrange(8)

    def convert(self) -> None:
        """Append another dataset, whose records have the names that readers of this one see."""
        other = self.folder / f"other{self.fresh()}"
        kind = self.random.choice(["shardio", "tfrecord", "jsonl", "parquet"])
        columns = list(self.state.columns.items())
        wanted = [(s, c) for s, c in columns if not c.optional or self.random.random() < 0.7]
        rows = []
        with shardio.DatasetWriter(
            other, {c.name: c.feature() for _, c in wanted}, encoding=self.encoding
        ) as out:
            for _ in range(self.random.randrange(1, 4)):
                row = {s: self.value(c) for s, c in wanted if not c.optional or self.random.random() < 0.6}
                out.write({self.state.columns[s].name: v for s, v in row.items()})
                rows.append(row)
        if self.random.random() < 0.3 and len(wanted) > 1:
            name = self.random.choice(wanted)[1].name
            shardio.set_schema(other, {name: None})
            if kind != "tfrecord":  # whose files hold what records do
                stored = next(s for s, c in wanted if c.name == name)
                rows = [{s: v for s, v in row.items() if s != stored} for row in rows]
        source = other
        if kind != "shardio":
            source = self.folder / f"files{self.fresh()}"
            shardio.export_dataset(other, source, kind=kind)
        if kind in ("jsonl", "parquet"):
            # These files hold defaults as values, and null for none.
            for row in rows:
                for stored, column in wanted:
                    if column.default is not None:
                        row.setdefault(stored, column.default)
        shardio.convert_dataset(source, self.url, mode="append", workers=1, **SMALL)
        self.state.rows.setdefault("train", []).extend(rows)

    def add(self) -> None:
        stored = f"s{self.fresh()}"
        name = self.random.choice([stored, "x", "y", "z"])
        feature_type = self.random.choice(["int64", "int32", "text"])
        column = Column(name, feature_type, optional=True)
        if self.random.random() < 0.7:
            column.default = self.random.choice(WORDS) if feature_type == "text" else self.random.randrange(8)
        if any(c.name == name for c in self.state.columns.values()):
            return
        own = name in self.state.used or self.random.random() < 0.5
        feature = column.feature().replace(stored_name=stored if own else None)
        self.change({name: feature})
        stored = stored if own else name
        self.state.columns[stored] = column
        self.state.used[stored] = feature_type

    def default(self) -> None:
        column = self.random.choice(list(self.state.columns.values()))
        if column.name == "id":
            return
        default = self.random.choice(WORDS) if column.type == "text" else self.random.randrange(2)
        if column.classes:
            default = self.random.randrange(-1, column.classes)
        self.change({column.name: column.feature().replace(default=default)})
        column.default, column.optional = default, True

    def rename(self) -> None:
        columns = [c for c in self.state.columns.values() if c.name != "id"]
        if not columns:
            return
        one, other = self.random.choice(columns), self.random.choice(columns)
        names = (
            {one.name: f"r{self.fresh()}"} if one is other else {one.name: other.name, other.name: one.name}
        )
        shardio.set_schema(self.url, rename=names)
        for column in columns:
            column.name = names.get(column.name, column.name)

    def drop(self) -> None:
        stored = self.random.choice(list(self.state.columns))
        if stored == "id":
            return
        self.change({self.state.columns[stored].name: None})
        del self.state.columns[stored]

    def bring_back(self) -> None:
        gone = [s for s in self.state.used if s not in self.state.columns]
        if not gone:
            return
        stored = self.random.choice(gone)
        name = f"b{self.fresh()}"
        column = Column(name, self.state.used[stored], optional=True)
        self.change({name: column.feature().replace(stored_name=stored)})
        self.state.columns[stored] = column

    def name_classes(self) -> None:
        columns = [c for c in self.state.columns.values() if c.type != "text" and c.name != "id"]
        if not columns:
            return
        column = self.random.choice(columns)
        column.classes = max(8, column.classes) + self.random.randrange(2)
        self.change({column.name: column.feature()})

    def delete(self) -> None:
        split = self.random.choice(sorted(self.state.rows) or ["train"])
        rows = self.state.rows.get(split, [])
        if not rows:
            return
        how = "positions" if self.nested else self.random.choice(["positions", "where", "keys"])
        seen = self.state.seen(split)
        if how == "positions":
            gone = sorted(self.random.sample(range(len(rows)), self.random.randrange(1, len(rows) + 1)))[:3]
            shardio.delete(self.url, gone, split=split)
        elif how == "where":
            name, value = self.some_value(split)
            gone = [k for k, row in enumerate(seen) if row[name] == value]
            shardio.delete(self.url, where=condition(name, value), split=split)
        else:
            shardio.build_keys(self.url, "id")
            gone = [self.random.randrange(len(rows))]
            shardio.delete(self.url, keys=[seen[gone[0]]["id"]], feature="id", split=split)
        self.state.rows[split] = [row for k, row in enumerate(rows) if k not in set(gone)]

    def restore(self) -> None:
        version = self.random.choice(list(self.versions)[-6:])
        shardio.restore(self.url, version)
        used = self.state.used
        self.state = copy.deepcopy(self.versions[version])
        self.state.used = used

    def compact(self) -> None:
        shardio.compact(self.url, workers=1, **({} if self.random.random() < 0.5 else SMALL))

    def table(self) -> None:
        names = [c.name for c in self.state.columns.values()]
        some = self.random.sample(names, self.random.randrange(1, len(names) + 1))
        shardio.build_table(self.url, some, workers=1, rebuild=self.random.random() < 0.3)

    def keys(self) -> None:
        column = self.random.choice(list(self.state.columns.values()))
        shardio.build_keys(self.url, column.name, workers=1, rebuild=self.random.random() < 0.3)

    def join(self) -> None:
        """Read the records beside those of another dataset: by key, and by position."""
        wanted = [row for split in sorted(self.state.rows) for row in self.state.seen(split)]
        if not wanted:
            return
        places = self.random.sample(range(len(wanted)), len(wanted))
        other = self.folder / f"side{self.fresh()}"
        with shardio.DatasetWriter(other, {"id": "int64", "side": "int64"}, **SMALL) as out:
            for k in places:
                out.write({"id": wanted[k]["id"], "side": k})
        left, right = shardio.open(self.url, "all"), shardio.open(other)
        in_order = right.select([places.index(k) for k in range(len(wanted))])
        for both in (
            shardio.join(left, right, on="id"),
            shardio.join(left, in_order, rename={"id": f"id{self.fresh()}"}),
        ):
            seen = [
                {n: v for n, v in plain(value).items() if n in wanted[0] or n == "side"} for value in both
            ]
            assert seen == [{**row, "side": k} for k, row in enumerate(wanted)]
            steps = shardio.stream(both, global_batch=3, seed=self.counter, remainder="keep", num_threads=0)
            sides = [(int(i), int(k)) for b in steps for i, k in zip(b["id"], b["side"], strict=True)]
            assert sorted(k for _, k in sides) == list(range(len(wanted)))
            assert all(wanted[k]["id"] == i for i, k in sides)

    def collect(self) -> None:
        latest = max(self.versions)
        expired = [n for n in self.versions if n < latest and self.random.random() < 0.3]
        shardio.gc(self.url, expire=expired, dry_run=False)
        for number in expired:
            del self.versions[number]

    # ------------------------------------------------------------------ looks

    def check(self) -> None:
        """Compare what readers see with the model."""
        self.compare(shardio.open(self.url, "all"), self.state, closely=True)
        number = self.random.choice(list(self.versions))
        self.compare(shardio.open(self.url, "all", version=number), self.versions[number], closely=False)

    def compare(self, reader: Any, state: State, *, closely: bool) -> None:
        splits = sorted(state.rows)
        wanted = [row for split in splits for row in state.seen(split)]
        assert {k: v for k, v in reader.splits.items() if v} == {
            s: len(r) for s, r in state.rows.items() if r
        }
        features = {c.name: c for c in state.columns.values()}
        assert {n: (f.type, f.optional, len(f.classes or ())) for n, f in reader.schema.items()} == {
            n: (c.type, c.optional or c.default is not None, c.classes) for n, c in features.items()
        }
        values = [self.with_steps(row) for row in wanted] if self.nested else wanted
        assert [plain(value) for value in reader] == values
        if not wanted or not closely:
            return
        some = [self.random.randrange(len(wanted)) for _ in range(5)]
        assert [plain(value) for value in reader.read(some)] == [values[k] for k in some]
        if not self.nested:
            self.compare_queries(reader, wanted, features)

    def compare_queries(self, reader: Any, wanted: list[dict[str, Any]], features: dict[str, Column]) -> None:
        name = self.random.choice(list(features))
        value = self.random.choice(wanted)[name]
        found = reader.filter(condition(name, value))
        assert [plain(v) for v in found] == [row for row in wanted if row[name] == value], condition(
            name, value
        )
        assert reader.to_arrow([name]).column(name).to_pylist() == [row[name] for row in wanted]
        for name in reader.key_features:
            value = self.random.choice(wanted)[name]
            if value is not None:
                positions = [k for k, row in enumerate(wanted) if row[name] == value]
                assert reader.find_all(value, feature=name).tolist() == positions, (name, value)
                self.took["find_all"] += 1

    # ------------------------------------------------------------------ parts

    def writer(self, given: Any = None, mode: str = "append") -> shardio.DatasetWriter:
        schema = {c.name: c.feature() for c in self.state.columns.values()} if mode == "create" else given
        encoding = self.encoding if schema is not None else None
        if self.nested and schema is not None:
            schema = {"context": schema, "feature_lists": {"s": "int64"}}
        return shardio.DatasetWriter(self.url, schema, mode=mode, encoding=encoding, **SMALL)

    @staticmethod
    def with_steps(row: dict[str, Any]) -> dict[str, Any]:
        return {"context": row, "feature_lists": {"s": [row["id"]] * (row["id"] % 4)}}

    def change(self, features: dict[str, Any]) -> None:
        shardio.set_schema(self.url, {"context": features} if self.nested else features)

    def some_value(self, split: str) -> tuple[str, Any]:
        row = self.random.choice(self.state.seen(split))
        name = self.random.choice(list(row))
        return name, row[name]

    def fresh(self) -> int:
        self.counter += 1
        return self.counter

    def keep(self) -> None:
        number = shardio.open(self.url, "all", decode=False).version
        self.versions.setdefault(number, copy.deepcopy(self.state))


STEPS = [
    *["append"] * 4, *["convert"] * 2, *["rename"] * 2, *["delete"] * 2, *["table"] * 2, *["keys"] * 2,
    "append_while_the_schema_changes", "add", "default", "drop", "bring_back", "name_classes", "restore",
    "compact", "collect", "join",
]  # fmt: skip


STEPS_OF_SEQUENCES = [step for step in STEPS if step not in ("convert", "table", "keys", "join")]


def condition(name: str, value: Any) -> str:
    """Return the condition in SQL that a feature has a value."""
    if value is None:
        return f'"{name}" IS NULL'
    return f"\"{name}\" = '{value}'" if isinstance(value, str) else f'"{name}" = {value}'


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | np.ndarray):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, np.generic) else value
