"""Sessions: writes that span tasks, processes and reruns.

Receipts are created per task and attempt and never replaced.  A commit takes one complete attempt of every
task; a rerun of a killed task finds what its earlier attempts have stored safely and continues from there.

An example: `shardio.commit(url, session="run7", tasks=2)`, with task 1 killed once.  Before it there are:

    data/train-edka6jpjiroixfsj-0000.tfrecord            task 0, attempt iroixfsj, its shard 0, with its index
    data/train-edka6jpjnb4t3dka-1-0000.tfrecord          task 1, attempt nb4t3dka, killed after shard 0
    data/train-edka6jpjq5m2w7ve-1-0001.tfrecord          task 1, attempt q5m2w7ve, the rerun
    _shardio/sessions/run7/00000-iroixfsj.receipt        task 0 is complete
    _shardio/sessions/run7/00001-nb4t3dka-00000.receipt  nb4t3dka has stored its shard 0
    _shardio/sessions/run7/00001-q5m2w7ve.receipt        task 1 is complete: nb4t3dka's shard 0, and shard 1

`edka6jpj` is the id of the session `run7`.  The commit reads the receipts, of each task those of one complete
attempt, writes a list of the three shards, and creates the next manifest, which names the list: that is the
moment in which the records are there.  If it finds manifest 5 taken, it reads that, adds its list to those of
version 5, and tries to create manifest 6.  Shards that no receipt of a complete attempt names stay for
`shardio gc`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from shardio.catalog._catalog import Catalog
from shardio.catalog._merge import MODES, commit_receipts
from shardio.catalog._version import Version
from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.metadata import Receipt, ShardTable, naming
from shardio.storage import read_intact


@dataclass(frozen=True)
class SafeWork:
    """What earlier attempts of a task have stored.

    Attributes:
        receipt: counts and checksums up to the last safe shard.
        table: all safe shards, in order.
        attempt: the attempt that stored the last of them.
    """

    receipt: Receipt
    table: ShardTable
    attempt: str


def find_safe_work(catalog: Catalog, session: str, task: int) -> SafeWork | None:
    """Return what a task's earlier attempts have stored, or None if that is nothing.

    A complete attempt counts before incomplete ones; of several, the one with the most rows.
    """
    keys = [key for key in _receipt_keys(catalog, session) if key.task == task]
    ended = sorted(key for key in keys if key.sequence is None)
    if ended:
        complete = _best([*_read_all(catalog, ended).values()])
        return SafeWork(complete, complete.table, complete.attempt)
    begun = [key for key in keys if key.sequence is not None]
    if not begun:
        return None
    last = max(begun, key=lambda key: (key.sequence or 0, key.attempt))
    # Each receipt was created after the one before it, so the chain to the first is whole.
    chain = [_read(catalog, last)]
    while chain[-1].sequence > 0:
        previous = chain[-1]
        chain.append(
            _read(catalog, naming.ReceiptKey(session, task, previous.previous, previous.sequence - 1))
        )
    chain.reverse()
    return SafeWork(chain[-1], ShardTable.concatenate([receipt.table for receipt in chain]), last.attempt)


def complete_receipts(catalog: Catalog, session: str) -> dict[naming.ReceiptKey, Receipt]:
    """Return the receipts of tasks that have ended; one request each, side by side."""
    return _read_all(catalog, [key for key in _receipt_keys(catalog, session) if key.sequence is None])


def items_of_tasks(receipts: Mapping[naming.ReceiptKey, Receipt]) -> dict[int, frozenset[bytes]]:
    """Return of each task that has ended what its attempts say they were made from."""
    found: dict[int, frozenset[bytes]] = {}
    for key, receipt in receipts.items():
        found[key.task] = found.get(key.task, frozenset()) | {receipt.items_sha256}
    return found


def forget_session(catalog: Catalog, session: str, *, shards: bool) -> None:
    """Remove the receipts of a session that no other process knows, and with `shards` what they name.

    A shard without a receipt is left to `collect_garbage`: its name alone does not prove whose it is.
    """
    keys = [*_receipt_keys(catalog, session)]
    tables = [receipt.table for receipt in _read_all(catalog, keys).values()] if shards else []
    for key in keys:
        catalog.store.delete(key.key())
    remove_shards(catalog, tables)


def remove_shards(catalog: Catalog, tables: Iterable[ShardTable]) -> None:
    """Remove shards that no version names; what stays is listed by `collect_garbage`."""
    for key in {key for table in tables for entry in table for key in (entry.key, entry.usual_index_key)}:
        with contextlib.suppress(StorageError):
            catalog.store.delete(key)


def commit_session(
    catalog: Catalog,
    session: str,
    tasks: int,
    *,
    mode: str | None = None,
    attempts: Mapping[int, str] | None = None,
    known: Mapping[naming.ReceiptKey, Receipt] = MappingProxyType({}),
) -> Version:
    """Commit the tasks `0 .. tasks - 1` of a session as one new version.

    Args:
        catalog: of the dataset.
        session: the id that the tasks were written under.
        tasks: how many there are; each must have ended at least once.
        mode: "create", "append" or "overwrite"; None for what the tasks were opened with.
        attempts: by task, the one that counts, where the caller knows; None for the one with most rows.
        known: receipts that the caller has read.

    Returns:
        The new version, or the latest one where the session was merged before with the same content.

    Raises:
        NotFoundError: names the tasks that have not ended.
        CommitConflictError: the session was merged with other content, or another commit is in the way.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode={mode!r} must be one of {', '.join(MODES)}")
    if attempts is None:
        receipts = _receipts(catalog, session, tasks, known)
    else:
        keys = [naming.ReceiptKey(session, task, attempt, None) for task, attempt in sorted(attempts.items())]
        receipts = [*_read_all(catalog, keys).values()]
    modes = {receipt.mode for receipt in receipts}
    if mode is None and len(modes) > 1:
        raise ValueError(
            f"the tasks of session {session!r} were opened with different modes {sorted(modes)}; give mode="
        )
    return commit_receipts(catalog, receipts, mode=mode or modes.pop())


def session_shards(catalog: Catalog, session: str, tasks: int) -> ShardTable:
    """Return the shards that a commit of a session would add, in the order of its tasks.

    Raises:
        NotFoundError: names the tasks that have not ended.
    """
    return ShardTable.concatenate([receipt.table for receipt in _receipts(catalog, session, tasks)])


def _receipts(
    catalog: Catalog,
    session: str,
    tasks: int,
    known: Mapping[naming.ReceiptKey, Receipt] = MappingProxyType({}),
) -> list[Receipt]:
    """Return the complete receipt of each task that counts."""
    naming.check_session(session)
    tasks = naming.check_tasks(tasks)
    attempts: dict[int, list[naming.ReceiptKey]] = {}
    for key in _receipt_keys(catalog, session):
        if key.sequence is None:
            attempts.setdefault(key.task, []).append(key)
    missing = [task for task in range(tasks) if task not in attempts]
    if missing:
        raise NotFoundError(
            f"session {session!r} is not complete: {len(missing)} of {tasks} tasks have not ended",
            url=catalog.store.url,
            found=f"missing {_ranges(missing)}",
            advice="run these tasks (again), then commit",
        )
    beyond = sorted(task for task in attempts if task >= tasks)
    if beyond:
        raise ValueError(
            f"tasks={tasks}, but session {session!r} also holds {_ranges(beyond)}; give their true number"
        )
    keys = [key for of_task in attempts.values() for key in of_task]
    there = {**known, **_read_all(catalog, [key for key in keys if key not in known])}
    return [_best([there[key] for key in sorted(attempts[task])]) for task in range(tasks)]


def _receipt_keys(catalog: Catalog, session: str) -> Iterator[naming.ReceiptKey]:
    for info in catalog.store.list(f"{naming.SESSIONS}{session}/"):
        key = naming.ReceiptKey.parse(info.key)
        if key is not None:
            yield key


def _read(catalog: Catalog, key: naming.ReceiptKey) -> Receipt:
    name = key.key()
    url = catalog.store.url_of(name)
    limits = catalog.limits
    receipt = read_intact(
        lambda: Receipt.parse(catalog.store.get(name, max_bytes=limits.manifest), url=url, limits=limits)
    )
    facts = (receipt.session, receipt.task, receipt.attempt, receipt.complete)
    if facts != (key.session, key.task, key.attempt, key.sequence is None):
        raise FormatError("a receipt is under another's name", url=url, expected=key, found=facts)
    return receipt


def _read_all(catalog: Catalog, keys: Sequence[naming.ReceiptKey]) -> dict[naming.ReceiptKey, Receipt]:
    return dict(zip(keys, catalog.store.concurrently(partial(_read, catalog), keys), strict=True))


def _best(receipts: Sequence[Receipt]) -> Receipt:
    """Return the complete attempt with the most rows; a rerun that continued holds what the first held."""
    return max(receipts, key=lambda receipt: int(receipt.table.rows.sum()))


def _ranges(tasks: list[int], most: int = 20) -> str:
    """Return numbers as text, runs shortened: "task 3, 7-9"."""
    runs: list[list[int]] = []
    for task in tasks:
        if runs and runs[-1][1] == task - 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:most])
    return f"task{'s' if len(tasks) > 1 else ''} {text}" + (" ..." if len(runs) > most else "")
