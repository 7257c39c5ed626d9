"""What must be there after the power went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import shardio
from shardio.storage import BlockCache
from tests.promises.power import Cut, Recording
from tests.promises.power_program import HISTORIES, cached, look


class Judge:
    """Compares what a disk kept with what the program had said.

    Args:
        recording: of the program.
        history: that it went through.
    """

    def __init__(self, recording: Recording, history: str) -> None:
        self.seen = [json.loads(line) for _, line in recording.marks]
        self.deeds = HISTORIES[history]
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
        for k in range(done - (found == before), min(done + 1, len(self.deeds))):
            self.deeds[k](url)
            again = look(url)
            wanted = self.seen[k + 1]
            assert _lasting(again) == _lasting(wanted), (
                f"{cut.told}, then deed {k}: {_differences(again, wanted)}"
            )


def check_cache(server: str, cut: Cut, folder: Path) -> None:
    """What is read through a cache that a power cut left is what there is, and the cache is one again."""
    wanted = [*range(0, 200, 2), *range(1, 200, 2)]
    assert cached(server, folder, 0, 200) == wanted, cut.told
    cache = BlockCache(shardio.CacheOptions(folder / "cache", max_bytes=4000))
    used = cache.usage()
    assert 0 < used.num_bytes <= 4000, f"{cut.told}: {used}"
    cache.clear()
    left = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    assert not left, f"{cut.told}: not cleared are {left}"


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
