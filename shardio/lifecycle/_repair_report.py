"""What repair found, did, and could not do, as values; ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shardio.errors import BadRecord, NotFoundError, ShardioError
from shardio.maintenance import Finding
from shardio.reports import Report, ReportItem


@dataclass(frozen=True, kw_only=True)
class Repaired(ReportItem):
    """One object that is (or would be) repaired.

    Attributes:
        how: "restored": the exact bytes are under their own name again; "rebuilt": an index was made again
            from its shard; "salvaged": the good records
            of a shard are in a new one; "dropped": nothing of a shard was left; "recovered": the mirror has a
            shard of which an earlier repair lost records.
        what: "manifest", "list", "keys", "shard", "index", "deletions" or "table".
        url: of the object that was damaged or missing.
        by: key of the object that takes its place; None in a dry run, and where nothing does.
        source: where the bytes came from: "mirror", "shard" or "left over".
        lost: live records that are lost with it.
    """

    how: str
    what: str
    url: str
    by: str | None = None
    source: str | None = None
    lost: int = 0

    def __str__(self) -> str:
        """Return it as one line."""
        source = f" from {self.source}" if self.source else ""
        by = f" as {self.by}" if self.by and not self.url.endswith(self.by) else ""
        lost = f", {self.lost} records lost" if self.lost else ""
        return f"{self.how}{source}: {self.what} {self.url}{by}{lost}"


@dataclass(kw_only=True)
class Repairs:
    """What became of a part of a dataset.

    Attributes:
        repaired, lost, unrepaired, notes: those of `RepairReport`.
        new_keys, restored_keys: of objects that were stored under new names, and under their own.
    """

    repaired: list[Repaired] = field(default_factory=list)
    lost: list[BadRecord] = field(default_factory=list)
    unrepaired: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    new_keys: list[str] = field(default_factory=list)
    restored_keys: list[str] = field(default_factory=list)

    def add(self, other: Repairs) -> None:
        """Add what became of another part."""
        for name in ("repaired", "lost", "unrepaired", "notes", "new_keys", "restored_keys"):
            getattr(self, name).extend(getattr(other, name))

    def leave(self, kind: str, error: ShardioError, advice: str, **places: Any) -> None:
        """Note what stays damaged or missing, and what to do about it."""
        kind = "missing" if isinstance(error, NotFoundError) else kind
        self.unrepaired.append(Finding.from_error(kind, error, **places).with_advice(advice))

    def report(self, **facts: Any) -> RepairReport:
        """Return all of it, with what else there is to say."""
        own = {name: tuple(getattr(self, name)) for name in ("repaired", "lost", "unrepaired", "notes")}
        return RepairReport(**{**own, **facts})


@dataclass(frozen=True, kw_only=True)
class RepairReport(Report):
    """What `repair` found and did, or would do.

    Attributes:
        url: of the dataset.
        dry_run: nothing was changed.
        base_version: the version that was looked at; None where no manifest could be read.
        version: the new version; None where none was needed, and in a dry run.
        repaired: what is (or would be) repaired, in the order of the dataset.
        lost: what is lost, by address.
        unrepaired: what stays damaged, as `shardio.verify` finds it, each with advice.
        before, after: live records by split.
        notes: what deserves attention.
    """

    _computed: ClassVar[tuple[str, ...]] = ("ok", "lost_records")

    url: str
    dry_run: bool
    base_version: int | None
    version: int | None = None
    repaired: tuple[Repaired, ...] = ()
    lost: tuple[BadRecord, ...] = ()
    unrepaired: tuple[Finding, ...] = ()
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing stays damaged; in a dry run, whether nothing would."""
        return not self.unrepaired

    @property
    def lost_records(self) -> int:
        """How many live records are (or would be) lost."""
        return sum(each.lost for each in self.repaired)
