"""Which features the folders of adopted shards tell, `year=2020/part-0.tfrecord`, and of which types.

Records stay as they are: the version names these features, and readers take their values from the keys of the
shards.  What the folder of the dataset itself says is the same for all of its records, and becomes a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardio.adoption._commit import RootedEntry
from shardio.catalog import Version
from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema
from shardio.sources import SPLIT_KEY, FolderKey, key_value, keys_of_shard, type_of_key

LEAVE_OUT = "leave out what folders say with partitions=None, or convert the files with `shardio convert`"


@dataclass
class Partitions:
    """What folders tell of the shards of one dataset.

    Args:
        shards: all that others wrote, the new ones last.
        new: how many of them are new.
        place: URL of the dataset.
        base: the version that the new one follows.
        taken: whether folders tell features at all.
        split_is_key: the key `split` is one as the others.

    Attributes:
        said: what the caller says of such features, by name.
    """

    shards: Sequence[RootedEntry]
    new: int
    place: str
    base: Version | None
    taken: bool
    split_is_key: bool
    said: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        manifest = self.base.manifest if self.base is not None else None
        self._old = manifest.schema if manifest is not None else None
        self._known = manifest.partitions if manifest is not None else ()
        beside = self.base is None and not any(root for root, _ in self.shards)
        self._of_place = self._keys(self.place, "") if beside else {}
        above = self.place if beside else ""
        self._told = [self._keys(root or above, entry.key) for root, entry in self.shards]
        told = [self._of_place, *self._told] if self.taken else []
        self._names = dict.fromkeys(name for keys in told for name in keys)

    def _keys(self, root: str, key: str) -> dict[str, str | None]:
        keys = keys_of_shard(root, key)
        if not self.split_is_key:
            keys.pop(SPLIT_KEY, None)
        return keys

    @property
    def held(self) -> Schema | None:
        """The schema of the dataset without what folders tell."""
        old = self._old
        return old if old is None else old.changed(dict.fromkeys(old.called(self._known)))

    def divided(self, wanted: Any) -> Any:
        """Return what a caller says of the features that records hold; see `resolve_schema`."""
        names = {**dict.fromkeys(self._features()), **self._names}
        if isinstance(wanted, Schema):
            self.said = {name: wanted[name] for name in names if name in wanted}
            self._names = {name: None for name in self._names if name in wanted}
            return wanted.changed(dict.fromkeys(self.said))
        if not isinstance(wanted, Mapping):
            if wanted is False:
                self._names = {}
            return wanted
        self.said = {name: wanted[name] for name in names if name in wanted}
        rest = {name: each for name, each in wanted.items() if name not in names}
        return rest if rest or not self.said else None

    def _features(self) -> dict[str, str]:
        """Return the keys of the features that folders tell of the dataset, by name."""
        old = self._old
        named = {} if old is None else {name: old[name] for name in old.called(self._known)}
        return {name: feature.stored_name or name for name, feature in named.items()}

    def added(self, schema: Schema | None) -> tuple[Schema | None, tuple[str, ...], list[str]]:
        """Return the whole schema, the keys that folders tell of it, and what to know of it.

        Raises:
            SchemaError: records cannot have such features, hold them themselves, or a folder says what does
                not fit one.
        """
        keys = self._features()
        new = [name for name in self._names if name not in self._known]
        keys |= {name: name for name in new if self.base is None or name in self.said}
        keys = {name: key for name, key in keys.items() if self.said.get(name, name) is not None}
        fresh = {name for each in self._told[len(self._told) - self.new :] for name in each}
        left = [name for name in new if name in fresh and name not in {*keys, *self.said}]
        notes = [_not_taken(left, self._examples())] if left and self._old is not None else []
        if not keys or not (schema or any(entry.rows for _, entry in self.shards)):
            return schema, self._known, notes
        self._check(schema, keys)
        assert schema is not None  # noqa: S101 - as `_check` found
        features = {name: self._feature(name, key) for name, key in keys.items()}
        partitions = {*self._known, *keys.values()} - {*self._of_place}
        shown = [self._examples()[key] for name, key in keys.items() if name in new]
        if shown:
            notes.append(f"features told by names of folders: {', '.join(shown)}")
        return schema.changed(features), tuple(sorted(partitions)), notes

    def _examples(self) -> dict[str, str]:
        """Return for each key one that a folder has."""
        found: dict[str, str] = {}
        for keys in (*self._told, self._of_place):
            for name, text in keys.items():
                found.setdefault(name, f"{name} ({FolderKey(name, text)})")
        return found

    def _check(self, schema: Schema | None, keys: Iterable[str]) -> None:
        name = next(iter(keys))
        if schema is None or schema.encoding != "example":
            what = "are bytes or text" if schema is None else f"are of the encoding {schema.encoding!r}"
            raise SchemaError(
                f"folders give records the feature {name!r}, and the records {what}, which cannot have it",
                advice=LEAVE_OUT,
            )
        for name in keys:
            if name in schema:
                raise SchemaError(
                    f"folders give records the feature {name!r}, which they hold themselves", advice=LEAVE_OUT
                )

    def _feature(self, name: str, key: str) -> Feature:
        """Return the feature of a key, which every value fits."""
        texts = [keys.get(key) for keys in self._told]
        given = self.said.get(name, self._old.get(name) if self._old is not None else None)
        if given is None:
            feature = type_of_key(texts, optional=False)
        else:
            feature = next(iter(Schema.parse({name: given}).values()))
        for text in dict.fromkeys(texts):
            if text is not None:
                feature.fit(key_value(text, name, feature), name)
        if key in self._of_place:
            default = key_value(self._of_place[key], name, feature)
            return feature.replace(optional=True) if default is None else feature.replace(default=default)
        return feature.replace(optional=True) if None in texts and not feature.optional else feature


def _not_taken(names: Sequence[str], examples: Mapping[str, str]) -> str:
    told = ", ".join(examples[name] for name in names)
    types = " ".join(f"--type {name}=text" for name in names)
    return f"names of folders tell what the schema of the dataset does not have: {told}; {types} adds it"
