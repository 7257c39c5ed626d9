"""Where a run is, in clear and JSON, under a seal: a state that was cut, edited or damaged is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardio.arguments import integer
from shardio.errors import ResumeError
from shardio.order._mixture import Mixture
from shardio.order._plan import Plan
from shardio.order._schedule import Change

_FORMAT = 1


@dataclass(frozen=True)
class Identity:
    """Say which dataset an order belongs to.

    Attributes:
        uuid: of the dataset.
        version: the version that was opened; another one will do as long as the fingerprint is the same.
        fingerprint: of the split's shards (UUID, rows, blocks, deletions), in order.
        split: its name.
        selection: digest of the chosen positions where a part is streamed, but not a plain slice; else None.
        joined: of the datasets whose features are read beside its own, in the order in which they came.
        on: of a joined one, the feature by whose values its records were found; None for by position.
        url: where it was, without credentials, for messages alone: a copy elsewhere is the same dataset.
    """

    uuid: str
    version: int
    fingerprint: str
    split: str
    selection: str | None = None
    joined: tuple[Identity, ...] = ()
    on: str | None = None
    url: str | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, without `selection`, `joined`, `on` and `url` where there is none."""
        fields = {name: value for name, value in asdict(self).items() if value}
        return fields | ({"joined": [each.to_dict() for each in self.joined]} if self.joined else {})

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Identity:
        """Return what `to_dict` wrote."""
        return cls(**{**fields, "joined": tuple(map(cls.from_dict, fields.get("joined", ())))})

    def __str__(self) -> str:
        return f"version {self.version} of {self.url or f'dataset {self.uuid}'}, split {self.split!r}"


@dataclass(frozen=True)
class State:
    """Hold what a state dict says; it may not fit the dataset yet."""

    datasets: tuple[Identity, ...]
    plans: tuple[Plan, ...]
    mixture: Mixture | None
    seed: int
    epoch: int
    shuffle: bool
    remainder: str
    step: int
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dict of strings, integers, booleans, lists and None, with its seal."""
        mixture = self.mixture
        fields = {
            "order": _FORMAT,
            "datasets": [identity.to_dict() for identity in self.datasets],
            "plans": [plan.to_dict() for plan in self.plans],
            "mixture": None if mixture is None else {"counts": list(mixture.counts), "stop": mixture.stop},
            "seed": self.seed,
            "epoch": self.epoch,
            "shuffle": self.shuffle,
            "remainder": self.remainder,
            "step": self.step,
            "batches": [change._asdict() for change in self.changes],
        }
        return {**fields, "seal": _seal(fields)}


def _seal(state: Mapping[str, Any]) -> str:
    """Return the first 16 hexadecimal digits of SHA-256 over a state's fields but `seal`, as compact JSON."""
    fields = {name: value for name, value in state.items() if name != "seal"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_state(state: object) -> State:
    """Read a state dict, or raise ResumeError."""
    advice = "use the state as state_dict() returned it"
    if not isinstance(state, Mapping):
        raise ResumeError("the state is not a dict", found=type(state).__name__, advice=advice)
    version = state.get("order")
    if isinstance(version, int) and version > _FORMAT:
        raise ResumeError(
            "a newer shardio wrote this state", expected=_FORMAT, found=version, advice="upgrade"
        )
    try:
        if (sealed := state["seal"]) != (found := _seal(state)):
            raise ResumeError(
                "the state was edited or damaged: its checksum does not match its fields",
                expected=repr(sealed)[:80],
                found=found,
                advice=advice,
            )
        mixed = state["mixture"]
        parsed = State(
            tuple(map(Identity.from_dict, state["datasets"])),
            tuple(Plan(**plan) for plan in state["plans"]),
            mixed and Mixture(tuple(mixed["counts"]), mixed["stop"]),
            integer("seed", state["seed"]),
            integer("epoch", state["epoch"]),
            bool(state["shuffle"]),
            str(state["remainder"]),
            integer("step", state["step"]),
            tuple(Change(**change) for change in state["batches"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ResumeError):
            raise
        why = f"it has no field {error}" if isinstance(error, KeyError) else error
        raise ResumeError(f"the state is damaged: {why}", advice=advice) from error
    return parsed


def check_identities(expected: Sequence[Identity], found: Sequence[Identity], what: str = "dataset") -> None:
    """Raise ResumeError, naming what differs, unless the datasets at hand are those of the state."""
    if len(expected) != len(found):
        message = f"the state belongs to another number of {what}s"
        raise ResumeError(message, expected=len(expected), found=len(found))
    for theirs, ours in zip(expected, found, strict=True):
        check_identities(theirs.joined, ours.joined, "joined dataset")
        for name in ("uuid", "split", "fingerprint", "selection", "on"):
            sides = [getattr(each, name) for each in (theirs, ours)]
            if sides[0] == sides[1]:
                continue
            same = "give the same filter(), select(), slice or join as when the state was saved"
            raise ResumeError(
                f"the {name} of a {what} is not that of the state",
                expected=f"{theirs} ({name} {sides[0] or 'none'})",
                found=f"{ours} ({name} {sides[1] or 'none'})",
                advice=same if name in ("selection", "on") else f"open {theirs}",
            )
