"""Folders with a list of their own of which files count: that list decides, or the folder is refused.

`Dataset.map` leaves its cache in a saved folder, and tables keep replaced files beside live ones.  `_KINDS`
has each kind with its marker, and its reader or the way in.  Lists only choose among files that were found.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardio.arguments import need
from shardio.errors import FormatError, ShardioError
from shardio.format import parse_json
from shardio.sources._delta import live_files
from shardio.sources._names import is_data
from shardio.sources._urls import expand_braces, glob_expression

SPLITS_FILE = "_splits.json"

# What a list that holds other things than it should makes of the code that reads it.
_NONSENSE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)

Read = Callable[[str], bytes]
Files = dict[str, str | None]


class FolderList(NamedTuple):
    """What a folder's own list says.

    Attributes:
        folder: key prefix of what it governs: "" or with a slash at its end.
        name: what it is, for notes.
        files: the keys that count, each with its split; None where the list tells none.
    """

    folder: str
    name: str
    files: Mapping[str, str | None]


def is_marker(key: str) -> bool:
    """Tell whether a key is part of a list of files."""
    return _MARKER.fullmatch(key) is not None


def read_lists(
    url: str, keys: Sequence[str], markers: Iterable[str], read: Read, *, whole: bool
) -> list[FolderList]:
    """Return the lists of the folders below a root, the outermost first.

    Args:
        url: of the root.
        keys: of the files below the root that may be data.
        markers: keys of what is part of lists.
        read: returns the content of a key.
        whole: the keys are all that there are, so that other files that a list names are gone.

    Raises:
        FormatError: a list cannot be read, names files that are not there, or is of a kind that is not read.
    """
    parts: dict[tuple[bool, str, str], list[str]] = {}
    for key in markers:
        if (match := _MARKER.fullmatch(key)) is not None:
            name = next(each for each in match.groups()[1:] if each is not None)
            parts.setdefault((name in _REPOSITORY, match[1], name), []).append(key)
    lists: list[FolderList] = []
    for (repository, prefix, name), own in sorted(parts.items()):
        if repository and (prefix or not whole or lists):
            continue
        place = f"{url.rstrip('/')}/{prefix}".rstrip("/")
        folder = _Folder(place, prefix, [each for each in keys if each.startswith(prefix)], own, read, whole)
        kind = _KINDS[name]
        if isinstance(kind, str):
            raise folder.error(
                f"{kind.partition(': ')[0]} say which files and rows of this table count",
                advice=kind.partition(": ")[2],
            )
        try:
            files = kind(folder)
        except ShardioError:
            raise
        except _NONSENSE as error:
            raise folder.error(f"the list in {name} makes no sense", found=repr(error)[:200]) from error
        if files is not None:
            lists.append(FolderList(prefix, name, files))
    return lists


class _Folder(NamedTuple):
    """A folder with a list: URL, key prefix, keys below it, keys of the list; see `read_lists`."""

    url: str
    prefix: str
    keys: Collection[str]
    parts: Sequence[str]
    read: Read
    whole: bool

    @property
    def key(self) -> str:
        """The file of a list that is one."""
        return self.parts[0]

    @property
    def data(self) -> list[str]:
        """The keys that may be data by their names."""
        return [key for key in self.keys if is_data(key.removeprefix(self.prefix))]

    def json(self) -> Any:
        return parse_json(self.read(self.key))

    def yaml(self, text: str) -> Any:
        need(f"reading {self.key}", "shardio[convert]", "yaml")
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise self.error(f"{self.key} is not YAML", found=str(error)[:200]) from error

    def error(self, what: str, **fields: Any) -> FormatError:
        fields.setdefault("advice", "fetch the folder again, or name the files that are meant with a pattern")
        return FormatError(what, url=self.url, **fields)

    def listed(self, names: Mapping[str, str | None]) -> Files:
        """Return the list of files by their names below the folder; each must be there."""
        files = {self.prefix + name: split for name, split in names.items()}
        missing = sorted(files.keys() - set(self.keys)) if self.whole else []
        if missing:
            name = self.key.removeprefix(self.prefix)
            shown = f"{len(missing)} such files, first {missing[0].removeprefix(self.prefix)}"
            raise self.error(f"{name} names files that are not there", found=shown)
        return files

    def several(self, names: Iterable[str], pattern: str = "") -> FormatError:
        """Return the error for a repository with several configurations."""
        such = f", such as {self.url}/{pattern}" if pattern else " or the folder that holds them"
        return self.error(
            "this repository has several configurations, which are datasets of their own",
            found=", ".join(names),
            advice=f"name the files of one with a pattern{such}",
        )


def _splits_of_export(folder: _Folder) -> Files:
    patterns = folder.json()["splits"].items()
    files: Files = {}
    for key in folder.data:
        name = key.removeprefix(folder.prefix)
        split = next((split for split, each in patterns if fnmatch.fnmatchcase(name, each)), None)
        if split is not None:
            files[key] = split
    return files


def _saved_splits(folder: _Folder) -> Files:
    files: Files = {}
    for split in folder.json()["splits"]:
        below = [key for key in folder.data if key.startswith(f"{folder.prefix}{split}/")]
        if not below and folder.whole:
            raise folder.error("dataset_dict.json names a split that is not there", found=repr(split))
        files.update(dict.fromkeys(below, split))
    return files


def _saved_files(folder: _Folder) -> Files | None:
    content = folder.json()
    if not isinstance(content, dict) or "_data_files" not in content:
        return None  # Trainers write files of this name, too.
    if content.get("_indices_files") or content.get("_indices_data_files"):
        raise folder.error(
            "the saved dataset has an indices mapping, which says which rows count",
            advice="convert what datasets.load_from_disk returns",
        )
    return folder.listed({each["filename"]: None for each in content["_data_files"]})


def _delta(folder: _Folder) -> Files:
    names = {key.removeprefix(folder.prefix) for key in folder.keys}
    return folder.listed(dict.fromkeys(live_files(folder.url, folder.parts, names, folder.read)))


def _energon(folder: _Folder) -> Files:
    content = folder.yaml(folder.read(folder.key).decode(errors="replace"))
    excluded = {name for each in content.get("exclude") or () for name in expand_braces(str(each))}
    files: Files = {}
    for split, patterns in content["split_parts"].items():
        for pattern in patterns:
            files.update(dict.fromkeys(expand_braces(str(pattern)), str(split)))
    if single := sorted(excluded - files.keys()):
        what = ".nv-meta/split.yaml excludes single samples, which is not done here"
        raise folder.error(what, found=single[0], advice="write the tar files without these samples")
    return folder.listed({name: split for name, split in files.items() if name not in excluded})


def _described_configurations(folder: _Folder) -> None:
    """Refuse a repository whose `dataset_infos.json`, of older `datasets`, names several configurations."""
    try:
        infos = folder.json()
    except ValueError:
        return  # Of this name, and not of `datasets`.
    described = isinstance(infos, dict) and all(
        isinstance(each, dict) and "splits" in each for each in infos.values()
    )
    if described and len(infos) > 1:
        raise folder.several(infos)


def _card(folder: _Folder) -> Files | None:
    """Return what the `README.md` of a Hub repository says of its one configuration; None without one."""
    text = folder.read(folder.key).decode(errors="replace")
    front = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(?:\n|$)", text, re.DOTALL)
    if front is None or not re.search(
        r"^(?:- )?\s*(?:configs|config_name|dataset_info)\s*:", front[1], re.MULTILINE
    ):
        return None
    card = folder.yaml(front[1])
    card = card if isinstance(card, dict) else {}
    configs = [each for each in card.get("configs") or () if isinstance(each, dict)]
    described = card.get("dataset_info")
    infos = [each for each in described if isinstance(each, dict)] if isinstance(described, list) else []
    names = list(dict.fromkeys(str(each.get("config_name")) for each in configs or infos))
    pairs = _data_files(configs[0]) if configs else []
    if len(names) > 1:
        raise folder.several(names, pairs[0][1] if pairs else "")
    files: Files = {}
    for split, pattern in pairs:
        matches = re.compile(glob_expression(pattern), re.DOTALL).fullmatch
        found = [key for key in folder.data if matches(key) or key.startswith(f"{pattern.rstrip('/')}/")]
        if not found:
            raise folder.error("README.md names files that are not there", found=pattern)
        for key in found:
            files.setdefault(key, split)
    return files or None


def _data_files(config: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    """Return (split, pattern) of a configuration; the split is None where the names tell it."""
    folder, given = config.get("data_dir"), config.get("data_files")
    if given is None:
        return [(None, str(folder))] if folder else []
    pairs: list[tuple[str | None, Any]] = []
    for each in given if isinstance(given, list) else [given]:
        if not isinstance(each, dict):
            pairs.append((None, each))
        elif "path" in each:
            pairs.append((str(each.get("split", "train")), each["path"]))
        else:
            pairs += each.items()
    base = f"{folder}/" if folder else ""
    return [
        (split, base + str(path).removeprefix("./"))
        for split, paths in pairs
        for path in (paths if isinstance(paths, list) else [paths])
    ]


# The kinds, by the file or folder that marks one: what reads it, or what is refused, with the way in.
_KINDS: dict[str, Callable[[_Folder], Files | None] | str] = {
    SPLITS_FILE: _splits_of_export,
    "dataset_dict.json": _saved_splits,
    "state.json": _saved_files,
    ".nv-meta/split.yaml": _energon,
    "dataset_infos.json": _described_configurations,
    "README.md": _card,
    "_delta_log/": _delta,
    "_spark_metadata/": "the metadata of Spark's streams: write what spark.read.load(url) returns, with "
    "shardio.engines.spark, or to a folder without this log",
    ".hoodie/": "the metadata of Apache Hudi: convert what pyarrow.Table.from_batches("
    "hudi.HudiTableBuilder.from_base_uri(url).build().read_snapshot()) returns",
    "metadata/": "the metadata of Apache Iceberg: convert what "
    "pyiceberg.table.StaticTable.from_metadata(METADATA_JSON).scan().to_arrow() returns",
}
_REPOSITORY = ("dataset_infos.json", "README.md")  # at the root of a whole folder alone
# Of tables, of which one part alone is not what they hold.
TABLE_MARKERS = tuple(name for name in _KINDS if name.endswith("/"))
# What a listing that does not take whole folders has to look for beside what it matches.
MARKERS = tuple(name for name in _KINDS if name not in _REPOSITORY)
_MARKER = re.compile(
    r"((?:.*/)?)(?:("
    + "|".join(re.escape(name) for name in _KINDS if not name.endswith("/"))
    + r")|((?:_delta_log|_spark_metadata|\.hoodie)/).*|(metadata/)[^/]+\.metadata\.json)",
    re.DOTALL,
)
