"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    *(
        "shardio.metadata._feature",
        "shardio.metadata._schema",
        "shardio.codecs._make",
        "shardio.codecs._example",
    ),
    *("shardio.codecs._parse", "shardio.codecs._message", "shardio.codecs._columns"),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs={"np": importlib.import_module("numpy")})
    assert found.attempted > 0
    assert found.failed == 0
