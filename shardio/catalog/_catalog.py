"""Finding and reading versions.

The latest version is found from the hint, else from the highest manifest listed, then upward until the next
one is absent.  The hint is never trusted: what is not a number is ignored.  It is only ever written after a
commit, so one beyond every manifest means that manifests are gone, and is an error.  So is a manifest that
cannot be read: the version below it is not the latest.  Nor is an error of the environment taken for an
absent hint: what cannot be reached for one object cannot for the next.

Any version but the latest may expire at any time, and its objects go.  What is missing then is not damage:
what reads the latest version begins again on a later one, and who pinned a version is told that it expired.

S3 and what is before it answer 403 for what is absent to clients that may not list.  So 403 counts as
absent for the version after one that could be read, and for the hint as long as a listing may tell.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from shardio.arguments import integer
from shardio.catalog._absent import no_version
from shardio.catalog._version import Version
from shardio.errors import FormatError, NotFoundError, ShardioError, StaleIndexError, StorageError
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.metadata import (
    COPY_ADVICE,
    ListRef,
    Manifest,
    MergedSession,
    ShardTable,
    naming,
    parse_list,
    parse_manifest,
    parse_sessions,
    unseal,
)
from shardio.ranges import distinct
from shardio.storage import CannotListError, DeniedError, Store, read_intact

T = TypeVar("T")

# What a version looks like whose objects are collected while it is read.
_UNREADABLE = (NotFoundError, FormatError, StaleIndexError)
_MAX_RESTARTS = 20


class Catalog:
    """The versions under one root."""

    def __init__(self, store: Store, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.store = store
        self.limits = limits
        self._session_lists: dict[bytes, bytes] = {}
        self._hint_denied: DeniedError | None = None

    def latest(self) -> Version | None:
        """Return the latest version, or None where there is no dataset.

        Raises:
            FormatError, UnsupportedVersionError: the latest manifest cannot be read, or is gone.
            CannotListError: there is no hint, and this kind of place has no listings.
            DeniedError: there is no hint that may be read, and nothing may be listed.
            StorageError: the environment failed.
        """

        def read() -> Version | FormatError | None:
            hinted = self.hinted()
            try:
                version = self._highest(hinted)
            except FormatError as error:  # of a manifest, which was refetched already
                return error
            found = version.number if version else 0
            if found < hinted:  # a damaged hint may be another number
                raise self._lost(hinted, found)
            return version

        latest = read_intact(read)
        if isinstance(latest, FormatError):
            raise latest
        return latest

    def _lost(self, hinted: int, found: int) -> FormatError:
        # The hint is written after a commit, and manifests are never deleted.
        return FormatError(
            f"the manifest of version {hinted} is gone, which was committed, so the latest is unknown",
            url=self.store.url_of(naming.manifest_key(hinted)),
            expected=f"version {hinted}, as {naming.HINT_KEY} says",
            found=f"version {found} as the highest" if found else "no manifest at all",
            advice="`shardio repair --mirror` restores it from a copy; "
            + (f"version={found} reads what is left, and " if found else "")
            + f"removing {naming.HINT_KEY} gives up what is lost",
        )

    def _highest(self, hinted: int) -> Version | None:
        """Return the version found from the hint, else from the highest name listed, then upward."""
        version = following = None
        if hinted:
            # Nearly always the version is there and the next one is not: a bucket is asked for both at once.
            reads = [functools.partial(self._read, hinted), functools.partial(self._following, hinted)]
            with contextlib.closing(self.store.concurrently(operator.call, reads)) as found:
                version = next(found)
                following = next(found) if version is not None else None
        if version is None:
            number = self._highest_listed()
            if number == 0:
                return None
            version = self._read(number)
            if version is None:
                what = "a manifest was listed and is not there"
                raise StorageError(
                    what, url=self.store.url_of(naming.manifest_key(number)), advice="try again"
                )
            following = self._following(number)
        while following is not None:
            version, following = following, self._following(following.number)
        return version

    def _highest_listed(self) -> int:
        try:
            listed = [naming.manifest_version(info.key) for info in self.store.list(naming.MANIFESTS)]
        except (CannotListError, DeniedError) as error:
            denied = error if isinstance(error, DeniedError) else self._hint_denied
            raise (CannotListError if denied is None else DeniedError)(
                f"{naming.HINT_KEY} names no version, and the manifests cannot be listed"
                if denied is None
                else f"access is denied to {naming.HINT_KEY} or the list of manifests",
                url=self.store.url if denied is None or denied is error else denied.url,
                found=None if denied is None else denied.found,
                advice="check the address, the credentials or headers in storage_options=, and that they may "
                "list this prefix (s3:ListBucket); or name the version to open",
            ) from error
        return max((found for found in listed if found is not None), default=0)

    def _following(self, number: int) -> Version | None:
        """Return the version after one that is there, or None where there is none."""
        try:
            return self._read(number + 1)
        except DeniedError:
            key = naming.manifest_key(number + 1)
            try:
                forbidden = any(info.key == key for info in self.store.list(key))
            except (CannotListError, DeniedError):
                # Absent, as far as can be known: the manifest before it could be read.
                return None
            if forbidden:
                raise
            return None

    def load(
        self, number: int | str | None = None, *, digest: str | None = None, known_live: bool = False
    ) -> Version:
        """Return a version to read from.

        Args:
            number: of the version, or a tag; None for the latest.
            digest: `"sha256:<hex>"` that the manifest must have, or None.
            known_live: the caller has resolved this very version before (a worker of a process that opened
                the dataset), so whether it expired is not looked up again.

        Raises:
            NotFoundError: there is no dataset, no such version or tag, or it expired.
            FormatError: it is damaged, or not the one that `digest` pins.
        """
        if isinstance(number, str):
            number = self._number_of(number)
        elif number is not None:
            number = integer("version", number)
        if digest is not None and not isinstance(digest, str):
            raise TypeError(f"digest= takes text, as `version.digest` is, found {digest!r:.80}")
        latest = None if known_live and number is not None else self._latest_for(number)
        if number is None or (latest is not None and latest.number == number):
            version = latest
        else:
            version = self._read(number) if number >= 1 else None
        if version is None or (
            latest is not None and version.number in latest.manifest.expiry.expired_versions
        ):
            raise no_version(self.store, number, latest)
        if digest is not None and digest.lower() != version.digest:
            raise FormatError(
                f"version {version.number} is not the one that digest= pins",
                url=self.store.url,
                expected=digest,
                found=version.digest,
                advice="the dataset was replaced, or the pin is of another version",
            )
        return version

    def reading(
        self, read: Callable[[Version], T], number: int | str | None = None, *, digest: str | None = None
    ) -> T:
        """Return what `read` makes of a version; it is called again where versions expired meanwhile.

        Args:
            read: takes the version. What it raises is raised, unless another process has expired the version
                (or, without `number`, any) since it was looked up.
            number, digest: as in `load`.

        Raises:
            NotFoundError: as in `load`; the version that `number` names expired while it was read.
            StorageError: versions expired one after another, and this came to no end.
        """
        failed: ShardioError | None = None
        for _ in range(_MAX_RESTARTS):
            version = self.load(number, digest=digest)
            try:
                return read(version)
            except _UNREADABLE as error:
                if not self.has_expired(version, others=number is None):
                    raise
                failed = error
        raise StorageError(
            f"versions expired while they were read, {_MAX_RESTARTS} times",
            url=self.store.url,
            found=str(failed),
            advice="run it again, with `shardio gc --keep 10` in place of a smaller number, so that what is "
            "being read stays",
        ) from failed

    def has_expired(self, version: Version, *, others: bool = False) -> bool:
        """Tell whether a version has expired by now; with `others`, whether any has since it was made.

        False where that cannot be asked: then what was found in the version is all that can be told.
        """
        try:
            latest = self.latest()
        except ShardioError:
            return False
        if latest is None:
            return False
        expired = set(latest.manifest.expiry.expired_versions)
        if others:
            return not expired <= set(version.manifest.expiry.expired_versions)
        return version.number in expired

    def check_expired(self, version: Version) -> None:
        """Raise where a version has expired by now; asked when something of it is missing.

        Raises:
            NotFoundError: it expired.
        """
        if self.has_expired(version):
            raise NotFoundError(
                f"version {version.number} expired while it was read",
                url=self.store.url,
                advice="open the dataset again, which finds the latest version; a version that has a tag "
                "(`shardio tag`) does not expire",
            )

    def _number_of(self, name: str) -> int:
        """Return the number of a version that is given as text: a number, or a tag of the latest version."""
        if name.isascii() and name.isdigit():
            return int(name)
        latest = self.latest()
        if latest is None:
            raise no_version(self.store)
        number = latest.manifest.tags.get(name)
        if number is None:
            known = ", ".join(sorted(latest.manifest.tags)[:20])
            raise NotFoundError(
                f"there is no tag {name!r}",
                url=self.store.url,
                found=f"the tags {known}" if known else "no tags",
            )
        return number

    def _latest_for(self, number: int | None) -> Version | None:
        """Return the latest version; without list and hint, the highest that follows `number`."""
        if number is None:
            return self.latest()
        try:
            # Where manifests are gone, those that are left can be read by their numbers.
            return self._highest(self.hinted())
        except (CannotListError, DeniedError):
            version = following = self._read(number)
        while following is not None:
            version, following = following, self._following(following.number)
        return version

    def versions(self) -> Iterator[Version]:
        """Yield all versions from the first, expired ones too."""
        latest = self.latest()
        if latest is not None:
            yield from self.between(1, latest.number - 1)
            yield latest

    def between(self, first: int, last: int) -> Iterator[Version]:
        """Yield the versions from `first` to `last`, as `numbered` does."""
        return self.numbered(range(first, last + 1))

    def numbered(self, numbers: Sequence[int]) -> Iterator[Version]:
        """Yield some versions, expired ones too; many are fetched at once.

        Raises:
            FormatError: one of them is damaged or not there.
        """
        for number, version in zip(numbers, self.store.concurrently(self._read, numbers), strict=True):
            if version is None:
                raise FormatError(
                    "a version has no manifest, and manifests are never deleted",
                    url=self.store.url_of(naming.manifest_key(number)),
                    advice=COPY_ADVICE,
                )
            yield version

    def table(self, version: Version) -> ShardTable:
        """Return all shards of a version, in order; one request a list.

        Raises:
            FormatError: a list is damaged, missing or not the one that the manifest names.
            NotFoundError: the version expired meanwhile, and its lists are gone.
        """
        try:
            tables = [*self.store.concurrently(self.shards_of, version.manifest.lists)]
        except (NotFoundError, FormatError):
            self.check_expired(version)
            raise
        table = ShardTable.concatenate(tables)
        self._check_table(version.manifest, table)
        return table

    def hinted(self) -> int:
        """Return the version that the hint names, or 0."""

        def read() -> int:
            text = self.store.get(naming.HINT_KEY, max_bytes=64).strip()
            # What is not the number of a manifest, of which 1 is the first, is not a hint.
            if not (text.isdigit() and len(text) <= 20 and int(text)):
                raise FormatError("this is not the number of a version", found=text)
            return int(text)

        self._hint_denied = None
        try:
            return read_intact(read)
        except DeniedError as error:
            self._hint_denied = error  # perhaps absent
            return 0
        except (NotFoundError, FormatError):
            # Absent, or no number.
            return 0

    def _read(self, number: int) -> Version | None:
        """Return a version by its number, or None if its manifest is absent."""
        if number >= 10**20:
            return None
        try:
            return read_intact(functools.partial(self.fetch, number))
        except NotFoundError:
            return None

    def fetch(self, number: int) -> Version:
        """Return a version by its number, by one request.

        Raises:
            NotFoundError, FormatError, StorageError: its manifest is absent, damaged, or out of reach.
        """
        key = naming.manifest_key(number)
        data = self.store.get(key, max_bytes=self.limits.manifest)
        parsed = parse_manifest(data, version=number, url=self.store.url_of(key), limits=self.limits)
        return Version(*parsed, self.table)

    def shards_of(self, ref: ListRef) -> ShardTable:
        """Return the shards of one list, checked against its reference."""
        table = self.find_shards(ref)
        if table is None:
            raise FormatError(
                "the manifest names a list of shards that is not there",
                url=self.store.url_of(ref.key),
                advice=COPY_ADVICE,
            )
        return table

    def find_shards(self, ref: ListRef) -> ShardTable | None:
        """Return the shards of one list, checked against its reference, or None where the list is gone."""

        def read() -> ShardTable:
            data = self.store.get(ref.key, max_bytes=min(ref.size, self.limits.manifest))
            url = self.store.url_of(ref.key)
            table, sha256 = parse_list(data, url=url, limits=self.limits)
            self._check_ref(ref, "shards", (sha256, len(data), len(table)))
            return table

        try:
            return read_intact(read)
        except NotFoundError:
            return None
        except FormatError as error:
            error.advice = error.advice or COPY_ADVICE
            raise

    def merged(self, version: Version, session: str) -> MergedSession | None:
        """Return a session that is part of a version, or None; lists of sessions are fetched where needed.

        Raises:
            FormatError: a list of sessions is damaged, missing or not the one that the manifest names.
            StorageError: the environment failed.
        """
        found = version.manifest.session(session)
        if found is not None or naming.is_random_session(session):
            return found  # of sessions with random ids only the latest is remembered
        refs = version.manifest.session_lists[::-1]
        for ref, data in zip(refs, self.store.concurrently(self._session_list, refs), strict=True):
            # A long history has many sessions, and a new name is in none of its lists: nothing to parse.
            if session.encode() in data and (found := self.sessions_of(ref).get(session)) is not None:
                return found
        return None

    def sessions_of(self, ref: ListRef) -> Mapping[str, MergedSession]:
        """Return the sessions of one list by name, oldest first, checked against its reference.

        Raises:
            FormatError: it is damaged, missing or not the one that the manifest names.
            StorageError: the environment failed.
        """
        data = self._session_list(ref)
        sessions, sha256 = parse_sessions(data, url=self.store.url_of(ref.key), limits=self.limits)
        self._check_ref(ref, "sessions", (sha256, len(data), len(sessions)))
        return sessions

    def _session_list(self, ref: ListRef) -> bytes:
        """Return the bytes of a list of sessions with the SHA-256 that its reference names."""
        url = self.store.url_of(ref.key)

        def read() -> bytes:
            data = self.store.get(ref.key, max_bytes=self.limits.manifest)
            _, sha256 = unseal(data, what="list of sessions", url=url)
            self._check_ref(ref, "sessions", (sha256, len(data), ref.shards))
            return data

        if ref.sha256 not in self._session_lists:
            try:
                self._session_lists[ref.sha256] = read_intact(read)
            except NotFoundError as error:
                what = "the manifest names a list of sessions that is not there"
                raise FormatError(what, url=url) from error
        return self._session_lists[ref.sha256]

    def _check_ref(self, ref: ListRef, kind: str, found: tuple[bytes, int, int]) -> None:
        """Compare SHA-256, size and number of items of a list with what the manifest says."""
        named = (ref.sha256, ref.size, ref.shards)
        if found != named:
            expected, other = (
                f"SHA-256 {sha256.hex()}, {stored} bytes, {number} {kind}"
                for sha256, stored, number in (named, found)
            )
            raise FormatError(
                f"a list of {kind} is not the one that the manifest names",
                url=self.store.url_of(ref.key),
                expected=expected,
                found=other,
            )

    def _check_table(self, manifest: Manifest, table: ShardTable) -> None:
        """Check what spans lists: totals, roots, schema numbers, names."""
        url = self.store.url_of(naming.manifest_key(manifest.version))
        found = table.totals()
        expected = {total.name: total for total in manifest.splits}
        if found != expected:
            raise FormatError(
                "the lists of shards do not add up to the manifest", url=url, expected=expected, found=found
            )
        unknown = set(distinct(table.root).tolist()) - {0, *manifest.roots}
        if unknown:
            raise FormatError(
                "a shard is under a root that the manifest does not name", url=url, found=unknown
            )
        if len(table) and table.max("schema") > len(manifest.schemas):
            raise FormatError("a shard names a schema that the manifest does not hold", url=url)
        if table.holds("deletion_key") and not manifest.deletions:
            raise FormatError("rows are deleted and the manifest does not say so", url=url)
        # Each list was looked through by itself.
        if len(manifest.lists) > 1 and table.has_doubles():
            raise FormatError("a shard is in the dataset twice", url=url)
