"""Folders that have a list of their own of which files count: that list decides, or the folder is refused.

A Delta table keeps replaced files beside live ones, `Dataset.map` leaves its cache in a saved folder, and a
failed job of Spark leaves files that no log names.  Lists only choose among files that were found:

- `_splits.json` of shardio's exports: patterns of file names by split;
- `dataset_dict.json` and `state.json` of `datasets.save_to_disk`; the configuration in a Hub `README.md`;
- `_delta_log/` of Delta Lake, `_spark_metadata/` of Spark's streams;
- `.nv-meta/split.yaml` of Megatron Energon.

Hudi and Iceberg tables, and Delta tables with features that only Delta readers know, are refused.
"""

from __future__ import annotations

import fnmatch
import io
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from shardio.arguments import need
from shardio.errors import FormatError, ShardioError
from shardio.format import parse_json
from shardio.sources._hive import folder_key
from shardio.sources._names import is_data
from shardio.sources._urls import expand_braces, glob_expression

SPLITS_FILE = "_splits.json"
# What a listing that does not take whole folders has to look for beside what it matches.
TABLE_MARKERS = ("_delta_log/", ".hoodie/", "_spark_metadata/", "metadata/")
MARKERS = (*TABLE_MARKERS, "state.json", "dataset_dict.json", SPLITS_FILE, ".nv-meta/split.yaml")
_MARKER = re.compile(
    r"(?P<folder>(?:.*/)?)(?:(?P<name>_delta_log|\.hoodie|_spark_metadata)/.*|(?P<iceberg>metadata/[^/]+\.metadata\.json)|"
    r"(?P<file>state\.json|dataset_dict\.json|_splits\.json|\.nv-meta/split\.yaml))",
    re.DOTALL,
)
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
# Features of Delta tables that do not change which rows a file holds, or what its columns are called.
_PLAIN_FEATURES = {"timestampNtz", "vacuumProtocolCheck", "appendOnly", "invariants", "columnMapping"}
_SINK = re.compile(r"(\d+)(\.compact)?")

# What a list that holds other things than it should makes of the code that reads it.
_NONSENSE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)

Read = Callable[[str], bytes]


class FolderList(NamedTuple):
    """What a folder's own list says.

    Attributes:
        folder: key prefix of what it governs: "" or with a slash at its end.
        name: what it is, for notes.
        governs: tells of a key below the folder whether the list decides about it.
        files: the keys that count, each with its split; None where the list tells none.
    """

    folder: str
    name: str
    governs: Callable[[str], bool]
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
    found: dict[tuple[str, str], list[str]] = {}
    for key in markers:
        match = _MARKER.fullmatch(key)
        if match is None:
            continue
        kind = match["name"] or match["file"] or "metadata"
        found.setdefault((match["folder"], kind), []).append(key)
    lists = []
    for (folder, kind), parts in sorted(found.items()):
        place = f"{url.rstrip('/')}/{folder}".rstrip("/")
        below = dict.fromkeys(key for key in keys if key.startswith(folder))
        try:
            made = _READERS[kind](_Folder(place, folder, below, parts, read, whole))
        except ShardioError:
            raise
        except _NONSENSE as error:
            raise FormatError(
                f"the list in {parts[0].removeprefix(folder)} makes no sense",
                url=place,
                found=repr(error)[:200],
            ) from error
        if made is not None:
            lists.append(made)
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
    def data(self) -> list[str]:
        """The keys that may be data by their names."""
        return [key for key in self.keys if is_data(key.removeprefix(self.prefix))]

    def json(self, key: str) -> Any:
        try:
            return parse_json(self.read(key))
        except ValueError as error:
            raise self.error(f"{key.removeprefix(self.prefix)} is not JSON", found=str(error)) from error

    def error(self, what: str, **fields: Any) -> FormatError:
        fields.setdefault("advice", "fetch the folder again, or name the files that are meant with a pattern")
        return FormatError(what, url=self.url, **fields)

    def listed(
        self, names: Mapping[str, str | None], what: str, governs: Callable[[str], bool]
    ) -> FolderList:
        """Return the list of files by their names below the folder; each must be there."""
        there = set(self.keys)
        files = {self.prefix + name: split for name, split in names.items()}
        missing = [key for key in files if key not in there] if self.whole else []
        if missing:
            shown = f"{len(missing)} such files, first {missing[0].removeprefix(self.prefix)}"
            raise self.error(f"{what} names files that are not there", found=shown)
        return FolderList(self.prefix, what, governs, files)


def _any(key: str) -> bool:
    return bool(key)


def _splits_of_export(folder: _Folder) -> FolderList:
    content = folder.json(folder.parts[0])
    patterns = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(patterns, dict) or not all(isinstance(each, str) for each in patterns.values()):
        raise folder.error(f"{SPLITS_FILE} holds no patterns of file names by split")
    files: dict[str, str | None] = {}
    for key in folder.data:
        name = key.removeprefix(folder.prefix)
        split = next((split for split, each in patterns.items() if fnmatch.fnmatchcase(name, each)), None)
        if split is not None:
            files[key] = split
    return FolderList(folder.prefix, SPLITS_FILE, _any, files)


def _saved_splits(folder: _Folder) -> FolderList:
    content = folder.json(folder.parts[0])
    splits = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(splits, list) or not all(isinstance(each, str) for each in splits):
        raise folder.error("dataset_dict.json names no splits")
    files: dict[str, str | None] = {}
    for split in splits:
        below = [key for key in folder.data if key.startswith(f"{folder.prefix}{split}/")]
        if not below and folder.whole:
            raise folder.error("dataset_dict.json names a split that is not there", found=repr(split))
        files.update(dict.fromkeys(below, split))
    return FolderList(folder.prefix, "dataset_dict.json", _any, files)


def _saved_files(folder: _Folder) -> FolderList | None:
    content = folder.json(folder.parts[0])
    if not isinstance(content, dict) or "_data_files" not in content:
        return None  # Trainers write files of this name, too.
    if content.get("_indices_files") or content.get("_indices_data_files"):
        raise folder.error(
            "the saved dataset has an indices mapping, which says which rows count",
            advice="convert what datasets.load_from_disk returns",
        )
    try:
        names = [each["filename"] for each in content["_data_files"]]
    except (TypeError, KeyError) as error:
        raise folder.error("state.json does not name its files", found=repr(error)) from error
    governs = re.compile(re.escape(folder.prefix) + r"[^/]*", re.DOTALL).fullmatch
    return folder.listed(dict.fromkeys(names), "state.json", lambda key: governs(key) is not None)


def _is_parquet(key: str) -> bool:
    return key.lower().endswith(".parquet")


def _delta(folder: _Folder) -> FolderList:
    names = {key.rpartition("/")[2]: key for key in folder.parts}
    commits = {int(match[1]): names[name] for name in names if (match := _COMMIT.fullmatch(name))}
    sets: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        if match := _CHECKPOINT.fullmatch(name):
            sets.setdefault((int(match[1]), int(match[3] or 1)), []).append(names[name])
    whole = [(version, parts) for (version, count), parts in sets.items() if len(parts) == count]
    start, parts = max(whole, default=(-1, list[str]()))
    later = sorted(version for version in commits if version > start)
    if (start < 0 and not later) or later != list(range(start + 1, start + 1 + len(later))):
        raise folder.error("the log of this Delta table is not whole", advice=_READ_DELTA)
    actions = [action for key in parts for action in _checkpoint_actions(folder, key)]
    actions += [action for version in later for action in _json_lines(folder, commits[version])]
    live: dict[str, None] = {}
    for action in actions:
        _check_delta(folder, action)
        if added := action.get("add"):
            live[_delta_name(folder, added)] = None
        elif removed := action.get("remove"):
            live.pop(_stored_name(folder, removed), None)
    return folder.listed(live, "the log of the Delta table", _is_parquet)


_READ_DELTA = "convert the table that deltalake.DeltaTable(url).to_pyarrow_table() returns"


def _json_lines(folder: _Folder, key: str, skip: int = 0) -> list[dict[str, Any]]:
    try:
        found = [parse_json(line) for line in folder.read(key).splitlines()[skip:] if line.strip()]
    except ValueError as error:
        raise folder.error(f"{key.removeprefix(folder.prefix)} is not JSON", found=str(error)) from error
    if not all(isinstance(each, dict) for each in found):
        raise folder.error(f"{key.removeprefix(folder.prefix)} does not hold a JSON object a line")
    return found


def _checkpoint_actions(folder: _Folder, key: str) -> list[dict[str, Any]]:
    need("reading the checkpoint of a Delta table", "shardio[convert]", "pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(folder.read(key)))
        wanted = [
            name for name in ("add", "protocol", "metaData", "sidecar") if name in file.schema_arrow.names
        ]
        rows: list[dict[str, Any]] = file.read(wanted).to_pylist() if wanted else []
    except (pa.ArrowException, OSError, ValueError) as error:
        raise folder.error(f"{key.removeprefix(folder.prefix)} cannot be read", found=str(error)) from error
    # Lists of structs: a map comes as pairs.
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _check_delta(folder: _Folder, action: Mapping[str, Any]) -> None:
    """Refuse what only readers of Delta Lake know how to read."""
    protocol, metadata, added = (action.get(name) or {} for name in ("protocol", "metaData", "add"))
    features = set(protocol.get("readerFeatures") or ()) - _PLAIN_FEATURES
    configuration = dict(metadata.get("configuration") or {})
    mapped = configuration.get("delta.columnMapping.mode", "none") != "none"
    if features or mapped or added.get("deletionVector") or "sidecar" in action:
        what = ", ".join(sorted(features)) or ("column mapping" if mapped else "deletion vectors or sidecars")
        raise folder.error(f"this Delta table uses {what}, which is not read here", advice=_READ_DELTA)


def _stored_name(folder: _Folder, action: Mapping[str, Any]) -> str:
    """Return the name of a file as it is stored: logs percent-encode it, and some writers do not."""
    path = str(action.get("path"))
    decoded = urllib.parse.unquote(path)
    there = folder.prefix + path in folder.keys and folder.prefix + decoded not in folder.keys
    return path if there else decoded


def _delta_name(folder: _Folder, added: Mapping[str, Any]) -> str:
    """Return the name of a live file; its folders must tell the values of its partition."""
    name = _stored_name(folder, added)
    told = {key.name for part in name.split("/")[:-1] if (key := folder_key(part)) is not None}
    if "://" in name or name.startswith("/") or not set(dict(added.get("partitionValues") or {})) <= told:
        what = "the Delta table has files elsewhere, or partitions that its folders do not name"
        raise folder.error(what, found=name, advice=_READ_DELTA)
    return name


def _spark_sink(folder: _Folder) -> FolderList:
    logs: dict[int, str] = {}
    compact = -1
    for key in sorted(folder.parts):
        if match := _SINK.fullmatch(key.rpartition("/")[2]):
            number = int(match[1])
            if match[2] or number not in logs:
                logs[number] = key
            compact = max(compact, number) if match[2] else compact
    numbers = [number for number in sorted(logs) if number >= compact]
    if not numbers or numbers != list(range(max(compact, 0), numbers[-1] + 1)):
        raise folder.error("the log in _spark_metadata is not whole")
    live: dict[str, str | None] = {}
    by_name: dict[str, str] = {}
    for key in folder.keys:
        by_name.setdefault(key.rpartition("/")[2], key)
    for number in numbers:
        for action in _json_lines(folder, logs[number], skip=1):
            path = urllib.parse.unquote(str(action.get("path")))
            # Paths are absolute; the folder may have been copied elsewhere.
            there = by_name.get(path.rpartition("/")[2])
            name = path if there is None else there.removeprefix(folder.prefix)
            if there is not None and not path.endswith(f"/{name}"):
                name = path
            if action.get("action") == "delete":
                live.pop(name, None)
            else:
                live[name] = None
    return folder.listed(live, "_spark_metadata", _any)


def _energon(folder: _Folder) -> FolderList:
    content = _yaml(folder, folder.read(folder.parts[0]).decode(errors="replace"), ".nv-meta/split.yaml")
    parts = content.get("split_parts") if isinstance(content, dict) else None
    left_out = content.get("exclude") or [] if isinstance(content, dict) else []
    if not isinstance(parts, dict) or not all(isinstance(each, list) for each in parts.values()):
        raise folder.error(".nv-meta/split.yaml holds no split_parts")
    excluded = {name for each in left_out for name in expand_braces(str(each))}
    files: dict[str, str | None] = {}
    for split, patterns in parts.items():
        for pattern in patterns:
            files.update(dict.fromkeys(expand_braces(str(pattern)), str(split)))
    if single := sorted(name for name in excluded if name not in files):
        what = ".nv-meta/split.yaml excludes single samples, which is not done here"
        raise folder.error(what, found=single[0], advice="write the tar files without these samples")
    files = {name: split for name, split in files.items() if name not in excluded}
    return folder.listed(files, ".nv-meta/split.yaml", lambda key: ".tar" in key or key.endswith(".tgz"))


def _yaml(folder: _Folder, text: str, name: str) -> Any:
    need(f"reading {name}", "shardio[convert]", "yaml")
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise folder.error(f"{name} is not YAML", found=str(error)[:200]) from error


def _refuse(kind: str, way: str) -> Callable[[_Folder], NoReturn]:
    def refuse(folder: _Folder) -> NoReturn:
        what = f"this is a table of {kind}, whose metadata say which files and rows count"
        raise FormatError(what, url=folder.url, advice=f"convert the table that {way} returns")

    return refuse


_HUDI = "pyarrow.Table.from_batches(hudi.HudiTableBuilder.from_base_uri(url).build().read_snapshot())"
_ICEBERG = "pyiceberg.table.StaticTable.from_metadata(METADATA_JSON).scan().to_arrow()"
_READERS: dict[str, Callable[[_Folder], FolderList | None]] = {
    SPLITS_FILE: _splits_of_export,
    "dataset_dict.json": _saved_splits,
    "state.json": _saved_files,
    "_delta_log": _delta,
    "_spark_metadata": _spark_sink,
    ".nv-meta/split.yaml": _energon,
    ".hoodie": _refuse("Apache Hudi", _HUDI),
    "metadata": _refuse("Apache Iceberg", _ICEBERG),
}


def check_infos(url: str, data: bytes) -> None:
    """Refuse a repository whose `dataset_infos.json`, of older `datasets`, names several configurations.

    Raises:
        FormatError: there are several.
    """
    try:
        infos = parse_json(data)
    except ValueError:
        return  # Of this name, and not of `datasets`.
    told = isinstance(infos, dict) and all(
        isinstance(each, dict) and "splits" in each for each in infos.values()
    )
    if told and len(infos) > 1:
        raise FormatError(
            "this repository has several configurations, which are datasets of their own",
            url=url,
            found=", ".join(infos),
            advice="name the files of one with a pattern or the folder that holds them",
        )


def read_card(url: str, keys: Sequence[str], read: Read) -> FolderList | None:
    """Return what the `README.md` of a Hub repository says of its one configuration; None without one.

    Raises:
        FormatError: there are several configurations, or the card cannot be read.
    """
    text = read("README.md").decode(errors="replace")
    front = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(?:\n|$)", text, re.DOTALL)
    if front is None or not re.search(
        r"^(?:- )?\s*(?:configs|config_name|dataset_info)\s*:", front[1], re.MULTILINE
    ):
        return None
    folder = _Folder(url.rstrip("/"), "", keys, ("README.md",), read, whole=True)
    card = _yaml(folder, front[1], "README.md")
    card = card if isinstance(card, dict) else {}
    configs = [each for each in card.get("configs") or () if isinstance(each, dict)]
    described = card.get("dataset_info") or ()
    infos = [each for each in described if isinstance(each, dict)] if isinstance(described, list) else []
    names = list(dict.fromkeys(str(each.get("config_name")) for each in configs or infos))
    if len(names) > 1:
        patterns = [pattern for config in configs[:1] for _, pattern in _data_files(config)]
        raise folder.error(
            "this repository has several configurations, which are datasets of their own",
            found=", ".join(names),
            advice="name the files of one with a pattern"
            + (f", such as {folder.url}/{patterns[0]}" if patterns else " or the folder that holds them"),
        )
    files: dict[str, str | None] = {}
    for split, pattern in _data_files(configs[0]) if configs else ():
        matches = re.compile(glob_expression(pattern), re.DOTALL).fullmatch
        found = [key for key in folder.data if matches(key) or key.startswith(f"{pattern.rstrip('/')}/")]
        if not found:
            raise folder.error("README.md names files that are not there", found=pattern)
        for key in found:
            files.setdefault(key, split)
    return FolderList("", "README.md", _any, files) if files else None


def _data_files(config: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    """Return (split, pattern) of a configuration; the split is None where the names tell it."""
    given = config.get("data_files")
    if given is None:
        return [(None, str(config["data_dir"]))] if config.get("data_dir") else []
    pairs: list[tuple[str | None, Any]] = []
    for each in given if isinstance(given, list) else [given]:
        if isinstance(each, dict) and "path" in each:
            pairs.append((str(each.get("split", "train")), each["path"]))
        elif isinstance(each, dict):
            pairs += [(str(split), paths) for split, paths in each.items()]
        else:
            pairs.append((None, each))
    base = f"{config['data_dir']}/" if config.get("data_dir") else ""
    return [
        (split, base + str(path).removeprefix("./"))
        for split, paths in pairs
        for path in (paths if isinstance(paths, list) else [paths])
    ]
