"""What verification finds, as values: comparable, printable, ready for JSON; always in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shardio.errors import ShardioError
from shardio.format import DAMAGE_ADVICE
from shardio.metadata import IndexHead
from shardio.progress import BytesProgress
from shardio.reports import Report, ReportItem

# The one kind that says nothing about the data: the environment failed, or this program is too old.
UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class Finding(ReportItem):
    """One problem.

    Attributes:
        kind: "manifest", "list" (of shards), "missing" (an object), "index", "frames" (one block's part of an
            index), "size", "block", "decode", "record", "checksum" (of a whole object), "deletions", or
            "value" (a record that does not decode). What could not be looked at is "unreadable".
        message: one sentence.
        url: the object.
        shard: key of the shard concerned.
        row, row_stop: half-open range of the rows of the shard that are concerned.
        start, stop: half-open range of bytes in the object; of a record in a compressed shard, in the decoded
            bytes of its block.
        expected, found: the two sides of the disagreement.
        advice: what to do next.
    """

    kind: str
    message: str
    url: str | None = None
    shard: str | None = None
    row: int | None = None
    row_stop: int | None = None
    start: int | None = None
    stop: int | None = None
    expected: str | None = None
    found: str | None = None
    advice: str | None = None

    @classmethod
    def from_error(cls, kind: str, error: ShardioError, **places: Any) -> Finding:
        """Return what an error says; places fill in what it does not know."""
        fields = {**places, **error.fields()}
        for side in ("expected", "found"):
            if side in fields:
                fields[side] = str(fields[side])
        return cls(kind=kind, message=error.what, **fields)

    def with_advice(self, advice: str) -> Finding:
        """Return the same finding with other advice."""
        return replace(self, advice=advice)

    def __str__(self) -> str:
        """Return message, address, both sides and advice in one line."""
        several = self.row is not None and self.row_stop is not None and self.row_stop - self.row > 1
        error = ShardioError(
            f"{self.message}, rows {self.row} to {(self.row_stop or 0) - 1}" if several else self.message,
            url=self.url,
            shard=self.shard,
            row=None if several else self.row,
            start=self.start,
            stop=self.stop,
            expected=self.expected,
            found=self.found,
            advice=self.advice,
        )
        return f"{self.kind}: {error}"


@dataclass(frozen=True, kw_only=True)
class VerifyReport(Report):
    """Result of `verify`.

    Attributes:
        url: of the dataset or shard.
        version, digest: of the dataset; None for a single shard, and where no manifest could be read.
        indexed: False for a single shard without an index, which was read from the start.
        shards: number of shards looked at.
        records: those that should be there (deleted ones too); without an index, those that were found.
        good_records: those that are there and match every checksum that covers them.
        undecodable_records: those that give no value by the schema; None where that was not asked for.
        stored_bytes: size of the shards.
        findings: all of them: metadata first, then shard by shard in order, by rising block and row.
        skipped: damage that adoption skipped with `--salvage`, of the kind "skipped"; not findings.
    """

    _computed: ClassVar[tuple[str, ...]] = ("ok",)

    url: str
    version: int | None = None
    digest: str | None = None
    indexed: bool = True
    shards: int = 0
    records: int = 0
    good_records: int = 0
    undecodable_records: int | None = None
    stored_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything was checked without a finding."""
        return not self.findings

    @property
    def damaged(self) -> bool:
        """Whether data is damaged; False if it only could not be read."""
        return any(finding.kind != UNREADABLE for finding in self.findings)


@dataclass(frozen=True)
class VerifyProgress(BytesProgress):
    """How far verification has come.

    Attributes:
        done_bytes, total_bytes: stored bytes of shards.
        findings: those so far; the list grows.
    """

    findings: Sequence[Finding]


# What to do about damage: in a file without a dataset, and in a shard, by whether it was adopted.
FILE_ADVICE = "fetch the file again, or keep its good records with `shardio adopt --salvage`"
SHARD_ADVICE = {
    False: "`shardio repair` restores it from a copy (--mirror), or keeps the good records",
    True: "fetch the adopted file from its source again, then run `shardio adopt URL --update`",
}


@dataclass
class Survey:
    """Gathers findings and counts while shards are looked at.

    Attributes:
        damage_advice: what to do about damage in the bytes of the shard that is checked now.
    """

    findings: list[Finding] = field(default_factory=list)
    skipped: list[Finding] = field(default_factory=list)
    good_records: int = 0
    undecodable_records: int = 0
    damage_advice: str = FILE_ADVICE

    def note(self, kind: str, error: ShardioError, **places: Any) -> None:
        """Add what an error says to the findings."""
        finding = Finding.from_error(kind, error, **places)
        if finding.advice == DAMAGE_ADVICE:
            finding = finding.with_advice(self.damage_advice)
        self.findings.append(finding)

    def note_skipped(self, head: IndexHead, *, url: str, shard: str) -> None:
        """Note the damage that an index says was left out."""
        for block, reason in sorted(head.gaps.items()):
            if reason.startswith("damage"):
                start, stop = head.block_bounds(block)
                what = reason.removeprefix("damage: ")
                self.skipped.append(
                    Finding(kind="skipped", message=what, url=url, shard=shard, start=start, stop=stop)
                )

    def report(self, url: str, **facts: Any) -> VerifyReport:
        """Return what was found, with what else there is to say."""
        return VerifyReport(
            url=url,
            good_records=self.good_records,
            findings=tuple(self.findings),
            skipped=tuple(self.skipped),
            **facts,
        )

    def add(self, other: Survey) -> None:
        """Add what another survey has found behind what this one has."""
        self.findings += other.findings
        self.skipped += other.skipped
        self.good_records += other.good_records
        self.undecodable_records += other.undecodable_records
