"""Values, numbers and text for display: short for people, complete for programs, escaped for notebooks.

For programs: arrays are lists, bytes are `{"$base64": "..."}`, numbers that JSON lacks are the strings "NaN",
"Infinity" and "-Infinity", a complex number is `[real, imaginary]`.
"""

from __future__ import annotations

import base64
import codecs
import functools
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

_FEW = 8
_MOST_LINES = 20  # of a list in a report
_LABEL_WIDTH = 24
_SHORT_LIST = 60  # characters of a list that stands in one line
_HTML_WIDTH = 200
_SHOWN_BY_BROWSERS = frozenset({"jpeg", "png", "gif"})
_PILLOW_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
_AUDIO = {b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}
_MOST_PICTURE_BYTES = 1 << 20  # larger ones would bloat a notebook
_TEXT_BYTES = 1 << 16  # whether longer bytes are text is decided by so many of them
_INFINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def plain(value: Any) -> Any:
    """Return a value as JSON types, complete."""
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else _INFINITE.get(number, "NaN")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, complex | np.complexfloating):
        return [plain(float(value.real)), plain(float(value.imag))]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.ndim else plain(value[()])
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


class Bounds(NamedTuple):
    """How much of a value to render: characters, items of lists, numbers of arrays, bytes as hexadecimal."""

    text: int
    items: int
    numbers: int
    hex: int


LINE = Bounds(text=240, items=4, numbers=24, hex=16)
PAGE = Bounds(text=100_000, items=200, numbers=2048, hex=1024)


def render(
    value: Any,
    *,
    feature: Any = None,
    path: tuple[str | int, ...] = (),
    bounds: Bounds = LINE,
    chart: Callable[[np.ndarray[Any, Any]], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the parts of a value as text and numbers for JSON, bounded, which terminals and pages draw.

    Args:
        value: as a codec returns it.
        feature: its `Feature` in the schema, or None.
        path: from the record's value to this one.
        bounds: how much of it to render; `LINE` or `PAGE`.
        chart: returns more parts of an array of numbers.

    Returns:
        `kind` is "missing", "number", "text", "json", "bytes", "image", "audio", "array", "list", "map" or
        "object". `text` is the beginning of a text of so many `characters`; arrays have `dtype`, `shape` and
        the first `numbers`, files their `format`, `bytes` and `size`, and lists and maps `count` and `items`.
        Of long bytes `text` is the beginning, without `characters`: they are not read to their end.
    """
    nested = functools.partial(render, bounds=bounds, chart=chart)
    if value is None:
        return {"kind": "missing"}
    if feature is not None and feature.kind == "json":
        indent = 2 if bounds is PAGE else None
        text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
        return {"kind": "json", **_beginning(text, bounds.text)}
    if isinstance(value, str):
        return {"kind": "text", **_beginning(value, bounds.text)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {**_render_bytes(bytes(value), bounds), "path": list(path)}
    if isinstance(value, np.ndarray) and value.ndim:
        return {**_render_array(value, feature, bounds, chart), "path": list(path)}
    if isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
        number = as_numbers(np.asarray(value), feature)[()]
        item = number.item() if isinstance(number, np.generic) else number
        found: dict[str, Any] = {"kind": "number", "text": str(number)}
        classes = None if feature is None else feature.classes
        if classes is not None and isinstance(item, int) and 0 <= item < len(classes):
            found["class"] = classes[item]
        return found
    if isinstance(value, Mapping):
        named = [
            [str(name), nested(each, path=(*path, str(name)))]
            for name, each in itertools.islice(value.items(), bounds.items)
        ]
        return {"kind": "map", "count": len(value), "items": named}
    if isinstance(value, list | tuple):
        items = [
            nested(each, feature=feature, path=(*path, k)) for k, each in enumerate(value[: bounds.items])
        ]
        return {"kind": "list", "count": len(value), "items": items}
    return {"kind": "object", **_beginning(repr(value), bounds.text)}


def _render_bytes(data: bytes, bounds: Bounds) -> dict[str, Any]:
    found: dict[str, Any] = {"bytes": len(data), "hex": data[: bounds.hex].hex(" ")}
    first = data[: max(_TEXT_BYTES, 4 * bounds.text)]
    is_whole = len(first) == len(data)
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(first, final=is_whole)
    except UnicodeDecodeError:
        text = ""
    is_text = bool(text) and is_readable(text)
    image = _image_format(data)
    pixels = None if image is None else _image_size(data)
    if pixels is not None:
        return {"kind": "image", "format": image, **found, "size": list(pixels)}
    if image is not None and not is_text:  # a text may begin with "BM"
        return {"kind": "image", "format": image, **found}
    if (audio := audio_type(data)) is not None:
        return {"kind": "audio", "format": audio.partition("/")[2], **found}
    if not is_text:
        return {"kind": "bytes", **found}
    shown = _beginning(text, bounds.text) if is_whole else {"text": text[: bounds.text]}
    return {"kind": "text", "encoded": True, **found, **shown}


def _render_array(
    value: np.ndarray[Any, Any],
    feature: Any,
    bounds: Bounds,
    chart: Callable[[np.ndarray[Any, Any]], dict[str, Any]] | None,
) -> dict[str, Any]:
    is_typed = feature is not None and feature.kind == "number"
    dtype = feature.type if is_typed else value.dtype.name
    found: dict[str, Any] = {"kind": "array", "dtype": dtype, "shape": list(value.shape)}
    if value.dtype.kind not in "biufc":
        texts = [_cut(str(each), 80) for each in value.reshape(-1)[: bounds.items]]
        return {**found, "numbers": texts}
    numbers = as_numbers(value, feature)
    found["numbers"] = [short_number(each) for each in numbers.reshape(-1)[: bounds.numbers]]
    return found if chart is None else {**found, **chart(numbers)}


def _beginning(text: str, most: int) -> dict[str, Any]:
    return {"text": text[:most], "characters": len(text)}


def is_readable(text: str) -> bool:
    """Return whether all characters are printable, tabs or ends of lines."""
    # Not character by character: a record may hold a gigabyte of text.
    return text.replace("\t", "").replace("\r", "").replace("\n", "").isprintable()


def short_number(value: Any) -> str:
    """Return a NumPy number as text, a float with five digits."""
    return f"{value:.5g}" if isinstance(value, np.floating | np.complexfloating) else str(value)


def as_numbers(value: np.ndarray[Any, Any], feature: Any) -> np.ndarray[Any, Any]:
    """Return an array as NumPy's numbers; bfloat16 travels as uint16."""
    if feature is not None and feature.type == "bfloat16" and value.dtype == np.uint16:
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value


def image_type(data: bytes) -> str | None:
    """Return the feature type of an image file by its first bytes, None where it is not an image.

    One rule for everything that infers types: Examples, converted values, members of tar files.

    Args:
        data: its first 16 bytes, or more.
    """
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")):
        return "tiff"
    if data.startswith((b"GIF87a", b"GIF89a", b"BM")):
        return "image"
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _image_format(data: bytes) -> str | None:
    found = image_type(data[:16])
    return found if found != "image" else "gif" if data.startswith(b"GIF") else "bmp"


def audio_type(data: bytes) -> str | None:
    """Return the media type of an audio file by its first bytes, None where browsers play no such file."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    for signature, name in _AUDIO.items():
        if data.startswith(signature):
            return name
    # A frame of MPEG audio, layer III; of other layers the first bytes are too common.
    return "audio/mpeg" if data[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2") and len(data) > 256 else None


def _image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of an image file by its header, None without Pillow or of a broken one."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as image:
            return image.width, image.height
    except Exception:  # noqa: BLE001 - there is no Pillow, or its plugins fail at broken bytes
        return None


def describe(value: Any, *, width: int = 100) -> list[str]:
    """Return a record's value as lines for people: a line a feature, or one line.

    Args:
        value: a mapping of features, or anything else.
        width: columns of a line.
    """
    if isinstance(value, Mapping) and value:
        return list(_features(value, width))
    return [_line_of(value, width)]


def _features(value: Mapping[Any, Any], width: int) -> Iterator[str]:
    pad = min(24, max(len(printable(str(name))) for name in value))
    for name, item in value.items():
        label = _cut(printable(str(name)), max(20, width - 22)).ljust(pad)
        if isinstance(item, Mapping) and item:
            yield label.rstrip()
            yield from (f"  {line}" for line in _features(item, width - 2))
        else:
            yield f"{label}  {_line_of(item, max(20, width - len(label) - 2))}"


def _line_of(value: Any, width: int) -> str:
    return _line(render(value, bounds=Bounds(text=width, items=3, numbers=_FEW, hex=12)), width)


def _line(parts: Mapping[str, Any], width: int) -> str:
    """Return the parts of a value as one line."""
    kind = parts["kind"]
    if kind == "missing":
        return "None"
    if kind == "number":
        return _cut(parts["text"], width)
    if kind == "object":
        return _cut(parts["text"] + (" ..." if parts["characters"] > len(parts["text"]) else ""), width)
    if kind in ("list", "map"):
        return _cut(_many(parts, width), width)
    if kind == "array":
        more = " ..." if math.prod(parts["shape"]) > len(parts["numbers"]) else ""
        head = f"{parts['dtype']}[{','.join(map(str, parts['shape']))}]"
        return _cut(f"{head}  {' '.join(parts['numbers'])}{more}".rstrip(), width)
    if kind == "text" and "bytes" not in parts:
        return _quoted(parts, width)
    stored = plural(parts["bytes"], "byte")
    if kind == "text":
        return f"{stored}  {_quoted(parts, max(20, width - len(stored) - 2))}"
    if "size" in parts:
        return f"{parts['format'].upper()} {'x'.join(map(str, parts['size']))}, {stored}"
    if kind == "audio":
        return f"{parts['format']} audio, {stored}"
    first = bytes.fromhex(parts["hex"])
    more = " ..." if parts["bytes"] > len(first) else ""
    preview = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in first)
    return _cut(f"{stored}  {parts['hex']}{more}  |{preview}|" if first else stored, width)


def _many(parts: Mapping[str, Any], width: int) -> str:
    items, more = parts["items"], ", ..." if parts["count"] > len(parts["items"]) else ""
    if parts["kind"] == "map":
        return f"{{{', '.join(f'{name}: {_line(item, 40)}' for name, item in items)}{more}}}"
    if parts["count"] == 1:
        return _line(items[0], width)
    head = plural(parts["count"], "item")
    return f"{head}{': ' if items else ''}{', '.join(_line(item, 40) for item in items)}{more}"


def _quoted(parts: Mapping[str, Any], width: int) -> str:
    text = parts["text"][:width]
    quoted = '"' + printable(text).replace('"', '\\"')
    total = parts.get("characters")
    if total == len(text) and len(quoted) < width:
        return quoted + '"'
    tail = '..."' + ("" if total is None else f" ({count(total)} characters)")
    return quoted[: max(1, width - len(tail))] + tail


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: max(1, width - 4)] + " ..."


def printable(text: str) -> str:
    """Return text with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size(value: int) -> str:
    """Return a number of bytes with its unit: 1,234 becomes "1.2 kB"."""
    if value < 1000:
        return f"{value} B"
    amount = float(value)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:,.1f} PB"


def moment(milliseconds: int) -> str:
    """Return a Unix time in milliseconds as UTC text."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms after 1970"


def count(value: int) -> str:
    """Return a number with commas."""
    return f"{value:,}"


def plural(value: int, noun: str, many: str | None = None) -> str:
    """Return "1 shard", "2 shards", "2 indexes"."""
    return f"{value:,} {noun if value == 1 else many or noun + 's'}"


def table_lines(
    rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), right: Sequence[int] = ()
) -> list[str]:
    """Return rows as lines of aligned columns; those numbered in `right` end flush."""
    lines = [[printable(cell) for cell in row] for row in [*([head] if head else []), *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    ]


def fact_lines(facts: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> list[str]:
    """Return named facts as lines: a row for each value, then a block for each list.

    Args:
        facts: by name. None, False and empty values are skipped.
        labels: what to call some of them; the others are called by their names.
    """
    rows: list[tuple[str, str]] = []
    blocks: list[str] = []
    for name, value in facts.items():
        if value is None or value is False or (isinstance(value, str | Sequence | Mapping) and not value):
            continue
        label = (labels or {}).get(name, name.replace("_", " "))
        items = _block(value)
        if items is None and len(label) > _LABEL_WIDTH:
            blocks.append(f"{label}: {fact_text(name, value)}")
        elif items is None:
            rows.append((label, fact_text(name, value)))
        else:
            shown = [f"  {line}" for line in items[:_MOST_LINES]]
            more = len(items) - len(shown)
            blocks += [f"{label}:", *shown, *([f"  ... and {more:,} more; --json lists all"] if more else [])]
    return [*table_lines(rows), *blocks]


def facts_of(report: Any) -> dict[str, Any]:
    """Return the fields and figures of a report by name; lists of what has no text as JSON holds them."""
    found = {}
    for name, document in report.to_dict().items():
        value = getattr(report, name, document)
        has_no_text = isinstance(document, list) and document and not _has_text(value[0])
        found[name] = document if has_no_text else value
    return found


def fact_text(name: str, value: Any) -> str:
    """Return one fact as people read it: numbers with commas, sizes of bytes with their unit."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return size(value) if name.endswith("bytes") else count(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact_text(name, item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(fact_text("", item) for item in value) or "-"
    if hasattr(value, "to_dict") and not _has_text(value):
        return fact_text(name, value.to_dict())
    return str(value)


def _block(value: Any) -> list[str] | None:
    """Return a fact as lines where it is a list, or maps names to more than single values."""
    if _has_text(value):
        lines = str(value).splitlines()
        return lines if len(lines) > 1 or isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        if all(_has_text(item) and hasattr(item, "to_dict") for item in value.values()):
            return [f"{name}: {item}" for name, item in value.items()]
        if any(isinstance(item, Mapping) or hasattr(item, "to_dict") for item in value.values()):
            return _table_of([{"": name, **_row_of(item)} for name, item in value.items()])
        if len(value) <= _FEW:
            return None
        return table_lines([(str(name), fact_text("", item)) for name, item in value.items()])
    if not isinstance(value, list | tuple) or sum(len(str(item)) for item in value) <= _SHORT_LIST:
        return None
    return (
        [str(item) for item in value] if all(map(_has_text, value)) else _table_of(list(map(_row_of, value)))
    )


def _has_text(item: Any) -> bool:
    """Return whether a value's class defines `__str__`; dicts, lists and plain dataclasses don't."""
    own: Any = type(item).__str__
    return own is not object.__str__ or isinstance(item, int | float)


def _row_of(item: Any) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    found: Mapping[str, Any] = item.to_dict() if hasattr(item, "to_dict") else item._asdict()
    return found


def _table_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    # A list in a row is shown as the number of its items.
    cells = [
        [
            str(len(item)) if isinstance(item, Mapping | list) else fact_text(name, item)
            for name, item in row.items()
        ]
        for row in rows
    ]
    numbers = [k for k, item in enumerate(rows[0].values()) if isinstance(item, int | float)]
    return table_lines(cells, head=[name.replace("_", " ") for name in rows[0]], right=numbers)


def html_table(rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), title: str = "") -> str:
    """Return a table for a notebook; names and values are escaped."""

    def cells(row: Sequence[str], tag: str) -> str:
        shown = "".join(f'<{tag} style="text-align: left">{_escaped(cell)}</{tag}>' for cell in row)
        return f"<tr>{shown}</tr>"

    above = f"<strong>{_escaped(title)}</strong>" if title else ""
    top = f"<thead>{cells(head, 'th')}</thead>" if head else ""
    return f"<div>{above}<table>{top}<tbody>{''.join(cells(row, 'td') for row in rows)}</tbody></table></div>"


def _escaped(text: str) -> str:
    import html

    if isinstance(text, Markup):
        return text
    return html.escape(printable(text), quote=True)


def html_of_values(value: Any) -> str | None:
    """Return a record, or a batch of columns, as a table for a notebook; None of other dicts."""
    if not _holds_data(value):
        return None
    rows = [(str(name), html_cell(item)) for name, item in value.items()]
    return html_table(rows, head=("feature", "value"))


class Markup(str):
    """A cell of a table that is markup."""

    __slots__ = ()


def html_cell(value: Any) -> str:
    """Return a value as a cell of a table: pictures as pictures, all else in a line."""
    items = value if isinstance(value, list) else [value]
    pictures = [_picture(item) for item in items[:_FEW] if isinstance(item, bytes)]
    if not pictures or not all(pictures):
        return _line_of(value, _HTML_WIDTH)
    more = f" and {len(items) - _FEW:,} more" if len(items) > _FEW else ""
    return Markup(" ".join(filter(None, pictures)) + more)


def _picture(value: bytes) -> str | None:
    """Return an image file that browsers show, and that is not too large for a page; else None."""
    image = _image_format(value)
    if image not in _SHOWN_BY_BROWSERS or len(value) > _MOST_PICTURE_BYTES:
        return None
    source = f"data:image/{image};base64,{base64.b64encode(value).decode()}"
    return f'<img src="{source}" style="max-height: 8em" alt="{image}, {size(len(value))}">'


def _holds_data(value: object) -> bool:
    """Tell whether a dict is a record or batch, not one that a notebook displays well itself."""
    if type(value) is not dict or not all(isinstance(name, str) for name in value):
        return False
    kinds = (bytes, bytearray, memoryview, np.ndarray, np.generic)
    return any(isinstance(item, kinds) for item in value.values())


class Notebook:
    """Formatters that `%load_ext shardio` adds to IPython: records and batches as tables, long bytes cut.

    Records are plain dicts, because JAX and torch treat a subclass of dict as a single value. So the
    formatters apply to dicts with bytes or arrays; all others are displayed as before.

    Args:
        ipython: the shell.
    """

    def __init__(self, ipython: Any) -> None:
        formatters = ipython.display_formatter.formatters
        self._tables, self._lines = formatters["text/html"], formatters["text/plain"]
        self._before = self._lines.for_type(dict, self._print)
        self._tables.for_type(dict, html_of_values)

    def close(self) -> None:
        """Show dicts as before."""
        self._tables.pop(dict, None)
        self._lines.for_type(dict, self._before)

    def _print(self, value: dict[Any, Any], printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython calls it
        if cycle or not _holds_data(value):
            self._before(value, printer, cycle)
            return
        for number, line in enumerate(describe(value)):
            if number:
                printer.break_()
            printer.text(line)
