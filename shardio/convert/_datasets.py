"""Files and repositories that the loaders of Hugging Face's `datasets` read: HDF5, XML, audio, video, `hf://`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardio.arguments import need
from shardio.errors import FormatError, NotFoundError

_HUB = "hf://datasets/"


def load_by_datasets(place: Any, options: Mapping[str, Any] | None) -> Any:
    """Return what `datasets.load_dataset` makes of a place, with its splits.

    Args:
        place: a local folder, file or pattern, several files, or on the Hub
            `hf://datasets/OWNER/NAME[@REVISION][/PATH]` or `OWNER/NAME`.
        options: further arguments of `load_dataset`, such as `name`, `token` or `data_files`.

    Raises:
        NotFoundError: there is nothing that a loader reads.
        FormatError: the files cannot be read.
        ImportError: `datasets`, or what it needs for these files, is not installed.
    """
    need('kind="datasets"', "shardio[hf]", "datasets")
    import datasets
    from datasets.exceptions import DatasetsError

    xml = _is_xml(place)
    arguments = {**_arguments(place), **(options or {})}
    if xml:
        # Their loader of XML opens iterators in place of files (5.2); a document of text is the same value.
        arguments["sample_by"] = "document"
        folder = arguments.pop("path")
        arguments = {
            "path": "text",
            **({} if "data_files" in arguments else {"data_dir": folder}),
            **arguments,
        }
    try:
        loaded = datasets.load_dataset(**arguments)
        return loaded.rename_column("text", "xml") if xml else loaded
    except FileNotFoundError as error:
        what = "there is nothing here that the loaders of datasets read"
        raise NotFoundError(what, url=str(place), found=str(error)) from error
    except (DatasetsError, OSError, ValueError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, ImportError):
            message = f'{place}: {cause} They are part of "datasets[audio,vision]", and h5py'
            raise ImportError(message) from error  # noqa: TRY004 - a package is missing
        raise FormatError(
            "the loaders of datasets cannot read this",
            url=place if isinstance(place, str) else str(next(iter(place), "")),
            found=f"{type(cause).__name__}: {cause}",
            advice="source_options= takes further arguments of datasets.load_dataset, such as name=",
        ) from error


def _is_xml(place: Any) -> bool:
    if isinstance(place, str) and "://" in place:
        return False
    if isinstance(place, str) and Path(place).is_dir():
        endings = {path.suffix.lower() for path in Path(place).rglob("*.*") if path.is_file()}
    else:
        endings = {Path(each).suffix.lower() for each in ([place] if isinstance(place, str) else place)}
    return endings == {".xml"}


def _arguments(place: Any) -> dict[str, Any]:
    """Return the arguments of `load_dataset` that name a place."""
    if not isinstance(place, str):
        files = [os.path.abspath(each) for each in place]  # noqa: PTH100 - a pattern is no path
        return {"path": os.path.commonpath(map(os.path.dirname, files)), "data_files": files}
    if place.startswith(_HUB):
        owner, name, *below = place.removeprefix(_HUB).rstrip("/").split("/")
        name, _, revision = name.partition("@")
        inside = "/".join(below)
        one = bool(below) and ("." in below[-1] or "*" in inside)
        named = {"data_files" if one else "data_dir": inside} if below else {}
        return {"path": f"{owner}/{name}", **named, **({"revision": revision} if revision else {})}
    if "://" in place:
        raise ValueError(
            f"{place}: the loaders of datasets read local files and hf:// here: download the files first"
        )
    if not Path(place).exists() and not any(mark in place for mark in "*?["):
        return {"path": place}  # of the Hub
    return {"path": place} if Path(place).is_dir() else _arguments([place])
