"""Run the laws of `laws.py` in one fresh prefix of a bucket, remove the prefix, and write a report.

    make cloud-test URL=s3://bucket/folder
    python -m tests.cloud gs://bucket/folder ["not Obstore"]

Credentials come from the environment, as for `shardio.open(URL)`. An expression of `pytest -k` chooses laws.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from shardio.storage import connect

ROOT = Path(__file__).parents[2]

# Counted by a proxy before moto, with both engines; list prices of the three clouds differ little.
REQUESTS = {"PUT, POST, LIST": (3000, 0.0055), "GET, HEAD": (4500, 0.0005)}  # and dollars a thousand
LAWS = Path(__file__).with_name("laws.py")


class Results:
    """What pytest says of each law."""

    def __init__(self) -> None:
        self.laws: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        law = self.laws.setdefault(name, {"outcome": "passed", "seconds": 0.0})
        law["seconds"] = round(law["seconds"] + report.duration, 2)
        if report.failed:
            law |= {"outcome": "failed", "why": report.longreprtext[-2000:]}


def revision() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no checkout"


def announce(url: str) -> None:
    """Say what it does and what that costs."""
    dollars = sum(count * price / 1000 for count, price in REQUESTS.values())
    counts = " and ".join(f"{count:,} {kind}" for kind, (count, _) in REQUESTS.items())
    print(f"All that is written is below {url}/, and removed at the end.")
    print(f"About {counts} requests and 10 MB: some {dollars:.2f} dollars at list prices, a few minutes.")


def clean(url: str) -> list[str]:
    """Remove all objects below a prefix, and uploads that were broken off; return what is still there."""
    store = connect(url, engine="fsspec")
    for each in list(store.list("")):
        store.delete(each.key)
    if not url.startswith("az:"):  # Azure removes those itself, after a week
        for each in list(store.list_temporaries()):
            store.delete(each.key)
    return [each.key for each in store.list("")]


def run(url: str, chosen: str = "") -> dict[str, Any]:
    """Run the laws below a URL; return the report."""
    prefix = f"{url.rstrip('/')}/shardio-cloud-test-{uuid.uuid4().hex[:12]}"
    announce(prefix)
    if sys.stdin.isatty() and input("Begin? [y/N] ").strip().lower() not in {"y", "yes"}:
        sys.exit("nothing was done")
    os.environ["SHARDIO_CLOUD_URL"] = prefix
    results, began = Results(), time.monotonic()
    arguments = [str(LAWS), "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "600"]
    try:
        pytest.main([*arguments, *(["-k", chosen] if chosen else [])], plugins=[results])
    finally:
        left = clean(prefix)
    outcomes = [law["outcome"] for law in results.laws.values()]
    packages = ("shardio", "fsspec", "s3fs", "gcsfs", "adlfs", "obstore")
    return {
        "scheme": url.partition(":")[0],
        "endpoint": os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("FSSPEC_GS_ENDPOINT_URL")
        or "default",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "revision": revision(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "seconds": round(time.monotonic() - began),
        "passed": outcomes.count("passed"),
        "failed": outcomes.count("failed"),
        "left behind": left,
        "laws": results.laws,
    }


def main(url: str, chosen: str = "") -> int:
    report = run(url, chosen)
    path = ROOT / ".build" / f"cloud-test-{report['scheme']}-{report['date']}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['passed']} passed, {report['failed']} failed, {len(report['left behind'])} objects left.")
    print(f"The report is {path}: please attach it to an issue, also if all passed.")
    return int(bool(report["failed"] or report["left behind"] or not report["passed"]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
