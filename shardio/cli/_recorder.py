"""Parameters that are declared by calls, `add_argument` and `add_argument_group`, as click's.

For the commands with the longest lists of options; types, defaults and names mean what they mean to argparse.
"""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from shardio.cli._command import Argument, Option, Place, Value
from shardio.cli._options import STORAGE, url_argument

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Recorder", "add_storage", "add_url", "recorded"]


class Recorder:
    """Collects the parameters of a command."""

    def __init__(self, params: list[click.Parameter] | None = None, group: str = "options") -> None:
        self.params: list[click.Parameter] = [] if params is None else params
        self._group = group

    def add_argument_group(self, title: str) -> Recorder:
        """Return a recorder whose options stand under a title of their own."""
        return Recorder(self.params, title)

    def add_argument(self, *names: str, **given: Any) -> None:
        """Add an option, or a positional argument where the name does not begin with a dash."""
        text, action = given.pop("help", ""), given.pop("action", None)
        kind, choices, default = (
            given.pop("type", None),
            given.pop("choices", None),
            given.pop("default", None),
        )
        attrs: dict[str, Any] = {"metavar": given.get("metavar")}
        if choices is not None:
            attrs["type"] = click.Choice(choices) if isinstance(choices, tuple) else _Lazy(choices)
        elif kind is not None:
            attrs["type"] = kind if isinstance(kind, type) else Value(_raising(kind))
        if not names[0].startswith("-"):
            attrs.setdefault("type", Place())
            self.params.append(Argument(names, help=text, **attrs))
            return
        if default not in (None, []):
            attrs["default"] = default
        decls = [*names, given["dest"]] if "dest" in given else list(names)
        if action == "store_true":
            attrs = {"is_flag": True}
        self.params.append(
            Option(
                decls,
                group=self._group,
                multiple=action == "append",
                required=given.get("required", False),
                help=text,
                **attrs,
            )
        )


def recorded(add: Callable[[Any], None]) -> list[click.Parameter]:
    """Return the parameters that a function adds."""
    recorder = Recorder()
    add(recorder)
    return recorder.params


def add_url(recorder: Any) -> None:
    """Add the address of a dataset."""
    recorder.params.append(url_argument())


def add_storage(recorder: Any) -> None:
    """Add how the place is reached."""
    recorder.params.extend(STORAGE)


class _Lazy(click.ParamType[str]):
    """One of some words that are known to a room that loads slowly."""

    name = "choice"

    def __init__(self, words: Any) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self._words:
            near = difflib.get_close_matches(str(value), list(self._words), 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            self.fail(f"{value!r} is not one of {', '.join(self._words)}.{hint}", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


def _raising(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return kind(text)
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None

    return convert
