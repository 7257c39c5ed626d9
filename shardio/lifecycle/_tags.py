"""Names for versions: set, moved, removed, each by one commit; a version that has one does not expire."""

from __future__ import annotations

from dataclasses import replace

from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version, commit_change
from shardio.errors import CommitConflictError, NotFoundError
from shardio.metadata import Manifest, naming
from shardio.storage import Address, Place


@checked_options
def tag(
    url: Place,
    name: str,
    version: int | str | None = None,
    *,
    move: bool = False,
    dry_run: bool = False,
) -> Version:
    """Give a version a name, by which it is opened, and which keeps it from expiring.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        name: of the tag: letters, digits and `._+-`, no number, and not "latest".
        version: a number, or another tag; None for the latest.
        move: where the tag names another version already, take it from there.
        dry_run: change nothing, only find out whether it could be done.

    Returns:
        The version that has the tag now, or would have it. The commit that says so is a version of its own,
        after the latest.

    Raises:
        CommitConflictError: the tag names another version, and `move` is not given.
        NotFoundError: there is no dataset, no such version, or it expired.
        UnsafeNameError: that is not a name for a tag.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> with shardio.DatasetWriter(url) as out:
        ...     out.write(b"wren")
        >>> tagged = shardio.tag(url, "v1")
        >>> with shardio.DatasetWriter(url, mode="append") as out:
        ...     out.write(b"robin")
        >>> list(shardio.open(url, version="v1")), shardio.tags(url)
        ([b'wren'], {'v1': 1})
    """
    naming.check_tag(name)
    catalog = Catalog(Address.of(url).connect())

    def attempt(tagged: Version) -> Version:
        def build(base: Version, _lists: StoredLists) -> Manifest | None:
            manifest = base.manifest
            there = manifest.tags.get(name)
            if there == tagged.number:
                return None
            if there is not None and not move:
                raise CommitConflictError(
                    f"there is a tag {name!r} already",
                    url=catalog.store.url,
                    expected=f"no tag of this name, or one of version {tagged.number}",
                    found=f"version {there}",
                    advice="move=True moves it; or choose another name",
                )
            if tagged.number in manifest.expiry.expired_versions:
                raise NotFoundError(f"version {tagged.number} expired", url=catalog.store.url)
            return replace(manifest, tags={**manifest.tags, name: tagged.number})

        commit_change(catalog, build, operation="tag", seen=tagged, dry_run=dry_run)
        return tagged

    return catalog.reading(attempt, version)


@checked_options
def untag(
    url: Place,
    name: str,
    *,
    dry_run: bool = False,
) -> int:
    """Remove a tag; the version stays, and may expire again.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        name: of the tag.
        dry_run: change nothing, only find out which version has it.

    Returns:
        The version that had it, or has it in a dry run.

    Raises:
        NotFoundError: there is no dataset, or no such tag.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.
    """
    naming.check_tag(name)
    catalog = Catalog(Address.of(url).connect())
    tagged = catalog.load(name)

    def build(base: Version, _lists: StoredLists) -> Manifest | None:
        there = base.manifest.tags.get(name)
        if there is not None and there != tagged.number:
            raise CommitConflictError(
                f"the tag {name!r} was moved meanwhile",
                url=catalog.store.url,
                expected=f"version {tagged.number}",
                found=f"version {there}",
                advice="look at `shardio.tags(url)`, then remove it again",
            )
        if there is None:
            return None
        return replace(base.manifest, tags={key: to for key, to in base.manifest.tags.items() if key != name})

    commit_change(catalog, build, operation="untag", seen=tagged, dry_run=dry_run)
    return tagged.number


@checked_options
def tags(url: Place) -> dict[str, int]:
    """Return the tags of a dataset, by name, each with the number of its version.

    Raises:
        NotFoundError: there is no dataset.
    """
    latest = Catalog(Address.of(url).connect()).load()
    return dict(sorted(latest.manifest.tags.items()))
