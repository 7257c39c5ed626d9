"""Options from signatures: the arguments of a library function, as they are typed.

Types, defaults and docstrings are those of the function. Every option also answers to the name of its
argument in Python, which messages use.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import docstring_parser
from cyclopts import Group, Parameter

from shardio.cli import _values as values

# Options of many commands, which help names in one line.
STORAGE = Group("storage", show=False)
OUTPUT = Group("output", show=False)

# Options that functions pass through, and the function that documents them.
_WRITER = "shardio.writer:DatasetWriter"
_PASSED_THROUGH = {
    "Unpack[LayoutOptions]": ("shardio.writer:LayoutOptions", _WRITER),
    "Unpack[WriterOptions]": ("shardio.writer:WriterOptions", _WRITER),
    "Unpack[WriteOptions]": ("shardio.parallel:WriteOptions", "shardio.parallel:write_dataset"),
}
_PYTHON_ONLY = {"progress", "executor"}
_TYPES: dict[str, Any] = {
    "bool": bool,
    "str": str,
    "str | Path": str,
    "float": float,
    "int": values.Whole,
    "Any": values.Whole,  # `pack(pad=)`: a number of the packed type
    "int | str": values.Version,
    "Sequence[str]": list[str],
    "Collection[str]": list[str],
    "Iterable[str]": list[str],
    "Collection[int]": values.Wholes,
    "CacheOptions": Annotated[str, values.one(values.cache_folder, "DIR")],
    "Mapping[str, Any]": values.JsonPairs,
    "Mapping[str, str]": values.TextPairs,
}


def option(hint: Any, text: str, *names: str, **more: Any) -> Any:
    """Return a type with its help text and the names by which it is typed."""
    if names:
        more["name"] = names
    return operator.getitem(Annotated, (hint, Parameter(help=text, **more)))


# Arguments that need more than their type and docstring, in every function.
_NAMED: dict[str, Any] = {
    "features": values.Names,
    "fn": option(
        Annotated[str, values.one(values.function_of, "MODULE:FUNCTION")],
        "for lists: makes records of a line or row",
    ),
    "storage_options": option(
        values.JsonPairs, "option of the fsspec filesystem, JSON or text", "--storage-option", group=STORAGE
    ),
    "allow_roots": option(
        list[str],
        "root of adopted shards that may be read; gets the dataset's storage options if protocols agree",
        "--allow-root",
        group=STORAGE,
    ),
    "engine": option(Literal["fsspec", "obstore"], "client of object stores", group=STORAGE),
    "version": option(values.Version, "version number or tag; default: latest"),
    "split": option(str, "split to use"),
    "digest": option(str, "sha256:... that the version must have"),
    "dry_run": option(bool, "change nothing; report what would be done"),
    "on_error": option(Literal["raise", "skip"], "skip bad records and list them instead of failing"),
    "schema": option(
        str, 'JSON for several features at once: {"n": {"type": "int64", "default": 0}, "x": null}'
    ),
    "mode": option(str, 'what to do if the dataset already exists; "create" fails'),
}
_SPLITS = option(
    values.Splits,
    "NAME for all files, NAME=PATTERN for those whose names match, or NAME=0.9 for a share of the records; "
    "default: from names",
)
# Choices that signatures leave open, by argument: a tuple, or `module:NAME` of one or of a function.
_CHOICES: dict[str, str | tuple[str, ...]] = {
    "mode": "shardio.catalog:MODES",
    "encoding": ("example", "sequence_example", "tensors", "array", "bytes"),
    "compression": ("zstd", "gzip", "zlib"),
    "mixing": ("cheap", "default", "best"),
    "remainder": ("drop", "pad", "keep"),
}


def flag(name: str, hint: Any, default: Any = False) -> inspect.Parameter:  # noqa: FBT002 - a default's default
    """Return an option as a parameter of a signature."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


# Options of the command line alone that accompany one of the library's.
_BESIDE = {
    "storage_options": flag("anon", option(bool, "open a public bucket without credentials", group=STORAGE)),
    "on_error": flag("skip", option(bool, "the same as --on-error skip")),
    "schema": flag(
        "types",
        option(
            values.TextPairs,
            'NAME=TYPE replaces the inferred type of a feature; "-" excludes the feature',
            "--type",
        ),
        None,
    ),
}


@dataclass(frozen=True)
class Takes:
    """A function whose arguments a command takes.

    Attributes:
        function: `module:name`; a class is its constructor.
        only: the arguments to take; () for all that can be typed.
        without: arguments that the command passes itself.
        places: positional arguments.
        choices: values to choose from, by argument, as in `_CHOICES`.
        prefix: of the options' names.
        shard: whether the URL may be a single shard.
    """

    function: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    places: tuple[str, ...] = ("url",)
    choices: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    prefix: str = ""
    shard: bool = False

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield what can be typed, in the order of the signature."""
        function = imported(self.function)
        help_texts = _documented(function)
        for name, (kind, default) in typed_parameters(function).items():
            if (self.only and name not in self.only) or name in self.without or name in _PYTHON_ONLY:
                continue
            hint = self._hint(name, kind)
            if hint is None:
                continue
            if name in self.places:
                text = help_texts.get(name, "")
                if name == "url":
                    text = (
                        f"dataset{', or single shard' if self.shard else ''}: a local path or any fsspec URL"
                    )
                place = option(hint, text)
                yield inspect.Parameter(
                    name, inspect.Parameter.POSITIONAL_ONLY, default=default, annotation=place
                )
                continue
            if not parameter_attribute(hint, "help"):
                hint = option(hint, help_texts.get(name, ""))
            yield flag(f"{self.prefix}{name}", hint, default)
            if name in _BESIDE and (name != "on_error" or "Literal" in kind):
                yield _BESIDE[name]

    def _hint(self, name: str, kind: str) -> Any:
        """Return the command-line type of an argument; None for arguments that only Python has."""
        if name in self.places and not kind.startswith("int | str"):
            return list[str] if "Iterable" in kind else str
        is_optional = kind.endswith(" | None")
        kind = kind.removesuffix(" | None")
        if name == "split" and "Mapping" in kind:
            return _SPLITS
        choices = self.choices.get(name) or _CHOICES.get(name)
        if name not in _NAMED and kind.startswith("Literal["):
            choices = ast.literal_eval(f"({kind[8:-1]},)")
        if choices and ("str" in kind or "Literal" in kind):
            choices = imported(choices) if isinstance(choices, str) else choices
            choice: Any = operator.getitem(Literal, tuple(choices() if callable(choices) else choices))
            known = getattr(_NAMED.get(name), "__metadata__", ())
            choice = choice | None if is_optional else choice
            return operator.getitem(Annotated, (choice, *known)) if known else choice
        if name.endswith("_options") and name != "storage_options":
            text = f"as --storage-option, for the {name.removesuffix('_options')}"
            return option(_TYPES[kind], text, f"--{name[:-1].replace('_', '-')}", group=STORAGE)
        hint = _NAMED.get(name) or _TYPES.get(kind)
        if hint == list[str]:
            singular = re.sub(r"(ss)es$|s$", r"\1", name)
            return operator.getitem(Annotated, (hint, Parameter(name=f"--{singular}")))
        return hint


def parameter_attribute(hint: Any, name: str) -> Any:
    """Return an attribute of the outermost `Parameter` of a type that has it, or None."""
    parameters = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Parameter)]
    return next(filter(None, (getattr(each, name) for each in reversed(parameters))), None)


def as_typed(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return an option with all names by which it can be typed, and its default as help shows it."""
    if parameter.kind is not parameter.KEYWORD_ONLY:
        shown = operator.getitem(Annotated, (parameter.annotation, Parameter(show_default=False)))
        return parameter.replace(kind=parameter.POSITIONAL_ONLY, annotation=shown)
    argument = f"--{parameter.name.replace('_', '-')}"
    names = parameter_attribute(parameter.annotation, "name") or (argument,)
    negative: Any = "--yes" if parameter.name == "dry_run" else f"--no-{names[0][2:]}"
    more = Parameter(
        name=tuple(dict.fromkeys((*names, argument))),
        negative=negative if parameter.default is True else (),
        show_default=_shown if parameter.default not in (None, False, (), []) else False,
    )
    return parameter.replace(annotation=operator.getitem(Annotated, (parameter.annotation, more)))


def _shown(default: Any) -> str:
    if isinstance(default, int) and not isinstance(default, bool) and default >= 1024 and default % 1024 == 0:
        return f"{default >> 20} MiB" if default % (1 << 20) == 0 else f"{default >> 10} KiB"
    return str(default)


def imported(name: str) -> Any:
    """Return the object named `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def typed_parameters(function: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Return annotation and default of each argument, including those that it passes through."""
    found: dict[str, tuple[str, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        passed_through = _PASSED_THROUGH.get(str(parameter.annotation))
        if passed_through is not None:
            options, owner = map(imported, passed_through)
            known = typed_parameters(owner)
            found |= {name: known[name] for name in options.__annotations__}
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            kind = str(parameter.annotation)
            found[parameter.name] = (kind.replace("Place", "str | Path"), parameter.default)
            if kind.startswith("Place"):
                found |= {name: (kind, None) for name, kind in address_options(parameter.name).items()}
    return found


def address_options(place: str) -> dict[str, str]:
    """Return the options that the `Address` of a place takes, with their types."""
    mapping = "Mapping[str, Any] | None"
    if place != "url":
        return {f"{place}_options": mapping}
    return {
        "storage_options": mapping,
        "engine": "str | None",
        "allow_roots": f"Mapping[str, {mapping}] | None",
    }


def _documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentence of each argument's documentation."""
    found: dict[str, str] = {}
    documented = [function]
    for each in documented:
        hints = map(str, getattr(each, "__annotations__", {}).values())
        documented += [imported(_PASSED_THROUGH[hint][1]) for hint in hints if hint in _PASSED_THROUGH]
        for parameter in docstring_parser.parse(each.__doc__ or "").params:
            text = " ".join((parameter.description or "").split())
            sentence = re.split(r"\.(?=\s|$)", text, maxsplit=1)[0]
            for name in parameter.arg_name.split(", "):
                found.setdefault(name, re.sub(r"\bNone for\b", "default:", sentence))
    return found
