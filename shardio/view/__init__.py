"""A dataset as pages: what `shardio view` shows in a browser, each page a value for JSON.

`Pages` reads on demand and knows no server; `make_server` serves pages and the files of `static/` to one
browser on this machine.  Facts and guesses of single values, which `shardio info` and `head` use, load
neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shardio.view._facts import (
    log_facts as log_facts,
    seen_facts as seen_facts,
    shard_facts as shard_facts,
    version_facts as version_facts,
)
from shardio.view._values import guess_value as guess_value

if TYPE_CHECKING:
    from shardio.view._pages import Pages as Pages
    from shardio.view._search import Search as Search
    from shardio.view._web import ViewServer as ViewServer, make_server as make_server

_PLACES = {"Pages": "_pages", "Search": "_search", "ViewServer": "_web", "make_server": "_web"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'shardio.view' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"shardio.view.{_PLACES[name]}"), name)
    globals()[name] = value
    return value
