"""Advice in error messages works: each piece is followed here, as it is written, and helps.

`FOLLOWED` has a row for each piece: a situation that raises it, and what the advice says, done.  `ELSEWHERE`
names the test of another file that does so, `OUTSIDE` has those that nothing here can do for the user, such
as an upgrade, each with the reason.  Advice that is in none of them fails the inventory.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardio
import shardio_indexer
from shardio import Feature, Schema, codecs
from shardio.catalog import Catalog
from shardio.cli import main
from shardio.cli._commands import all_commands
from shardio.cli._console import in_flags
from shardio.errors import SchemaError, ShardioError
from shardio.reader import QUARANTINE_FILE
from shardio.v1 import tensor_pb2
from shardio_indexer import _lines
from tests.advice import ROOT, inventory, mistakes, parameters
from tests.indexer.shards import main as index, tar, tfrecord

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*one compressed stream"),
    pytest.mark.filterwarnings("ignore:.*has no index"),
    pytest.mark.filterwarnings("ignore:damaged records are skipped"),
]

CUT = b"\x89PNG\r\n\x1a\n, no more"  # begins as an image, and is none
FOLLOWED: dict[str, Callable[[Path], None]] = {}
# Followed where the situation is at home: the test does what the advice says, and it helps.
ELSEWHERE = {
    "rename it, or make a dataset of it elsewhere, with into=":
        "tests/indexer/test_adopt.py::test_a_shard_of_others_has_no_name_of_ours",
    "open that dataset, commit its sessions (`shardio commit`) or `shardio convert` it":
        "tests/indexer/test_adopt.py::test_a_first_session_is_not_adopted_before_it_is_committed",
    "choose a place outside of it":
        "tests/indexer/test_places.py::test_datasets_are_not_nested",
    'give the feature another type with schema={"{}": "text"}':
        "tests/convert/test_partitions.py::test_the_caller_may_say_their_types",
    'let it be missing: shardio schema set URL --feature \'{}={"type": "{}", "optional": true}\'':
        "tests/convert/test_partitions.py::test_a_feature_that_no_folder_tells_and_the_schema_requires",
    "write all tasks again under a new session, with one schema=":
        "tests/catalog/test_sessions.py::test_tasks_that_disagree",
    "rename one of them":
        "tests/convert/test_partitions.py::test_one_key_of_two_values",
    "fetch it, and run the command again":
        "tests/sources/test_tfds.py::test_files_of_a_split_that_are_not_there_are_named",
    "fetch the file again, or name the shards with a pattern to leave it out":
        "tests/sources/test_tfds.py::test_a_description_that_is_cut_is_left_out_by_a_pattern",
    "take features.json away to have the schema inferred from the records":
        "tests/sources/test_tfds.py::test_other_folders_are_refused_by_name",
    'write the shape of a tensor behind the type of its elements: "tensor:float32[?,3]"':
        "tests/codecs/test_tensor_features.py::test_no_types",
    'declare the feature as "tensor:bfloat16", or install ml_dtypes':
        "tests/codecs/test_tensor_features.py::test_bfloat16_without_a_package_for_it",
    "give tensor.float(), which is exact":
        "tests/torch/test_values.py::test_tensors_of_bfloat16_are_refused_with_advice_that_works",
    "add it: features={}":
        "tests/streaming/test_selections.py::test_a_function_that_uses_a_column_it_is_not_given",
    "the dataset has {}":
        "tests/streaming/test_selections.py::test_a_function_that_uses_a_column_it_is_not_given",
    "the dataset has no schema, so its records are bytes in the one column 'payload'":
        "tests/streaming/test_selections.py::test_a_function_that_uses_a_column_it_is_not_given",
    "write the records with encoding={}, or into a dataset of their own":
        "tests/convert/test_nothing_in_silence.py::test_examples_do_not_go_into_datasets_of_another_encoding",
    "{}; the files of others stay, and are yours to remove. Deleting without erasing hides the records":
        "tests/convert/test_adopted.py::test_deleting_and_erasing",
    "drop_tags=True drops these tags; or remove them first (`shardio tag`)":
        "tests/lifecycle/test_erase.py::test_a_tagged_version_is_kept_unless_told",
    "look the records up in the latest version, and erase them there; what only earlier versions hold goes "
    "when these expire: `shardio gc URL --expire N`":
        "tests/lifecycle/test_erase.py::test_what_the_latest_version_no_longer_has",
    "run it again, with `shardio gc --keep 10` in place of a smaller number, so that what is being read "
    "stays":
        "tests/lifecycle/test_races.py::test_versions_that_expire_without_end_end_in_advice_that_works",
    "nothing was changed; run it again": "tests/lifecycle/test_erase.py::test_races",
    "make it again with what readers see now: shardio table URL":
        "tests/lifecycle/test_table.py::test_a_table_follows_the_names_of_its_features",
    "make it again: shardio table URL --rebuild":
        "tests/lifecycle/test_table.py::test_a_table_that_is_gone_is_said_and_made_again",
    "build it again":
        "tests/lifecycle/test_table.py::test_a_schema_that_changes_meanwhile",
    "positions_of(shards, rows, default=-1) returns -1 for records that are not there":
        "tests/lifecycle/test_table.py::test_positions_of_places",
    "restore it from a copy, or make the index again: shardio keys URL --rebuild":
        "tests/lifecycle/test_keys.py::test_any_flipped_bit_of_an_index_is_found_before_a_position_is_returned",
    "`shardio keys {} --feature {}` adds them":
        "tests/lifecycle/test_keys.py::test_new_shards_are_read_until_the_index_has_them",
    "find(keys, default=-1) returns -1 for keys that are not there":
        "tests/lifecycle/test_keys.py::test_every_key_leads_to_its_record",
    "call it again: it adds what is still missing":
        "tests/lifecycle/test_keys.py::test_two_builds_at_once",
    "make one: shardio keys URL --feature NAME":
        "tests/cli/test_sidecars.py::test_keys_refuses",
    "write its records under a new session, or restore a version that holds them (`shardio log`, "
    "`shardio restore`)":
        "tests/lifecycle/test_history.py::test_a_session_that_was_rolled_back_is_neither_lost_nor_doubled",
    "leave out schema=, and write the feature; or let records lack it: shardio.set_schema(URL, {})":
        "tests/lifecycle/test_schema.py::test_an_append_takes_no_feature_from_readers",
    "move=True moves it; or choose another name":
        "tests/lifecycle/test_history.py::test_tags_that_there_are",
    "look at `shardio.tags(url)`, then remove it again":
        "tests/lifecycle/test_history.py::test_a_tag_and_gc_race",
    "restore a later one":
        "tests/lifecycle/test_history.py::test_a_restore_follows_an_append_and_is_refused_where_its_version_expires",
    "look at what came in between (`shardio log`), then do it again":
        "tests/lifecycle/test_history.py::test_a_split_is_renamed",
    "they were compacted, erased or overwritten (`shardio log`): look the records up in the latest version, "
    "and delete them there":
        "tests/lifecycle/test_delete.py::test_records_whose_shards_are_gone_are_refused",
    "leave them out; positions of the latest version name what is still there":
        "tests/lifecycle/test_delete.py::test_positions_of_an_earlier_version_are_the_records_of_that_version",
    "it may have been out of memory; run it again, what is done is kept":
        "tests/indexer/test_adopt.py::test_a_lost_worker_costs_its_shards_only",
    "if it may be read but not listed, give the files by name, or their URLs in a file: @list.txt":
        "tests/indexer/test_buckets.py::test_a_bucket_that_may_not_be_listed",
    "adopt it again when it is no longer being written":
        "tests/indexer/test_adopt.py::test_a_shard_that_changes_while_it_is_read",
    "check the address, the credentials, and that they may list this prefix (s3:ListBucket); "
    "or name the version to open":
        "tests/storage/test_unreachable.py::test_what_may_not_be_listed_is_forbidden_when_absent",
    "check the address; if there is a dataset, name the version to open":
        "tests/reader/test_object_stores.py::test_a_web_server_serves_a_dataset",
    "nothing was deleted; look with `shardio log`, and run a named session again to finish it":
        "tests/promises/test_p02_once.py::test_a_named_session_is_run_again_until_it_is_known",
    "`shardio repair` restores them from a copy (--mirror), or makes one of what is left; "
    "removing {} gives up what is lost":
        "tests/catalog/test_versions.py::test_a_hint_beyond_every_manifest_means_that_manifests_are_gone",
    "`shardio repair` restores them from a copy (--mirror), or makes one of what is left; "
    "version={} reads what is left, and removing {} gives up what is lost":
        "tests/catalog/test_versions.py::test_a_hint_beyond_every_manifest_means_that_manifests_are_gone",
    "write larger shards (shard_bytes=), or give the records to more tasks":
        "tests/catalog/test_sessions.py::test_a_receipt_that_no_commit_would_take_is_refused",
    "open one split, or with decode=False for payloads":
        "tests/indexer/test_adopt.py::test_a_split_holds_records_of_one_kind",
    "it was cut or changed: `shardio repair` copies it (--mirror) or salvages its records":
        "tests/promises/test_p23_repair.py::test_everything_comes_back_from_a_mirror",
    "no record would be left: check that the data is where it was, or name a mirror":
        "tests/promises/test_p23_repair.py::test_a_folder_that_is_not_mounted",
    "{}, or open an earlier version":
        "tests/promises/test_p23_repair.py::test_lists_without_a_copy_stay_lost_and_say_so",
    'leave it with uncertain="leave"':
        "tests/promises/test_p23_repair.py::test_sessions_whose_schemas_do_not_fit",
    "repair the dataset where it can be written, or a copy of it":
        "tests/promises/test_p23_repair.py::test_a_place_that_cannot_be_written",
    '{}; name a mirror, or choose: uncertain="leave" goes back to that version, '
    'uncertain="take" adds what may have been in it':
        "tests/promises/test_p23_repair.py::test_the_latest_manifest_is_gone",
    '{}; name a mirror, or choose: uncertain="take" adds what may have been in it':
        "tests/promises/test_p23_repair.py::test_all_manifests_are_gone",
    "make it again from the shard: `shardio adopt URL --update`, URL being the shard's":
        "tests/promises/test_p23_repair.py::test_adopted_shards_are_left_alone",
    "{}; {}":
        "tests/promises/test_p23_repair.py::test_a_damaged_manifest_without_a_copy",
    "it may have been out of memory; run it again":
        "tests/promises/test_p23_repair.py::test_processes",
    "name a copy of this dataset as mirror":
        "tests/promises/test_p23_repair.py::test_bad_input",
    "name a copy of the whole dataset as mirror":
        "tests/promises/test_p23_repair.py::test_bad_input",
    "nothing left here proves that the mirror's manifest of version {} is the one that was here: if "
    "it is, give digest={}":
        "tests/promises/test_p23_repair.py::test_a_mirror_that_went_another_way",
    "the mirror's manifest of this version is another one":
        "tests/promises/test_p23_repair.py::test_a_manifest_of_the_mirror_that_is_another",
    "others wrote this shard, so repair leaves it alone: get it from its source again, then `shardio"
    ' adopt URL --update`; readers with on_error="skip" leave the damage out':
        "tests/promises/test_p23_repair.py::test_adopted_shards_are_left_alone",
    "the mirror does not have these bytes; name another copy of the dataset":
        "tests/promises/test_p23_repair.py::test_lists_without_a_copy_stay_lost_and_say_so",
    "check the address; a single shard is salvaged with `shardio adopt --salvage`":
        "tests/promises/test_p23_repair.py::test_a_single_shard_is_salvaged_by_adoption",
}  # fmt: skip
OUTSIDE = {
    "prepare it with tfds in its default format, tfrecord": "TensorFlow Datasets is not installed here",
    "nothing was changed; run it again, with fewer workers if memory was short": "a lost worker",
    "do not run it at the same time": "needs garbage collection between all steps, three times",
    "change the dataset where it can be written, or a copy of it": "a fact of the place",
    "delete in parts, with `shardio compact` between them, which leaves out what is deleted": "takes a "
    "shard of 2^24 rows",
    "write larger shards": "needs more shards than fit a run of a key index",
    "DALI makes an index of its own where there is none": "DALI is not installed here",
    "run it again": "needs a race that random names lose",
    "try again": "an environment that fails",
    "try again with fewer writers": "a thousand lost races",
    "only the types of caffe2's TensorProto can be read": "a fact, not a step",
    "a newer program wrote it": "a fact, not a step",
    "json holds lists by itself": "a fact, not a step",
    "upgrade shardio to read it": "there is no newer one",
    "a newer shardio wrote it: upgrade": "there is no newer one",
    "check that the records are of this kind": "to be looked at by the user",
    "the dataset was replaced, or the pin is of another version": "a fact, not a step",
    "the latest is version {}": "a fact, not a step",
    "cut the records into several shards: an index holds 4 or 8 bytes for each": "a shard of 2^28 records",
    "store several lists, or raise `shards` or `items` of the limits if you trust it": "2^21 shards",
    "store several lists": "one shard whose entry is over the limit of a list; longer lists are cut",
    "write larger shards, less free metadata or fewer splits; or begin another dataset": "takes a manifest "
    "over its limit, of a million shards",
    "declare the feature as bfloat16, or convert the array": "ml_dtypes is not installed here",
}


def follows(*advice: str):
    """Enter a test as what follows these pieces of advice."""

    def enter(function: Callable[[Path], None]) -> Callable[[Path], None]:
        for text in advice:
            FOLLOWED[text] = function
        return function

    return enter


def refused(path: Path | str, **options) -> str:
    """Return the advice that the one shard is refused with, as a shell shows it."""
    (refusal,) = shardio_indexer.adopt(path, **options).refused
    return in_flags(str(refusal.error.advice), all_commands()["adopt"].params)


def raised(error: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value.advice) if isinstance(caught.value, ShardioError) else str(caught.value)


def lines_of(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@follows(
    "correct the line, leave it out with salvage=True, or take lines as text with "
    'scan=shardio_indexer.ScanOptions(format="text")'
)
def mend_a_line(tmp: Path) -> None:
    path = lines_of(tmp / "x.jsonl", b"1\nx\n")
    assert "--salvage" in refused(path)
    assert index([str(path), "--format", "text", "--into", str(tmp / "text")]) == 0
    assert index([str(path), "--salvage"]) == 0
    path.write_bytes(b"1\n2\n")
    assert index([str(path), "--update"]) == 0
    assert list(shardio.open(tmp)) == [{"value": 1}, {"value": 2}]


@follows(
    'let records lack it: shardio schema set URL --feature \'{}={"type": "{}", "optional": true}\'',
    "take whatever the key holds, by adopting the shards again with schema={}",
)
def keys_of_lines(tmp: Path) -> None:
    """A look at some records said too much."""
    lines = [{"n": 1, "x": 1}] * 20_000
    lines[85], lines[86] = {"n": 1}, {"n": "wren", "x": 1}
    path = lines_of(tmp / "x.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    shardio_indexer.adopt(path)
    advice = raised(SchemaError, lambda: shardio.open(tmp)[85])
    (optional,) = re.findall("--feature '(.*)'", advice)
    assert main(["schema", "set", str(tmp), "--feature", optional]) == 0
    advice = raised(SchemaError, lambda: shardio.open(tmp)[86])
    (schema,) = re.findall("schema=(.*)", advice)
    shardio_indexer.adopt(path, schema=json.loads(schema))
    assert list(shardio.open(tmp))[85:87] == [{"n": 1, "x": None}, {"n": "wren", "x": 1}]


@follows('declare lines to be bytes with schema={"line": "bytes"}, or leave it out with salvage=True')
def lines_as_bytes(tmp: Path) -> None:
    path = lines_of(tmp / "x.txt", b"a\n\xe9\n")
    (typed,) = re.findall(r"with (--type \S+),", refused(path))
    assert index([str(path), "--salvage", "--into", str(tmp / "a")]) == 0
    assert index([str(path), *typed.split()]) == 0
    assert list(shardio.open(tmp)) == [b"a", b"\xe9"]


@follows("rewrite it as UTF-8, with `iconv -f {} -t UTF-8`, and adopt that")
def iconv(tmp: Path) -> None:
    path = lines_of(tmp / "x.jsonl", '{"a": "é"}\n'.encode("utf-16"))
    (command,) = re.findall("`(.*)`", refused(path))
    if shutil.which("iconv"):
        text = subprocess.run([*command.split(), str(path)], capture_output=True, check=True).stdout
        lines_of(tmp / "y.jsonl", text)
        assert index([str(tmp / "y.jsonl"), "--into", str(tmp)]) == 0
        assert list(shardio.open(tmp)) == [{"a": "é"}]


@follows("copy the records into a dataset with `shardio convert`")
def convert_instead(tmp: Path) -> None:
    path = lines_of(tmp / "x.jsonl", b'{"a": 1}\n\n' * 100)
    with mock.patch.object(_lines, "_MOST_GAPS", 99):  # the real limit: test_the_number_of_gaps_is_bounded
        assert "shardio convert" in refused(path)
    assert main(["convert", str(path), str(tmp / "new"), "--quiet"]) == 0
    assert len(shardio.open(tmp / "new")) == 100


@follows(
    "make each kind a dataset of its own, with into=; or adopt all of them with schema=False, "
    "which leaves records bytes, text or members of samples",
    "give it a split of its own with split=, or a dataset of its own with into=",
)
def kinds(tmp: Path) -> None:
    (tmp / "in").mkdir()
    lines_of(tmp / "in" / "a.jsonl", b"1\n")
    lines_of(tmp / "in" / "b.tfrecord", tfrecord([codecs.encode_example({"n": 1})]))
    splits = ["--split", "lines=*.jsonl", "--split", "train=*.tfrecord"]
    assert index([str(tmp / "in"), *splits]) == 1
    for name in ("a.jsonl", "b.tfrecord"):
        assert index([str(tmp / "in" / name), "--into", str(tmp / f"into-{name}")]) == 0
    assert index([str(tmp / "in"), *splits, "--no-schema"]) == 0
    (tmp / "c").mkdir()
    lines_of(tmp / "c" / "a.txt", b"1\n")
    lines_of(tmp / "c" / "b.tfrecord", tfrecord([b"x", b"y"]))
    assert "--split" in refused(f"{tmp}/c/*")
    assert index([f"{tmp}/c/*", "--split", "other=*.tfrecord", "--split", "train=*"]) == 0


@follows('give each split a pattern, such as split={"train": "*train*"}')
def no_split(tmp: Path) -> None:
    lines_of(tmp / "test-0.tfrecord", tfrecord([b"x"]))
    # It may be a shard by its name, and turns out to be one.
    lines_of(tmp / "birds-00000-of-00001", tfrecord([b"y"]))
    assert index([str(tmp)]) == 1
    assert index([str(tmp), "--split", "test=test*", "--split", "train=*"]) == 0


@follows("adopt them as a dataset of their own, with into=")
def another_kind(tmp: Path) -> None:
    (tmp / "in").mkdir()
    lines_of(tmp / "in" / "a.tfrecord", tfrecord([codecs.encode_example({"n": 1})]))
    assert index([str(tmp / "in")]) == 0
    lines_of(tmp / "in" / "b.tar", tar([("a.n", b"1")]))
    assert index([f"{tmp}/in/*.tar", "--split", "val"]) == 1
    assert index([f"{tmp}/in/*.tar", "--split", "val", "--into", str(tmp / "into")]) == 0


@follows("give another schema, or adopt them as a dataset of their own, with into=")
def another_schema(tmp: Path) -> None:
    (tmp / "in").mkdir()
    path = lines_of(tmp / "in" / "a.tfrecord", tfrecord([codecs.encode_example({"n": 1})]))
    assert index([str(path), "--schema", '{"m": "int64"}']) == 1
    assert index([str(path), "--schema", '{"n": "int64"}']) == 0
    path = lines_of(tmp / "in" / "b.tfrecord", tfrecord([codecs.encode_example({"m": 1})]))
    assert index([str(path)]) == 1
    assert index([str(path), "--into", str(tmp / "into")]) == 0


@follows("give another schema, or correct the line and adopt the file again")
def lines_of_another_schema(tmp: Path) -> None:
    path = lines_of(tmp / "a.txt", b"1\nx\n")
    assert index([str(path)]) == 0
    assert index([str(path), "--schema", '{"n": "json"}']) == 1
    assert index([str(path), "--schema", '{"n": "bytes"}']) == 0
    path.write_bytes(b"1\n2\n")
    assert index([str(path), "--schema", '{"n": "json"}', "--update"]) == 0
    assert list(shardio.open(tmp)) == [1, 2]


@follows("leave out schema=False", "write them again with a schema into a dataset of their own")
def own_records(tmp: Path) -> None:
    lines_of(tmp / "x.tfrecord", tfrecord([codecs.encode_example({"n": 1})]))
    with shardio.DatasetWriter(tmp / "own", schema={"n": "int64"}) as out:
        out.write({"n": 1})
    assert index([str(tmp / "x.tfrecord"), "--into", str(tmp / "own"), "--no-schema"]) == 1
    assert index([str(tmp / "x.tfrecord"), "--into", str(tmp / "own")]) == 0
    with shardio.DatasetWriter(tmp / "raw") as out:
        out.write(codecs.encode_example({"n": 1}))
    schema = ["--schema", '{"n": "int64"}']
    assert index([str(tmp / "x.tfrecord"), "--into", str(tmp / "raw"), *schema]) == 1
    shardio.write_dataset(
        str(tmp / "new"), list(shardio.open(tmp / "raw")), _as_value, schema={"n": "int64"}, workers=1
    )
    assert index([str(tmp / "x.tfrecord"), "--into", str(tmp / "new"), *schema]) == 0


def _as_value(payload: bytes):
    yield {"n": codecs.decode_example(payload)["n"][0]}


@follows("check the address, or name the files with a pattern", "check the address; quote it for the shell")
def patterns(tmp: Path) -> None:
    (tmp / "empty").mkdir()
    assert "pattern" in raised(shardio.errors.NotFoundError, lambda: shardio_indexer.adopt(tmp / "empty"))
    lines_of(tmp / "empty" / "x", tfrecord([b"a"]))
    assert index([f"{tmp}/empty/y*"]) == 3
    assert index([f"{tmp}/empty/*"]) == 0


@follows(
    'name its format, such as scan=shardio_indexer.ScanOptions(format="text"), or leave it out',
    'name its format, one of {}: scan=shardio_indexer.ScanOptions(format="tfrecord")',
)
def formats(tmp: Path) -> None:
    (tmp / "in").mkdir()
    lines_of(tmp / "in" / "x", b"hello\n")
    (choices,) = re.findall(r"one of (.*): --format tfrecord", refused(tmp / "in" / "x"))
    assert "text" in choices.split(", ")
    assert index([str(tmp / "in" / "x"), "--format", "text"]) == 0
    lines_of(tmp / "in" / "y.tfrecord", b"hello, this is a text\n")
    assert "--format" in refused(tmp / "in" / "y.tfrecord", into=tmp / "b")
    assert index([str(tmp / "in" / "y.tfrecord"), "--format", "text", "--into", str(tmp / "c")]) == 0


@follows(
    "fetch it again, or leave the last sample out with salvage=True",
    "leave the sample out with salvage=True",
    "other programs stop at the end mark; continue behind it with salvage=True",
    "if the file is not a tar file, name its format; else fetch it again, or use salvage=True",
)
def tars(tmp: Path) -> None:
    whole = tar([("a.txt", b"1"), ("b.txt", b"2")])
    damaged = bytearray(whole)
    damaged[1024 + 2] ^= 1  # the second member's name
    twice = tar([("a.txt", b"1"), ("a.txt", b"2"), ("b.txt", b"3")])
    for name, data in (
        ("cut", whole[:1030]),
        ("twice", twice),
        ("behind", whole + b"x"),
        ("bad", bytes(damaged)),
    ):
        path = lines_of(tmp / f"{name}.tar", data)
        assert "--salvage" in refused(path, into=tmp / f"a-{name}"), name
        assert index([str(path), "--into", str(tmp / f"b-{name}"), "--salvage"]) == 0, name


@follows(
    "fetch the file again, or index around the damage with salvage=True",
    "fetch the file again, or leave the rest out with salvage=True",
    "fetch it again, or index what decodes with salvage=True",
)
def tfrecords(tmp: Path) -> None:
    whole = tfrecord([b"one", b"two", b"three"])
    damaged = bytearray(whole)
    damaged[13] ^= 1
    packed = gzip.compress(tfrecord([b"%d" % n * 100 for n in range(99)]))[:-40]
    for name, data in (("a.tfrecord", bytes(damaged)), ("b.tfrecord", whole[:-3]), ("c.tfrecord.gz", packed)):
        path = lines_of(tmp / name, data)
        assert "--salvage" in refused(path, into=tmp / f"a-{name}")
        assert index([str(path), "--into", str(tmp / f"b-{name}"), "--salvage"]) == 0


@follows('TensorFlow does not read it; adopt it with scan=shardio_indexer.ScanOptions(record_crc="crc32")')
def other_checksums(tmp: Path) -> None:
    import zlib

    path = lines_of(tmp / "a.tfrecord", tfrecord([b"a"], zlib.crc32))
    (flag,) = re.findall(r"adopt it with (.*)", refused(path))
    assert index([str(path), *flag.split()]) == 0


@follows(
    "index without use_index=True, or with salvage=True, which leaves them out, too",
    "it belongs to another file, or the file is damaged: index it without use_index=True",
    "it belongs to another file: index without use_index=True",
    "it belongs to another file: make it again, or index the file without use_index=True",
)
def given_indexes(tmp: Path) -> None:
    for name, text in (
        ("longer", "0 17\n17 17\n34 17\n"),
        ("shorter", "0 17\n"),
        ("other", "0 18\n18 16\n"),
        ("hole", "17 17\n"),
    ):
        path = lines_of(tmp / f"{name}.tfrecord", tfrecord([b"a", b"b"]))
        lines_of(tmp / f"{name}.tfrecord.idx", text.encode())
        assert index([str(path), "--use-index", "--into", str(tmp / f"a-{name}")]) == 1, name
        assert index([str(path), "--into", str(tmp / f"b-{name}")]) == 0, name


@follows(
    "make plain TFRECORD files of it with `shardio export URL TARGET --kind tfrecord`, and adopt those",
    "remove it, or put the indexes elsewhere with into=",
)
def dali(tmp: Path) -> None:
    with shardio.DatasetWriter(tmp / "ds", compression="zstd") as out:
        out.write(b"x")
    assert index([str(tmp / "ds"), "--export", "dali"]) == 1
    assert main(["export", str(tmp / "ds"), str(tmp / "plain"), "--kind", "tfrecord", "--quiet"]) == 0
    assert index([str(tmp / "plain")]) == 0
    (shard,) = (path for path in (tmp / "plain").rglob("*tfrecord*") if path.suffix != ".shardidx")
    other = lines_of(shard.with_name(shard.name + ".idx"), b"mine")
    assert index([str(tmp / "plain"), "--export", "dali"]) == 3
    assert index([str(tmp / "plain"), "--export", "dali", "--into", str(tmp / "into")]) == 0
    other.unlink()
    assert index([str(tmp / "plain"), "--export", "dali"]) == 0


@follows(
    "`shardio repair` makes the index again; that of an adopted shard, `shardio adopt URL --update`",
    "index it again with `shardio adopt URL --update`",
)
def indexes(tmp: Path) -> None:
    shard = lines_of(tmp / "x.tfrecord", tfrecord([b"%d" % n for n in range(5000)]))
    sidecar = tmp / "x.tfrecord.shardidx"
    assert index([str(tmp)]) == 0
    whole = sidecar.read_bytes()

    def damage(data: bytes | None) -> None:
        before = set(tmp.glob("*.shardidx"))
        newest = max(before, key=lambda path: (path != sidecar, path.stat().st_mtime_ns))
        newest.unlink()
        if data is not None:
            newest.write_bytes(data)

    for data in (
        None,
        b"",
        whole[:-9],
        whole[:200],
        whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
        whole[:-5000] + bytes([whole[-5000] ^ 1]) + whole[-4999:],
    ):
        damage(data)
        assert main(["verify", str(tmp)]) == 1
        assert main(["index", str(tmp), "--update"]) == 0
        assert main(["verify", str(tmp)]) == 0
        assert shardio.open(tmp)[4999] == b"4999"
    shard.write_bytes(tfrecord([b"a", b"b"]))
    assert "--update" in raised(shardio.errors.StaleIndexError, lambda: list(shardio.open(tmp)))
    assert main(["index", str(tmp), "--update"]) == 0
    assert list(shardio.open(tmp)) == [b"a", b"b"]


@follows(
    "`shardio repair` makes the index again; that of an adopted shard, `shardio adopt URL --update`",
    "open the dataset again, which finds the latest version; a version that has a tag (`shardio tag`) does "
    "not expire",
)
def indexes_that_are_gone(tmp: Path) -> None:
    for n, mode in enumerate(("create", "overwrite")):
        with shardio.DatasetWriter(tmp / "d", mode=mode) as out:
            out.write(b"%d" % n)
        if mode == "create":
            earlier = shardio.open(tmp / "d")
    shardio.gc(tmp / "d", keep=1, dry_run=False)
    assert "open the dataset again" in raised(shardio.errors.NotFoundError, lambda: list(earlier))
    assert list(shardio.open(tmp / "d")) == [b"1"]
    shardio.tag(tmp / "d", "kept")
    kept = shardio.open(tmp / "d", version="kept")
    with shardio.DatasetWriter(tmp / "d", mode="overwrite") as out:
        out.write(b"1")
    shardio.gc(tmp / "d", keep=1, dry_run=False)
    assert list(kept) == [b"1"]
    shardio.untag(tmp / "d", "kept")
    shardio.gc(tmp / "d", keep=1, dry_run=False)
    (usual,) = (tmp / "d").rglob("*.shardidx")
    usual.unlink()
    gone = raised(shardio.errors.NotFoundError, lambda: list(shardio.open(tmp / "d")))
    assert gone.startswith("`shardio repair` makes the index again")
    assert main(["repair", str(tmp / "d"), "--yes"]) == 0
    assert list(shardio.open(tmp / "d")) == [b"1"]
    (tmp / "others").mkdir()
    lines_of(tmp / "others" / "x.tfrecord", tfrecord([b"x"]))
    assert index([str(tmp / "others")]) == 0
    (theirs,) = (tmp / "others").glob("*.shardidx")
    theirs.unlink()
    assert gone == raised(shardio.errors.NotFoundError, lambda: list(shardio.open(tmp / "others")))
    assert index([str(tmp / "others"), "--update"]) == 0
    assert list(shardio.open(tmp / "others")) == [b"x"]


@follows(
    "`shardio repair --mirror` restores it from a copy of the dataset",
    "see that it is where it was, or take it out of the dataset with `shardio adopt URL --drop-missing`",
)
def shards_that_are_gone(tmp: Path) -> None:
    for n, mode in enumerate(("create", "overwrite")):
        with shardio.DatasetWriter(tmp / "d", mode=mode) as out:
            out.write(b"%d" % n)
    copy = shutil.copytree(tmp / "d", tmp / "copy")
    for shard in (tmp / "d").rglob("*.tfrecord"):
        shard.unlink()
    own = raised(shardio.errors.NotFoundError, lambda: list(shardio.open(tmp / "d")))
    assert own.startswith("`shardio repair --mirror` restores it")
    assert main(["repair", str(tmp / "d"), "--mirror", str(copy), "--yes"]) == 0
    assert list(shardio.open(tmp / "d")) == [b"1"]
    (tmp / "others").mkdir()
    for name in ("x", "y"):
        lines_of(tmp / "others" / f"{name}.tfrecord", tfrecord([name.encode()]))
    assert index([str(tmp / "others")]) == 0
    (tmp / "others" / "x.tfrecord").unlink()
    theirs = raised(shardio.errors.NotFoundError, lambda: list(shardio.open(tmp / "others")))
    assert theirs.endswith("with `shardio adopt URL --drop-missing`")
    assert index([str(tmp / "others"), "--drop-missing"]) == 0
    assert list(shardio.open(tmp / "others")) == [b"y"]


@follows(
    "check the address; TFRecord files without a dataset around them are adopted with `shardio adopt`",
    "open the folder of the dataset that holds it; where there is none, `shardio adopt {}` makes one, and "
    "`shardio head` reads a file by itself",
)
def no_dataset(tmp: Path) -> None:
    lines_of(tmp / "x.tfrecord", tfrecord([b"a"]))
    assert "shardio adopt" in raised(shardio.errors.NotFoundError, lambda: shardio.open(tmp))
    assert main(["info", str(tmp)]) == 3
    advice = raised(shardio.errors.NotFoundError, lambda: shardio.open(tmp / "x.tfrecord"))
    assert f"`shardio adopt {tmp}`" in advice
    assert main(["head", str(tmp / "x.tfrecord")]) == 0
    assert main(["index", str(tmp)]) == 0
    assert list(shardio.open(tmp)) == [b"a"]
    assert main(["info", str(tmp)]) == 0


@follows("`shardio adopt {}` makes a dataset of them")
def folder_of_shards(tmp: Path) -> None:
    lines_of(tmp / "x.tfrecord-00000-of-00001", tfrecord([b"a"]))
    advice = raised(shardio.errors.NotFoundError, lambda: shardio.open(tmp))
    (command,) = re.findall(r"`shardio (.*?)`", advice)
    assert main(command.split()) == 0
    assert list(shardio.open(tmp)) == [b"a"]


@follows(
    "`shardio convert {} NEW` makes a dataset of it",
    "check the address; `shardio convert {} NEW` makes a dataset of other formats",
)
def other_files(tmp: Path) -> None:
    (tmp / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), tmp / "in" / "x.parquet")
    for number, source in enumerate((tmp / "in" / "x.parquet", tmp / "in")):
        advice = raised(shardio.errors.NotFoundError, functools.partial(shardio.open, source))
        (command,) = re.findall(r"`shardio (.*?)`", advice)
        new = tmp / f"new{number}"
        assert main(command.replace("NEW", str(new)).split()) == 0
        assert [value["n"] for value in shardio.open(new)] == [1, 2]


@follows(
    "when its tasks have ended, shardio.commit({}, session={}, tasks=N) makes the dataset; N is how many "
    "they are"
)
def session_under_way(tmp: Path) -> None:
    url = str(tmp / "ds")
    with shardio.DatasetWriter(url, schema={"n": "int64"}, session="r1", task=0, commit=False) as out:
        out.write({"n": 1})
    advice = raised(shardio.errors.NotFoundError, lambda: shardio.open(url))
    (call,) = re.findall(r"shardio\.commit\(.*?\)", advice)
    eval(call.replace("N", "1"))
    assert shardio.open(url)[0]["n"] == 1


@follows("if you trust it, open with allow_roots={{}: {}}, storage_options as value")
def roots(tmp: Path) -> None:
    lines_of(tmp / "x.tfrecord", tfrecord([b"a"]))
    assert index([str(tmp / "x.tfrecord"), "--into", str(tmp / "into")]) == 0
    advice = raised(shardio.errors.StorageError, lambda: shardio.open(tmp / "into"))
    (given,) = re.findall(r"allow_roots=(\{.*?\}\})", advice)
    assert list(shardio.open(tmp / "into", allow_roots=eval(given))) == [b"a"]


@follows("only .npy members hold arrays; declare it as text or bytes")
def samples(tmp: Path) -> None:
    lines_of(tmp / "x.tar", tar([("a.cls", b"1 2"), ("b.txt", b"3")]))
    assert index([str(tmp), "--schema", '{"cls": "bytes"}']) == 1
    assert index([str(tmp), "--schema", '{"cls": {"type": "int64[2]", "optional": true}}']) == 1
    assert index([str(tmp), "--schema", '{"cls": {"type": "text", "optional": true}}']) == 0
    assert [value["cls"] for value in shardio.open(tmp)] == ["1 2", None]


@follows("declare it as bytes in the schema, or open with decode=False")
def members_that_are_no_text(tmp: Path) -> None:
    content = [(f"{n}.txt", b"a") for n in range(3000)]
    content[1501] = ("1501.txt", b"\xe9")
    lines_of(tmp / "x.tar", tar(content))
    assert index([str(tmp), "--schema", '{"txt": "text"}']) == 0
    assert "decode=False" in raised(ShardioError, lambda: shardio.open(tmp)[1501])
    assert shardio.open(tmp, decode=False)[1501]
    assert index([str(tmp), "--schema", '{"txt": "bytes"}']) == 0
    assert shardio.open(tmp)[1501]["txt"] == b"\xe9"


@follows(
    "list a feature for each tensor in the schema, in their order",
    "write the record again, with a name for each tensor",
    "write the record again, with a name of its own for each tensor",
)
def tensors(tmp: Path) -> None:
    def protos(*names: str) -> bytes:
        message = tensor_pb2.TensorProtos()
        for name in names:
            proto = message.protos.add()
            proto.CopyFrom(
                tensor_pb2.TensorProtos.FromString(codecs.encode_tensors({"a": np.int64(1)})).protos[0]
            )
            proto.name = name
        return message.SerializeToString()

    one, two = {"a": "int64"}, {"a": "int64", "b": "int64"}
    for number, (bad, given, good, wanted) in enumerate(
        [
            (protos("", ""), one, protos("", ""), two),
            (protos("a", ""), two, protos("a", "b"), two),
            (protos("a", "a"), two, protos("a", "b"), two),
        ]
    ):
        wrong = codecs.record_codec(Schema.parse(given, encoding="tensors"))
        assert "tensor" in raised(SchemaError, functools.partial(wrong.decode, bad)), number
        right = codecs.record_codec(Schema.parse(wanted, encoding="tensors"))
        assert right.decode(good) == {"a": 1, "b": 1}


@follows("make the feature optional in the schema if it may be missing", "add it to the schema")
def features(tmp: Path) -> None:
    schema = {"a": "int64"}
    payload = codecs.encode_tensors({"b": np.int64(1)})
    (tmp / "in").mkdir()
    lines_of(tmp / "in" / "x.tfrecord", tfrecord([payload]))
    tensors = ["--encoding", "tensors"]
    assert index([str(tmp / "in"), "--schema", '{"a": "int64"}', *tensors]) == 1
    assert index([str(tmp / "in"), "--schema", '{"a": {"type": "int64", "optional": true}}', *tensors]) == 0
    assert list(shardio.open(tmp / "in")) == [{"a": None}]
    with shardio.DatasetWriter(tmp / "own", schema=schema) as out:
        assert "add it" in raised(shardio.errors.SchemaError, lambda: out.write({"a": 1, "b": 2}))
        out.write({"a": 1})
    with shardio.DatasetWriter(
        tmp / "own", schema={"a": "int64", "b": Feature("int64", optional=True)}, mode="append"
    ) as out:
        out.write({"a": 1, "b": 2})
    assert shardio.open(tmp / "own")[1]["b"] == 2


@follows(
    "give it a value, or make it optional in the schema",
    "write dicts by the schema, or open the writer without one to write bytes",
    "give the writer a schema to write anything but bytes",
    "decode bytes first, or declare the feature as bytes",
    "fill it first; a record has no mask",
    "give floats, or the bits as uint16",
    "at most one dimension, a list, is possible",
    "a file is given by pathlib.Path(name)",
    'leave the fourth channel out, image[:, :, :3] or image.convert("RGB"), or take png',
    "values from 0 to 1 become pixels by (image * 255).round().astype('uint8')",
    "values from 0 to 255 become pixels by image.astype('uint8')",
    "channels are the last axis of an image: image.transpose(1, 2, 0)",
    'declare the feature as "image", which takes files of every format',
    'declare the feature as "bytes" to store anything, or leave a missing image out',
)
def values(tmp: Path) -> None:
    import io

    from PIL import Image

    array = np.zeros((2, 2, 3), np.uint8)
    png = io.BytesIO()
    Image.fromarray(array).save(png, "png")
    wide, with_alpha = np.zeros((4, 5, 3), np.uint8), Image.new("RGBA", (3, 3))
    alpha, floats = np.zeros((2, 2, 4), np.uint8), np.ones((2, 2, 3), np.float32)
    path = tmp / "a.png"
    path.write_bytes(png.getvalue())
    masked = np.ma.masked_array([1, 2], [True, False])
    half = np.array([1.5], np.float32)
    good_and_bad: list[tuple[object, object, object, object]] = [
        ({"a": "int64"}, {}, {"a": Feature("int64", optional=True)}, {}),
        ({"a": "int64"}, {}, {"a": "int64"}, {"a": 1}),
        ({"a": "int64"}, b"x", None, b"x"),
        (None, {"a": 1}, {"a": "int64"}, {"a": 1}),
        ({"a": "text"}, {"a": b"x"}, {"a": "text"}, {"a": b"x".decode()}),
        ({"a": "text"}, {"a": b"x"}, {"a": "bytes"}, {"a": b"x"}),
        ({"a": "int64[2]"}, {"a": masked}, {"a": "int64[2]"}, {"a": masked.filled(0)}),
        ({"a": "bfloat16[1]"}, {"a": half.astype("f4").view("i4")}, {"a": "bfloat16[1]"}, {"a": half}),
        ({"a": "image"}, {"a": str(path)}, {"a": "image"}, {"a": path}),
        ({"a": "jpeg"}, {"a": array.astype("int64")}, {"a": "jpeg"}, {"a": array}),
        ({"a": "jpeg"}, {"a": wide.transpose(2, 0, 1)}, {"a": "jpeg"}, {"a": wide}),
        ({"a": "jpeg"}, {"a": with_alpha}, {"a": "jpeg"}, {"a": with_alpha.convert("RGB")}),
        ({"a": "jpeg"}, {"a": alpha}, {"a": "jpeg"}, {"a": alpha[:, :, :3]}),
        ({"a": "jpeg"}, {"a": alpha}, {"a": "png"}, {"a": alpha}),
        ({"a": "jpeg"}, {"a": floats}, {"a": "jpeg"}, {"a": (floats * 255).round().astype("uint8")}),
        ({"a": "jpeg"}, {"a": png.getvalue()}, {"a": "image"}, {"a": png.getvalue()}),
        ({"a": "jpeg"}, {"a": b"x"}, {"a": "bytes"}, {"a": b"x"}),
        ({"a": "image"}, {"a": b""}, {"a": Feature("image", optional=True)}, {}),
    ]
    for number, (bad_schema, bad, schema, good) in enumerate(good_and_bad):
        with shardio.DatasetWriter(tmp / f"{number}a", schema=bad_schema) as out:
            assert raised((ShardioError, TypeError), functools.partial(out.write, bad)) not in ("", "None")
        with shardio.DatasetWriter(tmp / f"{number}b", schema=schema) as out:
            out.write(good)
        assert len(shardio.open(tmp / f"{number}b")) == 1
    codec = codecs.record_codec(None)
    assert "give the writer" in raised(shardio.errors.SchemaError, lambda: codec.encode({"a": 1}))
    with pytest.raises(ValueError, match="at most one dimension"):
        Feature("text[2,2]")
    assert Feature("text[2]").shape == (2,)


@follows("cast it first, for example array.astype('float32')")
def tensors_of_tensorflow(tmp: Path) -> None:
    array = np.array(["2020-01-01"], "M8[D]")
    raised(shardio.errors.SchemaError, lambda: codecs.serialize_tensor(array))
    assert codecs.parse_tensor(codecs.serialize_tensor(array.astype("float32"))).shape == (1,)


@follows(
    'give the feature a default in the schema, e.g. Feature("float32", default=0.0), '
    "or choose the other features with features=[...]"
)
def missing_numbers(tmp: Path) -> None:
    schema = {"a": Feature("float32", optional=True), "b": "int64"}
    with shardio.DatasetWriter(tmp / "ds", schema=schema) as out:
        out.write({"b": 1})
    advice = raised(shardio.errors.SchemaError, lambda: shardio.open(tmp / "ds").read_batch([0]))
    (feature,) = re.findall(r"(Feature\(.*\)),", advice)
    assert shardio.open(tmp / "ds", features=["b"]).read_batch([0])["b"].tolist() == [1]
    with shardio.DatasetWriter(tmp / "ds", schema={**schema, "a": eval(feature)}, mode="append") as out:
        out.write({"b": 2})
    assert shardio.open(tmp / "ds").read_batch([0, 1])["a"].tolist() == [0.0, 0.0]


@follows("rename the file")
def names(tmp: Path) -> None:
    path = lines_of(tmp / "a\n.tfrecord", tfrecord([b"a"]))
    assert index([str(tmp)]) != 0
    path.rename(tmp / "a.tfrecord")
    assert index([str(tmp)]) == 0


@follows("check that the records are of this kind, and verify the shard")
def other_records(tmp: Path) -> None:
    lines_of(tmp / "x.tfrecord", tfrecord([b"\xff\xff"]))
    assert index([str(tmp), "--no-schema"]) == 0
    raised(shardio.errors.CorruptRecordError, lambda: codecs.decode_example(shardio.open(tmp)[0]))
    assert main(["verify", str(tmp)]) == 0


@follows("decode=True gives the file's bytes")
def images(tmp: Path) -> None:
    with shardio.DatasetWriter(tmp / "ds", schema={"a": "image"}) as out:
        out.write({"a": CUT})
    assert "decode=True" in raised(ShardioError, lambda: shardio.open(tmp / "ds", decode="image")[0])
    assert shardio.open(tmp / "ds", decode=True)[0] == {"a": CUT}


@follows("add the class at the end of classes=[...], or leave a missing label out of the record")
@follows("{}add the class at the end of classes=[...]")
def no_such_class(tmp: Path) -> None:
    label = Feature("int64", classes=["cat", "dog"])
    with shardio.DatasetWriter(tmp / "ds", schema={"label": label.replace(default=-1)}) as out:
        for bad in (2, "eel"):
            assert "at the end of classes" in raised(
                shardio.errors.SchemaError, lambda bad=bad: out.write({"label": bad})
            )
        out.write({})
    longer = label.replace(classes=["cat", "dog", "eel"], default=-1)
    with shardio.DatasetWriter(tmp / "ds", schema={"label": longer}, mode="append") as out:
        out.write({"label": "eel"})
    assert [int(value["label"]) for value in shardio.open(tmp / "ds")] == [-1, 2]


@follows("name the dataset's classes first, in its order, then new ones; `shardio info --json` lists them")
@follows("leave stored_name= out, or give the new feature another name")
def another_numbering(tmp: Path) -> None:
    def append(name: str = "label", mode: str = "append", **words: Any) -> None:
        schema = {name: Feature("int64", optional=name != "label", **words)}
        shardio.DatasetWriter(tmp / "ds", schema=schema, mode=mode).close()

    append(classes=["cat", "dog"], mode="create")
    assert "classes first" in raised(shardio.errors.SchemaError, lambda: append(classes=["dog", "eel"]))
    assert "stored_name= out" in raised(shardio.errors.SchemaError, lambda: append(stored_name="x"))
    assert main(["info", str(tmp / "ds"), "--json"]) == 0
    append(classes=["cat", "dog", "eel"])
    append()
    schema = shardio.open(tmp / "ds").schema
    assert schema is not None
    assert schema["label"].classes == ("cat", "dog", "eel")


@follows("give adopted shards one with `shardio adopt URL --schema`, or rewrite the records")
def no_schema_to_change(tmp: Path) -> None:
    (tmp / "a.tfrecord").write_bytes(tfrecord([codecs.encode_example({"a": 3})]))
    assert index([str(tmp), "--no-schema"]) == 0
    assert "--schema" in raised(
        shardio.errors.SchemaError, lambda: shardio.set_schema(tmp, {"b": Feature("int64", default=0)})
    )
    assert index([str(tmp), "--schema", '{"a": "int64"}']) == 0
    shardio.set_schema(tmp, {"b": Feature("int64", default=0)})
    assert shardio.open(tmp)[0] == {"a": 3, "b": 0}


@follows("join by a key with on=, or select the records that belong together on both sides")
@follows('leave them out with how="inner"')
@follows("leave such records out with ds.filter")
@follows("leave all but one out with ds.filter or ds.select")
@follows("write the keys as the same type on both sides")
def joining(tmp: Path) -> None:
    def written(name: str, *keys: Any, kind: str = "text") -> shardio.DatasetReader:
        schema = {"k": Feature(kind, optional=True), name: "int64"}
        with shardio.DatasetWriter(tmp / name, schema=schema) as out:
            for n, key in enumerate(keys):
                out.write({name: n} if key is None else {"k": key, name: n})
        return shardio.open(tmp / name)

    def fails(one: shardio.DatasetReader, other: shardio.DatasetReader, **options: Any) -> str:
        return raised(shardio.errors.SchemaError, lambda: shardio.join(one, other, **options))

    left, right = written("a", "x", "y", "z"), written("b", "z", "x", "z", None)
    assert "join by a key" in fails(left, right, rename={"k": "l"})
    assert len(shardio.join(left, right[:3], rename={"k": "l"})) == 3
    assert "ds.filter" in fails(left, right, on="k")
    right = right.filter(lambda columns: [key is not None for key in columns["k"]])
    assert "all but one" in fails(left, right, on="k")
    right = right.select([0, 1])
    assert 'how="inner"' in fails(left, right, on="k")
    assert [int(v["b"]) for v in shardio.join(left, right, on="k", how="inner")] == [1, 0]
    assert "same type" in fails(left, written("c", 1, kind="int64"), on="k")


@follows(
    "write one side again with the classes=[...] of the other (their names are taken as values), or join by "
    "position, without on="
)
def joining_by_class(tmp: Path) -> None:
    def written(name: str, *birds: str, classes: list[str], **options: Any) -> shardio.DatasetReader:
        schema = {"bird": Feature("int64", classes=classes), name: "text"}
        with shardio.DatasetWriter(tmp / name, schema=schema, **options) as out:
            for bird in birds:
                out.write({"bird": bird, name: bird})
        return shardio.open(tmp / name)

    left = written("a", "wren", "robin", classes=["wren", "robin"])
    right = written("b", "robin", "wren", classes=["robin", "wren"])
    advice = raised(shardio.errors.SchemaError, lambda: shardio.join(left, right, on="bird"))
    assert "classes=[...] of the other" in advice
    assert len(shardio.join(left, right, rename={"bird": "other"})) == 2
    right = written("b", "robin", "wren", classes=["wren", "robin"], mode="overwrite")
    assert [(v["a"], v["b"]) for v in shardio.join(left, right, on="bird")] == [("wren",) * 2, ("robin",) * 2]


@follows("write it as {}")
def a_name_of_before(tmp: Path) -> None:
    with shardio.DatasetWriter(tmp / "ds", schema={"a": "int64"}) as out:
        out.write({"a": 1})
    shardio.set_schema(tmp / "ds", rename={"a": "b"})

    def append(name: str) -> None:
        with shardio.DatasetWriter(tmp / "ds", schema={name: "int64"}, mode="append") as out:
            out.write({name: 2})

    assert "write it as 'b'" in raised(shardio.errors.SchemaError, lambda: append("a"))
    append("b")
    assert [int(value["b"]) for value in shardio.open(tmp / "ds")] == [1, 2]


@follows("write them again: a writer begins with the schema that the dataset has then")
def two_changes_of_a_schema(tmp: Path) -> None:
    with shardio.DatasetWriter(tmp / "ds", schema={"a": "int64"}) as out:
        out.write({"a": 1})

    def writer(default: int) -> shardio.DatasetWriter:
        schema = {"a": "int64", "b": Feature("int64", default=default)}
        return shardio.DatasetWriter(tmp / "ds", schema=schema, mode="append")

    one, other = writer(0), writer(1)
    one.write({"a": 2, "b": 3})
    other.write({"a": 4, "b": 5})
    one.close()
    assert "write them again" in raised(shardio.errors.SchemaError, other.close)
    with writer(1) as out:
        out.write({"a": 4, "b": 5})
    assert [int(value["b"]) for value in shardio.open(tmp / "ds")] == [1, 3, 5]


@follows("keep the feature as it was and add a new one under another name, or write a new dataset")
def evolution(tmp: Path) -> None:
    with shardio.DatasetWriter(tmp / "ds", schema={"a": "int64"}) as out:
        out.write({"a": 1})

    def append(url: Path, schema: dict[str, object], value: dict[str, object], mode: str = "append") -> None:
        with shardio.DatasetWriter(url, schema=schema, mode=mode) as out:
            out.write(value)

    assert "another name" in raised(
        shardio.errors.SchemaError, lambda: append(tmp / "ds", {"a": "text"}, {"a": "x"})
    )
    append(tmp / "ds", {"a": "int64", "b": Feature("text", optional=True)}, {"a": 2, "b": "x"})
    append(tmp / "new", {"a": "text"}, {"a": "x"}, "create")


@follows('use mode="append" or "overwrite"', "a session's id names one write: choose a new one")
def modes(tmp: Path) -> None:
    def write(mode: str, session: str, data: bytes) -> None:
        with shardio.DatasetWriter(tmp / "ds", mode=mode, session=session) as out:
            out.write(data)

    write("create", "one", b"1")
    advice = raised(shardio.errors.CommitConflictError, lambda: write("create", "two", b"2"))
    for number, mode in enumerate(re.findall('"(.*?)"', advice)):
        write(mode, f"more{number}", b"3")
    write("append", "three", b"4")
    assert Catalog(shardio.storage.connect(str(tmp / "ds"))).load().number == 4


@follows("look at what came in between (`shardio log`), then write again")
def overwritten_meanwhile(tmp: Path) -> None:
    url = str(tmp / "ds")

    def write(mode: str, data: bytes) -> shardio.DatasetWriter:
        out = shardio.DatasetWriter(url, mode=mode)
        out.write(data)
        return out

    write("create", b"1").close()
    late = write("overwrite", b"2")
    write("append", b"3").close()
    (command,) = re.findall("`(.*)`", raised(shardio.errors.CommitConflictError, late.close))
    assert main([*command.split()[1:], url]) == 0
    write("overwrite", b"2").close()
    assert list(shardio.open(url)) == [b"2"]


@follows("run these tasks (again), then commit")
def tasks(tmp: Path) -> None:
    def run(task: int) -> None:
        with shardio.DatasetWriter(tmp / "ds", session="s", task=task, commit=False) as out:
            out.write(b"%d" % task)

    def commit() -> None:
        shardio.commit(tmp / "ds", session="s", tasks=3)

    run(1)
    assert "commit" in raised(shardio.errors.NotFoundError, commit)
    for task in (0, 2):
        run(task)
    commit()
    assert list(shardio.open(tmp / "ds")) == [b"0", b"1", b"2"]


@follows("write them again under a new session", "write its records again under a new session")
def sessions_given_up(tmp: Path) -> None:
    with shardio.DatasetWriter(tmp / "ds") as out:
        out.write(b"1")
    given_up = [shardio.DatasetWriter(tmp / "ds", mode="append", session=name) for name in ("a", "b")]
    for out in given_up:
        for number in range(300):
            out.write(b"%0100d" % number)
    shardio.gc(tmp / "ds", abandon=["a", "b"], dry_run=False)
    assert "new session" in raised(shardio.errors.CommitConflictError, given_up[0].close)
    # The fence behind that: what was stored meanwhile was given up with the session.
    with mock.patch("shardio.catalog._merge._Merge._check_base"):
        given_up[1].close()
    with shardio.DatasetWriter(tmp / "ds", mode="append", session="c") as out:
        out.write(b"2")
    assert b"2" in list(shardio.open(tmp / "ds"))


def _with_damage(url: Path) -> Path:
    """Write 1,200 records and damage each; return the shard."""
    with shardio.DatasetWriter(url) as out:
        for _ in range(1200):
            out.write(b"wren")
    (shard,) = (path for path in (url / "data").iterdir() if path.suffix == ".tfrecord")
    data = bytearray(shard.read_bytes())
    for at in range(12, len(data), 20):
        data[at] ^= 1
    shard.chmod(0o600)
    shard.write_bytes(data)
    return shard


@follows(
    'on_error="skip" writes nothing',
    "`shardio verify` lists all of it; `shardio repair` takes it from a copy, or salvages the rest",
)
def skipping(tmp: Path) -> None:
    _with_damage(tmp / "ds")
    Path(QUARANTINE_FILE).mkdir()
    ds = shardio.open(tmp / "ds", on_error="quarantine")
    (option,) = re.findall('on_error="(.*)"', raised(ShardioError, lambda: list(ds)))
    ds = shardio.open(tmp / "ds", on_error=option)
    verify, repair = re.findall("`(.*?)`", raised(shardio.errors.FormatError, lambda: list(ds)))
    assert main([*verify.split()[1:], str(tmp / "ds")]) == 1
    # Without a copy nothing is left of this one; the next keeps half of its shards.
    assert main([*repair.split()[1:], str(tmp / "ds"), "--yes"]) == 1
    with shardio.DatasetWriter(tmp / "half", shards=2) as out:
        out.write_many([b"wren"] * 2000)
    next((tmp / "half" / "data").glob("*.tfrecord")).unlink()
    assert main([*repair.split()[1:], str(tmp / "half"), "--yes"]) == 0
    assert main([*verify.split()[1:], str(tmp / "half")]) == 0


@follows("`shardio verify --decode` lists all such records")
def values_that_do_not_decode(tmp: Path) -> None:
    with shardio.DatasetWriter(tmp / "ds", schema={"a": "text"}) as out:
        for text in (b"a", b"\xff", b"b", b"\xfe"):
            out.write_encoded(codecs.encode_example({"a": text}))
    (command,) = re.findall("`(.*?)`", raised(ShardioError, lambda: list(shardio.open(tmp / "ds"))))
    assert main([*command.split()[1:], str(tmp / "ds")]) == 1
    assert shardio.verify(tmp / "ds", decode=True).undecodable_records == 2


@follows("if you trust it, raise `messages` or `items` of the limits")
def many_messages(tmp: Path) -> None:
    for mode in ("create", "append", "append"):
        with shardio.DatasetWriter(tmp / "ds", mode=mode) as out:
            out.write(b"1")
    few = shardio.Limits(messages=2)
    assert "raise" in raised(ShardioError, lambda: shardio.open(tmp / "ds", limits=few))
    assert len(shardio.open(tmp / "ds", limits=dataclasses.replace(few, messages=100))) == 3


@pytest.mark.parametrize("follow", dict.fromkeys(FOLLOWED.values()), ids=lambda follow: follow.__name__)
def test_advice_is_followed_and_helps(tmp_path, monkeypatch, follow) -> None:
    monkeypatch.chdir(tmp_path)
    follow(tmp_path)


def test_every_piece_of_advice_has_a_row() -> None:
    """New advice needs a row; a row whose advice is gone goes, too."""
    found = inventory()
    rows = [*FOLLOWED, *ELSEWHERE, *OUTSIDE]
    assert {text: found[text] for text in found.keys() - set(rows)} == {}
    assert set(rows) - found.keys() == set()
    assert len(set(rows)) == len(rows), "a piece has one row"


def test_tests_that_follow_advice_elsewhere_are_there() -> None:
    for name in ELSEWHERE.values():
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(), name


def test_commands_and_flags_in_advice_are_there() -> None:
    """No message of any room names a command or a flag that the programs do not have."""
    done = subprocess.run(
        [sys.executable, "-m", "shardio", "--help"], capture_output=True, text=True, check=True
    )
    names = set(re.findall(r"^  ([a-z]+) ", done.stdout, re.MULTILINE))
    assert {"adopt", "verify"} <= names
    options = all_commands()["adopt"].params
    flags = {flag for option in options for flag in option.opts} | {"--kind"}
    said = inventory("shardio", "indexer")
    for text, path in {**said, **mistakes("shardio", "indexer")}.items():
        assert set(re.findall(r"`shardio ([a-z]+)", text)) <= names, (path, text)
    for text, path in said.items():
        if path.startswith("indexer"):
            shown = in_flags(text, options)
            assert set(re.findall(r"--[a-z-]+", shown)) <= flags, (path, shown)
            assert not re.search(r"\b[a-z_]+=[{\"TF,;]", shown), f"{path}: an argument of Python in {shown!r}"


def test_arguments_in_messages_are_there() -> None:
    """No message names an argument that nothing takes: an argument is renamed in its messages, too."""
    known = parameters("shardio", "indexer")
    said = {**inventory("shardio", "indexer"), **mistakes("shardio", "indexer")}
    assert len(mistakes("shardio", "indexer")) > 200
    for text, path in said.items():
        # `train=0.9` after a flag is what the caller types.
        unknown = set(re.findall(r"(?<![\w./-])([a-z][a-z_]*)=", text)) - known if "--" not in text else set()
        assert not unknown, f"{path}: {sorted(unknown)} in {text!r}"


def test_the_inventory_sees_advice(tmp_path) -> None:
    source = ROOT / "tests" / "advice.py"
    assert source.exists()
    advice = 'name its format, one of {}: scan=shardio_indexer.ScanOptions(format="tfrecord")'
    assert advice in inventory("indexer")
    assert json.dumps(sorted(inventory()))
