"""Object stores and web servers: writing that is found out to be safe, on top of reading that is checked."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.storage._clients import fingerprint
from shardio.storage._explain import explain, gave_up
from shardio.storage._face import UnknownOutcomeError
from shardio.storage._keys import check_key, is_temporary
from shardio.storage._loop import run
from shardio.storage._probe import PROBES, Proofs, probe
from shardio.storage._reads import RemoteReads
from shardio.storage._retry import GaveUpError
from shardio.storage._verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio.storage._face import Buffer, ObjectInfo, Store
    from shardio.storage._tuning import Tuning

__all__ = ["RemoteStore", "Upload", "unlisted", "upload_of"]

_proofs = Proofs()
_LONGEST_WAIT = 2.0  # seconds before an object is read back
_UPLOAD = "upload:"  # how the stamp of an unfinished upload in parts begins


# What interrupted writes leave where no listing tells of it.
_UNTOLD = {
    "gcs": "GCS does not list uploads that were not finished, and removes them after a week",
    "azure": "of unfinished uploads Azure lists those of new objects, and removes their blocks after a week",
    "other": "whether uploads were left unfinished here, this kind of storage does not tell",
}


class Upload(NamedTuple):
    """An upload in parts that was not finished: it is under way, or was broken off.

    Attributes:
        key: of the object that it would have made.
        begun: UTC as ISO 8601, or "" where the service does not tell.
        id: the service's name for it, or "" where it has none.
    """

    key: str
    begun: str
    id: str


def upload_of(temporary: ObjectInfo) -> Upload | None:
    """Return the upload that an entry of `list_temporaries` stands for, or None where it is an object."""
    if not temporary.stamp.startswith(_UPLOAD):
        return None
    begun, _, number = temporary.stamp.removeprefix(_UPLOAD).partition(" ")
    return Upload(temporary.key, begun, number)


def unlisted(store: Store) -> str | None:
    """Return what `list_temporaries` of a store cannot tell, in words, or None where it tells everything."""
    return _UNTOLD.get(store._backend.kind) if isinstance(store, RemoteStore) else None  # noqa: SLF001 - its own


class RemoteStore(RemoteReads):
    """Objects under a bucket's prefix, or under the URL of a web server.

    Retries, time limits and concurrency are those of `Tuning`; every reply is checked for the range, the size
    and the stamp it claims.  Each process builds its own client at first use.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self._backend, self._tuning)

    def _put_new(self, key: str, data: Buffer | pathlib.Path, *, move: bool) -> bool:
        self.probe()
        if self._vouched and self._head(key) is not None:
            return False
        created = self._upload(key, data, exclusive=not self._vouched)
        if created and move and isinstance(data, pathlib.Path):
            data.unlink(missing_ok=True)
        return created

    @property
    def _vouched(self) -> bool:
        """Whether objects are created without a condition: the caller vouches for being alone.

        Filesystems of fsspec have no conditions; their client looks by itself.
        """
        return self._backend.single_writer and self._backend.kind != "other"

    def put_and_confirm(self, key: str, data: Buffer) -> bool:
        check_key(key)
        self._refuse_if_read_only(key)
        self.probe()
        clock = self._processes.here().clock
        begun = clock.now()
        if not self.put_new(key, data):
            return False
        # A writer that found the name free before our object was there has written its own by the time that a
        # request takes, once more: M. Fischer's argument, told in L. Lamport, "A Fast Mutual Exclusion
        # Algorithm" (1987).
        run(clock.sleep(min(_LONGEST_WAIT, clock.now() - begun)))
        try:
            return self.get(key, max_bytes=len(data)) == bytes(data)
        except FormatError:
            return False  # a larger one, so not ours
        except (NotFoundError, StorageError) as error:
            what = "the object was created and cannot be read back"
            raise UnknownOutcomeError(what, url=self.url_of(key), found=str(error)) from error

    def probe(self) -> None:
        """Make sure, once per process, that this store refuses to replace what exists.

        Raises:
            StorageError: it does replace, or is a zonal bucket.
        """
        backend = self._backend
        if backend.single_writer:
            return

        def ask() -> None:
            create = functools.partial(self._upload, limited=False)
            probe(self, create, lambda: self._ask("", backend.refusal))

        _proofs.once((backend.url, fingerprint(backend.options)), backend, ask)

    def _upload(
        self, key: str, data: Buffer | pathlib.Path, *, exclusive: bool = True, limited: bool = True
    ) -> bool:
        path = self._backend.path_of(key)
        content = data if isinstance(data, pathlib.Path) else bytes(data)
        size = os.stat(content).st_size if isinstance(content, pathlib.Path) else len(content)
        token = secrets.token_hex(16)

        async def work() -> None:
            state = self._processes.here()

            async def once() -> None:
                await (await state.client()).put(path, content, exclusive=exclusive, token=token)

            async with state.uploads if limited else contextlib.nullcontext():
                await state.retrier.run(once, size=size, renew=state.renew)

        try:
            run(work())
        except GaveUpError as error:
            if error.last.verdict is not Verdict.EXISTS:
                if error.applied:
                    what = "no answer came back; whether the object was created is unknown"
                    raise gave_up(error, self.url_of(key), what, UnknownOutcomeError) from error
                explain(error, self.url_of(key))
            # An earlier attempt of ours may be what exists: a lost reply is not a failure.
            found = self._ask(key, lambda client: client.token(path))
            return found == token if found is not None else error.applied and self._holds(key, content, size)
        return True

    def _holds(self, key: str, content: bytes | pathlib.Path, size: int) -> bool:
        """Tell whether the object is byte for byte what we sent."""
        info = self._head(key)
        if info is None:
            what = "no answer came back, and the object is now absent"
            raise UnknownOutcomeError(what, url=self.url_of(key))
        if info.size != size:
            return False
        if isinstance(content, bytes):
            return self._get(key, size) == content
        step = self._tuning.max_request_bytes
        with content.open("rb") as file:
            return all(
                file.read(min(step, size - start)) == self.get_range(key, start, min(start + step, size))
                for start in range(0, size, step)
            )

    def _put_hint(self, key: str, data: Buffer) -> None:
        content = bytes(data)
        self._ask(key, lambda client: client.put(self._backend.path_of(key), content, exclusive=False))

    def _delete(self, key: str) -> bool:
        if self._head(key) is None:
            return False
        try:
            self._ask(key, lambda client: client.delete(self._backend.path_of(key)))
        except NotFoundError:
            # Somebody else was faster, or a first attempt of ours had its reply lost.
            return False
        return True

    def list_temporaries(self) -> Iterator[ObjectInfo]:
        if self.read_only:
            return
        for info in self._gather("", lambda client, path: client.uploads(path)):
            yield info._replace(stamp=_UPLOAD + info.stamp)
        yield from self._gather(PROBES, lambda client, path: client.list(path))
        if self._backend.single_writer:
            found = self._gather("", lambda client, path: client.list(path))
            yield from (info for info in found if is_temporary(info.key))

    def delete_temporary(self, temporary: ObjectInfo) -> bool:
        key, stamp = temporary.key, temporary.stamp
        path = self._backend.path_of(key)
        if stamp.startswith(_UPLOAD):
            try:
                self._ask(key, lambda client: client.abort(path, stamp.partition(" ")[2]))
            except NotFoundError:
                return False
            return True
        if not (is_temporary(key) or key.startswith(PROBES)):
            msg = f"{key!r} is not a temporary; delete() removes objects"
            raise ValueError(msg)
        return self._delete(key)


def _rebuild(backend: Any, tuning: Tuning) -> RemoteStore:
    return RemoteStore(backend, tuning=tuning)
