"""Read an LMDB environment in a process of its own, and write what is there to standard output.

LMDB trusts the pages that it maps: a damaged file ends the process that reads it by a signal.  This file is
run as a script, by `shardio.convert._torchrecord`, and imports nothing but `lmdb`.

Arguments: where the parent finds its packages, the folder, and the name of a database ("" is the nameless
one) or nothing for the names of the databases.  Output: chunks, each a u32 size (little-endian) and so many
bytes: the names; or key and value of each record in turn, by the numbers of the keys.  The size `END` ends
it: without it the process ended early.  Exit code 3: standard error says in one line what is damaged.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import Any, NoReturn

# What says that everything was written.
END = 0xFFFFFFFF
DAMAGED = 3
_MOST_DATABASES = 4096


def main(folder: str, name: str | None) -> None:
    """Write what was asked for."""
    import lmdb

    out = sys.stdout.buffer

    def write(data: bytes) -> None:
        out.write(struct.pack("<I", len(data)) + data)

    try:
        environment = lmdb.open(
            folder, max_dbs=_MOST_DATABASES, readonly=True, lock=False, create=False, meminit=False
        )
        size = os.path.getsize(os.path.join(folder, "data.mdb"))  # noqa: PTH118, PTH202 - the script stays light
        # Reading a page behind the end of a mapped file would end this process.
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if needed > size:
            refuse(f"data.mdb was cut: expected {needed} bytes or more, found {size}")
        if name is None:
            with environment.begin() as reading:
                for key in names(reading):
                    write(key)
        else:
            database = (
                environment.open_db(name.encode("utf-8", "surrogateescape"), create=False) if name else None
            )
            with environment.begin(db=database) as reading:
                for key in sorted(keys(reading), key=by_number):
                    value = reading.get(key)
                    if value is None:
                        refuse("a key that was listed has no value")
                    write(key)
                    write(bytes(value))
    except lmdb.Error as error:
        refuse(f"this is not an LMDB environment, or it is damaged ({error})")
    out.write(struct.pack("<I", END))
    out.flush()


def names(reading: Any) -> list[bytes]:
    """Return the names of the databases; none where the environment holds records itself."""
    found: list[bytes] = []
    for key in keys(reading):
        if not key.startswith(b"db") or len(found) == _MOST_DATABASES:
            return []
        found.append(key)
    return sorted(found, key=by_number)


def keys(reading: Any) -> list[bytes]:
    """Return the keys; a damaged tree may have a way round in a circle."""
    entries = reading.stat()["entries"]
    found: list[bytes] = []
    for key in reading.cursor().iternext(values=False):
        if len(found) == entries:
            refuse(f"there are more keys than the {entries} that the environment counts")
        found.append(bytes(key))
    if len(found) != entries:
        refuse(f"there are {len(found)} keys, and the environment counts {entries}")
    return found


def by_number(key: bytes) -> tuple[int, int, bytes]:
    """Order names and keys by their numbers; what has none comes last."""
    digits = key.removeprefix(b"db")
    return (0, int(digits), key) if digits.isdigit() and len(digits) < 1000 else (1, 0, key)


def refuse(what: str) -> NoReturn:
    """End the process with a word on what is damaged."""
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()
    # What was written so far may be cut; the missing end says so.
    os._exit(DAMAGED)


if __name__ == "__main__":
    sys.path += [place for place in sys.argv[1].split(os.pathsep) if place]
    main(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
