"""Power cuts: what a program wrote is recorded call by call, and what a disk may keep of it is built.

`recorded` runs a program under strace, which sees every call of every thread.  `Disk` is what the system was
told until the power went: a call that no flush covers may have reached the disk, or not, or in part, whatever
came after it.  A flush of a file covers its bytes and not its names; one of a folder covers the names in it.
What is not covered is decided for each file and each name by itself: no filesystem takes as much for itself.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

STRACE = shutil.which("strace")
ROOT = Path(__file__).parents[2]

# What may survive of what no flush covered.
WAYS = ("nothing", "everything", "names alone", "bytes alone", "some of it", "some of it")

_CHANGES = (
    "open,openat,openat2,creat,close,dup,dup2,dup3,fcntl,write,writev,pwrite64,pwritev,pwritev2,truncate,ftruncate,fallocate,"
    "link,linkat,symlink,symlinkat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,fsync,fdatasync,"
    "sync,syncfs,sendfile,copy_file_range,splice,lseek,clone,clone3,fork,vfork"
)
_SECTOR, _PAGE = 512, 4096  # a disk writes the one whole, a system the other


class Event(NamedTuple):
    """A change that the system was told of: its verb, what it is about, and where its effect begins."""

    verb: str
    what: tuple[Any, ...]
    begun: int  # events before this one had ended when it began


@dataclass
class Recording:
    """All that a program changed below a folder, in the order in which the calls ended."""

    events: list[Event] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)  # (events before it, what the program said)


def recorded(arguments: list[str], root: Path, folder: Path) -> Recording:
    """Run a Python program, and record what it changes below `root`; `folder` takes the trace.

    The program says what it has done by lines that it writes to the file `marks` in `folder`.
    """
    assert STRACE is not None
    trace, marks = folder / "trace", folder / "marks"
    command = [
        STRACE,
        "-f",
        "--seccomp-bpf",
        "-xx",
        "-s",
        str(1 << 26),
        "-e",
        f"trace={_CHANGES}",
        "-o",
        str(trace),
    ]
    command += [sys.executable, "-B", *arguments, str(root), str(marks)]
    # Its scratch files, too, may get names among what is kept.
    scratch = root / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    reader = Trace(root, marks)
    reader.recording.events.append(Event("folder", (scratch.name,), 0))
    with trace.open(encoding="ascii") as lines:
        for line in lines:
            reader.take(line)
    trace.unlink()
    return reader.recording


_LINE = re.compile(r"(\d+) +(.*)\n?")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(.*)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


class Trace:
    """Turns the lines of strace into events."""

    def __init__(self, root: Path, marks: Path) -> None:
        self.recording = Recording()
        self._root, self._marks = str(root), str(marks)
        self._begun: dict[str, tuple[int, str]] = {}
        self._files: dict[int, _Open] = {}
        self._names: dict[str, int] = {}  # path below the root -> number of the file that it names now
        self._numbers = 0
        self._sizes: dict[int, int] = {}

    def take(self, line: str) -> None:
        match = _LINE.fullmatch(line)
        assert match is not None, line
        thread, text = match.groups()
        here = len(self.recording.events)
        if text.endswith("<unfinished ...>"):
            self._begun[thread] = here, (start := text.removesuffix("<unfinished ...>").rstrip())
            if start.startswith("close("):
                # Its number is free at once: another thread may get it before this call ends.
                self._files.pop(int(start[6:].rstrip(")")), None)
            return
        if resumed := re.match(r"<\.\.\. \w+ resumed>", text):
            here, start = self._begun.pop(thread)
            if start.startswith("close("):
                return
            text = start + text[resumed.end() :]
        call = _CALL.fullmatch(text)
        if call is None or call[3] == "?":
            return  # signals, threads that end
        verb, arguments, result = call[1], call[2], int(call[3])
        if result < 0:
            return
        if verb in {"clone", "clone3", "fork", "vfork"}:
            assert "CLONE_THREAD" in arguments, f"another process was started, which is not followed: {text}"
            return
        getattr(self, f"_{_LIKE.get(verb, verb)}")(arguments, result, here)

    # Helpers

    def _event(self, verb: str, *what: Any, begun: int = -1) -> None:
        events = self.recording.events
        events.append(Event(verb, what, len(events) if begun < 0 else begun))

    def _path(self, arguments: str, number: int = 0) -> str | None:
        """Return the path that is the given text among the arguments, from the root on; None elsewhere."""
        found = list(_TEXT.finditer(arguments))[number]
        path = _bytes(found[1]).decode()
        if not path.startswith("/"):
            before = re.search(r"(\w+), $", arguments[: found.start()])
            if before is None or before[1] == "AT_FDCWD":
                return None  # the program runs in the folder of the sources
            folder = self._files.get(int(before[1]))
            if folder is None or folder.path is None:
                return None
            path = f"{self._root}/{folder.path}/{path}"
        path = str(Path(path))
        if path == self._root:
            return "."
        return path.removeprefix(self._root + "/") if path.startswith(self._root + "/") else None

    def _first(self, arguments: str) -> _Open | None:
        return self._files.get(int(arguments.split(",", maxsplit=1)[0]))

    # Calls

    def _open(self, arguments: str, result: int, begun: int) -> None:
        del begun
        path = self._path(arguments)
        is_mark = _bytes(next(_TEXT.finditer(arguments))[1]).decode() == self._marks
        self._files[result] = file = _Open(path, 0, append="O_APPEND" in arguments, is_mark=is_mark)
        if path is None:
            return
        if path not in self._names and "O_DIRECTORY" not in arguments and "O_CREAT" in arguments:
            self._numbers += 1
            self._names[path] = self._numbers
            self._sizes[self._numbers] = 0
            self._event("file", self._numbers, path)
        file.inode = self._names.get(path)
        if "O_TRUNC" in arguments and file.inode is not None:
            self._event("truncate", file.inode, 0)
            self._sizes[file.inode] = 0

    def _close(self, arguments: str, result: int, begun: int) -> None:
        del result, begun
        self._files.pop(int(arguments), None)

    def _dup(self, arguments: str, result: int, begun: int) -> None:
        del begun
        file = self._first(arguments)
        if file is not None:
            self._files[result] = file

    def _fcntl(self, arguments: str, result: int, begun: int) -> None:
        if "F_DUPFD" in arguments:
            self._dup(arguments, result, begun)

    def _lseek(self, arguments: str, result: int, begun: int) -> None:
        del begun
        file = self._first(arguments)
        if file is not None:
            file.at = result

    def _write(self, arguments: str, result: int, begun: int) -> None:
        """Take `write` and `writev`, at the place of the descriptor."""
        del begun
        file = self._first(arguments)
        if file is None:
            return
        data = b"".join(_bytes(each[1]) for each in _TEXT.finditer(arguments))[:result]
        assert len(data) == result, "the trace is cut"
        if file.is_mark:
            self.recording.marks.append((len(self.recording.events), data.decode()))
        if file.inode is not None:
            if file.append:
                file.at = self._sizes[file.inode]
            self._event("write", file.inode, file.at, data)
            file.at += result
            self._sizes[file.inode] = max(self._sizes[file.inode], file.at)

    def _pwrite(self, arguments: str, result: int, begun: int) -> None:
        del begun
        file = self._first(arguments)
        if file is not None and file.inode is not None:
            data = b"".join(_bytes(each[1]) for each in _TEXT.finditer(arguments))[:result]
            offset = re.findall(r", (\d+)", arguments)[-1]
            self._event("write", file.inode, int(offset), data)
            self._sizes[file.inode] = max(self._sizes[file.inode], int(offset) + result)

    def _ftruncate(self, arguments: str, result: int, begun: int) -> None:
        del result, begun
        file = self._first(arguments)
        if file is not None and file.inode is not None:
            self._sizes[file.inode] = int(arguments.split(", ")[1])
            self._event("truncate", file.inode, self._sizes[file.inode])

    def _fsync(self, arguments: str, result: int, begun: int) -> None:
        del result
        file = self._first(arguments)
        if file is None or file.path is None:
            return
        if file.inode is None:
            self._event("flush folder", file.path, begun=begun)
        else:
            self._event("flush", file.inode, begun=begun)

    def _link(self, arguments: str, result: int, begun: int) -> None:
        del result, begun
        old, new = self._path(arguments, 0), self._path(arguments, 1)
        if new is not None:
            assert old is not None, arguments
            self._names[new] = self._names[old]
            self._event("name", self._names[old], new)

    def _rename(self, arguments: str, result: int, begun: int) -> None:
        del result, begun
        old, new = self._path(arguments, 0), self._path(arguments, 1)
        if old is None and new is None:
            return
        assert old is not None, arguments
        assert new is not None, arguments
        assert old in self._names, "folders are not moved"
        self._names[new] = self._names.pop(old)
        self._event("name", self._names[new], new)
        self._event("unname", old)

    def _unlink(self, arguments: str, result: int, begun: int) -> None:
        del result, begun
        path = self._path(arguments)
        if path is not None:
            self._names.pop(path, None)
            self._event("unname", path)

    def _mkdir(self, arguments: str, result: int, begun: int) -> None:
        del result, begun
        path = self._path(arguments)
        if path is not None:
            self._event("folder", path)

    def _refuse(self, arguments: str, result: int, begun: int) -> None:
        del result, begun
        if '"' in arguments:
            known = any(self._path(arguments, k) for k in range(len(_TEXT.findall(arguments))))
        else:
            numbers = [int(each) for each in re.findall(r"\b\d+\b", arguments)[:3]]
            known = any(each in self._files and self._files[each].path is not None for each in numbers)
        assert not known, f"a call that the rebuilder does not know: {arguments[:300]}"


# Calls that are taken as others; those that nothing here knows are refused where they touch the folder.
_LIKE = {
    "openat": "open", "creat": "open", "openat2": "open", "dup2": "dup", "dup3": "dup", "writev": "write",
    "pwrite64": "pwrite", "pwritev": "pwrite", "pwritev2": "pwrite", "fdatasync": "fsync", "linkat": "link",
    "renameat": "rename", "renameat2": "rename", "unlinkat": "unlink", "rmdir": "unlink", "mkdirat": "mkdir",
    "truncate": "refuse", "fallocate": "refuse", "symlink": "refuse", "symlinkat": "refuse",
    "sync": "refuse", "syncfs": "refuse", "sendfile": "refuse", "copy_file_range": "refuse",
    "splice": "refuse",
}  # fmt: skip


@dataclass
class _Open:
    path: str | None
    at: int
    append: bool = False
    is_mark: bool = False
    inode: int | None = None


class Disk:
    """What the system was told up to a moment, and what of it is sure to be there after a cut."""

    def __init__(self) -> None:
        # Of each file the changes of its bytes, and how many of them are flushed.
        self._bytes: dict[int, list[tuple[int, Event]]] = {}
        self._flushed: dict[int, int] = {}
        # Of each name what it named, one after another, first what is sure: a file, "folder" or None.
        self._names: dict[str, list[tuple[int, int | str | None]]] = {}
        self._events = 0

    def take(self, event: Event) -> None:
        """Let a change take effect."""
        at, self._events = self._events, self._events + 1
        verb, what = event.verb, event.what
        if verb in {"write", "truncate"}:
            self._bytes[what[0]].append((at, event))
        elif verb == "file":
            self._bytes[what[0]], self._flushed[what[0]] = [], 0
            self._name(what[1], at, what[0])
        elif verb == "name":
            self._name(what[1], at, what[0])
        elif verb == "folder":
            self._name(what[0], at, "folder")
        elif verb == "unname":
            self._name(what[0], at, None)
        elif verb == "flush":
            done = sum(began < event.begun for began, _ in self._bytes[what[0]])
            self._flushed[what[0]] = max(self._flushed[what[0]], done)
        elif verb == "flush folder":
            for path, states in self._names.items():
                if (path.rpartition("/")[0] or ".") == what[0]:
                    done = sum(began < event.begun for began, _ in states)
                    del states[: max(0, done - 1)]

    def _name(self, path: str, at: int, what: int | str | None) -> None:
        self._names.setdefault(path, [(-1, None)]).append((at, what))

    def rebuild(self, target: Path, way: str, draw: random.Random) -> None:
        """Make what a disk may hold after the power went now, in one of `WAYS`."""
        target.mkdir()
        for path in sorted(self._names):  # folders come before what is in them
            states = self._names[path]
            if way == "some of it":
                what = draw.choice(states)[1]
            else:
                what = states[0 if way in {"nothing", "bytes alone"} else -1][1]
            place = target / path
            if what is None or not place.parent.is_dir():
                continue
            if what == "folder":
                place.mkdir()
            else:
                assert isinstance(what, int)
                place.write_bytes(self._content(what, way, draw))

    def _content(self, inode: int, way: str, draw: random.Random) -> bytes:
        changes = self._bytes[inode]
        sure = self._flushed[inode]
        content = bytearray()
        for _, event in changes[:sure]:
            _change(content, event, event.what[2] if event.verb == "write" else b"")
        rest = [event for _, event in changes[sure:]]
        fate = "lost" if way in {"nothing", "names alone"} else "kept"
        if way == "some of it":
            fate = draw.choice(["lost", "kept", "zeros", "first", "pages"])
        if fate == "first":
            rest = rest[: draw.randint(0, len(rest))]
        for event in rest:
            data = event.what[2] if event.verb == "write" else b""
            if fate == "lost":
                continue
            if fate == "zeros":
                data = bytes(len(data))
            elif fate == "first" and event is rest[-1]:
                data = data[: draw.randrange(0, len(data) + 1, _SECTOR)]
            elif fate == "pages":
                # Its length is there, and of its pages some.
                pages = [data[k : k + _PAGE] for k in range(0, len(data), _PAGE)]
                data = b"".join(page if draw.random() < 0.5 else bytes(len(page)) for page in pages)
            _change(content, event, data)
        return bytes(content)

    def doubts(self) -> int:
        """Return how many names and files no flush covers."""
        names = sum(len({what for _, what in states}) > 1 for states in self._names.values())
        return names + sum(self._flushed[each] < len(found) for each, found in self._bytes.items())


def _change(content: bytearray, event: Event, data: bytes) -> None:
    if event.verb == "truncate":
        size = event.what[1]
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    offset = event.what[1]
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class Cut(NamedTuple):
    """A moment at which the power goes."""

    at: int
    way: str
    seed: int
    done: int  # marks that the program had written
    told: str


def cuts(recording: Recording, count: int, seed: int) -> Iterator[tuple[Cut, Disk]]:
    """Yield moments at which the power goes, in order, each with the disk of that moment.

    They begin with the first mark.
    """
    draw = random.Random(seed)
    first = recording.marks[0][0]
    events = recording.events
    moments = sorted(draw.choices(range(first, len(events) + 1), k=count))
    disk, at = Disk(), 0
    for number, moment in enumerate(moments):
        while at < moment:
            disk.take(events[at])
            at += 1
        done = sum(place <= moment for place, _ in recording.marks)
        way = WAYS[number % len(WAYS)]
        last = events[moment - 1]
        told = f"cut {number} after event {moment} ({last.verb} {last.what[:2]}), {way}, seed {seed}"
        yield Cut(moment, way, draw.randrange(1 << 30), done, told), disk
