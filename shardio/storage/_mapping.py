"""Maps of whole files that keep no descriptor, and the descriptors that can be given back when they run out.

Python's own `mmap` keeps a copy of the descriptor for as long as the map lives (until 3.13, `trackfd=False`):
a reader of a few hundred shards would use up the 1,024 that a process usually has.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
import weakref
from typing import Any, Protocol

import numpy as np

__all__ = ["advise_need", "descriptor_limit", "descriptor_users", "map_file", "open_file"]

_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which Python 3.11 has no name for
_FAILED = ctypes.c_void_p(-1).value


class DescriptorUser(Protocol):
    """Something that holds descriptors which it can open again."""

    def release_descriptors(self) -> bool:
        """Let go of some; False where there are none to let go of."""


# Asked when the process, or the machine, has no descriptor left.
descriptor_users: weakref.WeakSet[DescriptorUser] = weakref.WeakSet()


def open_file(path: str, flags: int) -> int:
    """Open a file; where descriptors have run out, those that can be given back are, and it is tried again.

    Raises:
        OSError: what the operating system said.
    """
    while True:
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            released = [user.release_descriptors() for user in list(descriptor_users)]
            if not any(released):
                raise


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return sys.maxsize
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def map_file(number: int, size: int) -> memoryview:
    """Return a whole file, of at least one byte, as a read-only view; `number` may be closed afterwards.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """
    calls = _system_calls()
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(number, size, access=mmap.ACCESS_READ, trackfd=False))
    if calls is None:
        return memoryview(mmap.mmap(number, size, access=mmap.ACCESS_READ))
    # The view holds the array, the array the map: the last reference to go unmaps.
    return memoryview(np.asarray(_Map(calls, number, size)))


def advise_need(view: memoryview, start: int, stop: int) -> bool:
    """Ask for all pages of a part of a map by one call; False where the system cannot."""
    calls = _system_calls()
    if calls is None or not sys.platform.startswith("linux"):
        return False
    address = np.frombuffer(view, np.uint8).ctypes.data
    first = (address + start) & -mmap.PAGESIZE
    return bool(calls.madvise(first, address + stop - first, _POPULATE_READ) == 0)


class _Map:
    """Memory that NumPy looks into; unmapped with its last reference."""

    def __init__(self, calls: Any, number: int, size: int) -> None:
        self._address = None
        address = calls.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, number, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address = address
        self._size = size
        self._unmap = calls.munmap
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, True),  # read-only
        }

    def __del__(self) -> None:
        if self._address is not None:
            self._unmap(self._address, self._size)


@functools.cache
def _system_calls() -> Any:
    """Return the C library, or None where it has no such calls."""
    if sys.platform == "win32":
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    except (OSError, AttributeError):
        return None
    return library
