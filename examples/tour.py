"""Adopt, view, train, kill, resume: four commands on plain TFRecord files, run and drawn as a terminal.

    python examples/tour.py docs/figures/tour.svg

Every line of the picture comes from the run, without names of temporary folders and the viewer's token. The
training is a process that is killed with SIGKILL. At the end its log is compared with that of its successor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from html import escape
from pathlib import Path

import shardio

RECORDS, KILLED_AT = 2000, 9
TRAIN = """
import json, pathlib, sys, time, shardio

stream = shardio.stream(shardio.open("birds"), global_batch=100, seed=0, positions=True)
state = pathlib.Path("state.json")
if state.exists():
    stream.load_state_dict(json.loads(state.read_text()))
    print(f"resumed after step {stream.step}", flush=True)
for batch in stream:
    with open("seen.jsonl", "a") as log:
        print(json.dumps([stream.step, batch["_position"].tolist()]), file=log)
    if sys.argv[1:] == [str(stream.step)]:
        time.sleep(600)  # the model is trained, and the process is killed meanwhile
    state.with_suffix(".new").write_text(json.dumps(stream.state_dict()))
    state.with_suffix(".new").replace(state)  # never half a state
    print(f"step {stream.step}: {len(batch['label'])} birds", flush=True)
"""
WIDTH, LINE, TOP, SHOWN = 66, 20, 44, 6.0  # characters, pixels, pixels, and seconds that the whole is shown


def plain_shards(folder: Path) -> None:
    """Write TFRecord files as any program does: records in files, and nothing beside them."""
    with tempfile.TemporaryDirectory() as other:
        schema = {"label": "int64", "caption": "text"}
        with shardio.DatasetWriter(Path(other) / "ds", schema, shard_bytes=40_000) as out:
            for n in range(RECORDS):
                out.write({"label": n % 10, "caption": f"bird number {n}"})
        folder.mkdir()
        for number, shard in enumerate(sorted((Path(other) / "ds" / "data").glob("*.tfrecord"))):
            shutil.copy(shard, folder / f"train-{number:05}.tfrecord")


def run(folder: Path) -> list[tuple[str, str]]:
    """Run the four commands in a folder; return what a terminal shows, each line with its kind."""
    plain_shards(folder / "birds")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(shardio.__file__).parents[1]), "NO_COLOR": "1"}
    shown: list[tuple[str, str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def shardio_says(*words: str, lines: int, stopped: bool = False) -> None:
        shown.append(("command", " ".join(["shardio", *words])))
        with start(sys.executable, "-m", "shardio", *words) as process:
            for line in process.stdout or ():
                if line.strip() and lines > 0:
                    said = re.sub(r"token=\S+", "token=...", line.rstrip().replace(f"{folder}/", ""))
                    shown.append(("said", said))
                    lines -= 1
                if stopped and lines == 0:
                    process.kill()
        if process.returncode and not stopped:
            message = f"{words} failed"
            raise RuntimeError(message)

    def train(kill_at: int | None) -> None:
        shown.append(("command", "python train.py"))
        said = []
        # The step after takes until the kill has come, however late that is.
        held_at = [] if kill_at is None else [str(kill_at + 1)]
        with start(sys.executable, "train.py", *held_at) as process:
            for line in process.stdout or ():
                said.append(line.rstrip())
                if kill_at is not None and line.startswith(f"step {kill_at}:"):
                    process.kill()  # SIGKILL: nothing is tidied up
        if process.returncode and kill_at is None:
            raise RuntimeError("the training failed")
        middle = [f"... {len(said) - 4} steps ..."] if len(said) > 5 else said[2:3]
        shown.extend(("said", line) for line in [*said[:2], *middle, *said[-2:]])
        if kill_at is not None:
            shown.append(("bad", "Killed"))

    shardio_says("adopt", "birds", lines=10)
    shardio_says("view", "birds", "--no-browser", lines=2, stopped=True)
    train(KILLED_AT)
    train(None)
    steps = [json.loads(line) for line in (folder / "seen.jsonl").read_text(encoding="utf-8").splitlines()]
    # A process may die between a step and its state: that step is run again, and replaces its first run.
    used = Counter(position for positions in dict(steps).values() for position in positions)
    if sorted(used) != list(range(RECORDS)) or set(used.values()) != {1}:
        raise RuntimeError("a record was lost or used twice")
    shown.append(("good", f"{RECORDS:,} records, each used exactly once"))
    return shown


def drawn(shown: list[tuple[str, str]]) -> str:
    """Return the lines as an SVG of a terminal, in which they appear one after another."""
    times, now = [], 0.0
    for kind, _ in shown:
        now += 1.2 if times and kind == "command" else 0.35 if times else 0.0
        times.append(now)
    whole = now + SHOWN
    style = [
        "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d6dee6;white-space:pre}",
        ".command{fill:#4fd1c0;font-weight:bold}.bad{fill:#ff8a7a}.good{fill:#5fd39b;font-weight:bold}",
    ]
    lines = []
    for number, ((kind, text), seconds) in enumerate(zip(shown, times, strict=True)):
        part = 100 * seconds / whole
        style.append(
            f"@keyframes a{number}{{0%,{part:.1f}%{{opacity:0}}{part + 0.1:.1f}%,100%{{opacity:1}}}}"
            f"#l{number}{{animation:a{number} {whole:.1f}s infinite}}"
        )
        words = f"$ {text}" if kind == "command" else text
        y = TOP + LINE * number
        lines.append(
            f'<text id="l{number}" class="{kind}" x="18" y="{y}">{escape(words, quote=False)}</text>'
        )
    style.append("@media(prefers-reduced-motion:reduce){text{animation:none!important}}")
    width, height = 8 * WIDTH + 36, TOP + LINE * len(shown)
    label = "A terminal: TFRecord files are adopted, viewed and trained on; training is killed and resumes"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{label}</title>",
            f"<style>{''.join(style)}</style>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#10181f"/>',
            *(f'<circle cx="{20 + 18 * k}" cy="17" r="5" fill="#33414c"/>' for k in range(3)),
            *lines,
            "</svg>\n",
        ]
    )


def main(path: str) -> None:
    """Run the tour, and draw it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(path).write_text(drawn(run(Path(folder).resolve())), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
