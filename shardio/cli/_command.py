"""What a command is, and how its arguments follow from the functions that it calls.

cyclopts parses, helps and completes by the signature of a function.  Here that signature is made: of what the
command takes itself, and of the arguments of the library's functions, whose defaults and docstrings say the
rest.  Every option also answers to the name of its argument in Python, which is what messages speak of.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import App, Group, Parameter

from shardio.cli import _values as values
from shardio.cli._console import EXIT_CODES

# Commands by what people come for, in the order of a day: a module of `_commands` each.
GROUPS = {
    "_bring": "bring data in",
    "_look": "look at data",
    "_train": "train",
    "_find": "find records",
    "_check": "check and repair",
    "_change": "change a dataset",
    "_versions": "versions",
    "_take": "take data out",
    "_program": "this program",
}
# Options of many commands, which help names in one line.
STORAGE = Group("storage", show=False)
OUTPUT = Group("output", show=False)

_OPTION = inspect.Parameter.KEYWORD_ONLY
_ARG = re.compile(r"([a-z_]+(?:, [a-z_]+)*): ")
# Options that functions hand on as they are, and the function that says what they are.
_WRITER = "shardio.writer:DatasetWriter"
_HANDED_ON = {
    "Unpack[LayoutOptions]": ("shardio.writer:LayoutOptions", _WRITER),
    "Unpack[WriterOptions]": ("shardio.writer:WriterOptions", _WRITER),
    "Unpack[WriteOptions]": ("shardio.parallel:WriteOptions", "shardio.parallel:write_dataset"),
}
# What has no options: callables, and objects that only Python has.
_PYTHON = {"progress", "executor"}
_TYPES: dict[str, Any] = {
    "bool": bool,
    "str": str,
    "str | Path": str,
    "float": float,
    "int": values.Whole,
    "Any": values.Whole,  # of `pack(pad=)`: a number of the type of what is packed
    "int | str": values.Version,
    "Sequence[str]": list[str],
    "Collection[str]": list[str],
    "Iterable[str]": list[str],
    "Collection[int]": values.Wholes,
    "CacheOptions": Annotated[str, values.one(values.cache_folder, "DIR")],
    "Mapping[str, Any]": values.JsonPairs,
    "Mapping[str, str]": values.TextPairs,
}


def annotated(hint: Any, *more: Parameter) -> Any:
    """Return a type with more that is said of it."""
    return operator.getitem(Annotated, (hint, *more)) if more else hint


def _said(hint: Any, text: str, *names: str, **more: Any) -> Any:
    if names:
        more["name"] = names
    return annotated(hint, Parameter(help=text, **more))


# What means more than its type says, in every function.
_NAMED: dict[str, Any] = {
    "features": values.Names,
    "fn": _said(
        annotated(str, values.one(values.function_of, "MODULE:FUNCTION")),
        "for lists: makes records of a line or row",
    ),
    "storage_options": _said(
        values.JsonPairs, "option of the fsspec filesystem, JSON or text", "--storage-option", group=STORAGE
    ),
    "allow_roots": _said(
        list[str],
        "place of adopted shards that may be read; one of the same kind gets the dataset's storage options",
        "--allow-root",
        group=STORAGE,
    ),
    "engine": _said(Literal["fsspec", "obstore"], "client of object stores", group=STORAGE),
    "version": _said(values.Version, "a version, by number or tag; default: latest"),
    "split": _said(str, "one split"),
    "digest": _said(str, "sha256:..., which the version must have"),
    "dry_run": _said(bool, "change nothing; report what would be done"),
    "on_error": _said(Literal["raise", "skip"], "skip and list what would be an error"),
    "schema": _said(
        str, 'JSON for several features at once: {"n": {"type": "int64", "default": 0}, "x": null}'
    ),
    "mode": _said(str, 'what to do if the dataset already exists; "create" fails'),
}
_SPLITS = _said(
    values.Splits,
    "NAME of all files, NAME=PATTERN of those whose names match, or NAME=0.9 of the records; "
    "default: from names",
)
_PLACES = {"url": "dataset: a local path or any fsspec URL"}
# Between what one may choose, by the name of the argument; tests hold what is written out to the library.
MIXINGS = ("cheap", "default", "best")
ENCODINGS = ("example", "sequence_example", "tensors", "array", "bytes")
_CHOICES: dict[str, str | tuple[str, ...]] = {
    "mode": "shardio.catalog:MODES",
    "encoding": ENCODINGS,
    "compression": ("zstd", "gzip", "zlib"),
    "mixing": MIXINGS,
    "remainder": ("drop", "pad", "keep"),
}


def _flag(name: str, hint: Any, default: Any = False) -> inspect.Parameter:  # noqa: FBT002 - a default's default
    return inspect.Parameter(name, _OPTION, default=default, annotation=hint)


# What comes with an option of the library.
_BESIDE = {
    "storage_options": _flag("anon", _said(bool, "open a public bucket without credentials", group=STORAGE)),
    "on_error": _flag("skip", _said(bool, "the same as --on-error skip")),
    "schema": _flag(
        "types",
        _said(
            values.TextPairs,
            'NAME=TYPE of a feature, in place of the inferred one; "-" leaves it out',
            "--type",
        ),
        None,
    ),
}
_COMMON = (
    _flag("json", _said(bool, "print one JSON document for programs", group=OUTPUT)),
    _flag("quiet", _said(bool, "no progress and no notes", "--quiet", "-q", group=OUTPUT)),
    _flag("debug", _said(bool, "show the traceback of an error", group=OUTPUT)),
)


@dataclass(frozen=True)
class Takes:
    """A function whose arguments a command takes.

    Attributes:
        function: `module:name`; a class is its constructor.
        only: the arguments that are meant; () for all that can be typed.
        without: arguments that the command gives itself.
        places: those that stand without a name.
        choices: between what one may choose: `module:NAME` of a tuple, or of what returns one; or the words.
        prefix: of the options' names.
        shard: whether the place may be a single shard.
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
        docs = _documented(function)
        known = typed_parameters(function)
        for name, (kind, default) in known.items():
            if (self.only and name not in self.only) or name in self.without or name in _PYTHON:
                continue
            hint = self._hint(name, kind)
            if hint is None:
                continue
            is_place = name in self.places
            text = _PLACES.get(name) if is_place else None
            text = text or in_help(docs.get(name, ""), () if is_place else known.keys() - {*self.places})
            if is_place and self.shard:
                text = text.replace("dataset:", "dataset, or single shard:")
            yield inspect.Parameter(
                f"{self.prefix}{name}",
                inspect.Parameter.POSITIONAL_OR_KEYWORD if is_place else _OPTION,
                default=default,
                # What is said of a name everywhere takes precedence over a docstring.
                annotation=annotated(hint, *([] if _attribute(hint, "help") else [Parameter(help=text)])),
            )
            if name in _BESIDE and (name != "on_error" or "Literal" in kind):
                yield _BESIDE[name]

    def _hint(self, name: str, kind: str) -> Any:
        """Return the type of an argument as it is typed; None where it takes what only Python has."""
        if name in self.places and not kind.startswith("int | str"):
            return list[str] if "Iterable" in kind else str
        optional = kind.endswith(" | None")
        kind = kind.removesuffix(" | None")
        if name == "split" and "Mapping" in kind:
            return _SPLITS
        words = self.choices.get(name) or _CHOICES.get(name)
        if words and ("str" in kind or "Literal" in kind):
            words = imported(words) if isinstance(words, str) else words
            choice: Any = operator.getitem(Literal, tuple(words() if callable(words) else words))
            return annotated(
                choice | None if optional else choice, *getattr(_NAMED.get(name), "__metadata__", ())
            )
        if name.endswith("_options") and name != "storage_options":
            option = f"--{name[:-1].replace('_', '-')}"
            text = f"as --storage-option, for the {name.removesuffix('_options')}"
            return annotated(_TYPES[kind], Parameter(name=option, group=STORAGE, help=text))
        hint = _NAMED.get(name) or _TYPES.get(kind)
        if hint == list[str]:
            return annotated(hint, Parameter(name="--" + re.sub(r"(ss)es$|s$", r"\1", name)))
        return hint


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command, as `command` makes it.

    Attributes:
        name: what is typed.
        summary: one line for the list of commands, lower case, without a full stop.
        run: does the work and returns the exit code.
        takes: the functions from whose signatures other arguments follow.
        examples: command lines with what they do, for its help text.
        aliases: other names by which it can be typed.
    """

    name: str
    summary: str
    run: Callable[..., int]
    takes: tuple[Takes, ...]
    examples: Mapping[str, str]
    aliases: tuple[str, ...]

    @property
    def own(self) -> dict[str, inspect.Parameter]:
        """Arguments of the command's own, by name."""
        hints = get_type_hints(self.run, include_extras=True)
        mine = list(inspect.signature(self.run).parameters.values())[2:]
        return {each.name: each.replace(annotation=hints[each.name]) for each in mine}

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """All arguments by name, those without a name first; imports the functions that the command calls."""
        taken = [each for takes in self.takes for each in takes.parameters()]
        own = self.own
        found: dict[str, inspect.Parameter] = {}
        for each in (*own.values(), *taken, *_COMMON):
            found.setdefault(each.name, each)
        # Without a name first: the places of the library's functions, then the command's own arguments.
        by_kind = sorted(
            found.values(), key=lambda each: (each.kind, each.kind < _OPTION and each.name in own)
        )
        return {each.name: _as_typed(each) for each in by_kind}

    def app(self, group: Group, *, loaded: bool) -> App:
        """Return what parses the command line, in a group of commands; with its arguments if it is loaded."""
        app = App(
            name=self.name,
            help=self.summary[0].upper() + self.summary[1:] + ".",
            group=group,
            version_flags=(),
        )
        lines = ["examples:", *(f"  {line}\n      {text}" for line, text in self.examples.items()), ""]
        if loaded:

            def parsed(**_: Any) -> Command:
                return self

            parameters = self.parameters
            parsed.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
            parsed.__annotations__ = {name: each.annotation for name, each in parameters.items()}
            app.default(parsed)
            hidden = [each.annotation for each in parameters.values() if _attribute(each.annotation, "group")]
            lines.append("also: " + ", ".join(_attribute(hint, "name")[0] for hint in hidden))
        app.help_epilogue = "\n".join([*lines, EXIT_CODES])
        return app


COMMANDS: dict[str, Command] = {}  # by name


def command(
    summary: str,
    *takes: Takes,
    examples: Mapping[str, str],
    name: str | None = None,
    aliases: tuple[str, ...] = (),
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a command of a function that does the work and returns the exit code.

    The function takes a `Given`, a `Console`, and arguments of the command's own: those that may be given by
    position stand without a name, the others are options. Errors are raised; the program turns them into
    one line.

    Args:
        summary: one line for the list of commands, lower case, without a full stop.
        takes: the functions from whose signatures other arguments follow. An argument of the command's own
            replaces the one that would follow. `--json`, `--quiet` and `--debug` are there.
        examples: command lines with what they do, for its help text.
        name: what is typed; None for the name of the function.
        aliases: other names by which it can be typed.
    """

    def decorate(run: Callable[..., int]) -> Callable[..., int]:
        called = name or run.__name__
        COMMANDS[called] = Command(
            name=called, summary=summary, run=run, takes=takes, examples=examples, aliases=aliases
        )
        return run

    return decorate


def _attribute(hint: Any, name: str) -> Any:
    """Return what the outermost of a type's parameters says, None where none says it."""
    said = [getattr(each, name) for each in getattr(hint, "__metadata__", ()) if isinstance(each, Parameter)]
    return next((each for each in reversed(said) if each), None)


def _as_typed(each: inspect.Parameter) -> inspect.Parameter:
    """Return an argument with the names by which it is typed, and its default as help shows it."""
    if each.kind is not _OPTION:
        shown = annotated(each.annotation, Parameter(show_default=False))
        return each.replace(kind=inspect.Parameter.POSITIONAL_ONLY, annotation=shown)
    argument = f"--{each.name.replace('_', '-')}"
    names = _attribute(each.annotation, "name") or (argument,)
    negative: Any = "--yes" if each.name == "dry_run" else f"--no-{names[0][2:]}"
    said = Parameter(
        name=tuple(dict.fromkeys((*names, argument))),
        negative=negative if each.default is True else (),
        show_default=_shown if each.default not in (None, False, (), []) else False,
    )
    return each.replace(annotation=annotated(each.annotation, said))


def _shown(default: Any) -> str:
    if isinstance(default, int) and not isinstance(default, bool) and default >= 1024 and default % 1024 == 0:
        return f"{default >> 20} MiB" if default % (1 << 20) == 0 else f"{default >> 10} KiB"
    return str(default)


def imported(name: str) -> Any:
    """Return what `module:name` means."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def typed_parameters(function: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Return annotation and default of each argument, those of the writer that it hands on included."""
    found: dict[str, tuple[str, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        handed_on = _HANDED_ON.get(str(parameter.annotation))
        if handed_on is not None:
            options, owner = map(imported, handed_on)
            known = typed_parameters(owner)
            found |= {name: known[name] for name in options.__annotations__}
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


def _documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return what docstrings say of each argument."""
    found: dict[str, str] = {}
    documented = [function]
    for each in documented:
        hints = map(str, getattr(each, "__annotations__", {}).values())
        documented += [imported(_HANDED_ON[hint][1]) for hint in hints if hint in _HANDED_ON]
    for each in reversed(documented):
        lines = inspect.cleandoc(each.__doc__ or "").splitlines()
        start = next((n for n, line in enumerate(lines) if line in ("Args:", "Attributes:")), len(lines))
        names: list[str] = []
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
