"""What was typed, as the functions of the library take it."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardio.cli._command import Argument, Option, PlaceParam, Value
from shardio.cli._console import CLEAN, Console
from shardio.cli._signature import Takes, address_options, imported, typed_parameters
from shardio.cli._values import NOTHING, record_range

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
PLACE = ("url", "storage_options", "engine", "allow_roots")
READING = Takes("shardio.reader:open", only=(*PLACE, "split", "version", "digest"))
# The addresses of a dataset, or of those of a mixture.
DATASETS: tuple[Any, ...] = (
    Argument(
        ["urls"], metavar="URL...", nargs=-1, required=True, type=PlaceParam(),
        help="dataset, or the datasets of a mixture in order: any fsspec URL",
    ),
    Option(
        ["--records"], metavar="A:B", type=Value(record_range), group="dataset",
        help="the slice that was streamed; either end may be left out: 1000:",
    ),
    Takes(READING.function, only=READING.only, without=("url",)),
)  # fmt: skip


class Given:
    """What was typed for one command: attributes by the names of arguments, None for what was not typed.

    Args:
        values: by name.
        place: address that `--anon` and roots belong to; None for the command's own.
    """

    def __init__(self, values: Mapping[str, Any], place: str | None = None) -> None:
        self._values = dict(values)
        self._place = place

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def at(self, place: str) -> Given:
        """Return the same, for another place."""
        return Given({**self._values, "url": place}, place)

    def call(self, function: Callable[..., _Result], /, *args: Any, **more: Any) -> _Result:
        """Call a function with what was typed of its arguments; what was not typed is as it is by default."""
        return function(*args, **{**self.options(function), **more})

    def options(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return what was typed of the arguments of a function."""
        found = {}
        for name, (_, default) in typed_parameters(function).items():
            value = self._argument(name, default)
            if (value is not None and value is not False) or (value is False and default is True):
                found[name] = None if value is NOTHING else value
        for name in _places_of(function) & found.keys():
            found[name] = _address(name, found)
        return found

    def _argument(self, name: str, default: Any) -> Any:
        match name:
            case "storage_options" | "allow_roots" | "schema" if name in self._values:
                return getattr(self, f"{name}_given")
            case "on_error" if self._values.get("skip"):
                return "skip"
            case "dry_run" if "dry_run" in self._values:
                return self.dry_run or not self._values.get("yes", not default)
        if self._values.get(f"no_{name}"):
            return False
        return self._values.get(name)

    @property
    def place(self) -> str:
        """The dataset, or the first."""
        if self._place:
            return self._place
        url: str = self._values["urls"][0] if "urls" in self._values else self._values["url"]
        return url

    @property
    def storage_options_given(self) -> dict[str, Any] | None:
        """The storage options, or None.

        Raises:
            ValueError: `--anon` for a place that knows no such thing.
        """
        found: dict[str, Any] = {}
        if self.anon:
            protocol = _protocol(self.place)
            if protocol not in _ANONYMOUS:
                raise ValueError(f"--anon is for buckets ({', '.join(_ANONYMOUS)}), not for {self.place}")
            found |= _ANONYMOUS[protocol]
        return found | (self.storage_options or {}) or None

    @property
    def allow_roots_given(self) -> dict[str, dict[str, Any]]:
        """Roots of adopted shards, each with the dataset's storage options where its storage is the same."""
        place, options = self.place, None
        if "source" in self._values:
            place = self.source
            options = self._values.get("source_options")
        if "source_options" not in self._values:
            options = self.storage_options_given
        options = options or {}
        same = _protocol(place)
        return {root: options if _protocol(root) == same else {} for root in self.allow_roots or ()}

    @property
    def schema_given(self) -> dict[str, Any] | None:
        """What is said of features, as `schema=` takes it.

        Raises:
            ValueError: no features; names the flag.
        """
        from shardio.metadata import parse_schema_json

        if self.schema is None and not self.types:
            return None
        try:
            given = {} if self.schema is None else dict(parse_schema_json(self.schema))
        except (TypeError, ValueError) as error:
            raise ValueError(f"--schema: {error}") from None
        return given | {name: None if kind == "-" else kind for name, kind in (self.types or {}).items()}

    def open(self, url: str, *, split: str | None = None, version: int | str | None = None) -> DatasetReader:
        """Open one of several datasets; `split` and `version` where the command line names none."""
        from shardio import reader as reading

        typed = self.at(url).options(reading.open)
        reader = reading.open_split(**{"split": split, "version": version} | typed)
        return reader if self.records is None else reader[self.records]

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


def reported(
    function: str, show: Callable[[Console, Any], None], code: Callable[[Any], int] = lambda _: CLEAN
) -> Callable[[Given, Console], int]:
    """Return the work of a command that calls one function and prints its report.

    Args:
        function: `module:name`.
        show: prints the report for people.
        code: the exit code.
    """

    def run(given: Given, console: Console) -> int:
        called = imported(function)
        more = {}
        task = called.__name__.removesuffix("_dataset").removeprefix("build_")
        with console.progress(task) as progress:
            if "progress" in typed_parameters(called):
                more["progress"] = progress
            report = given.call(called, **more)
        console.report(report, lambda: show(console, report))
        return code(report)

    return run
