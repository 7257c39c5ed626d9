"""`shardio view`: look at a dataset in a browser, from a server on this machine."""

from __future__ import annotations

import ipaddress
import signal
import webbrowser
from typing import TYPE_CHECKING, Any

from shardio.cli._command import WHOLE, Command, Option, PlaceParam, flag
from shardio.cli._console import CLEAN
from shardio.cli._options import (
    ENGINE,
    READING,
    STORAGE,
    read_json,
    reading_options,
    storage_options,
    url_argument,
)

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console

_REPORT = "what `shardio verify URL --json` printed"


def _run(arguments: SimpleNamespace, console: Console) -> int:
    from shardio.view import Pages, make_server

    pages = Pages(
        arguments.url,
        split=arguments.split,
        report=None if arguments.report is None else _read_report(arguments),
        **reading_options(arguments),
    )
    # What cannot be opened at all is said here, not in the browser.
    facts = pages.summary()
    server = make_server(pages, host=arguments.host, port=arguments.port, phrase=console.in_flags)
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
        if not _is_loopback(arguments.host):
            console.note(
                "others on your network can reach this address; without its token they see nothing, but the "
                "connection is not encrypted, and traffic that they can read holds the token"
            )
        if not arguments.no_browser and not console.json:
            _open_browser(server.url)
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


def _read_report(arguments: SimpleNamespace) -> dict[str, Any]:
    given = storage_options(arguments)
    report = read_json(arguments.report, _REPORT, beside=arguments.url, storage_options=given)
    if not isinstance(report, dict) or "findings" not in report:
        message = f"{arguments.report} holds no report: expected {_REPORT}"
        raise ValueError(message)
    return report


def _open_browser(url: str) -> None:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    # A browser of plain terminals would take this one over.
    if type(browser) is not webbrowser.GenericBrowser:
        browser.open(url)


_PARAMS = (
    url_argument(),
    Option(
        ["--host"], metavar="ADDRESS", default="127.0.0.1",
        help="address to listen on; default: 127.0.0.1, this machine alone",
    ),
    Option(
        ["--port"], metavar="N", type=WHOLE, default=0, help="port to listen on; default: a free one"
    ),
    flag("--no-browser", "print the address, and open no browser"),
    Option(
        ["--report"], metavar="FILE", type=PlaceParam(),
        help=f"damage to show: {_REPORT}",
    ),
    *READING,
    *STORAGE,
    ENGINE,
)  # fmt: skip

COMMAND = Command(
    name="view",
    summary="browse a dataset in a browser",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio view s3://bucket/birds": "schema, records, images, statistics, versions; Ctrl-C ends it",
        "shardio view s3://bucket/birds --no-browser --port 8000": (
            "on a machine elsewhere, through `ssh -L 8000:127.0.0.1:8000`"
        ),
    },
)
