"""`shardio view`: look at a dataset in a browser, from a server on this machine."""

from __future__ import annotations

import html
import ipaddress
import signal
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import Given
from shardio.cli._values import Whole

_REPORT = "what `shardio verify URL --json` printed"


def _run(
    given: Given,
    console: Console,
    *,
    host: Annotated[str, Parameter(help="address to listen on; by default this machine alone")] = "127.0.0.1",
    port: Annotated[Whole, Parameter(help="port to listen on; default: a free one")] = 0,
    no_browser: Annotated[bool, Parameter(help="print the address, and open no browser")] = False,
    report: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help=f"file of damage to show: {_REPORT}")
    ] = None,
) -> int:
    from shardio.view import Pages, make_server

    pages = given.call(Pages, report=None if report is None else _read_report(given, report))
    # What cannot be opened at all is said here, not in the browser.
    facts = pages.summary()
    server = make_server(pages, host=host, port=port)
    # Who ends it from outside means the same as Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if console.json:
            console.document(
                {
                    "url": server.url,
                    "host": server.host,
                    "port": server.port,
                    "dataset": facts["url"],
                    "version": facts["version"],
                }
            )
        else:
            console.line(f"{facts['url']}, version {facts['version']}, is shown at")
            console.line(f"  {server.url}")
            console.line("Ctrl-C ends it")
        console.flush()
        if not _is_loopback(host):
            console.note(
                "others on your network can reach this address; without its token they see nothing, but the "
                "connection is not encrypted, and traffic that they can read holds the token"
            )
        if no_browser or console.json:
            server.run()
        else:
            with tempfile.TemporaryDirectory(prefix="shardio-view-") as folder:
                _open_browser(server.url, Path(folder))
                server.run()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        server.close()
    return CLEAN


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_report(given: Given, file: str) -> dict[str, Any]:
    report = given.read_json(file, _REPORT)
    if not isinstance(report, dict) or "findings" not in report:
        raise ValueError(f"{file} holds no report: expected {_REPORT}")
    return report


def _open_browser(url: str, folder: Path) -> None:
    """Open the browser with a file that leads to the page.

    Arguments of a program can be read by every user of the machine, and the address holds the token.

    Args:
        url: of the page.
        folder: that only this user can read.
    """
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    # A browser of plain terminals would take this one over.
    if type(browser) is not webbrowser.GenericBrowser:
        page = folder / "open.html"
        page.touch(mode=0o600)
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={html.escape(url)}"><title>shardio view</title>'
            f'<a href="{html.escape(url)}">shardio view</a>'
        )
        browser.open(page.as_uri())


COMMAND = Command(
    name="view",
    summary="browse a dataset in a browser",
    takes=(Takes("shardio.view:Pages", without=("report",)),),
    run=_run,
    examples={
        "shardio view s3://bucket/birds": "schema, records, images, statistics, versions; Ctrl-C ends it",
        "shardio view s3://bucket/birds --no-browser --port 8000": (
            "on a machine elsewhere, through `ssh -L 8000:127.0.0.1:8000`"
        ),
    },
)
