"""Live files of a Delta table, by its log: the last whole checkpoint, and the commits after it.

After the protocol of Delta Lake (github.com/delta-io/delta, PROTOCOL.md).  Tables whose rows or columns only
a reader of Delta Lake knows -- deletion vectors, column mapping, files elsewhere -- are refused.
"""

from __future__ import annotations

import io
import re
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import Any

from shardio.arguments import need
from shardio.errors import FormatError
from shardio.format import parse_json
from shardio.sources._hive import folder_key

READ_DELTA = "convert what deltalake.DeltaTable(url).to_pyarrow_table() returns"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
# Features that change neither which rows a file holds nor what its columns are called.
_PLAIN_FEATURES = {"timestampNtz", "vacuumProtocolCheck", "appendOnly", "invariants", "columnMapping"}
_ACTIONS = ("add", "protocol", "metaData", "sidecar")


def live_files(
    url: str, log: Collection[str], names: Collection[str], read: Callable[[str], bytes]
) -> list[str]:
    """Return the names of the files that hold the table's rows, below its folder.

    Args:
        url: of the table.
        log: keys of the files of its log.
        names: of the files below the folder.
        read: returns the content of a key of the log.

    Raises:
        FormatError: the log is not whole or cannot be read, or the table needs a reader of Delta Lake.
    """
    commits: dict[int, str] = {}
    checkpoints: dict[tuple[int, int], list[str]] = {}
    for key in sorted(log):
        name = key.rpartition("/")[2]
        if match := _COMMIT.fullmatch(name):
            commits[int(match[1])] = key
        elif match := _CHECKPOINT.fullmatch(name):
            checkpoints.setdefault((int(match[1]), int(match[3] or 1)), []).append(key)
    whole = [(version, keys) for (version, count), keys in checkpoints.items() if len(keys) == count]
    start, checkpoint = max(whole, default=(-1, list[str]()))
    later = sorted(version for version in commits if version > start)
    if (start < 0 and not later) or later != list(range(start + 1, start + 1 + len(later))):
        raise FormatError("the log of this Delta table is not whole", url=url, advice=READ_DELTA)
    actions = [action for key in checkpoint for action in _checkpoint_actions(read(key))]
    actions += [
        parse_json(line) for version in later for line in read(commits[version]).splitlines() if line.strip()
    ]
    live: dict[str, None] = {}
    for action in actions:
        if refusal := _refusal(action):
            raise FormatError(f"this Delta table {refusal}", url=url, advice=READ_DELTA)
        change = action.get("add") or action.get("remove")
        if change:
            # Logs percent-encode names; some writers do not.
            stored, decoded = str(change["path"]), urllib.parse.unquote(str(change["path"]))
            name = stored if stored in names and decoded not in names else decoded
            live.pop(name, None)
            if action.get("add"):
                live[name] = None
    return list(live)


def _checkpoint_actions(data: bytes) -> list[dict[str, Any]]:
    need("reading the checkpoint of a Delta table", "shardio[convert]", "pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        rows = file.read([name for name in _ACTIONS if name in file.schema_arrow.names]).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"the checkpoint cannot be read: {error}") from error
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _refusal(action: Mapping[str, Any]) -> str | None:
    """Say what of an action only readers of Delta Lake understand, or None."""
    protocol, metadata, added = (action.get(name) or {} for name in ("protocol", "metaData", "add"))
    features = sorted(set(protocol.get("readerFeatures") or ()) - _PLAIN_FEATURES)
    if features:
        return f"uses {', '.join(features)}, which is not read here"
    # Maps of a checkpoint come as pairs.
    if dict(metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none") != "none":
        return "uses column mapping, which is not read here"
    if added.get("deletionVector") or "sidecar" in action:
        return "uses deletion vectors or sidecars, which are not read here"
    path = urllib.parse.unquote(str(added.get("path", "")))
    named = {key.name for part in path.split("/")[:-1] if (key := folder_key(part)) is not None}
    if "://" in path or path.startswith("/") or not set(dict(added.get("partitionValues") or {})) <= named:
        return "has files elsewhere, or partitions that its folders do not name"
    return None
