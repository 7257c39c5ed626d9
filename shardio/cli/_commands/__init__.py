"""The commands, a module for each group; `command` and `reporting` make them of functions."""

from __future__ import annotations

import importlib

from cyclopts import App

from shardio.cli._command import APPS

# Module, title and commands of each group, in the order of a day, with a line for the list of commands.
GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "_bring": (
        "bring data in",
        {
            "adopt": "adopt shards in place, without changing a byte of them",
            "convert": "make a dataset from images, tables, JSONL, WebDataset, MDS, TFRecord, TFDS and more",
            "pack": "pack documents into rows of one length",
            "commit": "commit the tasks of a job array as one new version",
        },
    ),
    "_look": (
        "look at data",
        {
            "info": "describe a dataset or shard, or what is installed",
            "head": "show the first records, decoded",
            "get": "show records by position, or those that meet a condition",
            "view": "browse a dataset in a browser",
        },
    ),
    "_train": (
        "train",
        {
            "plan": "estimate what an epoch costs: requests, bytes, memory, and how well it shuffles",
            "bench": "measure the read throughput of a dataset from this machine",
            "audit": "list the records of a training step, from a saved state",
        },
    ),
    "_find": (
        "find records",
        {
            "table": "keep small features next to the shards, as Parquet, for filters",
            "keys": "index the keys of records, and find records by key",
        },
    ),
    "_check": (
        "check and repair",
        {
            "verify": "compare every byte with its checksum and list every finding",
            "repair": "repair what verify finds, from a copy or from the good records",
        },
    ),
    "_change": (
        "change a dataset",
        {
            "schema": "show the schema, or change it without touching a record",
            "delete": "delete records, in a new version",
            "erase": "erase records for good, with every earlier version",
            "split": "remove or rename a whole split",
            "compact": "merge small shards and drop deleted records, in a new version",
        },
    ),
    "_versions": (
        "versions",
        {
            "log": "list the versions, the latest first",
            "tag": "name a version so that it does not expire, or list the names",
            "diff": "show what differs between two versions",
            "restore": "make an earlier version the latest again",
            "gc": "remove what only expired versions and abandoned sessions use",
        },
    ),
    "_take": (
        "take data out",
        {
            "cat": "write records to standard output, as JSON lines, tar or bytes",
            "export": "write a dataset as TFRecord, WebDataset, JSONL, Parquet, MDS or an image folder",
        },
    ),
    "_program": (
        "this program",
        {
            "cache": "fill a local cache before a run, or empty it",
            "completion": "print the script that completes commands in your shell",
        },
    ),
}
ALIASES = {"adopt": "index"}
_MODULES = {name: module for module, (_, commands) in GROUPS.items() for name in commands}
COMMANDS = (*_MODULES, *ALIASES.values())


def __getattr__(name: str) -> App:
    if name not in _MODULES:
        raise AttributeError(name)
    importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return APPS[name]()
