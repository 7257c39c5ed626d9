"""Reports have one shape: `to_dict` gives all fields by name, and JSON holds them."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import shardio
from shardio.reports import Report
from shardio_indexer import AdoptReport, adopt
from tests.suites.offered import offered


def test_every_report_is_of_one_base() -> None:
    rooms = ("catalog", "convert", "lifecycle", "maintenance", "packing", "parallel", "streaming")
    modules = [importlib.import_module(f"shardio.{room}") for room in rooms]
    public = [getattr(room, name) for room in modules for name in offered(room) if name.endswith("Report")]
    assert len(public) > 10
    assert [kind for kind in [*public, AdoptReport] if not issubclass(kind, Report)] == []


def test_reports_are_json_with_all_their_fields(tmp_path: Path) -> None:
    url = str(tmp_path / "birds")
    for mode in ("create", "append"):
        with shardio.DatasetWriter(url, schema={"id": "int64", "name": "text"}, mode=mode) as out:
            for n in range(10):
                out.write({"id": n, "name": f"bird {n}"})
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n', encoding="utf-8")
    (tmp_path / "bad.tfrecord").write_bytes(b"no record")
    ds = shardio.open(url)
    adopted = adopt([tmp_path / "lines.jsonl", tmp_path / "bad.tfrecord"], into=tmp_path / "adopted")
    reports: list[Any] = [
        shardio.verify(url),
        shardio.gc(url, keep=1),
        shardio.diff(url, 1, 2),
        shardio.delete(url, [3], dry_run=True),
        shardio.erase(url, [3], dry_run=True),
        shardio.compact(url, dry_run=True, workers=1),
        shardio.set_schema(url, {"note": shardio.Feature("text", default="")}, dry_run=True),
        shardio.repair(url, workers=1),
        shardio.build_keys(url, "id", workers=1),
        shardio.convert_dataset(tmp_path / "lines.jsonl", tmp_path / "converted", workers=1),
        shardio.export_dataset(url, tmp_path / "exported", kind="jsonl"),
        shardio.plan_report(ds, global_batch=5)[0],
        adopted,
    ]
    for report in reports:
        document = report.to_dict()
        assert json.loads(json.dumps(document, allow_nan=False)) == document, type(report)
        assert {each.name for each in dataclasses.fields(report)} <= document.keys()
    assert [each["kind"] for each in adopted.to_dict()["refused"]] == [
        type(adopted.refused[0].error).__name__
    ]
    assert adopted.to_dict()["schema"].keys() == {"a"}
