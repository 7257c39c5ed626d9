"""Commands to this program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from shardio.cli._command import Given, command
from shardio.cli._console import CLEAN, Console
from shardio.cli._options import Takes
from shardio.cli._values import Whole

if TYPE_CHECKING:
    from shardio.storage import CacheOptions


@command(
    Takes("shardio:fill_cache", without=("url", "cache")),
    examples={
        "shardio cache fill s3://bucket/birds --split train --dir /scratch/blocks": "rerun it to continue",
        "shardio cache clear /scratch/blocks": "the folder that CacheOptions was given",
    },
)
def cache(
    given: Given,
    console: Console,
    action: Annotated[
        Literal["fill", "clear"],
        Parameter(help="fill: read a dataset into it; clear: remove every block"),
    ],
    target: Annotated[
        str, Parameter(help="fill: the dataset; clear: folder of the cache, as in CacheOptions(dir)")
    ],
    *,
    dir: Annotated[  # noqa: A002 - the name that CacheOptions has for it
        str | None, Parameter(help="fill: folder of the cache (default: ~/.cache/shardio)")
    ] = None,
    max_bytes: Annotated[Whole, Parameter(help="fill: bytes that the cache may take")] = 200 << 30,
) -> int:
    from shardio.storage import BlockCache, CacheOptions

    if action == "fill":
        folder = dir or str(Path.home() / ".cache" / "shardio")
        return _fill(given.at(target), console, CacheOptions(folder, max_bytes))
    cache = BlockCache(CacheOptions(target, max_bytes=1))
    removed = cache.usage() if given.dry_run else cache.clear()
    console.facts(
        {
            "folder": removed.folder,
            "blocks": removed.entries,
            "bytes": removed.num_bytes,
            "dry_run": bool(given.dry_run),
        }
    )
    return CLEAN


def _fill(given: Given, console: Console, cache: CacheOptions) -> int:
    import shardio

    with console.progress("fill") as progress:
        result = given.call(shardio.fill_cache, cache=cache, progress=progress)
    document = {**result.to_dict(), "dir": cache.dir}
    console.facts(document)
    console.note(f"use it with cache=shardio.CacheOptions({cache.dir!r}, {cache.max_bytes})")
    return CLEAN


@command(
    examples={
        "shardio completion bash >> ~/.bashrc": "zsh: >> ~/.zshrc",
        "shardio completion fish > ~/.config/fish/completions/shardio.fish": "for fish",
    },
)
def completion(
    given: Given,
    console: Console,
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish")],
) -> int:
    from shardio.cli._main import make_app

    script = make_app().generate_completion(shell=shell)
    if console.json:
        console.document({"shell": shell, "script": script})
        return CLEAN
    for line in script.splitlines():
        console.line(line)
    return CLEAN
