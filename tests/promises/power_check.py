"""What must be there after the power went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import shardio
from tests.promises.power import Cut, Recording
from tests.promises.power_program import DEEDS, look


class Judge:
    """Compares what a disk kept with what the recorded program had said."""

    def __init__(self, recording: Recording) -> None:
        self.seen = [json.loads(line) for _, line in recording.marks]
        self.versions = {seen["version"]: seen["records"] for seen in self.seen if seen}

    def __call__(self, cut: Cut, folder: Path) -> None:
        url = str(folder / "folder" / "ds")
        done = cut.done
        before, after = self.seen[done - 1], self.seen[min(done, len(self.seen) - 1)]
        found = look(url)
        assert found in (before, after), f"{cut.told}: {_differences(found, before, after)}"
        if found:
            report = shardio.verify(url)
            assert report.ok, f"{cut.told}: {report.findings}"
            for version in found["versions"]:
                if version in self.versions:
                    records = look(url, version)["records"]
                    assert records == self.versions[version], f"{cut.told}: version {version} holds {records}"
        # Who was interrupted does it again where it was not done, and then goes on.
        for k in range(done - (found == before), min(done + 1, len(DEEDS))):
            DEEDS[k](url)
            again = look(url)
            wanted = self.seen[k + 1]
            assert _lasting(again) == _lasting(wanted), (
                f"{cut.told}, then deed {k}: {_differences(again, wanted)}"
            )


def _lasting(seen: dict[str, Any]) -> dict[str, Any]:
    """Leave out numbers of versions, of which what is done again may make one more."""
    return {name: value for name, value in seen.items() if name not in {"version", "versions"}}


def _differences(found: dict[str, Any], *wanted: dict[str, Any]) -> str:
    return "; ".join(
        f"{name}: {found.get(name)}, wanted {each.get(name)}"
        for each in wanted
        for name in sorted({*found, *each})
        if found.get(name) != each.get(name)
    )
