"""What users call with a URL: commit a job array, look at the versions, collect garbage."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, overload

from shardio.arguments import checked_options, integer
from shardio.catalog._absent import no_version
from shardio.catalog._catalog import Catalog
from shardio.catalog._gc import GcReport, collect_garbage
from shardio.catalog._sessions import commit_session, session_shards
from shardio.catalog._version import Version
from shardio.progress import CountProgress
from shardio.storage import Address, Place


@overload
def commit(
    url: Place,
    *,
    session: str,
    tasks: int,
    mode: str | None = None,
    dry_run: Literal[False] = False,
) -> Version: ...


@overload
def commit(
    url: Place,
    *,
    session: str,
    tasks: int,
    mode: str | None = None,
    dry_run: Literal[True],
) -> dict[str, int]: ...


@checked_options
def commit(
    url: Place,
    *,
    session: str,
    tasks: int,
    mode: str | None = None,
    dry_run: bool = False,
) -> Version | dict[str, int]:
    """Make the tasks `0 .. tasks - 1` of a session one new version: the last step of a job array.

    Calling it again is harmless: a session that was merged with the same content is a success.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        session: the id that the tasks were written under. Each by `DatasetWriter(session=, task=,
            commit=False)`.
        tasks: how many tasks there are.
        mode: "create", "append" or "overwrite"; None for what the writers were given.
        dry_run: commit nothing, only find out whether all tasks have ended.

    Returns:
        The new version. In a dry run the records of each split that the tasks have written.

    Raises:
        NotFoundError: names the tasks that have not ended.
        CommitConflictError: merged before with other content, or another commit is in the way.
        CommitOutcomeUnknownError: no answer came back; nothing was deleted, call it again.
    """
    catalog = Catalog(Address.of(url).connect())
    if dry_run:
        written = session_shards(catalog, session, tasks).totals()
        return {name: total.rows for name, total in written.items()}
    return commit_session(catalog, session, tasks, mode=mode)


@checked_options
def log(url: Place, n: int | None = None, *, version: int | str | None = None) -> list[Version]:
    """Return the versions of a dataset, the latest first, including expired ones.

    The manifest of the latest version says which have expired (`.manifest.expiry`) and which have tags
    (`.manifest.tags`).

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        n: at most N versions, which is one request each; None for all.
        version: the newest version to return, by number or tag; None for the latest.

    Raises:
        NotFoundError: there is no dataset, or no such version.
        ValueError: `n` is less than 1.
    """
    if n is not None and integer("n", n) < 1:
        raise ValueError(f"n={n} must be at least 1")
    catalog = Catalog(Address.of(url).connect())
    latest = catalog.load()
    last: int | None = latest.number
    if isinstance(version, str):
        last = latest.manifest.tags.get(version)
    elif version is not None:
        last = integer("version", version)
    if last is None or not 1 <= last <= latest.number:
        raise no_version(catalog.store, version, latest)
    first = 1 if n is None else max(1, last - n + 1)
    versions = list(catalog.between(first, min(last, latest.number - 1)))
    versions += [latest] if last == latest.number else []
    return versions[::-1]


@checked_options
def gc(
    url: Place,
    *,
    expire: Collection[int] = (),
    keep: int | None = None,
    abandon: Collection[str] = (),
    dry_run: bool = True,
    progress: bool | Callable[[CountProgress], None] = False,
) -> GcReport:
    """Remove objects that only expired versions and abandoned sessions use; a dry run by default.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        expire: versions that are no longer needed; never the latest.
        keep: how many versions stay, the latest ones; all others expire.
        abandon: sessions whose writers will not continue; `GcReport.unclaimed` lists candidates.
        dry_run: change nothing.
        progress: True for a bar on a terminal and lines in a log, or a function of how far it has come:
            `done` and `total`, objects that are deleted.

    Raises:
        ValueError: a version that cannot expire, or a session that cannot be abandoned.
        StorageError: the environment failed; call it again, and it deletes the rest.
    """
    catalog = Catalog(Address.of(url).connect())
    return collect_garbage(
        catalog, expire=expire, keep=keep, abandon=abandon, dry_run=dry_run, progress=progress
    )
