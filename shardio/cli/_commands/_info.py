"""`shardio info`: what is at an address, read from its metadata; or what is installed here.

Records are read only where no schema describes them, and then the first ones.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import dataset_facts, feature_notes, seen_facts, shard_facts
from shardio.cli._given import Given
from shardio.display import count, plain, plural, size


def _run(
    given: Given,
    console: Console,
    url: Annotated[
        str | None, Parameter(help="dataset, or single shard: a local path or any fsspec URL")
    ] = None,
    *,
    system: Annotated[bool, Parameter(help="versions of what is installed, parts in use")] = False,
    cache: Annotated[str | None, Parameter(help="folder of a local cache of blocks; what is in it")] = None,
) -> int:
    asked = [url, system or None, cache]
    if sum(one is not None for one in asked) != 1:
        raise ValueError("give one of: a URL, --system, --cache DIR")
    if url is None and cache is None:
        from shardio.cli._describe import system_facts

        return _show(console, system_facts())
    if url is None:
        return _show_cache(console, str(cache))
    from shardio.reader import is_shard

    options = given.storage_options_given
    number = given.version
    if is_shard(url, version=number, storage_options=options, engine=given.engine):
        if number is not None:
            raise ValueError(f"{url} is a single shard: it has no versions")
        facts = shard_facts(url, options, given.engine)
        seen = seen_facts(url, options, given.engine, shard=True)
        if console.json:
            console.document(plain({**facts, "seen": seen}))
            return CLEAN
        _show(console, facts)
        if seen is not None:
            _print_seen(console, seen)
        return CLEAN
    facts = dataset_facts(url, number, options, given.engine)
    if facts["schema"] is None:
        facts["seen"] = seen_facts(url, options, given.engine, shard=False, version=number)
    if console.json:
        console.document(plain(facts))
    else:
        _print_dataset(console, facts)
    return CLEAN


def _show(console: Console, facts: dict[str, Any]) -> int:
    if console.json:
        console.document(plain(facts))
        return CLEAN
    console.table([(name.replace("_", " "), _humanized(name, value)) for name, value in facts.items()])
    return CLEAN


def _humanized(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{size(value)} ({count(value)})" if name.endswith("bytes") and value >= 1000 else count(value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def _show_cache(console: Console, folder: str) -> int:
    from shardio.storage import BlockCache, CacheOptions

    usage = BlockCache(CacheOptions(folder, max_bytes=1)).usage()
    return _show(console, {"folder": usage.folder, "blocks": usage.entries, "cached_bytes": usage.num_bytes})


def _print_dataset(console: Console, facts: dict[str, Any]) -> None:
    splits = facts["splits"]
    records = sum(split["records"] for split in splits.values())
    shards = sum(split["shards"] for split in splits.values())
    stored = sum(split["stored_bytes"] for split in splits.values())
    decoded = sum(split["decoded_bytes"] for split in splits.values())
    older = facts["latest_version"] - facts["version"]
    rows = [
        ("dataset", facts["url"]),
        ("version", f"{facts['version']}" + (f" (latest is {facts['latest_version']})" if older else "")),
        ("committed", f"{facts['committed']} ({facts['operation']}, {facts['writer'] or 'unknown writer'})"),
        ("digest", facts["digest"]),
        ("records", f"{count(records)} in {plural(len(splits), 'split')}, {plural(shards, 'shard')}"),
        ("stored", size(stored) + (f", {size(decoded)} decoded" if decoded != stored else "")),
        ("compression", ", ".join(facts["compression"]) or "-"),
    ]
    if facts["framing"] not in (["tfrecord"], []):
        rows.append(("framing", ", ".join(facts["framing"])))
    if facts["deleted_records"]:
        rows.append(("deleted", plural(facts["deleted_records"], "record")))
    if facts["adopted_shards"]:
        rows.append(("adopted", plural(facts["adopted_shards"], "shard") + " that others wrote"))
    rows += [("data root", url) for url in facts["roots"]]
    if facts["metadata"]:
        text = json.dumps(facts["metadata"], ensure_ascii=False)
        rows.append(("metadata", text if len(text) <= 200 else f"{text[:196]} ..."))
    console.table(rows)
    if splits:
        console.line()
        table = [
            (
                name,
                count(split["records"]),
                count(split["shards"]),
                size(split["stored_bytes"]),
                size(split["decoded_bytes"] // max(split["records"], 1)),
            )
            for name, split in splits.items()
        ]
        console.table(table, head=("split", "records", "shards", "stored", "per record"), right=(1, 2, 3, 4))
    console.line()
    if facts["schema"] is None:
        console.line("no schema: records are bytes")
        if facts["seen"] is not None:
            _print_seen(console, facts["seen"])
        return
    console.table(
        [(row["name"], row["type"], feature_notes(row)) for row in facts["schema"]],
        head=("feature", "type", f"({facts['encoding']})"),
    )


def _print_seen(console: Console, seen: dict[str, Any]) -> None:
    """Print what the records show where no schema says it, and what varies."""
    kind = "tf.train.SequenceExample" if seen["encoding"] == "sequence_example" else "tf.train.Example"
    console.line()
    first = "the first record is" if seen["records"] == 1 else f"the first {seen['records']} records are"
    console.line(f"{first} {kind}; a schema that fits so far:")
    console.line()
    rows = [(row["name"], row["type"] or "-", "; ".join(row["notes"])) for row in seen["features"]]
    console.table(rows, head=("feature", "type", "notes"))


COMMAND = Command(
    name="info",
    summary="show what a dataset or shard holds, or what is installed",
    takes=(Takes("shardio:open", only=("version", "storage_options", "engine")),),
    run=_run,
    examples={
        "shardio info s3://bucket/birds": "versions, splits, records, bytes, schema, digest",
        "shardio info --system": "for a report of a problem",
    },
)
