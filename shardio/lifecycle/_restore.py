"""Go back: an earlier version becomes the newest one, by a commit that names it; nothing is dropped."""

from __future__ import annotations

from dataclasses import replace

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version
from shardio.errors import NotFoundError
from shardio.lifecycle._report import Change, ChangeReport, make_change, records_of
from shardio.metadata import Manifest, naming
from shardio.storage import Address, Place


@checked_options
def restore(
    url: Place,
    version: int | str,
    *,
    dry_run: bool = False,
) -> ChangeReport:
    """Make an earlier version the newest one again: its records, splits, schemas and metadata.

    A new version is committed that names what the earlier one names. Nothing is copied, and the versions
    between stay, so another restore undoes this one. Tags stay as they are. Sessions that were merged since
    are remembered as rolled back. Running one of them again is refused, since its records may be the reason
    to go back. Write them under a new session, or restore a version that holds them.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        version: a number or a tag.
        dry_run: change nothing, only say what it would be.

    Returns:
        The report; `version` is None where the latest version holds the same already.

    Raises:
        NotFoundError: there is no dataset, no such version, or it expired.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> for name in (b"wren", b"brick"):
        ...     with shardio.DatasetWriter(url, mode="append") as out:
        ...         out.write(name)
        >>> shardio.restore(url, 1).version, list(shardio.open(url))
        (3, [b'wren'])
    """
    catalog = Catalog(Address.of(url).connect())

    def plan(base: Version) -> Change:
        wanted, latest = catalog.load(version), base.manifest
        if wanted.number in latest.expiry.expired_versions:
            raise NotFoundError(
                f"version {wanted.number} expired", url=catalog.store.url, advice="restore a later one"
            )
        back = ({*latest.rolled_back} | _sessions(catalog, base)) - _sessions(catalog, wanted)
        restored = replace(
            wanted.manifest,
            expiry=latest.expiry,
            tags=latest.tags,
            rolled_back=tuple(sorted(back)),
            restored_version=wanted.number,
            rewrites=(),
        )
        same = _content(restored) == _content(latest)
        return Change(base, lambda _: None if same else restored, records_of(wanted.manifest))

    return ChangeReport(**make_change(catalog, plan, operation="restore", dry_run=dry_run))


def _sessions(catalog: Catalog, version: Version) -> set[str]:
    """Return the ids that callers gave to the sessions that a version remembers."""
    lists = catalog.store.concurrently(catalog.sessions_of, version.manifest.session_lists)
    names = {name for sessions in lists for name in sessions}
    names |= {session.session for session in version.manifest.sessions}
    return {name for name in names if not naming.is_random_session(name)}


def _content(manifest: Manifest) -> Manifest:
    """Return what a manifest says of the dataset, without what it says of its own commit."""
    return replace(
        manifest.carried,
        version=0,
        parent_version=0,
        parent_sha256=b"",
        write_id=b"",
        operation="",
        created_ms=0,
        writer="",
        sessions=manifest.named_sessions,
    )
