"""Repair of a dataset: bytes from a mirror by digest, an index by scanning, else what is good.

Promises: no intact record is lost and nothing is made up; a damaged object stays in place until its exact
bytes are written over it; losses are listed by address, and a mirror that is found later still restores them;
a dry run by default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version
from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.lifecycle._mirror import Restorer
from shardio.lifecycle._recover import Recovery
from shardio.lifecycle._repair_metadata import repair_metadata
from shardio.lifecycle._repair_report import RepairReport, Repairs
from shardio.lifecycle._repair_shard import RepairJob
from shardio.lifecycle._report import records_of
from shardio.lifecycle._rewrite import Replacement, remove_objects, replace_shards
from shardio.metadata import ShardTable, naming
from shardio.parallel import check_workers, run, sliced
from shardio.progress import CountProgress, displayed
from shardio.reader import ReadOptions
from shardio.storage import Address, Place, temporary_files


@checked_options
def repair(
    url: Place,
    *,
    mirror: Place | None = None,
    dry_run: bool = True,
    digest: str | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Callable[[CountProgress], None] = False,
) -> RepairReport:
    """Repair what `shardio.verify` finds: from a mirror by digest, or from what is left and good.

    - An object that is damaged or gone gets its exact bytes back from the mirror, under its own name.
    - Without a mirror, a list is made again where its digest proves it, and an index from its shard.
    - The good records of a shard go into a new shard, in their order; the rest is lost, and listed. Positions
      behind a lost record decrease by one. A later repair with a mirror restores lost records.

    A damaged shard or index whose bytes no mirror has stays; a new version names its replacement. Earlier
    versions still name the damaged object. Adopted shards are never written: their indexes are.

    Args:
        url: of the dataset, or its address.
        mirror: copy of the dataset to repair from; every byte is compared before it is stored. A URL of the
            same kind of storage is read with the dataset's storage options.
        dry_run: change nothing, only report what would be done.
        digest: `"sha256:..."` of the latest version, where its manifest is gone and the mirror's is to be
            trusted.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool.
        workers: processes of that pool; None for one per processor, 1 for this process.
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.

    Returns:
        The report. Look at `report.ok`, `report.unrepaired` and `report.lost`.

    Raises:
        NotFoundError: there is no dataset, or the mirror is none.
        FormatError: the mirror is another dataset.
        UnsupportedVersionError: a newer shardio wrote it.
        CommitConflictError: what was damaged was changed by others meanwhile; run it again.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.
        ValueError: arguments that make no sense.

    Examples:
        >>> import pathlib, shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/bytes"
        >>> with shardio.DatasetWriter(url) as out:
        ...     out.write(b"one")
        >>> (index,) = pathlib.Path(url, "data").glob("*.shardidx")
        >>> index.unlink()
        >>> report = shardio.repair(url, dry_run=False)
        >>> [(each.how, each.what) for each in report.repaired], report.lost
        ([('rebuilt', 'index')], ())
        >>> shardio.verify(url).ok
        True
    """
    check_workers(workers, executor)
    address, copy = Address.of(url), None if mirror is None else Address.of(mirror)
    if copy is not None and copy.storage_options is None and _protocol(copy) == _protocol(address):
        copy = replace(copy, storage_options=address.storage_options)
    with displayed(progress, "repair") as show:
        catalog, latest = Catalog(address.connect()), None
        with suppress(ShardioError):
            latest = catalog.load()

        def attempt(_: Version | None) -> RepairReport:
            return _Repair(address, copy, dry_run=dry_run).run(digest, executor, workers, show)

        # In a dry run, what another process has expired meanwhile is not damaged.
        return catalog.reading(attempt) if latest is not None and dry_run else attempt(latest)


def _protocol(address: Address) -> str:
    return address.url.partition("://")[0]


class _Repair:
    """One repair on its way."""

    def __init__(self, address: Address, mirror: Address | None, *, dry_run: bool) -> None:
        self.address, self.mirror, self.dry_run = address, mirror, dry_run
        self.catalog, self.out = Catalog(address.connect()), Repairs()
        self.copy = None if mirror is None else mirror.connect()
        url = self.catalog.store.url
        if self.copy is not None and self.copy.url == url:
            raise ValueError(f"mirror={self.copy.url!r} is the dataset itself; name a copy of it")
        if not dry_run:
            self.catalog.store.refuse_writing(
                advice="repair the dataset where it can be written, or a copy of it"
            )
        self.facts: dict[str, Any] = {"url": url, "dry_run": dry_run, "base_version": None}

    def run(
        self,
        digest: str | None,
        executor: Executor | None,
        workers: int | None,
        show: Callable[[CountProgress], None] | None,
    ) -> RepairReport:
        """Repair the metadata, then the shards."""
        out, catalog = self.out, self.catalog
        with temporary_files(), tempfile.TemporaryDirectory(prefix="shardio-repair-") as folder:
            restorer = Restorer(catalog.store, self.copy, folder, out, dry_run=self.dry_run)
            versions = repair_metadata(catalog, restorer, digest)
        try:
            version = catalog.load()
            self.facts["base_version"] = version.number
            table = catalog.table(version)
        except ShardioError as error:
            # What stays lost is reported; in a dry run it would be repaired. What does not answer is neither.
            if isinstance(error, StorageError) and not out.unrepaired:
                raise
            if self.dry_run and out.repaired:
                out.notes.append("shards are checked after the manifests and lists are restored")
            return out.report(**self.facts)
        session = naming.random_session(rewriting=True)
        job = RepairJob(self.mirror, version.number, version.manifest.writer, session, self.dry_run)
        slots, shards = [[entry] for entry in table] + [[]], Repairs()
        if self.mirror is not None:
            mirrored = replace(job, mirror_only=True)
            Recovery(catalog, self.address, self.mirror, mirrored, shards, slots).recover(versions)
        # A recovered shard replaces those salvaged from it, damaged or not.
        numbers = np.array([i for i, slot in enumerate(slots[:-1]) if table[i] in slot], np.int64)
        options = ReadOptions.at(self.address, mmap=False)
        parts = sliced(catalog.store.url, version, table.take(numbers), options)
        results = run(
            job,
            parts,
            catalog.store.url,
            executor=executor,
            workers=1 if executor is None and len(parts) < 2 else workers,
            progress=show,
            advice="it may have been out of memory; run it again",
        )
        with closing(results):
            found = sorted(chain.from_iterable([each for _, each in results]), key=lambda each: each.number)
        for shard in found:
            shards.add(shard)
            slot = slots[numbers[shard.number]]
            k = slot.index(shard.old)
            slot[k : k + 1] = [] if shard.new is None else [shard.new]
        before = records_of(version.manifest)
        left = len(numbers) < len(table) or any(shard.new and shard.new.live_rows for shard in found)
        if sum(before.values()) and not left:
            # Rather a folder that is not mounted than a disk that lost every shard and no manifest.
            advice = "no record would be left: check that the data is where it was, or name a mirror"
            for lost in shards.lost:
                out.leave("missing", NotFoundError(lost.reason), advice, url=lost.where)
            # Recovered objects exist again, for earlier versions only.
            back = [each for each in shards.repaired if each.how in {"restored", "recovered"}]
            out.repaired += [replace(each, how="restored") for each in back]
            out.unrepaired += shards.unrepaired
            remove_objects(catalog, shards.new_keys)
            return out.report(**self.facts, before=before, after=before)
        out.add(shards)
        totals = ShardTable.from_entries(chain.from_iterable(slots)).totals()
        after = dict.fromkeys(before, 0) | {name: total.rows for name, total in totals.items()}
        out.notes += [
            f"split {name!r} is gone, because none of its shards is left; earlier versions name it"
            for name in before
            if name not in totals
        ]
        new = [Replacement((i,), slot) for i, slot in enumerate(slots[:-1]) if slot != [table[i]]]
        if (new or slots[-1]) and not self.dry_run:
            _, committed = replace_shards(
                catalog, version, new, out.new_keys,
                operation="repair", appended=slots[-1], restored=out.restored_keys,
            )  # fmt: skip
            self.facts["version"] = committed.number
        return out.report(**self.facts, before=before, after=after)
