"""Where a run is, in clear and JSON: written, read back, and checked entry by entry.

The places in a state follow from its steps and batches; they are written down so that a person can read them,
and recomputed when the state is read, so that a state that was cut or edited is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardio.errors import ResumeError
from shardio.order._mixture import Mixture
from shardio.order._plan import Plan
from shardio.order._schedule import Change, Schedule

_FORMAT = 1
_FIELDS = (
    *("order", "datasets", "plans", "mixture", "seed", "epoch", "shuffle", "remainder", "step", "batches"),
    "seal",
)
_OF_DATASETS = ("uuid", "split", "fingerprint", "selection")
_REMAINDERS = ("drop", "pad", "keep")
_PLAN_FIELDS = ("ranks", "workers", "chunk_rows", "interleave", "window")


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
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        del fields["joined"]
        return fields | ({"joined": [each.to_dict() for each in self.joined]} if self.joined else {})

    def __str__(self) -> str:
        return f"version {self.version} of {self.url or f'dataset {self.uuid}'}, split {self.split!r}"


@dataclass(frozen=True)
class State:
    """Hold what a state dict says, each field of the right type; it may not fit the dataset yet."""

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
        """Return the state as a dict of strings, integers, booleans, lists and None."""
        mixture = self.mixture
        return {
            "order": _FORMAT,
            "datasets": [identity.to_dict() for identity in self.datasets],
            "plans": [plan.to_dict() for plan in self.plans],
            "mixture": None if mixture is None else {"counts": list(mixture.counts), "stop": mixture.stop},
            "seed": self.seed,
            "epoch": self.epoch,
            "shuffle": self.shuffle,
            "remainder": self.remainder,
            "step": self.step,
            "batches": [{**change._asdict(), "places": list(change.places)} for change in self.changes],
        }


def seal_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the field `seal`, a checksum over all others."""
    return {**state, "seal": _seal(state)}


def _seal(state: Mapping[str, Any]) -> str:
    """Return the first 16 hexadecimal digits of SHA-256 over a state's fields but `seal`, as compact JSON."""
    fields = {name: value for name, value in state.items() if name != "seal"}
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        what = f"the state is not JSON: {error}"
        raise ResumeError(what, advice="pass what state_dict() returned") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_seal(state: object) -> None:
    if isinstance(state, Mapping) and "seal" in state and state["seal"] != (found := _seal(state)):
        raise ResumeError(
            "the state was edited or damaged: its checksum does not match its fields",
            expected=repr(state["seal"])[:80],
            found=found,
            advice="use the state as state_dict() returned it",
        )


def _field(state: object, name: str, kind: type | tuple[type, ...], where: str = "the state") -> Any:
    if not isinstance(state, Mapping):
        what = f"{where} is not a dict"
        raise ResumeError(what, found=type(state).__name__, advice="pass what state_dict() returned")
    if name not in state:
        what = f"{where} has no field {name!r}"
        raise ResumeError(what, advice="it was cut or is not a state of this program")
    value = state[name]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        what = f"field {name!r} of {where} has the wrong type"
        raise ResumeError(what, expected=" or ".join(k.__name__ for k in kinds), found=repr(value)[:80])
    return value


def _whole(
    state: object, name: str, where: str = "the state", *, least: int = 0, most: int = 2**64 - 1
) -> int:
    value: int = _field(state, name, int, where)
    if not least <= value <= most:
        what = f"field {name!r} of {where} is out of range"
        raise ResumeError(what, expected=f"{least} to {most}", found=value)
    return value


def _change(entry: object, plan: Plan, where: str) -> Change:
    places = tuple(_field(entry, "places", (list, tuple), where))
    if len(places) != plan.workers or any(isinstance(p, bool) or not isinstance(p, int) for p in places):
        what = f"field 'places' of {where} is damaged"
        raise ResumeError(what, expected=f"{plan.workers} integers", found=repr(places)[:80])
    batch = _whole(entry, "global_batch", where, least=1)
    if batch % plan.ranks:
        what = f"field 'global_batch' of {where} does not fit the plan"
        raise ResumeError(what, expected=f"a multiple of {plan.ranks}", found=batch)
    tail = _field(entry, "tail", (int, type(None)), where)
    return Change(_whole(entry, "step", where), batch, places, tail)


def _shapes(state: object) -> tuple[tuple[Plan, ...], Mixture | None]:
    """Read the plans and the mixture of a state, which refuse wrong values themselves."""
    given, mixed = _field(state, "plans", list), _field(state, "mixture", (Mapping, type(None)))
    fields = [
        {name: _field(each, name, int, "a plan of the state") for name in _PLAN_FIELDS} for each in given
    ]
    try:
        plans = tuple(Plan(**each) for each in fields)
        mixture = None
        if mixed is not None:
            counts = tuple(_field(mixed, "counts", (list, tuple), "the state's mixture"))
            mixture = Mixture(counts, _field(mixed, "stop", (str, int), "the state's mixture"))
    except (ValueError, TypeError) as error:
        if isinstance(error, ResumeError):
            raise
        raise ResumeError(f"the state's plan or mixture is damaged: {error}") from error
    return plans, mixture


def _selection(dataset: Any) -> str | None:
    given: str | None = None
    if "selection" in dataset:
        given = _field(dataset, "selection", str, "a dataset of the state")
    return given


def _parse_identity(each: Any, *, joins: bool = True) -> Identity:
    joined: list[Any] = []
    if joins and isinstance(each, Mapping) and "joined" in each:
        joined = _field(each, "joined", list, "a dataset of the state")
    return Identity(
        uuid=_field(each, "uuid", str, "a dataset of the state"),
        version=_field(each, "version", int, "a dataset of the state"),
        fingerprint=_field(each, "fingerprint", str, "a dataset of the state"),
        split=_field(each, "split", str, "a dataset of the state"),
        selection=_selection(each),
        joined=tuple(_parse_identity(one, joins=False) for one in joined),
        on=_field(each, "on", str, "a dataset of the state") if not joins and "on" in each else None,
        url=_field(each, "url", str, "a dataset of the state") if "url" in each else None,
    )


def parse_state(state: object) -> State:
    """Read a state dict, or raise ResumeError that names the field that is missing or wrong."""
    _check_seal(state)
    version = _whole(state, "order", least=1)
    if version > _FORMAT:
        raise ResumeError(
            "a newer shardio wrote this state", expected=_FORMAT, found=version, advice="upgrade"
        )
    # A seal whose very name is damaged must not pass for none.
    if isinstance(state, Mapping) and (unknown := [name for name in state if name not in _FIELDS]):
        what = f"the state has a field {str(unknown[0])[:80]!r}, which no state has"
        raise ResumeError(what, advice="use the state as state_dict() returned it")
    datasets = tuple(_parse_identity(each) for each in _field(state, "datasets", list))
    plans, mixture = _shapes(state)
    sources = 1 if mixture is None else len(mixture.counts)
    if not len(datasets) == len(plans) == sources or len({(p.ranks, p.workers) for p in plans}) != 1:
        what = "the state's datasets, plans and mixture do not fit each other"
        raise ResumeError(
            what, expected=f"{sources} of each, of one shape", found=f"{len(datasets)} and {len(plans)}"
        )
    if _field(state, "remainder", str) not in _REMAINDERS:
        raise ResumeError(
            "field 'remainder' of the state", expected=_REMAINDERS, found=_field(state, "remainder", str)
        )
    entries = _field(state, "batches", list)
    return State(
        datasets,
        plans,
        mixture,
        seed=_whole(state, "seed"),
        epoch=_whole(state, "epoch"),
        shuffle=_field(state, "shuffle", bool),
        remainder=_field(state, "remainder", str),
        step=_whole(state, "step"),
        changes=tuple(
            _change(each, plans[0], f"batches[{i}] of the state") for i, each in enumerate(entries)
        ),
    )


def check_identities(expected: Sequence[Identity], found: Sequence[Identity]) -> None:
    """Raise ResumeError, naming what differs, unless the datasets at hand are those of the state."""
    if len(expected) != len(found):
        what = "the state belongs to another number of datasets"
        raise ResumeError(what, expected=len(expected), found=len(found))
    for number, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        which = "the dataset" if len(expected) == 1 else f"source {number} of the mixture"
        _check_joined(theirs.joined, ours.joined, which)
        for name in _OF_DATASETS:
            if getattr(theirs, name) != getattr(ours, name):
                raise _other(name, theirs, ours, which)


def _other(name: str, theirs: Identity, ours: Identity, which: str) -> ResumeError:
    """Return the error that says of what a state is and what is at hand, and digests where needed."""
    what, told, advice = {
        "uuid": (f"{which} is not that of the state", theirs.url != ours.url, ""),
        "split": (f"the split of {which} is not that of the state", True, ""),
        "fingerprint": (
            f"the shards of {which} are not those of the state",
            theirs.version != ours.version,
            "",
        ),
        "selection": (
            f"another selection of {which} is streamed than when the state was saved",
            False,
            "give the same filter(), select() or slice as when the state was saved",
        ),
        "on": (f"{which} is joined by another key than the state says", False, "join as before"),
    }[name]
    sides = (
        str(each) if told else f"{each} ({name} {getattr(each, name) or 'none'})" for each in (theirs, ours)
    )
    expected, found = sides
    return ResumeError(what, expected=expected, found=found, advice=advice or f"open {theirs}")


def _check_joined(expected: Sequence[Identity], found: Sequence[Identity], which: str) -> None:
    if len(expected) != len(found):
        what = f"another number of datasets is joined to {which} than the state says"
        raise ResumeError(what, expected=len(expected), found=len(found), advice="join as before")
    for theirs, ours in zip(expected, found, strict=True):
        for name in (*_OF_DATASETS, "on"):
            if getattr(theirs, name) != getattr(ours, name):
                raise _other(name, theirs, ours, f"a dataset joined to {which}")


def replay(schedule: Schedule, state: State) -> Schedule:
    """Lead a fresh schedule through the changes of a state; ResumeError where they cannot have happened."""
    if not state.changes or state.changes[0] != schedule.changes[0]:
        what = "batches[0] of the state is not the beginning of an epoch"
        raise ResumeError(
            what, expected=schedule.changes[0], found=state.changes[0] if state.changes else "nothing"
        )
    for number, change in enumerate(state.changes[1:], 1):
        before = state.changes[number - 1]
        if not before.step < change.step <= schedule.stop or change.global_batch == before.global_batch:
            what = f"batches[{number}] of the state cannot follow batches[{number - 1}]"
            raise ResumeError(
                what, expected=f"a new batch at a step in [{before.step + 1}, {schedule.stop}]", found=change
            )
        schedule = schedule.changed(change.step, change.global_batch)
        if schedule.changes[-1] != change:
            what = f"batches[{number}] of the state does not follow from the entries before it"
            raise ResumeError(
                what, expected=schedule.changes[-1], found=change, advice="the state was edited"
            )
    if not state.changes[-1].step <= state.step <= schedule.stop:
        what = "the step of the state is outside its epoch"
        raise ResumeError(what, expected=f"{state.changes[-1].step} to {schedule.stop}", found=state.step)
    return Schedule(schedule.lanes, schedule.changes, remainder=schedule.remainder, step=state.step)
