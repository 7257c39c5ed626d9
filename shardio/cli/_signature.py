"""The options of a command are the arguments of the function that it calls: names, defaults and help.

`Takes` names a function. Its signature says which options there are and what they take, its docstring says
what they mean, and the library's own constants say between what one may choose. What several functions have,
and means the same in all of them, is worded here once. The function is imported when its command is parsed.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from shardio.cli._command import WHOLE, Argument, Option, PlaceParam, Value, flag, options
from shardio.cli._values import (
    NOTHING,
    comma_names,
    fractions,
    json_pair,
    once,
    parse_version,
    split_patterns,
    text_pair,
)

_ARG = re.compile(r"([a-z_]+(?:, [a-z_]+)*): ")
# What has no options: callables, and objects that only Python has.
_PYTHON = {"progress", "executor"}

# Between what one may choose, by the name of the argument; tests hold what is written out to the library.
MIXINGS = ("cheap", "default", "best")
ENCODINGS = ("example", "sequence_example", "tensors", "array", "bytes")
_CHOICES: dict[str, str | tuple[str, ...]] = {
    "mode": "shardio.catalog:MODES",
    "engine": ("fsspec", "obstore"),
    "encoding": ENCODINGS,
    "compression": ("zstd", "gzip", "zlib"),
    "mixing": MIXINGS,
    "remainder": ("drop", "pad", "keep"),
}
_LAYOUT = {"compression", "level", "shard_bytes", "shards", "block_bytes", "encoding"}
# What means the same in every function: metavar, group of the help text, and text.
_SHARED: dict[str, tuple[str | None, str, str]] = {
    "engine": (None, "storage", "client of object stores"),
    "storage_options": (
        "KEY=VALUE",
        "storage",
        "option of the fsspec filesystem; the value is JSON, or else text",
    ),
    "allow_roots": (
        "URL",
        "storage",
        (
            "place of adopted shards that may be read; it gets the dataset's storage options if it is of the "
            "same kind; may be repeated"
        ),
    ),
    "split": ("NAME", "dataset", "one split"),
    "version": ("N|TAG", "dataset", "a version, by number or tag; default: latest"),
    "digest": ("sha256:...", "dataset", "digest that the version must have"),
    "mode": (None, "options", "what happens to a dataset that is there; create refuses it"),
    "workers": ("N", "options", "processes; default: one per processor"),
}
_REPEATED = "; may be repeated"
_PLACES = {"url": "dataset: a local path or any fsspec URL"}


@dataclass(frozen=True)
class Takes:
    """A function whose arguments a command takes.

    Attributes:
        function: `module:name`; a class is its constructor.
        only: the arguments that are meant; () for all that can be typed.
        without: arguments that the command gives itself.
        places: those that stand without a name.
        flags: options that are called otherwise than their arguments.
        choices: between what one may choose: `module:NAME` of a tuple, or of what returns one; or the words.
        prefix: of the options' names.
        group: of the help text, for what is in no other.
        shard: whether the place may be a single shard.
    """

    function: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    places: tuple[str, ...] = ("url",)
    flags: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    prefix: str = ""
    group: str = "options"
    shard: bool = False

    def params(self) -> Iterator[click.Parameter]:
        """Yield the arguments and options in the order of the signature."""
        function = imported(self.function)
        said = _said(function)
        known = typed_parameters(function)
        flags = known.keys() - {*self.places}
        for name, (kind, default) in known.items():
            if (self.only and name not in self.only) or name in self.without or name in _PYTHON:
                continue
            yield from self._made(name, kind, default, said.get(name, ""), flags)

    def _made(
        self, name: str, kind: str, default: Any, text: str, known: Collection[str]
    ) -> Iterator[click.Parameter]:
        if name in self.places:
            yield self._place(name, kind, default, text)
            return
        metavar, group, shared = _SHARED.get(self.prefix + name, (None, self.group, ""))
        if name in _LAYOUT:
            group = "shards"
        attrs: dict[str, Any] = {"group": group, "help": shared or in_help(text, known)}
        choice = self.choices.get(name) or _CHOICES.get(name)
        if choice and ("str" in kind or "Literal" in kind):
            words = imported(choice) if isinstance(choice, str) else choice
            words = words() if callable(words) else words
            # Where None is not the default it is a word of its own.
            more = ("none",) if default is not None and "None" in kind else ()
            attrs["type"] = click.Choice((*words, *more))
        elif metavar:
            attrs["metavar"] = metavar
        special = _by_name(name, kind, default, attrs)
        if special is not None:
            yield from special
            return
        dest = f"{self.prefix}{name}"
        option = self.flags.get(name, f"--{dest.replace('_', '-')}")
        made = _by_type(name, option, dest, kind, default, attrs)
        if made is not None:
            yield made

    def _place(self, name: str, kind: str, default: Any, text: str) -> Argument:
        text = _PLACES.get(name) or in_help(text, ())
        if self.shard:
            text = text.replace("dataset:", "dataset, or single shard:")
        described: dict[str, Any] = {"metavar": name.upper(), "type": PlaceParam(), "help": text}
        if "Iterable" in kind:
            described |= {"metavar": "URL...", "nargs": -1}
        elif kind.startswith("int | str"):
            described |= {"metavar": "N|TAG", "type": Value(parse_version)}
        elif kind == "str":
            described["type"] = str
        return Argument([name], required=default is inspect.Parameter.empty, **described)


def _by_name(name: str, kind: str, default: Any, attrs: dict[str, Any]) -> Iterator[click.Parameter] | None:
    """Return what stands for an argument that is typed in words of its own; None for any other."""
    made: Iterable[click.Parameter]
    match name:
        case "dry_run":
            made = [flag("--dry-run", "change nothing; say what would be done")]
            made += [flag("--yes", "do it; without this, nothing changes")] * default
        case "on_error":
            made = [flag("--skip", "leave out, and list, what would be an error")]
        case "schema":
            made = _schema_options()
        case "storage_options":
            made = [
                pairs("--storage-option", json_pair, attrs.pop("help"), name, **attrs),
                flag("--anon", "open a public bucket without credentials", group="storage"),
            ]
        case "allow_roots":
            made = [options("--allow-root", name, **attrs)]
        case "split" if "Mapping" in kind:
            text = (
                f"split of all files, or of those whose names match a pattern{_REPEATED}; default: from names"
            )
            collect = typed(split_patterns)
            made = [options("--split", name, metavar="NAME[=PATTERN]", callback=collect, help=text)]
        case _:
            return None
    return iter(made)


def _by_type(
    name: str, option: str, dest: str, kind: str, default: Any, attrs: dict[str, Any]
) -> click.Parameter | None:
    """Return the option of an argument of a type; None where it takes what only Python has."""
    kind = re.sub(r" \| None$", "", kind)
    text = attrs["help"]
    if kind == "bool":
        return (
            flag(f"--no-{option[2:]}", f"do not {text}", group=attrs["group"])
            if default
            else flag(option, text, group=attrs["group"])
        )
    if kind == "Sequence[str]" and name == "features":
        return Option([option, dest], **{"metavar": "NAME,...", "type": Value(comma_names), **attrs})
    if kind in _SEVERAL:
        described = {"metavar": _metavar(name, kind), **attrs, "help": f"{text}{_REPEATED}"}
        return options(_singular(option), dest, type=_SEVERAL[kind], callback=typed(list), **described)
    if kind == "Mapping[str, float]":
        return Option([option, dest], metavar="NAME=FRACTION,...", type=Value(fractions), **attrs)
    if kind.startswith("Mapping[str, "):
        del attrs["help"]
        if name.endswith("_options"):
            attrs |= {"metavar": "KEY=VALUE", "group": "storage"}
            option, of = option.removesuffix("s"), name.removesuffix("_options")
            text = f"as --storage-option, for {f'--{of}' if of in ('into', 'mirror') else f'the {of}'}"
        return pairs(option, text_pair if kind.endswith("str]") else json_pair, text, dest, **attrs)
    if kind not in _VALUES and "type" not in attrs:
        return None
    missing = default is inspect.Parameter.empty
    described = {"type": _VALUES.get(kind), **attrs}
    if "type" not in attrs:
        described.setdefault("metavar", _metavar(name, kind))
    if not missing and default is not None and "default:" not in text:
        described["help"] += f"; default: {_shown(name, default)}"
    return Option([option, dest], required=missing, callback=typed(_none), **described)


_VALUES: dict[str, Any] = {
    "str": str,
    "int": WHOLE,
    "float": float,
    "str | Path": PlaceParam(),
    "int | str": Value(parse_version),
    "Any": WHOLE,  # of `pack(pad=)`: a number of the type of what is packed
}
_SEVERAL: dict[str, Any] = {
    "Sequence[str]": str,
    "Collection[str]": str,
    "Iterable[str]": str,
    "Collection[int]": WHOLE,
}


def _metavar(name: str, kind: str) -> str:
    if kind in ("int", "Any", "Collection[int]"):
        return "BYTES" if name.endswith("bytes") else "N"
    if name.endswith("_dir"):
        return "DIR"
    return {"str | Path": "URL", "float": "S"}.get(kind, "NAME")


def _singular(name: str) -> str:
    """Return the name of one of several: `classes`, `splits`."""
    return re.sub(r"(ss)es$|s$", r"\1", name)


def _shown(name: str, default: Any) -> str:
    if name.endswith("bytes") and default and default % 1024 == 0:
        return f"{default >> 20} MiB" if default % (1 << 20) == 0 else f"{default >> 10} KiB"
    return str(default)


def _none(value: Any) -> Any:
    return NOTHING if value == "none" else value


def pairs(option: str, pair: Callable[[str], tuple[str, Any]], text: str, *dest: str, **attrs: Any) -> Option:
    """Return an option of pairs, which may be repeated: a dict, in which each name is once."""
    collect = typed(lambda found: once(option, found))
    attrs = {"metavar": "NAME=VALUE", "help": f"{text.removesuffix(_REPEATED)}{_REPEATED}", **attrs}
    return options(option, *dest, type=Value(pair), callback=collect, **attrs)


def _schema_options() -> Iterator[Option]:
    text = 'type of a feature, in place of the inferred one; "-" leaves it out'
    yield pairs("--type", text_pair, text, "types", metavar="NAME=TYPE")
    yield Option(
        ["--schema"],
        metavar="JSON",
        help='the same for several at once, with defaults: {"n": {"type": "int64", "default": 0}, "x": null}',
    )


def typed(collect: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return what turns all values of an option into what the function takes; None where none was typed."""

    def collected(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is None or value == ():
            return None
        try:
            return collect(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return collected


def imported(name: str) -> Any:
    """Return what `module:name` means."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def typed_parameters(function: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Return annotation and default of each argument, those of the writer that it hands on included."""
    found: dict[str, tuple[str, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.annotation == "Unpack[LayoutOptions]":
            from shardio.writer import DatasetWriter, LayoutOptions

            known = typed_parameters(DatasetWriter)
            found |= {name: known[name] for name in LayoutOptions.__annotations__}
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            kind = str(parameter.annotation)
            found[parameter.name] = (kind.replace("Place", "str | Path"), parameter.default)
            if kind.startswith("Place"):
                found |= {name: (kind, None) for name, kind in address_options(parameter.name).items()}
    return found


def address_options(place: str) -> dict[str, str]:
    """Return the options that belong to a place, with their types: those of its `Address`."""
    mapping = "Mapping[str, Any] | None"
    if place != "url":
        return {f"{place}_options": mapping}
    return {
        "storage_options": mapping,
        "engine": "str | None",
        "allow_roots": f"Mapping[str, {mapping}] | None",
    }


def _said(function: Callable[..., Any]) -> dict[str, str]:
    """Return what docstrings say of each argument."""
    found: dict[str, str] = {}
    documented = [function]
    if "Unpack[LayoutOptions]" in getattr(function, "__annotations__", {}).values():
        documented.insert(0, imported("shardio.writer:DatasetWriter"))
    for each in documented:
        lines = inspect.cleandoc(each.__doc__ or "").splitlines()
        start = next((n for n, line in enumerate(lines) if line in ("Args:", "Attributes:")), len(lines))
        names: Sequence[str] = ()
        for line in lines[start + 1 :]:
            if not line.strip():
                break
            match = _ARG.match(line[4:])
            if match and not line.startswith(" " * 5):
                names = match[1].split(", ")
                found |= dict.fromkeys(names, line[4 + match.end() :])
            else:
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def in_help(text: str, known: Collection[str]) -> str:
    """Return the first sentence of what a docstring says of an argument, as help says it of an option.

    Args:
        text: of the docstring.
        known: names of arguments, which are flags there.
    """
    text = re.split(r"\.(?=\s|$)", text.strip(), maxsplit=1)[0]
    text = re.sub(r"\bNone for\b", "default:", text)
    names = "|".join(known)
    return re.sub(rf"`({names})`", lambda match: f"--{match[1].replace('_', '-')}", text) if names else text
