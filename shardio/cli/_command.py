"""Commands: functions that take what was typed, call the library, print, and return an exit code."""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from cyclopts import App

from shardio.cli._console import CLEAN, EXIT_CODES, REDO, Console, explain
from shardio.cli._options import (
    OUTPUT,
    Takes,
    address_options,
    as_typed,
    flag,
    imported,
    option,
    parameter_attribute,
    typed_parameters,
)
from shardio.redact import redact

if TYPE_CHECKING:
    from shardio.reader import DatasetDict, DatasetReader

_Result = TypeVar("_Result")

# What opens a public bucket without credentials, by protocol, in the terms of its fsspec filesystem.
_ANONYMOUS: dict[str, dict[str, Any]] = {
    **{protocol: {"anon": True} for protocol in ("s3", "s3a", "az", "abfs", "abfss")},
    **{protocol: {"token": "anon"} for protocol in ("gs", "gcs")},
}
_COMMON = (
    flag("json", option(bool, "print one JSON document for programs", group=OUTPUT)),
    flag("quiet", option(bool, "no progress and no notes", "--quiet", "-q", group=OUTPUT)),
    flag("debug", option(bool, "show the traceback of an error", group=OUTPUT)),
)
# How a dataset is opened, and which part of it.
OPENING = Takes(
    "shardio:open", only=("storage_options", "engine", "allow_roots", "split", "version", "digest")
)
READING = Takes("shardio:open", only=("url", *OPENING.only))

APPS: dict[str, Callable[[], App]] = {}  # by the name of the command


class Given:
    """What was typed for one command: attributes by the names of arguments, or the defaults of these.

    Args:
        typed: what was typed, by name.
        defaults: of all arguments.
    """

    def __init__(self, typed: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._typed = dict(typed)
        self._defaults = defaults

    def __getattr__(self, name: str) -> Any:
        if name in self._typed:
            return self._typed[name]
        try:
            return self._defaults[name]
        except KeyError:
            raise AttributeError(name) from None

    def at(self, url: str) -> Given:
        """Return the same for another URL."""
        return Given({**self._typed, "url": url}, self._defaults)

    def call(self, function: Callable[..., _Result], /, *args: Any, **more: Any) -> _Result:
        """Call a function with those of its arguments that were typed."""
        return function(*args, **{**self.options(function), **more})

    def options(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments of a function that were typed, as it takes them.

        Raises:
            ValueError: `--anon` for a place without anonymous access, or a schema that is not one.
        """
        place = self._place
        special = {
            "storage_options": self._storage_options(place),
            "allow_roots": self._allow_roots(place),
            "schema": self.features(),
            "on_error": "skip" if self._typed.get("skip") else self._typed.get("on_error"),
        }
        known = typed_parameters(function)
        # None may be typed, as in `--partitions none`.
        values = {name: value for name, value in self._typed.items() if name not in special}
        values |= {name: value for name, value in special.items() if value is not None}
        found = {name: values[name] for name in known if name in values}
        for name, parameter in inspect.signature(function).parameters.items():
            if name in found and str(parameter.annotation).startswith("Place"):
                found[name] = _address(name, found)
        return found

    def features(self) -> dict[str, Any] | None:
        """Return the types of features that `--schema` and `--type` give, as `schema=` takes them."""
        schema, types = self._typed.get("schema"), self._typed.get("types", {})
        if schema is None and not types:
            return None
        from shardio.metadata import parse_schema_json

        parsed = {} if schema is None else parse_schema_json(schema)
        return parsed | {name: None if kind == "-" else kind for name, kind in types.items()}

    def open(self, url: str, **defaults: Any) -> DatasetReader:
        """Open one split of a dataset, with defaults for options that were not typed.

        Raises:
            ValueError: there are several splits and none was named.
        """
        import shardio

        reader: DatasetReader | DatasetDict = shardio.open(**defaults | self.at(url).options(shardio.open))
        if isinstance(reader, shardio.DatasetDict):
            raise ValueError(f"{url} has several splits, choose one with --split: {', '.join(reader)}")  # noqa: TRY004
        records = self._typed.get("records")
        return reader if records is None else reader[records]

    def storage_options_for(self, url: str) -> dict[str, Any] | None:
        """Return the storage options for another URL, where its protocol is that of the dataset."""
        return self._storage_options(url) if _protocol(url) == _protocol(self._place) else None

    @property
    def _place(self) -> str:
        url: str = self._typed["urls"][0] if "url" not in self._typed and "urls" in self._typed else self.url
        return url

    def _storage_options(self, place: str) -> dict[str, Any] | None:
        options: dict[str, Any] = self._typed.get("storage_options", {})
        if self._typed.get("anon"):
            if _protocol(place) not in _ANONYMOUS:
                raise ValueError(f"--anon is for buckets ({', '.join(_ANONYMOUS)}), not for {place}")
            options = _ANONYMOUS[_protocol(place)] | options
        return options or None

    def _allow_roots(self, place: str) -> dict[str, dict[str, Any]] | None:
        """Return roots of adopted shards; those of the dataset's protocol get its storage options."""
        options = self._storage_options(place)
        if "source" in self._typed:
            place = self.source
        if "source_options" in self._defaults:
            options = self.source_options
        roots = self._typed.get("allow_roots", ())
        same = {root: (options or {}) if _protocol(root) == _protocol(place) else {} for root in roots}
        return same or None


def _address(place: str, found: dict[str, Any]) -> Any:
    """Return the address of a place; its options are taken from the arguments."""
    from shardio import Address

    names = {each.replace(f"{place}_options", "storage_options"): each for each in address_options(place)}
    return Address(found[place], **{name: found.pop(each) for name, each in names.items() if each in found})


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else "file"


def command(
    *takes: Takes, examples: Mapping[str, str], name: str | None = None
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a command of a function that does the work and returns the exit code.

    The function takes a `Given`, a `Console`, and arguments of the command's own: positional ones are
    positional on the command line, the others are options. Errors are raised; the program turns them into
    one line.

    Args:
        takes: the functions from whose signatures other arguments follow. An argument of the command's own
            takes precedence. `--json`, `--quiet` and `--debug` are added.
        examples: command lines with what they do, for the help text.
        name: what is typed; None for the name of the function.
    """

    def decorate(run: Callable[..., int]) -> Callable[..., int]:
        called = name or run.__name__

        def make() -> App:
            own, parameters = _parameters(run, takes)
            signature = inspect.Signature(list(parameters.values()))

            def perform(*args: Any, **options: Any) -> int:
                defaults = {each.name: each.default for each in parameters.values()}
                given = Given(signature.bind(*args, **options).arguments, defaults)
                return _perform(run, given, own)

            perform.__signature__ = signature  # type: ignore[attr-defined]
            perform.__annotations__ = {each.name: each.annotation for each in parameters.values()}
            hidden = [each.annotation for each in parameters.values() if _group(each) is not None]
            lines = ["examples:", *(f"  {line}\n      {text}" for line, text in examples.items()), ""]
            lines.append("also: " + ", ".join(parameter_attribute(hint, "name")[0] for hint in hidden))
            app = App(name=called, version_flags=(), help_epilogue="\n".join([*lines, EXIT_CODES]))
            app.default(perform)
            return app

        APPS[called] = make
        return run

    return decorate


def _group(parameter: inspect.Parameter) -> Any:
    return parameter_attribute(parameter.annotation, "group")


def _parameters(
    run: Callable[..., int], takes: tuple[Takes, ...]
) -> tuple[list[str], dict[str, inspect.Parameter]]:
    """Return the names of a command's own arguments, and all arguments, positional ones first."""
    hints = get_type_hints(run, include_extras=True)
    mine = list(inspect.signature(run).parameters.values())[2:]
    own = [each.replace(annotation=hints[each.name]) for each in mine]
    found: dict[str, inspect.Parameter] = {}
    for each in (*own, *(each for one in takes for each in one.parameters()), *_COMMON):
        found.setdefault(each.name, as_typed(each))
    names = [each.name for each in own]
    # The places of the library's functions come before the command's own positional arguments.
    ordered = sorted(found.values(), key=lambda each: (each.kind, not each.kind and each.name in names))
    return names, {each.name: each for each in ordered}


def _perform(run: Callable[..., int], given: Given, own: list[str]) -> int:
    console = Console(sys.stdout, sys.stderr, json=given.json, quiet=given.quiet)
    with _warnings_as_notes(console):
        try:
            return run(given, console, **{name: getattr(given, name) for name in own})
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - a program ends in one line, whatever went wrong
            if given.debug:
                import traceback

                sys.stderr.write(redact(traceback.format_exc()))
            failure = explain(error)
            console.failure(failure)
            return failure.code


@contextlib.contextmanager
def _warnings_as_notes(console: Console) -> Iterator[None]:
    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning | RuntimeWarning):
            console.note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


def report(
    function: str, given: Given, console: Console, code: Callable[[Any], int] = lambda _: CLEAN, **more: Any
) -> int:
    """Call a function of the library, print its report, and return the exit code.

    Args:
        function: `module:name`.
        given: its arguments.
        console: shows progress, and prints the report.
        code: the exit code of a report.
        more: arguments that were not typed as they are.
    """
    called = imported(function)
    with console.progress(called.__name__.removesuffix("_dataset").removeprefix("build_")) as progress:
        if "progress" in typed_parameters(called):
            more["progress"] = progress
        result = given.call(called, **more)
    _, is_dry = typed_parameters(called).get("dry_run", ("", False))
    console.report(result, redo="--yes does it" if is_dry else REDO)
    return code(result)


def reporting(
    name: str, takes: Takes, *, examples: Mapping[str, str], code: Callable[[Any], int] = lambda _: CLEAN
) -> None:
    """Make a command that calls one function and prints its report; see `command` and `report`."""
    command(takes, examples=examples, name=name)(
        lambda given, console: report(takes.function, given, console, code)
    )
