"""A dataset as pages: what `shardio view` shows in a browser, each page a value for JSON.

`Pages` reads only what is looked at, and knows no server; `make_server` is the thin layer that sends pages
and the files of `static/` to one browser on this machine.  Facts and guesses of single values, which
`shardio info` and `head` want too, load neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shardio.view._facts import feature_facts, seen_facts, shard_list_facts, version_facts
from shardio.view._values import guess_value

if TYPE_CHECKING:
    from shardio.view._pages import Media, Pages
    from shardio.view._web import ViewServer, make_app, make_server

__all__ = [
    "Media",
    "Pages",
    "ViewServer",
    "feature_facts",
    "guess_value",
    "make_app",
    "make_server",
    "seen_facts",
    "shard_list_facts",
    "version_facts",
]

_PLACES = {
    "Media": "_pages",
    "Pages": "_pages",
    "ViewServer": "_web",
    "make_app": "_web",
    "make_server": "_web",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        message = f"module 'shardio.view' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"shardio.view.{_PLACES[name]}"), name)
    globals()[name] = value
    return value
