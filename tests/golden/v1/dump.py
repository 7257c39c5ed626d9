"""The shard and the index of the three-record dataset, as the hex dump that ends docs/format.md.

    python tests/golden/v1/dump.py       writes it into the page

A test checks that the page shows the golden files as they are.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "format.md"
BEGIN, END = "<!-- dump: begin -->\n", "<!-- dump: end -->\n"

TITLES = {
    ".tfrecord": "The shard: three frames, each length, CRC of the length, payload, CRC of the payload",
    ".shardidx": "Its index: prefix, directory, columns at multiples of 8",
}


def hex_lines(data: bytes) -> str:
    """Return 16 bytes a line: offset, hex, text; repeated lines become one star, as in `xxd -g 4`."""
    lines, starred = [], False
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        if start and part == data[start - 16 : start]:
            if not starred:
                lines.append("*")
            starred = True
            continue
        starred = False
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' ', -4):<35}  |{text}|")
    return "\n".join([*lines, f"{len(data):08x}"])


def markdown() -> str:
    """Return the dump of the shard and its index."""
    root = HERE / "three"
    out = []
    for suffix, title in TITLES.items():
        (path,) = root.rglob(f"*{suffix}")
        name = path.relative_to(root).as_posix()
        out.append(f"{title}:\n\n```\n{name}\n{hex_lines(path.read_bytes())}\n```\n")
    return "\n".join(out)


def main() -> None:
    """Put the dump between its marks in the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + markdown() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
