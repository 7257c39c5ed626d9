"""Which kind of source files are: each kind claims files, with a score, and one loop ranks the claims.

Adoption and conversion ask for the same claims on the same listings.  Adoption takes all kinds that a framer
cuts where they are, conversion the one that ranks first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from shardio.sources._find import FoundFile, Listing
from shardio.sources._mds import find_mds
from shardio.sources._names import is_description, is_nameless
from shardio.sources._peek import JSON_ARRAY, JSON_OBJECT, Peek
from shardio.sources._tfds import find_tfds

_MOST_HEADS = 16


class Score(IntEnum):
    """How certain a claim is, the least first."""

    README = 0  # text that is named like a description
    JSON = 1  # documents of JSON, which mostly describe what they are beside
    NOTES = 2  # text, which is beside data of all kinds
    OTHER = 3  # the first bytes of a format whose names tell nothing
    TABLE = 4  # tables and lists, which are beside data as labels
    BYTES = 5  # the first bytes of files whose names tell nothing
    NAMED = 6  # the names
    DESCRIBED = 7  # a file beside them that says what they are
    DATASET = 8  # manifests of shardio's own


class Claim(NamedTuple):
    """Files that a kind of source reads.

    Attributes:
        kind: of the source; "" where it is of a kind that is not read.
        files: what it would read.
        score: how certain that is, see `Score`.
        reason: what the claim rests on, for people.
        advice: how data of a kind that is not read becomes a dataset.
        described: what a description beside the files says of them, where it was parsed.
    """

    kind: str
    files: Sequence[FoundFile]
    score: int = Score.NAMED
    reason: str = "the names of the files"
    advice: str = ""
    described: Any = None


Claimant: TypeAlias = Callable[[Sequence[Listing], Peek], Claim | None]


def rank_claims(claimants: Iterable[Claimant], listings: Sequence[Listing], peek: Peek) -> list[Claim]:
    """Return the claims on the files of listings, the most certain first."""
    claims = (claimant(listings, peek) for claimant in claimants)
    return sorted(filter(None, claims), key=lambda claim: -claim.score)


def claim_files(
    kind: str, listings: Sequence[Listing], peek: Peek, fits: Callable[[str], bool] | None = None
) -> Claim | None:
    """Claim files for one of shardio's kinds, or for one whose names `fits` knows; None where there are none.

    Files whose names tell nothing are looked into.
    """
    if kind in _BESIDE:
        return _BESIDE[kind](listings, peek)
    files, named = [], False
    for listing in listings:
        by_name, by_bytes = files_of_kind(kind, listing, peek, fits)
        files += by_name + by_bytes
        named = named or bool(by_name)
    if not files:
        return None
    if not named:
        return Claim(kind, files, Score.BYTES, "first bytes")
    if kind == "text" and all(is_description(file.key) for file in files):
        return Claim(kind, files, Score.README)
    return Claim(kind, files, _WEAK.get(kind, Score.NAMED))


def files_of_kind(
    kind: str, listing: Listing, peek: Peek, fits: Callable[[str], bool] | None = None
) -> tuple[list[FoundFile], list[FoundFile]]:
    """Return the files of a listing that are of a kind by their names, and by first bytes.

    First bytes take precedence over a name.  Without either, named or matched files are always taken.
    """
    named = listing.named.get(kind, [])
    if fits is not None:
        named = [file for file in listing.data if fits(file.key)]
    misnamed = peek.misnamed(listing)
    named = [file for file in named if misnamed.get(file, kind) == kind]
    named += [file for file, found in misnamed.items() if found == kind and file not in named]
    if listing.kind == "folder":
        kinds = peek.kinds(listing.nameless)
        bare = [file for file, found in zip(listing.nameless, kinds, strict=True) if found == kind]
        return named, bare
    if named or listing.named.keys() - {None}:
        return named, []
    first = next(filter(None, peek.kinds(listing.data[:_MOST_HEADS])), None)
    return [], listing.data if first == kind else []


def claim_other(listings: Sequence[Listing], peek: Peek) -> Claim | None:
    """Claim a file of a kind that no name tells, or that is not read; of each ending one is looked at."""
    endings: dict[str, FoundFile] = {}
    for listing in listings:
        for file in listing.data:
            name = file.key.rpartition("/")[2]
            ending = "" if is_nameless(name) else name.rpartition(".")[2]
            endings.setdefault(name if name == "index.json" else ending, file)
    for file in list(endings.values())[:_MOST_HEADS]:
        if (other := peek.other(file)) is not None:
            score = Score.JSON if other in (JSON_ARRAY, JSON_OBJECT) else Score.OTHER
            return Claim(other.source or "", [file], score, other.name, other.way)
    return None


def _claim_tfds(listings: Sequence[Listing], peek: Peek) -> Claim | None:
    for listing in listings:
        if (folder := find_tfds(listing, peek)) is not None:
            files = [file for file in listing.files if folder.file_of(file.key) is not None]
            return Claim("tfds", files, Score.DESCRIBED, "dataset_info.json", described=folder)
    return None


def _claim_mds(listings: Sequence[Listing], peek: Peek) -> Claim | None:
    shards = [shard for listing in listings for shard in find_mds(listing, peek)]
    there = {shard.url for shard in shards}
    files = [file for listing in listings for file in listing.files if file.url in there]
    return Claim("mds", files, Score.DESCRIBED, "index.json", described=shards) if shards else None


def _claim_codewithgpu(listings: Sequence[Listing], peek: Peek) -> Claim | None:
    del peek
    data = [file for each in listings for file in each.named.get("codewithgpu", [])]
    beside = {file.key.rpartition("/")[2] for each in listings for file in each.files}
    if not data or not any(name == "METADATA" or name.endswith(".index") for name in beside):
        return None
    return Claim("codewithgpu", data, Score.DESCRIBED, "METADATA and indexes")


def _claim_torchrecord(listings: Sequence[Listing], peek: Peek) -> Claim | None:
    del peek
    files = [file for each in listings for file in each.data if file.key.rpartition("/")[2] == "data.mdb"]
    return Claim("torchrecord", files, Score.DESCRIBED, "data.mdb") if files else None


# Kinds that a file beside the data tells, and not the names of the data.
_BESIDE: dict[str, Claimant] = {
    "tfds": _claim_tfds, "mds": _claim_mds, "codewithgpu": _claim_codewithgpu,
    "torchrecord": _claim_torchrecord, "megatron": lambda *_: None,  # by first bytes alone, see `claim_other`
}  # fmt: skip
_WEAK = {"text": Score.NOTES, "csv": Score.TABLE, "tsv": Score.TABLE}
