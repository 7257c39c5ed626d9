"""Pages of a dataset as values for JSON; each reads only what it shows.

The summary is the manifest; lists of shards, records, a sample for statistics and older manifests are read
by their own pages, when they are looked at.  Damage of one record is in its place and hides no other.
Nothing here changes a dataset.
"""

from __future__ import annotations

import io
import threading
import urllib.parse
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import shardio
from shardio import Address, DatasetDict
from shardio.codecs import decode_image
from shardio.display import LINE, PAGE, audio_type, plain, render
from shardio.errors import ShardioError
from shardio.redact import redact
from shardio.view._facts import log_facts, seen_facts, shard_facts, version_facts
from shardio.view._search import Search, is_column, python, search
from shardio.view._statistics import histogram, summarize
from shardio.view._tokens import Decode, add_text, token_decoder
from shardio.view._values import FlatValue, charts, flatten, follow, guess_value, is_picture

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from shardio import DatasetReader, Version

_MOST_RECORDS = 1000  # of one page
_PAGE_BYTES = 64 << 20  # of the records of one page, as far as their average tells
_SAMPLE_BYTES = 32 << 20
_MOST_SAMPLED = 2048
# Runs of neighbours in a sample from a bucket: two for each bar of a chart, so that even numbers look even.
_RUNS = 64
_FIRST_BYTES = 1024
_SEARCHES = 3  # at a time
_KEPT = 24  # versions, readers and results
_EDGES = (32, 2048)
_SECRET_CHARACTERS = 4
_EVERY = Search()


class Media(NamedTuple):
    """Bytes that a browser can show, and their media type; never one that can run."""

    data: bytes
    type: str


class _Stopped(Exception):  # noqa: N818 - no error: it was asked for
    """The client no longer wants the result."""


class _Opened(NamedTuple):
    """A version, opened: readers of payloads by split."""

    readers: dict[str, DatasetReader]

    @property
    def first(self) -> DatasetReader:
        """Any of the readers, for what all splits have in common."""
        return next(iter(self.readers.values()))

    @property
    def version(self) -> Version:
        """The version."""
        return self.first.log_entry


class _Reading(NamedTuple):
    """A split of a version, opened.

    Attributes:
        payloads: its records as bytes.
        decoding: its records as values; the same open shards.
        mean_bytes: of a record.
        decode_tokens: makes text of token ids, where the metadata names a tokenizer file.
    """

    payloads: DatasetReader
    decoding: DatasetReader
    mean_bytes: int
    decode_tokens: Decode | None

    def value(self, payload: Any) -> Any:
        """Return the value of a payload, guessed where there is no schema."""
        value = self.decoding.decode(payload)
        return guess_value(value) if self.decoding.schema is None else value


class Pages:
    """The pages of one dataset; thread-safe.

    Args:
        url: of the dataset.
        split: shown first; None for the first one.
        version: shown first; None for the latest at the time.
        digest: `"sha256:..."` that the version shown first must have.
        storage_options: as in fsspec; no page shows them.
        engine: None for the best at hand, "fsspec" or "obstore".
        allow_roots: roots of adopted shards that may be read, each with its storage options.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        split: str | None = None,
        version: int | str | None = None,
        digest: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        engine: str | None = None,
        allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        place = Address.of(url)
        self._address = Address(place.url, storage_options, allow_roots or {}, engine)
        self.url = self._address.url
        self._split = split
        self._version = version
        self._digest = digest
        self._lock = threading.Lock()
        self._latest: _Opened | None = None
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._shown: dict[Hashable, bytes] = {}
        # One image at a time: a dozen small files may each become hundreds of megabytes.
        self._decoding = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}
        self._closed = False
        self._searching = threading.BoundedSemaphore(_SEARCHES)
        self._secrets = _secrets(self._address)

    # ------------------------------------------------------------------------------------------ metadata

    def summary(self, version: int | str | None = None) -> dict[str, Any]:
        """Return the facts in the manifest of a version, and which split is shown first.

        Args:
            version: a number or a tag; None for the one that was asked for at the start, or the latest.
        """
        # Looked for on each call, so that a reloaded page shows new commits.
        latest = self._latest
        if latest is None or shardio.log(self._address, 1)[0].digest != latest.version.digest:
            latest = self._open()
        with self._lock:
            self._latest = latest
        opened = self._opened(version)
        chosen = opened.version
        if version is None and self._digest is not None and chosen.digest != self._digest.lower():
            self._open(version=chosen.number, digest=self._digest)
        facts = version_facts(redact(opened.first.address.url), chosen, latest.version)
        facts["roots"] = [redact(root) for root in facts["roots"]]
        names = _in_order(facts["splits"])
        facts["splits"] = {name: facts["splits"][name] for name in names}
        if self._split is not None and self._split not in names:
            message = f"there is no split {self._split!r}; there is {', '.join(map(repr, names)) or 'none'}"
            raise ValueError(message)
        reader = opened.first
        return {
            **facts,
            "shown_split": self._split or (names[0] if names else None),
            "keys": reader.key_features,
            "is_local": reader.is_local,
            "columns": [name for name, feature in (reader.schema or {}).items() if is_column(feature)],
        }

    def shards(
        self, version: int | str | None = None, split: str | None = None, *, start: int = 0, count: int = 100
    ) -> dict[str, Any]:
        """Return histograms of the shards of a split, and some of them; reads the lists of shards.

        Args:
            version, split: which; None for those shown first.
            start: number of the first shard that is listed.
            count: of shards listed.
        """
        opened = self._opened(version)
        chosen = opened.version
        every: dict[str, Any] = self._keep(("shards", chosen.digest), chosen.shards)
        inside = np.array(every["split"]) == self._split_name(opened, split)
        numbers = np.flatnonzero(inside)
        columns = {name: column[inside] for name, column in every.items() if isinstance(column, np.ndarray)}
        stops = np.cumsum(columns["records"])
        rows = columns["records"] + columns["deleted"]
        shown = range(max(0, start), min(len(numbers), max(0, start) + min(count, 1000)))
        listed = [
            {name: plain(column[numbers[number]]) for name, column in every.items() if name != "split"}
            | {"first": int(stops[number] - columns["records"][number])}
            for number in shown
        ]
        return {
            **shard_facts(every),
            "shards": len(numbers),
            "records": int(stops[-1]) if len(stops) else 0,
            "stored_bytes": histogram(columns["stored_bytes"]),
            "shard_records": histogram(columns["records"]),
            "record_bytes": histogram(columns["decoded_bytes"][rows > 0] // rows[rows > 0]),
            "start": shown.start,
            "listed": listed,
        }

    def seen(self, version: int | str | None = None, split: str | None = None) -> dict[str, Any]:
        """Return the features of the first records, for a dataset without a schema."""
        reading = self._reading(version, split)
        return {"seen": seen_facts(iter(reading.payloads[:100]))}

    def versions(self, before: int | None = None, count: int = 20) -> dict[str, Any]:
        """Return some versions, the latest first; reads as many manifests.

        Args:
            before: only older ones than this; None for the latest too.
            count: at most so many.
        """
        latest = self._opened(None, latest=True).version
        last = latest.number if before is None else min(before - 1, latest.number)
        found = shardio.log(self._address, max(1, min(count, 100)), version=last) if last >= 1 else []
        return {
            "versions": [log_facts(each, latest) for each in found],
            "earlier": bool(found) and found[-1].number > 1,
            "latest_version": latest.number,
        }

    # ------------------------------------------------------------------------------------------ records

    def _selection(self, reading: _Reading, asked: Search, is_gone: Callable[[], bool]) -> Any:
        """Return the matching positions in order; they are cached for the next page."""
        if asked == Search():
            return range(len(reading.payloads))

        def look(_progress: Any = None) -> None:
            if self._closed or is_gone():
                raise _Stopped

        key = ("search", reading.payloads.digest, reading.payloads.split, asked)
        with self._lock:
            known = self._kept.get(key)
        if known is not None:
            return known
        # A few threads serve all requests; most of them must stay free for other pages.
        if not self._searching.acquire(blocking=False):
            raise ValueError(f"{_SEARCHES} searches are running; try again when one has finished")
        try:
            found = search(reading.decoding, asked, look)
        finally:
            self._searching.release()
        return self._keep(key, lambda: found)

    def records(
        self,
        version: int | str | None = None,
        split: str | None = None,
        *,
        start: int = 0,
        count: int = 20,
        asked: Search = _EVERY,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Return some of the records that a search finds, each as cells or as the error of reading it.

        Args:
            version, split: which; None for those shown first.
            start, count: a run of what was found; a run of large records is shorter than asked.
            asked: the search.
            is_gone: whether the client has disconnected, which ends a search.

        Returns:
            `total` records were found of `all`; `python` is code that finds the same ones.

        Raises:
            IndexError: `start` is out of range.
            ValueError: no search; or it would read too much.
            StorageError, StaleIndexError: the environment failed.
        """
        reading = self._reading(version, split)
        reader = reading.payloads
        count = max(1, min(count, _MOST_RECORDS, _PAGE_BYTES // reading.mean_bytes or 1))
        try:
            found = self._selection(reading, asked, is_gone)
        except _Stopped:
            return {"stopped": True}
        if start < 0 or (start >= len(found) > 0):
            raise IndexError(f"record {start} is out of range: there are {len(found)}")
        chosen = np.array(found[start : start + count], np.int64)
        payloads = reader.read(chosen, on_error="return")
        self._remember(reading, chosen.tolist(), payloads)
        return {
            "start": start,
            "total": len(found),
            "all": len(reader),
            "python": python(
                self._opening(reader), asked, reader.schema, start=start, stop=start + len(chosen)
            ),
            "records": [
                self._record(reading, position, payload, full=False)
                for position, payload in zip(chosen.tolist(), payloads, strict=True)
            ],
        }

    def _opening(self, reader: DatasetReader) -> str:
        """Return the arguments of `shardio.open` that open what is shown, without secrets."""
        given = [repr(self.redact(self.url)), *([repr(reader.split)] if reader.split else [])]
        given.append(f"version={reader.version}")
        if self._address.allow_roots:
            given.append(f"allow_roots={ {self.redact(root): {} for root in self._address.allow_roots}!r}")
        if self._address.storage_options:
            given.append("storage_options={...}")
        return ", ".join(given)

    def record(
        self, version: int | str | None = None, split: str | None = None, *, position: int
    ) -> dict[str, Any]:
        """Return one record in full, with shard, row and bytes, and the beginning of its payload."""
        reading = self._reading(version, split)
        reader = reading.payloads
        if not 0 <= position < len(reader):
            raise IndexError(f"record {position} is out of range: there are {len(reader)}")
        (payload,) = reader.read([position], on_error="return")
        self._remember(reading, [position], [payload])
        found = self._record(reading, position, payload, full=True)
        found["total"] = len(reader)
        if isinstance(payload, bytes):
            found["hex"] = payload[:_FIRST_BYTES].hex()
        return found

    def media(
        self,
        version: int | str | None = None,
        split: str | None = None,
        *,
        position: int,
        path: Sequence[str | int],
        edge: int = 256,
    ) -> Media:
        """Return an image of a record, remade from its pixels, or its audio file.

        Args:
            version, split: which; None for those shown first.
            position: of the record.
            path: from the record's value to the bytes or pixels.
            edge: pixels of the longer side of an image, at most; 0 for every pixel, without loss.

        Raises:
            ValueError: there is neither an image nor audio at that path.
            CorruptRecordError: the image is damaged, or would be too large.
        """
        reading = self._reading(version, split)
        value = follow(reading.value(self._payload_at(reading, position)), path)
        if isinstance(value, bytes | bytearray | memoryview):
            audio = audio_type(bytes(value))
            if audio is not None:
                return Media(bytes(value), audio)
            with self._decoding:
                return _encoded(decode_image(bytes(value)), edge)
        if is_picture(value):
            with self._decoding:
                return _encoded(value, edge)
        raise ValueError(f"there is no image and no audio at {list(path)!r} of record {position}")

    def content(
        self,
        version: int | str | None = None,
        split: str | None = None,
        *,
        position: int,
        path: Sequence[str | int] = (),
    ) -> Media:
        """Return bytes of a record to be saved: of a value of it, or without a path its payload.

        Arrays become `.npy` files.
        """
        reading = self._reading(version, split)
        payload = self._payload_at(reading, position)
        value = follow(reading.value(payload), path) if path else payload
        if isinstance(value, str):
            value = value.encode(errors="surrogateescape")
        if isinstance(value, np.ndarray):
            out = io.BytesIO()
            np.save(out, value, allow_pickle=False)
            value = out.getvalue()
        if not isinstance(value, bytes | bytearray | memoryview):
            message = f"at {list(path)!r} of record {position} are not bytes, but {type(value).__name__}"
            raise ValueError(message)  # noqa: TRY004 - what was asked for is wrong, not its type
        return Media(bytes(value), "application/octet-stream")

    def statistics(
        self,
        version: int | str | None = None,
        split: str | None = None,
        *,
        sample: int = 256,
        asked: Search = _EVERY,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Return statistics of each feature in a sample, evenly spaced over the matches of a search.

        From a bucket the sample is runs of neighbours, so that it reads few shards.

        Args:
            version, split: which; None for those shown first.
            sample: records, at most; fewer where records are large.
            asked, is_gone: as in `records`.
        """
        reading = self._reading(version, split)
        try:
            selection = self._selection(reading, asked, is_gone)
        except _Stopped:
            return {"stopped": True}
        key = ("statistics", reading.payloads.digest, reading.payloads.split, asked, sample)
        found: dict[str, Any] = self._keep(key, lambda: self._statistics(reading, selection, sample))
        return found

    def _statistics(self, reading: _Reading, selection: Any, sample: int) -> dict[str, Any]:
        reader = reading.payloads
        most = _SAMPLE_BYTES // reading.mean_bytes
        runs = _MOST_SAMPLED if reader.is_local else _RUNS
        numbers = _sample(len(selection), max(1, min(sample, most, _MOST_SAMPLED)), runs)
        wanted = np.array([selection[number] for number in numbers.tolist()], np.int64)
        values, sizes, errors = [], [], []
        for position, payload in zip(wanted.tolist(), reader.read(wanted, on_error="return"), strict=True):
            if isinstance(payload, ShardioError):
                errors.append(self._error(position, payload))
                continue
            sizes.append(len(payload))
            try:
                values.append(reading.value(payload))
            except ShardioError as error:
                errors.append(self._error(position, error))
        return {
            "records": len(values),
            "total": len(selection),
            "runs": min(runs, len(wanted)),
            "record_bytes": histogram(sizes),
            "features": summarize(values, reader.schema),
            "unreadable": len(errors),
            "errors": errors[:10],
        }

    def close(self) -> None:
        """Stop running searches at their next step."""
        self._closed = True

    # ------------------------------------------------------------------------------------------ errors

    def describe(self, error: Exception) -> dict[str, Any]:
        """Return an error for JSON: its sentence, address, both sides and advice, without secrets."""
        found: dict[str, Any] = {"kind": type(error).__name__}
        if isinstance(error, ShardioError):
            found |= {"error": error.what, **{name: str(value) for name, value in error.fields().items()}}
        elif isinstance(error, ImportError) and error.name:
            found |= {"error": str(error), "advice": "install it, and start the viewer again"}
        else:
            found["error"] = str(error) or type(error).__name__
        return self._redacted(found)

    def redact(self, text: str) -> str:
        """Return text without secrets of the storage options and the address."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return redact(text)

    def _redacted(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self.redact(value) if isinstance(value, str) else value for name, value in fields.items()
        }

    def _error(self, position: int, error: ShardioError) -> dict[str, Any]:
        return {"position": position, "error": self.describe(error)}

    # ------------------------------------------------------------------------------------------ opening

    def _record(
        self, reading: _Reading, position: int, payload: bytes | ShardioError, *, full: bool
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"position": position}
        error = payload if isinstance(payload, ShardioError) else None
        # The bytes of a frame may take a request of their own, so only one record's are looked up.
        if full and error is None:
            try:
                place = reading.payloads.locate(position)
                found |= {**place._asdict(), "url": redact(place.url)}
            except ShardioError as wrong:
                error = wrong
        if not isinstance(payload, ShardioError):
            found["bytes"] = len(payload)
            try:
                flat = flatten(reading.value(payload), reading.payloads.schema)
                decode = reading.decode_tokens
                found["cells"] = [
                    [each.name, add_text(_cell_of(each, full=full), each.value, decode, full=full)]
                    for each in flat
                ]
            except ShardioError as wrong:
                error = wrong
        if error is not None:
            found["error"] = self.describe(error)
        return found

    def _remember(
        self, reading: _Reading, positions: Sequence[int], payloads: Sequence[bytes | ShardioError]
    ) -> None:
        """Cache the payloads of the current page: the browser requests its images and audio next."""
        fresh: dict[Hashable, bytes] = {}
        room = _PAGE_BYTES
        for position, payload in zip(positions, payloads, strict=True):
            if isinstance(payload, bytes) and len(payload) <= room:
                fresh[reading.payloads.digest, reading.payloads.split, position] = payload
                room -= len(payload)
        self._shown = fresh

    def _payload_at(self, reading: _Reading, position: int) -> bytes:
        known = self._shown.get((reading.payloads.digest, reading.payloads.split, position))
        payload: bytes = reading.payloads[position] if known is None else known
        return payload

    def _open(self, **which: Any) -> _Opened:
        address = self._address
        found = shardio.open(
            address.url, storage_options=address.storage_options, engine=address.engine,
            allow_roots=address.allow_roots, decode=False,
            # A file that is overwritten in place while it is looked at must not end the server.
            mmap=False, **which,
        )  # fmt: skip
        return _Opened(dict(found) if isinstance(found, DatasetDict) else {found.split: found})

    def _opened(self, version: int | str | None, *, latest: bool = False) -> _Opened:
        """Return a version, without a request where it is known."""
        wanted = self._version if version is None else version
        with self._lock:
            newest = self._latest
        if newest is None:
            newest = self._open()
            with self._lock:
                self._latest = newest
        if latest or wanted is None or wanted == newest.version.number:
            return newest
        key = ("version", newest.version.digest, wanted)
        found: _Opened = self._keep(key, lambda: self._open(version=wanted))
        return found

    def _split_name(self, opened: _Opened, split: str | None) -> str:
        names = _in_order(opened.first.splits)
        wanted = split or self._split or (names[0] if names else "")
        if names and wanted not in names:
            there = ", ".join(map(repr, names))
            raise ValueError(f"version {opened.first.version} has no split {wanted!r}; it has {there}")
        return wanted

    def _reading(self, version: int | str | None, split: str | None) -> _Reading:
        opened = self._opened(version)
        name = self._split_name(opened, split)

        def read() -> _Reading:
            payloads = opened.readers[name or "all"]  # a version without splits has one reader
            decode = token_decoder(self._address.connect(), payloads.metadata)
            sizes = opened.version.facts()["splits"].get(name, {"records": 0})
            mean = sizes["decoded_bytes"] // sizes["records"] if sizes["records"] else 0
            return _Reading(payloads, payloads.decoded(), max(1, mean), decode)

        found: _Reading = self._keep(("reading", opened.version.digest, name), read)
        return found

    def _keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached value of a key; the first thread computes it, others wait."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
            made = make()
            with self._lock:
                self._kept[key] = made
                self._making.pop(key, None)
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return made


def _in_order(names: Iterable[str]) -> list[str]:
    """Return names of splits, "train" first."""
    return sorted(names, key=lambda name: (name != "train", name))


def _cell_of(flat: FlatValue, *, full: bool) -> dict[str, Any]:
    bounds = PAGE if full else LINE
    return render(flat.value, feature=flat.feature, path=flat.path, bounds=bounds, chart=charts)


def _sample(total: int, wanted: int, runs: int) -> NDArray[np.int64]:
    """Return positions of runs of neighbours, evenly spaced from the first record to the last."""
    if total <= wanted:
        return np.arange(total)
    runs = min(runs, wanted)
    length = wanted // runs
    starts = [(total - length) * k // max(1, runs - 1) for k in range(runs)]
    return np.unique(np.concatenate([np.arange(start, start + length) for start in starts]))


def _encoded(pixels: NDArray[np.uint8], edge: int) -> Media:
    """Return an image file of the pixels alone, without metadata of the original."""
    from PIL import Image

    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if edge:
        edge = max(_EDGES[0], min(edge, _EDGES[1]))
        image.thumbnail((edge, edge))  # never larger than it was
    out = io.BytesIO()
    if not edge or image.mode == "RGBA" or max(image.size) <= 64:
        image.save(out, "PNG", compress_level=1)
        return Media(out.getvalue(), "image/png")
    image.save(out, "JPEG", quality=88)
    return Media(out.getvalue(), "image/jpeg")


def _secrets(address: Address) -> list[str]:
    """Return secrets that no page may show: storage options, passwords and queries of addresses."""
    found = {*_texts(address.storage_options or {}), *_texts_of_url(address.url)}
    for root, given in address.allow_roots.items():
        found |= {*_texts(given), *_texts_of_url(root)}
    return sorted((each for each in found if len(each) >= _SECRET_CHARACTERS), key=len, reverse=True)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        # Addresses and regions are not secrets, and errors need them.
        if "://" in value:
            yield from _texts_of_url(value)
        else:
            yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif hasattr(value, "items"):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _texts_of_url(url: str) -> Iterator[str]:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return
    yield from filter(None, (parts.password, parts.query))
