"""Records as one stream of bytes, for pipes: JSON lines, tar, or payloads."""

from __future__ import annotations

import io
import tarfile
from typing import BinaryIO, Literal

from shardio.convert._jsonl import JsonLinesWriter, json_line
from shardio.convert._webdataset import WebDatasetWriter, sample_key, tar_members
from shardio.formats import schema_of
from shardio.reader import DatasetReader


def write_stream(records: DatasetReader, out: BinaryIO, kind: Literal["jsonl", "tar", "raw"]) -> None:
    """Write records to a stream, in their order; memory stays bounded.

    Args:
        records: values by a schema; for "raw" payloads (`decode=False`).
        out: takes the bytes; it need not seek.
        kind: "jsonl" writes the lines and "tar" the samples of `export_dataset`; "raw" writes payloads with
            nothing between them.

    Raises:
        ValueError, SchemaError: the kind cannot hold these records; names the feature.
        FormatError, StorageError: reading failed; what was written before stays written.
    """
    schema = schema_of(records)
    if kind == "raw":
        out.writelines(records)
    elif kind == "jsonl":
        JsonLinesWriter.check(schema, None)
        out.writelines(json_line(value, schema) for value in records)
    else:
        WebDatasetWriter.check(schema, None)
        assert schema is not None  # noqa: S101 - as `check` found
        taken: set[str] = set()
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for number, value in enumerate(records):
                key = sample_key(value, number, taken)
                if "__key__" in schema:  # numbers repeat none
                    taken.add(key)
                for info, data in tar_members(value, schema, key):
                    archive.addfile(info, io.BytesIO(data))
                vars(archive)["members"] = []  # or it would remember every member
