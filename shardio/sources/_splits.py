"""Which split each file of a source belongs to: as the caller says, else as its name tells.

The one rule of adoption and conversion.  A name tells a split by a word of `WORDS`, whatever its case:

- a folder: `test/part-0.tfrecord`, `train-clean-100/...`, `coco_val/...`; of `key=value` folders only the key
  `split`, whose value is the split, whatever its words and those of the file: `split=test/part-0.parquet`;
- the beginning of the file's name: `train-00000-of-00008.tfrecord`, `val_images.tar`, `test2017.jsonl`;
- the end of it, before number and ending: `bird-test.tfrecord-00000-of-00001`, `imagenet-val-000012.tar`;
- a part between dots: `wiki.train.tokens`.

Evaluation files with different names stay apart, so that `validation_matched.jsonl` and
`validation_mismatched.jsonl` are two splits.  Of files that are numbered as writers of shards do,
`<split>-00000` or `<split>-00000-of-00008`, all that is before the number is the split; and where one such
name tells a split, those beside it do, too: `unsupervised-00000-of-00001`.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from shardio.arguments import accepts, mapping
from shardio.display import plural
from shardio.metadata import naming
from shardio.sources._find import Listing
from shardio.sources._hive import folder_key, split_of
from shardio.sources._names import COMPRESSED
from shardio.sources._urls import common_folder

DEFAULT_SPLIT = "train"
# A split keeps the word that its files have; where two words for one thing meet, it is the last of them.
_SYNONYMS = [("val", "valid", "validation"), ("eval", "evaluation"), ("dev",), ("trainval",)]
WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | {
    word: word for words in _SYNONYMS for word in words
}
_NUMBERED = re.compile(r"(.+?)-\d{5,}(?:-of-\d{5,})?")
_DOT_NUMBER = re.compile(r"\.(?=\d{5,}-of-\d{5,})")
_BETWEEN_WORDS = re.compile(r"[-_ ]+|(?<=[a-z])(?=[A-Z])")
_NUMBER = re.compile(r"(.*?)[-_ ]?\d+(?:[-_]?of[-_]?\d+)?")
# TensorFlow Datasets numbers behind the ending.
_NUMBER_BEHIND = re.compile(r"([^.]+)\.[^.]+-\d{5,}-of-\d{5,}")
_DATED = re.compile(r"(?:train|val|valid|validation|test|dev|eval)[-_ ]?\d+", re.IGNORECASE)
_TGZ = re.compile(r"\.t(?:gz|zst)$", re.IGNORECASE)
# What browsers and desktops add to the names of copies.
_COPY = re.compile(r" (?:\(\d+\)|\(copy\)|- Copy(?: \(\d+\))?)(?=\.[^/ ]*$|$)")
_SHOWN = 3
_OF = re.compile(r"(.*[-._])(\d{4,9})-of-(\d{4,9})(?!\d)(.*)", re.DOTALL)


class Division(NamedTuple):
    """What was decided.

    Attributes:
        splits: of each file, in the order given; None where no pattern of the caller's matches, or where a
            name tells nothing though others do.
        notes: what it rests on, for people.
        silent: the names that tell nothing though others do, or several splits.
    """

    splits: list[str | None]
    notes: list[str]
    silent: Sequence[str] = ()

    def refuse(self, silent: Collection[str]) -> NoReturn:
        """Raise ValueError for some of `silent`: there is no split that they certainly belong to."""
        shown = ", ".join(list(silent)[:_SHOWN]) + ", ..." * (len(silent) > _SHOWN)
        those = "1 file name tells" if len(silent) == 1 else f"{len(silent)} file names tell"
        what = "several splits" if all(len(_splits_told(name)) > 1 for name in silent) else "no split"
        others = f", and others do ({'; '.join(self.notes)})" if self.notes and what == "no split" else ""
        raise ValueError(
            f"{those} {what} ({shown}){others}: name one split for all files, or a pattern for each split"
        )


@dataclass(frozen=True)
class SplitRules:
    """How files are divided among splits.

    Args:
        given: None to go by the names; the name of the one split; or patterns by name, e.g.
            `{"train": "*train*", "val": "*val*"}`, the first that matches counts.

    Raises:
        TypeError: no name, nor patterns by name.
        UnsafeNameError: no name for a split.
    """

    given: str | Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.given, str):
            naming.check_split(self.given)
            return
        for name, pattern in mapping("split", self.given).items():
            naming.check_split(name)
            if not isinstance(pattern, str):
                raise TypeError(f"the pattern of split {name!r} must be text, found {pattern!r:.80}")

    def divide(
        self,
        names: Sequence[str],
        *,
        folder: str = "",
        existing: Mapping[str, str] | None = None,
        told: Mapping[str, str] | None = None,
    ) -> Division:
        """Return the split of each file.

        Args:
            names: paths of the files below the folder that they have in common, `/` between components.
            folder: name of that folder, if it was named itself; it counts where no path tells anything.
            existing: the splits of those of the files that are part of a dataset already; they stay there.
            told: the splits that lists of folders name for files, whatever these are called.
        """
        if isinstance(self.given, str):
            return Division([self.given] * len(names), [])
        if self.given is not None:
            return Division([self._matching(name) for name in names], [])
        return _with_told(names, told or {}, lambda rest: _by_names(rest, folder, existing or {}))

    def divide_folders(
        self, names: Sequence[str], *, folder: str = "", told: Mapping[str, str] | None = None
    ) -> Division:
        """Return the split of each file where a file is a record: by folders alone.

        Names of records say what they are of, and folders may be classes: one called `train` is a split only
        if all folders beside it are named like splits, below those that all files share.  A folder
        `split=train` is one wherever it is.
        """
        if self.given is not None:
            return self.divide(names)
        return _with_told(names, told or {}, lambda rest: self._by_folders(rest, folder))

    def _by_folders(self, names: Sequence[str], folder: str) -> Division:
        if _said(folder) or any(_said(part) for name in names for part in name.split("/")[:-1]):
            division = _by_names([_keys_alone(name) for name in names], folder if _said(folder) else "", {})
            pairs = zip(names, division.splits, strict=True)
            return division._replace(silent=[name for name, split in pairs if split is None])
        depth = split_depth(names)
        if depth is None:
            alike = ", ".join(
                sorted({part for name in names for part in name.split("/")[:-1] if _exact(part)})
            )
            note = f"folders named like splits ({alike}) are classes, as not all folders are named so"
            return Division([DEFAULT_SPLIT] * len(names), [note] if alike else [])
        division = _by_names([f"{name.split('/')[depth]}/" for name in names], "", {})
        return division._replace(silent=[])

    def _matching(self, name: str) -> str | None:
        assert not isinstance(self.given, str | None)  # noqa: S101 - for the type checker
        last = name.rpartition("/")[2]
        for split, pattern in self.given.items():
            if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(last, pattern):
                return split
        return None

    def __str__(self) -> str:
        given = {self.given: "*"} if isinstance(self.given, str) else self.given or {}
        return ", ".join(f"{name}={pattern}" for name, pattern in given.items())


def split_depth(names: Collection[str]) -> int | None:
    """Return how many folders are above those that are splits, where all files share these; None without.

    All folders at that depth are named like splits: `images/train2017/1.jpg` and `images/val2017/2.jpg`.
    """
    folders = [name.split("/")[:-1] for name in names]
    for depth, level in enumerate(zip(*folders, strict=False)):
        if all(_said(part) or _exact(part) or _DATED.fullmatch(part) for part in set(level)):
            return depth
        if len(set(level)) > 1:
            return None
    return None


def _with_told(
    names: Sequence[str], told: Mapping[str, str], divide: Callable[[Sequence[str]], Division]
) -> Division:
    """Return the splits that lists of folders name, and of the other files those that are found for them."""
    rest = [name for name in names if name not in told]
    if not told or len(rest) == len(names):
        return divide(names)
    counts = Counter(told[name] for name in names if name in told)
    shown = ", ".join(f"{split} {plural(number, 'file')}" for split, number in counts.items())
    found = divide(rest) if rest else Division([], [])
    others = dict(zip(rest, found.splits, strict=True))
    splits = [told.get(name) or others[name] for name in names]
    return Division(splits, [f"splits told by lists of the folders: {shown}", *found.notes], found.silent)


def _by_names(names: Sequence[str], folder: str, existing: Mapping[str, str]) -> Division:
    fresh = [name for name in names if name not in existing]
    # What the folder says is as good as what folders below it say.
    above = f"{folder}/" if _said(folder) else ""
    told = dict(zip(fresh, _with_siblings(fresh, [_told(above + name) for name in fresh]), strict=True))
    told |= _evaluation_sets(told)
    silent = [name for name in fresh if told[name] is None]
    notes = []
    torn = [name for name in silent if len(_splits_told(name)) > 1]
    if torn and len(silent) == len(fresh):
        return Division([existing.get(name) for name in names], [], torn)
    if silent and len(silent) == len(fresh):
        # Folders of people's own projects are called `dev`, too.
        telling = folder.lower() in WORDS and folder.lower() != "dev"
        split = WORDS[folder.lower()] if telling else DEFAULT_SPLIT
        by = f"the folder is named {folder!r}" if telling else "no file name tells a split"
        notes = [f"{by}: {plural(len(fresh), 'file')} in split {split!r}"]
        told = dict.fromkeys(fresh, split)
        silent = []
    elif fresh:
        unified = _unified({*told.values(), *existing.values()}, set(existing.values()))
        told = {name: unified.get(split, split) for name, split in told.items()}
        counts = Counter(split for split in told.values() if split is not None)
        first = {split: name for name, split in reversed(told.items())}
        parts = [f"{split} {plural(number, 'file')} ({first[split]})" for split, number in counts.items()]
        notes = [f"splits told by file names: {', '.join(parts)}"]
    return Division([existing.get(name) or told[name] for name in names], notes, silent)


def _evaluation_sets(told: Mapping[str, str | None]) -> dict[str, str]:
    """Return the splits of evaluation files of different names, `val_seen.jsonl` and `val_unseen.jsonl`.

    Parts of a training set may have any names; two evaluation sets in one split would be a wrong measure.
    """
    sets: dict[str | None, dict[str, str]] = {}
    for name, split in told.items():
        *folders, file = name.split("/")
        stem = file.partition(".")[0]
        number = _NUMBER.fullmatch(stem)
        stem = number[1] if number else stem
        told_by_file = _word_at_beginning(stem) == split and not any(map(_words_of, folders))
        if split not in (None, "train") and told_by_file:
            sets.setdefault(split, {})[name] = _exact(stem) or stem
    apart = [names for names in sets.values() if len(set(names.values())) > 1]
    return {
        name: stem for names in apart for name, stem in names.items() if accepts(naming.check_split, stem)
    }


def _unified(found: Collection[str | None], preferred: Collection[str]) -> dict[str | None, str]:
    """Return the one word for each that has a synonym among those found: the dataset's, or the longest."""
    last: dict[str | None, str] = {}
    for words in _SYNONYMS:
        there = [word for word in words if word in found]
        kept = [word for word in there if word in preferred]
        if len(there) > 1 and len(kept) < 2:
            last.update(dict.fromkeys(there, (kept or there)[-1]))
    return last


def _told(name: str) -> str | None:
    """Return the split that a path tells, or None where it tells none, or several."""
    found = _splits_told(name)
    return found.pop() if len(found) == 1 else None


def _splits_told(name: str) -> set[str]:
    """Return all splits that a path tells: none, one, or several that contradict each other."""
    *folders, file = name.split("/")
    said = {split for part in folders if (split := _said(part)) is not None}
    if said:
        return said
    plain = [part for part in folders if folder_key(part) is None]
    stem, *parts = file.split(".")
    words = [_words_of(part) for part in plain]
    by_folder = set().union(*(each for each in words if len(each) == 1))
    of_stem = _words_of(stem)
    by_file = {word for part in parts if (word := _exact(part))} | (of_stem if len(of_stem) == 1 else set())
    whole = _numbered(file)
    if whole is not None and by_file == {_word_at_beginning(whole)} and accepts(naming.check_split, whole):
        by_file = {WORDS.get(whole.lower(), whole)}
        if by_folder and _words_of(whole) == by_folder:
            by_folder = by_file
    return by_folder | by_file or of_stem.union(*words)


def _said(folder: str) -> str | None:
    """Return the split that a folder `split=NAME` names; None where a dataset cannot have such a name."""
    split = split_of(folder)
    return split if split is not None and accepts(naming.check_split, split) else None


def _keys_alone(name: str) -> str:
    """Return the `key=value` folders of a path, with a slash behind each."""
    return "".join(f"{part}/" for part in name.split("/")[:-1] if folder_key(part) is not None)


def _exact(part: str) -> str | None:
    return WORDS.get(part.lower())


def _words_of(part: str) -> set[str]:
    """Return the splits that the first and last word of a folder, or of a file without its ending, tell."""
    number = _NUMBER.fullmatch(part)
    words = [word.lower() for word in _BETWEEN_WORDS.split(number[1] if number else part) if word]
    return {WORDS[bare] for word in (words[:1] + words[-1:]) if (bare := word.rstrip("0123456789")) in WORDS}


def _word_at_beginning(part: str) -> str | None:
    return WORDS.get(re.split(r"[-_ ]", part.lower())[0])


def _numbered(file: str) -> str | None:
    """Return what is before the number in the name of a numbered shard, or None where it is none."""
    # mC4 has a dot before the number: `c4-de.tfrecord-00000-of-01024`, `c4-train.00000-of-01024.json.gz`.
    file = _DOT_NUMBER.sub("-", file)
    found = _NUMBER_BEHIND.match(file) or _NUMBERED.fullmatch(file.partition(".")[0])
    return found[1] if found else None


def _with_siblings(names: Sequence[str], told: list[str | None]) -> list[str | None]:
    """Return the splits also of files that are numbered beside others whose names tell one."""
    whole = [_numbered(name.rpartition("/")[2]) for name in names]
    if None in told and None not in whole:
        # What is before the split in the names that tell one: "" or "imdb_reviews-".
        before = set(_before(zip(whole, told, strict=True)))
        for number, (name, split) in enumerate(zip(whole, told, strict=True)):
            if split is None and len(before) == 1 and name is not None:
                (prefix,) = before
                own = name.removeprefix(prefix) if name.startswith(prefix) else ""
                told[number] = own if own and accepts(naming.check_split, own) else None
    return told


def _before(named: Iterable[tuple[str | None, str | None]]) -> Iterable[str]:
    for name, split in named:
        if name is not None and split is not None and name.endswith(split):
            yield name.removesuffix(split)


def folder_of(listings: Sequence[Listing]) -> str:
    """Return the name of the folder that all files were searched in, or "" where files were named.

    A folder `split=NAME` counts also where files in it, or in `key=value` folders below it, were named.
    """
    common = common_folder([listing.root for listing in listings])
    for part in reversed(common.parts if common is not None else ()):
        if folder_key(part) is None:
            break
        if _said(part):
            return part
    named = any(listing.kind == "file" for listing in listings)
    return common.parts[-1] if common is not None and common.parts and not named else ""


def check_sets(names: Collection[str]) -> list[str]:
    """Return what names such as `train-00001-of-00003` say that is not as it should be, for people.

    Files that are missing may come later, or may be left out on purpose: nothing is refused for that.
    So may a file be beside its compressed copy.
    """
    notes = _check_copies(names)
    sets: dict[tuple[str, str], dict[str, dict[int, str]]] = {}
    for name in names:
        if found := _OF.fullmatch(name):
            before, number, total, after = found.groups()
            sets.setdefault((before, after), {}).setdefault(total, {})[int(number)] = number
    for (before, after), by_total in sorted(sets.items()):
        for total, numbers in sorted(by_total.items()):
            first = int(0 not in numbers and int(total) in numbers)
            there = [number for number in numbers if first <= number < first + int(total)]
            if len(there) < int(total):
                lacking = next(number for number in itertools.count(first) if number not in numbers)
                width = len(next(iter(numbers.values())))
                notes.append(
                    f"{len(there)} of {total.lstrip('0')} files {before}*-of-{total}{after} are there: "
                    f"{before}{lacking:0{width}}-of-{total}{after} is not"
                )
        if len(by_total) > 1:
            counts = " and ".join(sorted(by_total))
            notes.append(
                f"{before}*{after} is there as sets of {counts} files: if they hold the same records, these "
                "are now there several times"
            )
    return notes if len(notes) <= _SHOWN else [*notes[:_SHOWN], f"{len(notes) - _SHOWN} more such notes"]


def _check_copies(names: Iterable[str]) -> list[str]:
    """Return a note on files beside their copies: `a.jsonl` and `a.jsonl.gz`, or `a (1).jsonl`."""
    by_plain: dict[str, list[str]] = {}
    for name in names:
        by_plain.setdefault(_COPY.sub("", _TGZ.sub(".tar", COMPRESSED.sub("", name))), []).append(name)
    copies = [sorted(group) for group in by_plain.values() if len(group) > 1]
    if not copies:
        return []
    first, copy, *_ = copies[0]
    what = f"{plural(len(copies), 'file')} such as {first}: {copy} is beside it and may be its copy"
    return [f"{what}; if they hold the same records, these are now there several times"]
