"""What protects each promise, taken out one piece at a time: a test must go red every time.

    python tests/promises/sabotage.py              all of them, in a temporary copy; some minutes
    python tests/promises/sabotage.py P5 P6        those of some promises

The list is `sabotages.toml`; `test_sabotage.py` keeps it from going stale and tries a few in every run of the
tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "sabotages.toml"


class Sabotage(NamedTuple):
    """One piece of protection.

    Attributes:
        promise: that it protects.
        file: where it is.
        old, new: the text that is replaced, and by what.
        test: that must fail then, as pytest takes it.
    """

    promise: str
    file: str
    old: str
    new: str
    test: str


LIST = [Sabotage(**entry) for entry in tomllib.loads(TABLE.read_text(encoding="utf-8"))["sabotage"]]


def problem(sabotage: Sabotage, root: Path = ROOT) -> str | None:
    """Say what is stale about an entry, or None."""
    text = (root / sabotage.file).read_text(encoding="utf-8")
    if text.count(sabotage.old) != 1:
        return f"{sabotage.file} holds {sabotage.old!r} {text.count(sabotage.old)} times"
    try:
        compile(text.replace(sabotage.old, sabotage.new), sabotage.file, "exec")
    except SyntaxError as error:
        # Any test would notice that.
        return f"{sabotage.file} is no Python without {sabotage.old!r}: {error}"
    path, _, name = sabotage.test.partition("::")
    if not (root / path).exists() or (
        name and f"def {name}(" not in (root / path).read_text(encoding="utf-8")
    ):
        return f"there is no {sabotage.test}"
    return None


def copy(target: Path) -> Path:
    """Copy what the tests need, compiled kernels included."""
    for name in ("shardio", "tests", "docs", "protos", "indexer"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    # The one name by which adoption is imported; the copy's comes before the installed one.
    (target / "shardio_indexer").symlink_to("indexer")
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def caught(sabotage: Sabotage, root: Path) -> bool:
    """Take the protection out of a copy, run the test, and put it back; tell whether the test failed."""
    path = root / sabotage.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(sabotage.old, sabotage.new), encoding="utf-8")
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-B",
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "--timeout=100",
                sabotage.test,
            ],
            cwd=root,
            env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
            # A pipe would be waited for as long as an orphan holds it.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    finally:
        path.write_text(text, encoding="utf-8")
    return done.returncode == 1


def main(promises: list[str]) -> int:
    """Try the sabotages of some promises, or all; return how many no test noticed."""
    escaped = 0
    with tempfile.TemporaryDirectory() as folder:
        root = copy(Path(folder))
        for number, sabotage in enumerate(LIST, 1):
            if promises and sabotage.promise not in promises:
                continue
            stale = problem(sabotage)
            outcome = f"STALE: {stale}" if stale else "caught" if caught(sabotage, root) else "ESCAPED"
            escaped += outcome != "caught"
            print(
                f"{number:3} {sabotage.promise:4} {outcome:8} {sabotage.test}  ({sabotage.file})", flush=True
            )
    print(f"{escaped} not caught")
    return escaped


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
