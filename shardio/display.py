"""Values, numbers and text for display: short for people, complete for programs, escaped for notebooks.

For programs: arrays are lists, bytes are `{"$base64": "..."}`, numbers that JSON lacks are the strings "NaN",
"Infinity" and "-Infinity", a complex number is `[real, imaginary]`.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

_FEW = 8
_MOST_LINES = 20  # of a list in a report
_LABEL_WIDTH = 24
_SHORT_LIST = 60  # characters of a list that stands in one line
_HTML_WIDTH = 200
_FIRST_BYTES = 12
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\x00", b"MM\x00*", b"RIFF")
_SHOWN_BY_BROWSERS = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF8": "gif"}
_MOST_PICTURE_BYTES = 1 << 20  # larger ones would bloat a notebook
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


def describe(value: Any, *, width: int = 100) -> list[str]:
    """Return a record's value as lines for people: a line a feature, or one line.

    Args:
        value: a mapping of features, or anything else.
        width: columns of a line.
    """
    if isinstance(value, Mapping) and value:
        return list(_features(value, width))
    return [_short(value, width)]


def _features(value: Mapping[Any, Any], width: int) -> Iterator[str]:
    pad = min(24, max(len(printable(str(name))) for name in value))
    for name, item in value.items():
        label = _cut(printable(str(name)), max(20, width - 22)).ljust(pad)
        if isinstance(item, Mapping) and item:
            yield label.rstrip()
            yield from (f"  {line}" for line in _features(item, width - 2))
        else:
            yield f"{label}  {_short(item, max(20, width - len(label) - 2))}"


def _short(value: Any, width: int) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value), width)
    if isinstance(value, str):
        return _text(value, width)
    if isinstance(value, np.ndarray) and value.ndim:
        return _array(value, width)
    if isinstance(value, np.generic | np.ndarray):
        return str(value)
    if isinstance(value, list | tuple):
        if len(value) == 1:
            return _short(value[0], width)
        items = ", ".join(_short(item, 40) for item in value[:3])
        more = ", ..." if len(value) > 3 else ""
        return _cut(f"{plural(len(value), 'item')}{': ' if value else ''}{items}{more}", width)
    if isinstance(value, Mapping):
        return _cut(json.dumps(plain(value), ensure_ascii=False), width)
    return _cut(repr(value), width)


def _text(value: str, width: int) -> str:
    # Only the visible part is escaped, not a whole book.
    quoted = '"' + printable(value[:width]).replace('"', '\\"')
    if len(value) <= width and len(quoted) < width:
        return quoted + '"'
    tail = f'..." ({count(len(value))} characters)'
    return quoted[: max(1, width - len(tail))] + tail


def _bytes(value: bytes, width: int) -> str:
    image = _image(value)
    if image is not None:
        return f"{image}, {plural(len(value), 'byte')}"
    size = plural(len(value), "byte")
    text = _readable(value[: 4 * width])
    if text:
        return f"{size}  {_text(text, max(20, width - len(size) - 2))}"
    first = value[:_FIRST_BYTES]
    more = " ..." if len(value) > len(first) else ""
    preview = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in first)
    return _cut(f"{size}  {first.hex(' ')}{more}  |{preview}|" if value else size, width)


def _readable(value: bytes) -> str:
    """Return bytes as text if all of them are printable, else ""."""
    # The cut may have split a character.
    text = value.decode(errors="ignore")
    whole = len(text.encode()) > len(value) - 4 and (len(value) > 3 or text.encode() == value)
    return text if whole and all(c.isprintable() or c in "\t\r\n" for c in text) else ""


def _image(value: bytes) -> str | None:
    """Return format and size of an image file from its header, if Pillow is installed."""
    if not value.startswith(_SIGNATURES):
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with Image.open(io.BytesIO(value)) as image:
            return f"{image.format} {image.width}x{image.height}"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _array(value: np.ndarray[Any, Any], width: int) -> str:
    head = f"{value.dtype.name}[{','.join(map(str, value.shape))}]"
    flat = value.reshape(-1)[:_FEW]
    few = " ".join(f"{item:.4g}" if value.dtype.kind in "fc" else str(item) for item in flat.tolist())
    return _cut(f"{head}  {few}{' ...' if value.size > _FEW else ''}".rstrip(), width)


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
        return _short(value, _HTML_WIDTH)
    more = f" and {len(items) - _FEW:,} more" if len(items) > _FEW else ""
    return Markup(" ".join(filter(None, pictures)) + more)


def _picture(value: bytes) -> str | None:
    """Return an image file that browsers show, and that is not too large for a page; else None."""
    kind = next((kind for start, kind in _SHOWN_BY_BROWSERS.items() if value.startswith(start)), None)
    if kind is None or len(value) > _MOST_PICTURE_BYTES:
        return None
    data = base64.b64encode(value).decode()
    source = f"data:image/{kind};base64,{data}"
    return f'<img src="{source}" style="max-height: 8em" alt="{kind}, {size(len(value))}">'


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
