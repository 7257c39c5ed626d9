"""plan and audit: what a run will cost, and what was in a step of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fsspec
import pytest

import shardio
from tests.cli.conftest import Run, facts_in
from tests.streaming.datasets import write


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    return Path(write(tmp_path / "numbers", [70, 5, 125]))


def test_plan_prints_what_a_run_costs(run: Run, numbers: Path) -> None:
    ended = run("plan", numbers, "--global-batch", 8, "--ranks", 2)
    assert ended.code == 0, ended.err
    assert facts_in(ended.out) >= {("records", "200"), ("steps", "25"), ("shuffle radius", "200")}
    facts = run("plan", numbers, "--global-batch", 8, "--ranks", 2, "--json").document
    figures, advice = shardio.plan_report(shardio.open(numbers), global_batch=8, world_size=2)
    assert facts["advice"] == advice
    assert facts["memory_bytes"] == figures.memory_bytes
    assert facts["requests"] == figures.requests
    assert facts["plans"] == [
        plan.to_dict() for plan in shardio.stream(shardio.open(numbers), global_batch=8).order.plans
    ]


def test_plan_shows_where_open_chunks_are(run: Run, numbers: Path, tmp_path: Path) -> None:
    assert run("plan", numbers, "--global-batch", 8, "--json").document["scratch"] is None
    url = f"memory://{tmp_path.name}/chunks"
    schema = {"n": "int64", "x": "float32[100]"}
    write(url, [700] * 3, schema=schema, value=lambda n: {"n": n, "x": [float(n)] * 100})
    shape = ("--plan-chunk-rows", 9, "--plan-interleave", 9)
    ended = run("plan", url, "--global-batch", 8, "--memory", 60_000, "--scratch", tmp_path, *shape)
    assert ("scratch", str(tmp_path)) in facts_in(ended.out), ended.err


def test_plan_gives_advice(run: Run, numbers: Path) -> None:
    ended = run("plan", numbers, "--global-batch", 8, "--ranks", 3, "--workers", 5)
    assert ended.code == 0
    assert "3 ranks slices of 2 and 3 rows" in ended.err


def test_plan_of_a_shape_of_ones_own(run: Run, numbers: Path) -> None:
    shape = ("--plan-ranks", 4, "--plan-workers", 2, "--plan-chunk-rows", 9, "--plan-interleave", 3)
    facts = run("plan", numbers, "--global-batch", 8, *shape, "--json").document
    assert facts["plans"] == [{"ranks": 4, "workers": 2, "chunk_rows": 9, "interleave": 3, "window": 9}]
    (plan,) = run("plan", numbers, "--global-batch", 8, *shape[:2], "--json").document["plans"]
    assert (plan["ranks"], plan["chunk_rows"], plan["interleave"]) == (4, 200, 1)


def test_plan_of_a_mixture_and_of_a_slice(run: Run, numbers: Path) -> None:
    facts = run("plan", numbers, numbers, "--weights", 3, 1, "--global-batch", 8, "--json").document
    assert len(facts["plans"]) == 2
    assert run("plan", numbers, "--records", "10:60", "--global-batch", 5, "--json").document["records"] == 50
    assert run("plan", numbers, "--records", ":60", "--global-batch", 5, "--json").document["records"] == 60
    assert run("plan", numbers, "--weights", 1, 2, "--global-batch", 8).code == 2
    assert run("plan", numbers, "--records", "ten", "--global-batch", 8).code == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--global-batch", 0), "at least 1, found 0"),
        (("--global-batch", 4, "--ranks", 5), "world_size=5 is larger than global_batch=4"),
        (("--global-batch", 8, "--memory", 10, "--plan-chunk-rows", 2), "memory_bytes=10"),
        (("--global-batch", 8, "--split", "eval"), "no split 'eval'"),
    ],
)
def test_plan_refuses_what_makes_no_sense(run: Run, numbers: Path, options: tuple, says: str) -> None:
    ended = run("plan", numbers, *options)
    assert ended.code == 2
    assert says in ended.err


def state_of(data: shardio.DatasetReader | shardio.streaming.Mix, path: Path, steps: int = 3) -> list:
    """Save the state of a run after some steps; return their columns."""
    stream = shardio.stream(data, global_batch=8, seed=5, positions=True, remainder="pad")
    it = iter(stream)
    batches = [next(it) for _ in range(steps)]
    path.write_text(json.dumps(stream.state_dict()), encoding="utf-8")
    it.close()
    return batches


def test_audit_lists_the_records_of_a_step(run: Run, numbers: Path, tmp_path: Path) -> None:
    ds = shardio.open(numbers)
    batches = state_of(ds, tmp_path / "state.json")
    given = ("audit", numbers, "--state", tmp_path / "state.json")
    for step, batch in enumerate(batches):
        facts = run(*given, "--step", step, "--json").document
        assert [record["position"] for record in facts["records"]] == batch["_position"].tolist()
        place = ds.locate(facts["records"][2]["position"])
        assert (facts["records"][2]["shard"], facts["records"][2]["row"]) == (place.shard, place.row)
    ended = run(*given, "--step", 1, "--rank", "1/2")
    assert ended.code == 0
    assert "epoch 0, step 1, rank 1 of 2: 4 records" in ended.err
    shown = [int(line.split()[0]) for line in ended.out.splitlines()[1:]]
    assert shown == batches[1]["_position"].tolist()[4:]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (None, 3, "there is no such file"),
        ("", 3, "Is a directory"),
        ("{", 2, "is not JSON"),
        ("[" * 100_000, 2, "is not JSON"),
        ("[1]", 2, "holds no"),
    ],
    ids=["none", "folder", "cut", "deep", "list"],
)
def test_files_that_are_named_beside_a_dataset(
    run: Run, numbers: Path, tmp_path: Path, text: str | None, code: int, said: str
) -> None:
    """A state: what is wrong, with which file, and what should be in it."""
    file = tmp_path / "given.json"
    if text == "":
        file.mkdir()
    elif text is not None:
        file.write_text(text, encoding="utf-8")
    ended = run("audit", numbers, "--state", file, "--step", 0)
    assert ended.code == code
    assert "Errno" not in ended.err
    assert said in ended.err
    assert str(file) in ended.err
    if text != "":
        assert "what state_dict() returned, as JSON" in ended.err


def test_a_state_lies_in_a_bucket(run: Run, numbers: Path, tmp_path: Path) -> None:
    batches = state_of(shardio.open(numbers), tmp_path / "state.json")
    url = "memory://test-plan-states/state.json"
    with fsspec.open(url, "wb") as file:
        file.write((tmp_path / "state.json").read_bytes())
    facts = run("audit", numbers, "--state", url, "--step", 0, "--json").document
    assert [record["position"] for record in facts["records"]] == batches[0]["_position"].tolist()
    ended = run("audit", numbers, "--state", url + "x", "--step", 0)
    assert ended.code == 3
    assert f"({url}x); name a file that holds" in ended.err


def test_audit_opens_the_version_and_split_of_the_state(run: Run, numbers: Path, tmp_path: Path) -> None:
    batches = state_of(shardio.open(numbers), tmp_path / "state.json")
    with shardio.DatasetWriter(numbers, mode="append") as out:
        out.write({"n": 1}, split="eval")
        out.write({"n": 1}, split="train")
    given = ("audit", numbers, "--state", tmp_path / "state.json", "--step", 0)
    facts = run(*given, "--json").document
    assert [record["position"] for record in facts["records"]] == batches[0]["_position"].tolist()
    ended = run(*given, "--version", 4)
    assert ended.code == 3
    assert "open version 3" in ended.err


def test_audit_of_a_mixture(run: Run, numbers: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", [40])
    data = shardio.mix([(shardio.open(numbers), 3), (shardio.open(other), 1)])
    batches = state_of(data, tmp_path / "state.json")
    facts = run("audit", numbers, other, "--state", tmp_path / "state.json", "--step", 2, "--json").document
    assert [record["source"] for record in facts["records"]] == batches[2]["_source"].tolist()
    assert [record["position"] for record in facts["records"]] == batches[2]["_position"].tolist()
    ended = run("audit", numbers, other, "--state", tmp_path / "state.json", "--step", 2)
    assert ended.out.split()[:4] == ["source", "position", "shard", "row"]


def test_audit_marks_what_filled_the_last_step_up(run: Run, numbers: Path, tmp_path: Path) -> None:
    stream = shardio.stream(shardio.open(numbers), global_batch=12, remainder="pad")
    (tmp_path / "state.json").write_text(json.dumps(stream.state_dict()), encoding="utf-8")
    ended = run("audit", numbers, "--state", tmp_path / "state.json", "--step", 16)
    assert ended.out.count("filled up") == 4


def test_audit_reads_a_pipe(run: Run, numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = shardio.stream(shardio.open(numbers), global_batch=12)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(stream.state_dict())))
    assert len(run("audit", numbers, "--state", "-", "--step", 0, "--json").document["records"]) == 12


@pytest.mark.parametrize(
    ("text", "step", "code", "says"),
    [
        ("{", 0, 2, "is not JSON"),
        ("[]", 0, 2, "expected what state_dict() returned, as JSON, found list"),
        ("{}", 0, 3, "no field 'seal'"),
        (None, 17, 2, "step must be in"),
        (None, -1, 2, "step must be in"),
    ],
)
def test_audit_refuses(
    run: Run, numbers: Path, tmp_path: Path, text: str | None, step: int, code: int, says: str
) -> None:
    stream = shardio.stream(shardio.open(numbers), global_batch=12)
    whole = json.dumps(stream.state_dict())
    (tmp_path / "state.json").write_text(whole if text is None else text, encoding="utf-8")
    ended = run("audit", numbers, "--state", tmp_path / "state.json", f"--step={step}")
    assert ended.code == code
    assert says in ended.err
    assert run("audit", numbers, "--state", tmp_path / "none.json", "--step", 0).code == 3
    assert run("audit", numbers, "--state", tmp_path / "state.json", "--step", 0, "--rank", "2/2").code == 2
