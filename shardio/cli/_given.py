"""What was typed, as the functions of the library take it."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardio.cli._command import Takes, address_options, command, imported, typed_parameters
from shardio.cli._console import CLEAN, Console

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardio.reader import DatasetReader

    _Result = TypeVar("_Result")

# What opens a public bucket without credentials, by protocol, in the words of its fsspec filesystem.
_ANONYMOUS: dict[str, dict[str, Any]] = {
    "s3": {"anon": True},
    "s3a": {"anon": True},
    "gs": {"token": "anon"},
    "gcs": {"token": "anon"},
    "az": {"anon": True},
    "abfs": {"anon": True},
    "abfss": {"anon": True},
}
_LARGEST_DOCUMENT = 1 << 28

# How a dataset is opened, and which part of it is meant.
PLACE = ("storage_options", "engine", "allow_roots")
OPENING = Takes("shardio.reader:open", only=(*PLACE, "split", "version", "digest"))
READING = Takes("shardio.reader:open", only=("url", *OPENING.only))


class Given:
    """What was typed for one command: attributes by the names of arguments, or the defaults of these.

    Args:
        typed: what was typed, by name.
        defaults: of all arguments.
        place: address that `--anon` and roots belong to; None for the command's own.
    """

    def __init__(
        self, typed: Mapping[str, Any], defaults: Mapping[str, Any], place: str | None = None
    ) -> None:
        self._typed = dict(typed)
        self._defaults = defaults
        self._place = place

    def __getattr__(self, name: str) -> Any:
        if name in self._typed:
            return self._typed[name]
        try:
            return self._defaults[name]
        except KeyError:
            raise AttributeError(name) from None

    def at(self, place: str) -> Given:
        """Return the same, for another place."""
        return Given({**self._typed, "url": place}, {**self._defaults, "url": place}, place)

    def call(self, function: Callable[..., _Result], /, *args: Any, **more: Any) -> _Result:
        """Call a function with what was typed of its arguments; what was not typed is as it is by default."""
        return function(*args, **{**self.options(function), **more})

    def options(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return what was typed of the arguments of a function."""
        special = {
            "storage_options": self.storage_options_given,
            "allow_roots": self.allow_roots_given,
            "schema": self.schema_given,
            "on_error": "skip" if self._typed.get("skip") else self._typed.get("on_error"),
        }
        typed = {name: value for name, value in self._typed.items() if name not in special}
        values = typed | {name: value for name, value in special.items() if value is not None}
        found = {name: values[name] for name in typed_parameters(function) if name in values}
        for name in _places_of(function) & found.keys():
            found[name] = _address(name, found)
        return found

    @property
    def place(self) -> str:
        """The dataset, or the first."""
        if self._place:
            return self._place
        url: str = self._typed["urls"][0] if "urls" in self._typed else self.url
        return url

    @property
    def storage_options_given(self) -> dict[str, Any] | None:
        """The storage options, or None.

        Raises:
            ValueError: `--anon` for a place that knows no such thing.
        """
        found: dict[str, Any] = {}
        if self._typed.get("anon"):
            protocol = _protocol(self.place)
            if protocol not in _ANONYMOUS:
                raise ValueError(f"--anon is for buckets ({', '.join(_ANONYMOUS)}), not for {self.place}")
            found |= _ANONYMOUS[protocol]
        return found | self._typed.get("storage_options", {}) or None

    @property
    def allow_roots_given(self) -> dict[str, dict[str, Any]] | None:
        """Roots of adopted shards, each with the dataset's storage options where its storage is the same."""
        roots = self._typed.get("allow_roots", ())
        if not roots:
            return None
        place, options = self.place, self.storage_options_given
        if "source" in self._typed:
            place = self.source
        if "source_options" in self._defaults:
            options = self.source_options
        return {root: (options or {}) if _protocol(root) == _protocol(place) else {} for root in roots}

    @property
    def schema_given(self) -> dict[str, Any] | None:
        """What is said of features, as `schema=` takes it.

        Raises:
            ValueError: no features; names the flag.
        """
        schema, types = self._typed.get("schema"), self._typed.get("types", {})
        if schema is None and not types:
            return None
        from shardio.metadata import parse_schema_json

        try:
            given = {} if schema is None else dict(parse_schema_json(schema))
        except (TypeError, ValueError) as error:
            raise ValueError(f"--schema: {error}") from None
        return given | {name: None if kind == "-" else kind for name, kind in types.items()}

    def open(self, url: str, *, split: str | None = None, version: int | str | None = None) -> DatasetReader:
        """Open one of several datasets; `split` and `version` where the command line names none."""
        from shardio import reader as reading

        typed = self.at(url).options(reading.open)
        reader = reading.open_split(**{"split": split, "version": version} | typed)
        records = self._typed.get("records")
        return reader if records is None else reader[records]

    def read_json(self, name: str, what: str) -> Any:
        """Return the JSON of a file that the command line names.

        Args:
            name: path or URL; "-" for what is piped in.
            what: should be in it, for messages.

        Raises:
            NotFoundError: there is no such file.
            StorageError: it cannot be read.
            ValueError: it holds something else.
        """
        from shardio.errors import NotFoundError
        from shardio.storage import connect_folder, files_of_callers

        data: bytes | str
        try:
            if name == "-":
                data = sys.stdin.read()
            elif "://" in name:
                # The dataset's storage options serve for a file in the same kind of storage.
                same = _protocol(name) == _protocol(self.place)
                store, key = connect_folder(
                    name, storage_options=self.storage_options_given if same else None
                )
                data = store.get(key, max_bytes=_LARGEST_DOCUMENT)
            else:
                with files_of_callers(name):
                    data = Path(name).read_bytes()
        except NotFoundError as error:
            error.advice = f"name a file that holds {what}"
            raise
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} is not JSON ({error}): expected {what}") from None


def _places_of(function: Callable[..., Any]) -> set[str]:
    """Return the arguments of a function that take an address."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if str(each.annotation).startswith("Place")}


def _address(place: str, found: dict[str, Any]) -> Any:
    """Return the address of a place; what belongs to it is taken from the arguments."""
    from shardio.storage import Address

    own = {
        name.replace(f"{place}_options", "storage_options"): found.pop(name)
        for name in address_options(place)
        if name in found
    }
    return Address(found[place], **own)


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else "file"


def report(
    function: str,
    given: Given,
    console: Console,
    show: Callable[[Console, Any], None],
    code: Callable[[Any], int] = lambda _: CLEAN,
    **more: Any,
) -> int:
    """Call a function of the library, print its report, and return the exit code.

    Args:
        function: `module:name`.
        given: its arguments.
        console: shows progress, and takes the report.
        show: prints the report for people.
        code: the exit code of a report.
        more: arguments that were not typed as they are.
    """
    called = imported(function)
    with console.progress(called.__name__.removesuffix("_dataset").removeprefix("build_")) as progress:
        if "progress" in typed_parameters(called):
            more["progress"] = progress
        made = given.call(called, **more)
    console.report(made, lambda: show(console, made))
    return code(made)


def reported(
    summary: str,
    takes: Takes,
    *,
    examples: Mapping[str, str],
    code: Callable[[Any], int] = lambda _: CLEAN,
    name: str | None = None,
) -> Callable[[Callable[[Console, Any], None]], Callable[[Console, Any], None]]:
    """Make a command that calls one function, of the function that prints its report for people.

    Args:
        summary, takes, examples, name: as in `command`.
        code: the exit code of a report.
    """

    def decorate(show: Callable[[Console, Any], None]) -> Callable[[Console, Any], None]:
        def run(given: Given, console: Console) -> int:
            return report(takes.function, given, console, show, code)

        command(summary, takes, examples=examples, name=name or show.__name__)(run)
        return show

    return decorate
