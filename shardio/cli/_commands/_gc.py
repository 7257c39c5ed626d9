"""`shardio gc`: remove what only expired versions and abandoned sessions hold; a dry run unless told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import CLEAN, Command, Option, flag, options
from shardio.cli._options import STORAGE, storage_options, url_argument
from shardio.cli._words import plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import SimpleNamespace

    from shardio.catalog import GcReport
    from shardio.cli._screen import Screen
    from shardio.storage import ObjectInfo, Upload

__all__ = ["COMMAND"]


def _run(arguments: SimpleNamespace, screen: Screen) -> int:
    import shardio
    from shardio.storage import upload_of

    report = shardio.gc(
        arguments.url,
        expire=arguments.expire,
        keep=arguments.keep,
        abandon=arguments.abandon,
        dry_run=not arguments.yes,
        storage_options=storage_options(arguments),
    )
    if screen.json:
        screen.document(report.to_dict())
        return CLEAN
    removed = [upload for info in report.uploads if (upload := upload_of(info)) is not None]
    uploads = [upload for info in report.temporaries if (upload := upload_of(info)) is not None]
    files = [info for info in report.temporaries if upload_of(info) is None]
    _print(screen, report)
    for upload in removed:
        done = "would remove" if report.dry_run else "removed"
        screen.line(f"{done} an unfinished upload  {upload.key}  (begun {upload.begun or '?'})")
    _print_left(screen, files, uploads, report.unlisted)
    _print_end(screen, report)
    return CLEAN


def _print(screen: Screen, report: GcReport) -> None:
    for info in report.doomed:
        screen.line(f"{'would delete' if report.dry_run else 'deleted'}  {info.key}  ({size(info.size)})")
    if report.expired_versions:
        screen.line(f"expired versions: {', '.join(map(str, report.expired_versions))}")
    if report.unclaimed:
        screen.line("in no version, still being written or given up (--abandon SESSION removes it):")
        screen.table([(f"  {name}", size(amount)) for name, amount in sorted(report.unclaimed.items())])


def _print_left(
    screen: Screen, files: list[ObjectInfo], uploads: list[Upload], unlisted: Sequence[str]
) -> None:
    """Print what interrupted writes have left; a writer that is still at work has such things too."""
    if files:
        left = sum(info.size for info in files)
        screen.line(f"left by interrupted writes: {plural(len(files), 'temporary file')}, {size(left)}")
    if uploads:
        screen.line("uploads that were not finished, under way or broken off (--abandon their session):")
        screen.table([(f"  {one.key}", f"begun {one.begun or '?'}", one.id) for one in uploads])
    for note in unlisted:
        screen.line(note)


def _print_end(screen: Screen, report: GcReport) -> None:
    doomed = f"{plural(len(report.doomed), 'object')}, {size(report.doomed_bytes)}"
    if report.dry_run:
        more = "; nothing was changed, --yes does it" if report.doomed else ""
        screen.line(f"to delete: {doomed}{more}")
    elif report.version is None:
        screen.line("there was nothing to do")
    else:
        screen.line(f"deleted: {report.deleted} of {doomed}; this is version {report.version}")


_PARAMS = (
    url_argument(),
    options("--expire", type=int, metavar="N", help="a version to expire; may be repeated"),
    Option(["--keep"], type=int, metavar="N", help="expire all but the latest N versions"),
    options(
        "--abandon", metavar="SESSION", help="a session whose writers will not come back; may be repeated"
    ),
    flag("--yes", "do it; without this nothing is changed"),
    *STORAGE,
)  # fmt: skip

COMMAND = Command(
    name="gc",
    group="change",
    summary="remove what only expired versions and abandoned sessions hold",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio gc s3://bucket/birds --keep 3": "what would go if only the latest 3 versions stayed",
        "shardio gc s3://bucket/birds --keep 3 --yes": "let it go",
    },
)
