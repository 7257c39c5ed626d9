"""Messages of `convert` and `export` in the words of the command line: flags for the library's arguments.

The library's messages name its arguments, as in `schema={"x": "text"}` and `on_error="skip"`; at a terminal
the same advice is `--type x=text` and `--skip`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from shardio.errors import ShardioError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["in_flags", "told_in_flags"]

_SCHEMA = re.compile(r'schema=\{("(?:[^"\\]|\\.)*"): (None|"[^"]*")\}')
_CLASSES = re.compile(r"classes=(\[[^\]]*\])")
_METADATA = re.compile(r'metadata=\{("(?:[^"\\]|\\.)*"): \.\.\.\}')
_TEXT = re.compile(r"""\b(kind|split|mode|compression)=["'](\w+)["']""")
_NUMBER = re.compile(r"\b(shard_bytes|block_bytes|shards|workers)=(-?\d+)")
_BARE = re.compile(r"\b(kind|split|root|process|encoding)=(?=[ ,;:.)]|$)")


def in_flags(text: str) -> str:
    """Return a message with the flags that stand for the arguments in it."""
    text = text.replace('on_error="skip"', "--skip").replace("check_images=False", "--no-image-check")
    text = _SCHEMA.sub(_type, text)
    text = _CLASSES.sub(_classes, text)
    text = _METADATA.sub(_metadata, text)
    text = _TEXT.sub(r"--\1 \2", text)
    text = _NUMBER.sub(lambda match: f"--{match[1].replace('_', '-')} {match[2]}", text)
    return _BARE.sub(r"--\1", text)


def _type(match: re.Match[str]) -> str:
    kind = "-" if match[2] == "None" else json.loads(match[2])
    return f"--type {shlex.quote(f'{json.loads(match[1])}={kind}')}"


def _classes(match: re.Match[str]) -> str:
    try:
        names = json.loads(match[1])
    except ValueError:
        return match[0]
    return "".join(f" --class {shlex.quote(name)}" for name in names)[1:]


def _metadata(match: re.Match[str]) -> str:
    return f"--metadata {shlex.quote(json.loads(match[1]) + '=...')}"


@contextlib.contextmanager
def told_in_flags() -> Iterator[None]:
    """Translate the errors that leave the block."""
    try:
        yield
    except ShardioError as error:
        fields: dict[str, Any] = {
            name: in_flags(value)
            if isinstance(value, str) and name in ("advice", "expected", "found")
            else value
            for name, value in error.fields().items()
        }
        raise type(error)(in_flags(error.what), **fields) from error
    except (ValueError, TypeError) as error:
        # An exception of its own constructor, such as UnicodeDecodeError, is no message of ours.
        if type(error) not in (ValueError, TypeError):
            raise
        raise type(error)(in_flags(str(error))) from error
