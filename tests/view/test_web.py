"""The real server on the loopback: who may ask, what is sent, with which headers, and how it ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import shardio
from shardio.view import Pages, _pages, _web, make_server
from tests.view import made

TOKEN = "a-token-of-the-test"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Sends requests as they are said, also such as no browser would send."""

    def __init__(self, port: int, server: Any = None) -> None:
        self.port = port
        self.server = server

    def ask(self, path: str, *, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, data, {"Host": f"127.0.0.1:{self.port}", **names})
        with contextlib.closing(connection), connection.getresponse() as reply:
            return Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())

    def get(self, page: str, **query: Any) -> Answer:
        text = urllib.parse.urlencode(query)
        return self.ask(f"/api/{page}?{text}", X_Shardio_Token=TOKEN)


@contextlib.contextmanager
def serving(pages: Pages, **options: Any) -> Iterator[Browser]:
    server = make_server(pages, token=TOKEN, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Browser(server.port, server._server)
    finally:
        server.stop()
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    url = tmp_path_factory.mktemp("view") / "ds"
    made.values(url)
    with serving(Pages(url)) as found:
        yield found


def test_the_page_and_its_files_are_sent(browser):
    page = browser.ask(f"/?token={TOKEN}")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<script src=" in page.body
    # Nothing in the page itself runs, and nothing comes from elsewhere.
    assert page.body.count(b"<script") == 1
    assert b"onclick" not in page.body
    for name, kind in (
        ("app.js", "text/javascript"),
        ("style.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        file = browser.ask(f"/static/{name}")
        assert file.status == 200
        assert file.headers["content-type"].startswith(kind)
        assert b"http://" not in file.body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in file.body


@pytest.mark.parametrize("path", ["/", "/api/summary", "/api/record?position=0", "/nothing"])
def test_without_its_token_nothing_is_said(browser, path):
    for asked in (path, f"{path}{'&' if '?' in path else '?'}token=wrong"):
        answer = browser.ask(asked)
        assert answer.status == 403
        assert b"token" in answer.body
    assert browser.ask(path, X_Shardio_Token="wrong").status == 403
    assert browser.ask(path, Cookie=f"token={TOKEN}").status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "", "[::1"]
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(browser, host):
    answer = browser.ask("/api/summary", Host=host, X_Shardio_Token=TOKEN)
    assert answer.status in (400, 403)
    assert b"ds" not in answer.body or b"splits" not in answer.body


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:9"])
def test_names_of_this_machine_are_known(browser, host):
    assert browser.ask("/api/summary", Host=host, X_Shardio_Token=TOKEN).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_not_ask(browser, site):
    """Another port of this machine is the same site, and another program."""
    answer = browser.ask("/api/summary", Sec_Fetch_Site=site, X_Shardio_Token=TOKEN)
    assert answer.status == 403
    assert browser.ask("/api/summary", Sec_Fetch_Site="same-origin", X_Shardio_Token=TOKEN).status == 200


def test_every_answer_forbids_what_could_run(browser):
    answers = [
        browser.ask(f"/?token={TOKEN}"),
        browser.ask("/static/app.js"),
        browser.ask("/"),
        browser.ask("/nothing", X_Shardio_Token=TOKEN),
        browser.get("summary"),
        browser.get("nothing"),
        browser.get("media", position=0, path='["image"]'),
        browser.get("content", position=0),
        browser.ask("/api/summary", method="DELETE", X_Shardio_Token=TOKEN),
    ]
    for answer in answers:
        policy = dict(
            each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert policy["frame-ancestors"] == "'none'"
        assert not any("unsafe" in each or "*" in each or "http" in each for each in policy.values())
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
        assert "set-cookie" not in answer.headers


def test_pages_are_those_of_the_library(browser, tmp_path):
    pages = Pages(browser.get("summary").json["url"])
    assert browser.get("summary").json == pages.summary()
    assert browser.get("records", split="test", start=2, count=3).json == pages.records(
        split="test", start=2, count=3
    )
    assert browser.get("record", split="test", position=1).json == pages.record(split="test", position=1)
    assert browser.get("statistics", sample=8).json == pages.statistics(sample=8)
    media = browser.get("media", position=0, path='["pixels"]')
    assert (media.status, media.headers["content-type"]) == (200, "image/png")
    assert browser.get("media", position=0, path='["song"]').headers["content-type"] == "audio/wav"
    saved = browser.get("content", position=0, path='["raw"]')
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment")


@pytest.mark.slow
def test_a_condition_ends_with_the_page_that_asked_and_hinders_no_other(tmp_path):
    """Four browsers ask what takes minutes and leave: none keeps the server or a processor busy."""
    with shardio.DatasetWriter(tmp_path / "ds", schema={"id": "text"}) as out:
        for _ in range(200):
            out.write({"id": "ab" * 10_000})
    shardio.build_table(tmp_path / "ds", ["id"], workers=1)
    pages = Pages(tmp_path / "ds")
    permits = range(_pages._SEARCHES)
    with serving(pages) as browser, contextlib.ExitStack() as leaving:
        query = urllib.parse.urlencode({"where": "levenshtein(id, reverse(id)) > 3"})
        clients = []
        for _ in permits:
            client = http.client.HTTPConnection("127.0.0.1", browser.port)
            leaving.callback(client.close)
            client.request("GET", f"/api/records?{query}", headers={"X-Shardio-Token": TOKEN})
            clients.append(client)
        while pages._searching.acquire(blocking=False):
            pages._searching.release()
            time.sleep(0.01)
        assert browser.get("summary").json == pages.summary()
        more = browser.get("records", where="id = 'x'")
        assert (more.status, "searches are running" in more.json["error"]) == (400, True)
        for client in clients:
            client.close()
        assert all(pages._searching.acquire(timeout=600) for _ in permits)
        for _ in permits:
            pages._searching.release()
        assert browser.get("records", where="id = 'x'").json["total"] == 0


@pytest.mark.parametrize(
    ("page", "query", "status", "words"),
    [
        ("records", {"start": "x"}, 400, "whole number"),
        ("records", {"start": 10**30}, 404, "out of range"),
        ("record", {}, 400, "position"),
        ("record", {"position": -(10**9)}, 404, "out of range"),
        ("record", {"position": 10**30}, 404, "out of range"),
        ("records", {"split": "none"}, 400, "has no split"),
        ("records", {"version": 77}, 404, "version"),
        ("summary", {"version": "no-tag"}, 404, "tag"),
        ("media", {"position": 0, "path": '["caption"]'}, 400, "no image"),
        ("media", {"position": 0, "path": '["nothing"]'}, 400, "nothing"),
        ("media", {"position": 0, "path": "{}"}, 400, "JSON list"),
        ("content", {"position": 0, "path": '["about"]'}, 400, "not bytes"),
        ("records", {"key": "x"}, 404, "no index of keys"),
        ("records", {"where": "label ="}, 400, "label"),
        ("records", {"sort": "song"}, 400, "no order"),
        ("statistics", {"where": "label ="}, 400, "label"),
        ("nothing", {}, 400, "no page"),
    ],
)
def test_what_cannot_be_shown_is_said(browser, page, query, status, words):
    answer = browser.get(page, **query)
    assert answer.status == status
    assert words in answer.json["error"]
    assert "Traceback" not in answer.body.decode()


@pytest.mark.parametrize(
    "path", ["/static/../_web.py", "/static/%2e%2e/_web.py", "/static/index.html", "/static/..%2f_web.py"]
)
def test_no_other_file_is_sent(browser, path):
    answer = browser.ask(path, X_Shardio_Token=TOKEN)
    assert answer.status == 404
    assert b"import" not in answer.body


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/summary/", "/api/x/y", "/static/", "/nothing"])
def test_other_paths_are_no_pages(browser, path):
    for method in ("GET", "POST"):
        assert browser.ask(path, method=method, X_Shardio_Token=TOKEN).status == 404


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/summary"])
def test_pages_are_only_read(browser, path):
    answer = browser.ask(path, method="POST", X_Shardio_Token=TOKEN)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    answer = browser.ask(path, method="HEAD", X_Shardio_Token=TOKEN)
    assert (answer.status, answer.body, "allow" in answer.headers) == (200, b"", False)


def test_places_that_are_not_allowed_are_said_with_the_option_that_allows_them(tmp_path):
    made.lines(tmp_path / "lines")
    import shardio_indexer

    shardio_indexer.adopt(tmp_path / "lines" / "words.txt", into=tmp_path / "beside")
    with serving(Pages(tmp_path / "beside")) as browser:
        for name in ("summary", "records"):
            answer = browser.get(name)
            assert answer.status == 502
            assert "allow_roots" in answer.json["advice"]
    root = (tmp_path / "lines").as_uri()
    with serving(Pages(tmp_path / "beside", allow_roots={answer.json["found"]: {}})) as browser:
        assert browser.get("records").json["total"] == 2, root


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_the_program_prints_its_address_and_ends_when_told(tmp_path, number):
    made.lines(tmp_path / "ds")
    command = [sys.executable, "-m", "shardio", "view", str(tmp_path / "ds"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = json.loads(process.stdout.readline())
            assert said["host"] == "127.0.0.1"
            parts = urllib.parse.urlsplit(said["url"])
            browser = Browser(parts.port)
            assert browser.ask(f"/?{parts.query}").status == 200
            assert browser.ask(f"/api/records?{parts.query}").json["total"] == 2
            process.send_signal(number)
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", None), ("127.0.0.1", 1 << 20), ("192.0.2.1", 0)])
def test_where_it_cannot_listen_is_said_with_a_way_out(tmp_path, capsys, browser, host, port):
    made.lines(tmp_path / "ds")
    port = browser.port if port is None else port
    from shardio.cli import main

    assert main(["view", str(tmp_path / "ds"), "--no-browser", "--host", host, "--port", str(port)]) == 3
    assert f"cannot listen on {host}, port {port}" in (said := capsys.readouterr().err)
    assert "port=0" in said


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True), ("", True)])
def test_others_that_may_ask_are_warned_of(tmp_path, capsys, monkeypatch, host, warned):
    made.lines(tmp_path / "ds")
    monkeypatch.setattr("shardio.view.ViewServer.run", lambda server: None)
    from shardio.cli import main

    assert main(["view", str(tmp_path / "ds"), "--no-browser", "--host", host]) == 0
    assert ("not encrypted" in capsys.readouterr().err) == warned


def test_a_dataset_that_is_not_there_is_said_at_once(tmp_path):
    from shardio.cli import main

    assert main(["view", str(tmp_path / "nothing"), "--no-browser"]) == 3


@pytest.mark.slow
def test_connections_without_a_token_keep_nobody_out(browser, monkeypatch):
    """150 that send nothing, and as many that have begun a request."""
    known = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=600)
    with contextlib.ExitStack() as stack:
        stack.callback(known.close)

        def ask() -> int:
            known.request("GET", "/api/summary", headers={"X-Shardio-Token": TOKEN})
            with known.getresponse() as answer:
                answer.read()
                return answer.status

        assert ask() == 200
        for number in range(300):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", browser.port)))
            if number % 2:
                idle.sendall(b"POST /api/summary HTTP/1.1\r\nContent-Length: 9\r\n\r\n1")
        assert browser.get("summary").status == 200
        deadline = time.monotonic() + 600
        while len(browser.server.active_channels) > _web._STRANGERS + 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(browser.server.active_channels) <= _web._STRANGERS + 1
        monkeypatch.setattr(_web, "_STRANGER_SECONDS", -1)
        while len(browser.server.active_channels) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ask() == 200, "a connection that has brought the token stays"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_the_page_alone_is_reached_by_a_link(browser, site):
    navigation = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
    assert browser.ask(f"/?token={TOKEN}", **navigation).status == 200
    assert browser.ask("/?token=wrong", **navigation).status == 403
    assert browser.ask(f"/api/summary?token={TOKEN}", **navigation).status == 403
    assert browser.ask(f"/?token={TOKEN}", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors").status == 403


@pytest.mark.slow
def test_the_token_is_in_no_argument_of_a_process(tmp_path):
    """Every user of a machine can read the arguments of every process."""
    made.values(tmp_path / "ds")
    seen = tmp_path / "seen"
    program = tmp_path / "bin" / "xdg-open"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf %s "$*" > {seen}.new; mv {seen}.new {seen}\n')
    program.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "shardio", "view", str(tmp_path / "ds")],
        env={**os.environ, "BROWSER": f"{program} %s &"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            token = next(line for line in process.stdout if "?token=" in line).strip().partition("token=")[2]
            deadline = time.monotonic() + 600
            while not seen.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            argument = seen.read_text()
            assert token
            assert token not in argument
            page = pathlib.Path(urllib.parse.urlsplit(argument).path)
            assert f"token={token}" in page.read_text()
            assert page.stat().st_mode & 0o077 == 0
        finally:
            process.send_signal(signal.SIGINT)
    assert not page.exists()


def test_the_memory_of_images_is_bounded_in_sum(tmp_path, monkeypatch):
    """A dozen small files may each become hundreds of megabytes."""
    image = pytest.importorskip("PIL.Image")
    image.new("1", (5000, 5000)).save(tmp_path / "x.png")
    with shardio.DatasetWriter(tmp_path / "ds", schema={"x": "png"}) as out:
        out.write({"x": (tmp_path / "x.png").read_bytes()})
    pages = Pages(tmp_path / "ds")
    now = most = 0
    lock = threading.Lock()

    def decode(_: bytes) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(_pages, "decode_image", decode)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: pages.media(position=0, path=["x"]), range(16)))
    assert most <= 2
