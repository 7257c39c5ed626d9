"""One law for all commands that change a dataset that is there, and those that compare its versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import shardio
import shardio.progress
from shardio.storage import BlockCache, CacheOptions
from tests.cli.conftest import Run
from tests.suites.commands import command_names

# What is typed behind the command, by the command: it has something to do in `dataset`.
CHANGES: dict[str, list[list[str]]] = {
    "delete": [["URL", "0", "--split", "test"], ["URL", "--split", "all", "--where", "n > 3"],
              ],
    "erase": [["URL", "0", "--split", "test", "--drop-tags"]],
    "restore": [["URL", "1"]],
    "tag": [["URL", "new"], ["URL", "old", "--move", "--version", "2"], ["URL", "old", "--delete"]],
    "split": [["URL", "test", "--remove"], ["URL", "test", "--rename", "holdout"]],
    "schema": [["set", "URL", "--feature", "n=-"]],
    "table": [["URL", "--features", "n", "--workers", "1"]],
    "keys": [["URL", "--feature", "n", "--workers", "1"]],
    "compact": [["URL", "--workers", "1"]],
    "repair": [["URL", "--workers", "1"]],
    "gc": [["URL", "--expire", "2"]],
}  # fmt: skip
LINES = [[name, *words] for name, several in CHANGES.items() for words in several]
# What makes something new, or empties a cache; `prepared` makes what they need.
ADDS: dict[str, list[str]] = {
    "convert": ["lines.jsonl", "made"],
    "pack": ["documents", "made", "--length", "4"],
    "export": ["documents", "made", "--kind", "jsonl"],
    "adopt": ["lines.jsonl", "--into", "made"],
    "commit": ["made", "--session", "s", "--tasks", "1"],
    "cache": ["clear", "cache"],
}
READS = {
    "info",
    "head",
    "get",
    "cat",
    "view",
    "plan",
    "bench",
    "audit",
    "verify",
    "log",
    "diff",
    "completion",
}
# Nothing changes before this is said, and --dry-run need not be.
TOLD = {"gc", "repair"}
# These look at each record or object, which takes long.
LONG = {"erase", "table", "keys", "compact", "repair", "gc"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small shards in three versions, the latest tagged."""
    url = tmp_path_factory.mktemp("changes") / "ds"
    for day in range(3):
        with shardio.DatasetWriter(url, {"n": "int64"}, mode="append") as out:
            for n in range(4):
                out.write({"n": 4 * day + n}, "test" if n == 2 else "train")
    shardio.tag(url, "old", 3)
    return url


def state(url: Path) -> dict[str, bytes]:
    return {str(path.relative_to(url)): path.read_bytes() for path in url.rglob("*") if path.is_file()}


def placed(line: list[str], url: Path) -> list[str]:
    return [str(url) if word == "URL" else word for word in line]


def test_every_command_that_changes_is_held_to_the_law() -> None:
    assert set(command_names()) - READS - set(ADDS) == set(CHANGES)


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of lines and a dataset of documents, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.jsonl").write_text('{"n": 1, "name": "wren"}\n' * 5)
    with shardio.DatasetWriter(tmp_path / "documents", {"tokens": "int32[?]"}) as out:
        for n in range(6):
            out.write({"tokens": range(n % 3 + 1)}, split="test" if n == 5 else "train")
    return tmp_path


@pytest.mark.parametrize("name", ADDS)
def test_what_would_be_made_is_foretold_and_made(run: Run, prepared: Path, name: str) -> None:
    """A dry run stores nothing, says so, and ends as the real one does; the real one then does its work."""
    if name == "commit":
        with shardio.DatasetWriter(prepared / "made", session="s", task=0, commit=False) as out:
            out.write(b"one")
    if name == "cache":
        block = CacheOptions(prepared / "cache", max_bytes=1 << 20)
        BlockCache(block).put("key", b"block")
    before = state(prepared)
    dry = run(name, *ADDS[name], "--dry-run", "--quiet")
    assert (dry.code, dry.err) == (0, "")
    assert "nothing was changed; without --dry-run it is done" in dry.out
    document = run(name, *ADDS[name], "--dry-run", "--json").document
    assert document["dry_run"] is True
    assert state(prepared) == before
    done = run(name, *ADDS[name], "--json")
    assert (done.code, done.document["dry_run"]) == (0, False), done
    assert state(prepared) != before
    same = {"convert": "schema", "pack": "records", "export": "records", "adopt": "shards"}.get(name)
    if same is not None:
        assert document[same] == done.document[same] != {}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["convert", "lines.jsonl", "documents"], "there is a dataset already"),
        (["pack", "documents", "documents", "--length", "4"], "there is a dataset already"),
        (["export", "documents", "documents", "--kind", "jsonl"], "there is something here already"),
        (
            ["export", "documents", "documents/plain", "--kind", "jsonl"],
            "within another dataset",
        ),
        (["export", "documents", "documents/_shardio/x", "--kind", "jsonl"], "holds the metadata of another"),
        (["commit", "documents", "--session", "s", "--tasks", "2"], "missing tasks 0-1"),
        (["adopt", "none/", "--into", "made"], "no such file or folder"),
    ],
)
def test_a_dry_run_refuses_what_the_real_one_would(
    run: Run, prepared: Path, words: list[str], found: str
) -> None:
    before = state(prepared)
    assert found in run(*words, "--dry-run").err
    dry, real = run(*words, "--dry-run", "--json"), run(*words, "--json")
    assert (dry.code, dry.err) == (real.code, real.err)
    assert dry.code == (2 if "metadata" in found else 3)
    assert state(prepared) == before


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_a_change_is_foretold_shown_and_made(
    run: Run, dataset: Path, tmp_path: Path, line: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run changes no byte; `--json` is one document; what takes long shows how far it is."""
    url = tmp_path / "ds"
    shutil.copytree(dataset, url)
    if line[0] == "repair":
        # An index that is gone is made again.
        next((url / "data").glob("*.shardidx")).unlink()
    words, before = placed(line, url), state(url)
    told = line[0] in TOLD
    for more in ([], ["--json"]):
        dry = run(*words, *([] if told else ["--dry-run"]), *more)
        assert dry.code == (1 if line[0] == "repair" else 0), dry.err  # there is damage to be repaired
        assert state(url) == before
    assert (dry.document["dry_run"], dry.err) == (True, "")
    shown = []
    monkeypatch.setattr(shardio.progress.Display, "__call__", lambda self, state: shown.append(state))
    done = run(*words, *(["--yes"] if told else []), "--json")
    assert (done.code, done.err, len(done.out.splitlines())) == (0, "", 1), done
    assert done.document["dry_run"] is False
    assert state(url) != before
    if line[0] in LONG or "--where" in line:
        assert shown, "no progress"
        assert (shown[-1].done, shown[-1].total > 0) == (shown[-1].total, True)


@pytest.mark.parametrize("line", [*LINES, ["diff", "URL", "1", "2"], ["log", "URL"]], ids=" ".join)
def test_errors_are_json_with_their_exit_code(run: Run, tmp_path: Path, line: list[str]) -> None:
    """Where there is no dataset it is 3, and usage is 2; stdout stays empty."""
    for words, code in ((placed(line, tmp_path / "none"), 3), ([*placed(line, tmp_path), "--no-such"], 2)):
        ended = run(*words, "--json")
        failure = json.loads(ended.err)
        assert (ended.code, failure["exit_code"], ended.out) == (code, code, ""), words
        assert {"error", "kind"} <= failure.keys()
        if code == 3:
            assert str(tmp_path / "none") in failure["error"]
    # As of a variable that is not set.
    ended = run(*("" if word == "URL" else word for word in line), "--json")
    assert (ended.code, "a URL must not be empty" in ended.err, ended.out) == (2, True, "")


@pytest.mark.parametrize("line", [["diff", "URL", "1", "2"], ["log", "URL"]], ids=" ".join)
def test_what_compares_versions_is_one_document(run: Run, dataset: Path, line: list[str]) -> None:
    ended = run(*placed(line, dataset), "--json")
    assert (ended.code, ended.err, len(ended.out.splitlines())) == (0, "", 1)
    assert isinstance(ended.document, dict)
