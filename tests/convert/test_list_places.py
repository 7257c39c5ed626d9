"""Rows of a list name files of the list's own place; credentials go where they were given for."""

from __future__ import annotations

import http.server
import io
import re
import threading
from pathlib import Path

import pytest
from PIL import Image

import shardio
from shardio.errors import NotFoundError
from tests.suites.errors import refused


def png(size: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (size, size)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def serve():
    """Return a function that serves a dict of files and notes the Authorization headers that it sees."""
    servers = []

    def start(files: dict[str, bytes], seen: list[str | None]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args) -> None:
                pass

            def do_GET(self) -> None:
                seen.append(self.headers.get("Authorization"))
                data = files.get(self.path)
                found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                start, stop = (int(found[1]), int(found[2]) + 1) if found else (0, len(data or b""))
                body = (data or b"")[start:stop]
                self.send_response(404 if data is None else 206 if found else 200)
                if found and data is not None:
                    self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def convert(source: object, out: Path, **options):
    report = shardio.convert_dataset(source, out, workers=1, **options)
    return sorted(value["path"] for value in shardio.open(out, "all")), report


def test_a_remote_list_takes_files_of_its_own_place(tmp_path, serve) -> None:
    (tmp_path / "private.png").write_bytes(png(9))
    theirs: list[str | None] = []
    other = serve({"/x.png": png(4)}, theirs)
    rows = ["own.png", f"{tmp_path}/private.png", f"file://{tmp_path}/private.png", f"{other}/x.png"]
    rows += [f"../../../../../..{tmp_path}/private.png", f"%2e%2e/..{tmp_path}/private.png", "~/private.png"]
    text = "path,label\n" + "".join(f"{row},1\n" for row in rows)
    ours: list[str | None] = []
    url = serve({"/d/table.csv": text.encode(), "/d/own.png": png(3)}, ours)
    secret = {"headers": {"Authorization": "Bearer SECRET"}}
    paths, report = convert(f"{url}/d/table.csv", tmp_path / "out", source_options=secret)
    assert paths == ["own.png"]
    assert len([name for name in report.ignored if "not below" in name or "'..'" in name]) == len(rows) - 1
    assert any(note.startswith(f"{len(rows) - 1} rows left out") for note in report.notes)
    assert set(ours) == {"Bearer SECRET"}
    assert theirs == []
    # Asked for by name, with options of their own.
    roots = {str(tmp_path): {}, other: {}}
    paths, _ = convert(
        f"{url}/d/table.csv", tmp_path / "asked", source_options=secret, options={"allow_roots": roots}
    )
    assert paths == sorted(["own.png", *rows[1:4]])
    assert set(theirs) == {None}


@pytest.mark.parametrize("kind", ["csv", "txt"])
def test_a_local_list_takes_files_below_its_folder_and_root(tmp_path, kind) -> None:
    """The list may come from an archive or a repository of others."""
    for name in ("home/secret.png", "d/own.png", "images/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(3))
    (tmp_path / "d" / "link.png").symlink_to(tmp_path / "home" / "secret.png")
    outside = [f"{tmp_path}/home/secret.png", "../home/secret.png", "link.png"]
    source = tmp_path / "d" / f"names.{kind}"

    def write(rows: list[str]) -> None:
        comma, head = (",", "path,label\n") if kind == "csv" else (" ", "")
        source.write_text(head + "".join(f"{row}{comma}1\n" for row in rows))

    write(["own.png", f"{tmp_path}/d/own.png", *outside])
    paths, report = convert(source, tmp_path / "out", kind="list")
    assert paths == [f"{tmp_path}/d/own.png", "own.png"]
    assert any(note.startswith("3 rows left out") for note in report.notes)
    paths, _ = convert(source, tmp_path / "all", kind="list", options={"allow_roots": {str(tmp_path): {}}})
    assert len(paths) == 5
    write(["a.png", f"{tmp_path}/images/a.png", f"{tmp_path}/home/secret.png"])
    paths, _ = convert(source, tmp_path / "root", kind="list", options={"root": tmp_path / "images"})
    assert paths == [f"{tmp_path}/images/a.png", "a.png"]
    write(outside[:1])
    with refused(NotFoundError, "allow_roots"):
        convert(source, tmp_path / "none", kind="list")
    # The caller's own items are the caller's word.
    items = [(f"{tmp_path}/home/secret.png", "1")]
    assert convert(items, tmp_path / "given", kind="list")[0] == [f"{tmp_path}/home/secret.png"]
